"""Chains of objects, and what copies are charged to: what follows when names change."""

import errno
import random
import stat
from itertools import pairwise

import pytest

from kvd.catalog import chains, charges
from kvd.catalog.catalog import Catalog
from kvd.catalog.names import RENAME_EXCHANGE
from kvd.catalog.records import Copy, Namespace
from kvd.catalog.schema import ROOT_INO

PAGE_BYTES = 65536
BLOCKS = 18
"""Of a copy of 70,000 bytes."""
DIR, FILE = stat.S_IFDIR | 0o755, stat.S_IFREG | 0o644


@pytest.fixture
def catalog(tmp_path):
    opened = Catalog.open(tmp_path, page_bytes=PAGE_BYTES)
    yield opened
    opened.close()


def folder(catalog, parent, name, *, space=False):
    ino = catalog.names.make(parent, name, mode=DIR, uid=1, gid=2, now_ns=7).ino
    if space:
        catalog.namespaces.put(Namespace(ino, "", "all", "back", "eio", 1))
    return ino


def store(catalog, parent, name):
    ino = catalog.names.make(parent, name, mode=FILE, uid=1, gid=2, now_ns=7).ino
    catalog.placements.add(ino)
    copy = Copy(ino=ino, gen=1, dirs=(0,), size=70000, mtime_ns=5, current=True, runs=((0, 2),))
    catalog.placements.put_copy(copy, bytes(8))
    return ino


def refused(code, call, *args):
    with pytest.raises(OSError, match=f"Errno {code}\\]"):
        call(*args)


# -- chains -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def blocks(catalog):
    """A namespace with ten blocks, each after the one before."""
    space = folder(catalog, ROOT_INO, b"ns", space=True)
    found = [store(catalog, space, b"%d" % number) for number in range(10)]
    for before, ino in pairwise(found):
        catalog.chains.put(ino, before)
    return found


def test_a_chain_is_told_from_its_first_object(catalog, blocks):
    known = catalog.chains
    assert known.chain(blocks[7]) == blocks[:8]
    assert known.chain(blocks[0]) == blocks[:1]
    assert known.chain(blocks[9], limit=3) == blocks[7:]
    assert (known.parent(blocks[3]), known.parent(blocks[0])) == (blocks[2], None)
    assert known.children(blocks[3]) == [blocks[4]]
    assert known.children(blocks[9]) == []
    assert known.count() == 9


def test_many_children_come_in_batches(catalog, blocks):
    space = catalog.names.parent(blocks[0])
    forks = [store(catalog, space, b"fork%d" % number) for number in range(7)]
    for fork in forks:
        catalog.chains.put(fork, blocks[9])
    first = catalog.chains.children(blocks[9], limit=4)
    assert first + catalog.chains.children(blocks[9], first[-1], limit=4) == forks


def test_nothing_comes_after_itself(catalog, blocks):
    refused(errno.ELOOP, catalog.chains.put, blocks[4], blocks[4])
    refused(errno.ELOOP, catalog.chains.put, blocks[0], blocks[9])
    refused(errno.ELOOP, catalog.chains.put, blocks[2], blocks[3])
    assert catalog.chains.chain(blocks[9]) == blocks
    catalog.chains.put(blocks[4], blocks[1])  # a shorter way, with all that comes after it
    assert catalog.chains.chain(blocks[9]) == [*blocks[:2], *blocks[4:]]


def test_a_chain_that_is_too_long_to_be_looked_at_takes_no_other_one(catalog, blocks, monkeypatch):
    monkeypatch.setattr(chains, "CHAIN_MAX", 5)
    monkeypatch.setattr(chains.Chains.chain, "__defaults__", (5,))
    space = catalog.names.parent(blocks[0])
    head, tail = store(catalog, space, b"head"), store(catalog, space, b"tail")
    catalog.chains.put(tail, head)
    refused(errno.EMLINK, catalog.chains.put, head, blocks[9])
    catalog.chains.put(store(catalog, space, b"leaf"), blocks[9])  # who has nothing after it closes no circle
    catalog.chains.put(head, blocks[2])
    assert catalog.chains.chain(tail) == [*blocks[:3], head, tail]


def test_a_parent_that_is_gone_ends_the_chain_there(catalog, blocks):
    catalog.names.vanish(blocks[4], 9)
    assert catalog.chains.parent(blocks[5]) is None
    assert catalog.chains.chain(blocks[9]) == blocks[5:]
    assert catalog.chains.chain(blocks[3]) == blocks[:4]
    catalog.chains.drop(blocks[7])
    assert catalog.chains.chain(blocks[9]) == blocks[7:]


def test_what_is_stored_anew_takes_its_place_in_the_chain(catalog, blocks):
    space = catalog.names.parent(blocks[0])
    anew = store(catalog, space, b".draft")
    catalog.charges.rename(space, b".draft", space, b"4", 0, 9)
    assert catalog.chains.chain(blocks[9]) == [*blocks[:4], anew, *blocks[5:]]
    catalog.names.remove(blocks[4])
    assert catalog.chains.chain(blocks[9]) == [*blocks[:4], anew, *blocks[5:]]
    other = store(catalog, space, b".draft")
    catalog.chains.put(other, blocks[3])  # said what it was
    catalog.charges.rename(space, b".draft", space, b"4", 0, 9)
    assert catalog.chains.chain(blocks[9]) == [*blocks[:4], other, *blocks[5:]]


@pytest.mark.parametrize(("old", "new"), [(4, 9), (9, 4), (3, 4), (4, 3), (0, 9), (9, 0), (5, 5)])
def test_no_rename_closes_a_circle(catalog, blocks, old, new):
    space = catalog.names.parent(blocks[0])
    catalog.charges.rename(space, b"%d" % new, space, b"%d" % old, 0, 9)
    if old != new:
        catalog.names.remove(blocks[old])
    for ino in blocks:
        found = catalog.chains.chain(ino)
        assert len(set(found)) == len(found) <= 10


def test_random_chains_have_no_circles(catalog):
    rng = random.Random(3)
    space = folder(catalog, ROOT_INO, b"ns", space=True)
    inos = [store(catalog, space, b"%d" % number) for number in range(12)]
    closed = 0
    for _ in range(400):
        ino, parent = rng.choice(inos), rng.choice(inos)
        below = ino in catalog.chains.chain(parent)
        if below:
            refused(errno.ELOOP, catalog.chains.put, ino, parent)
            closed += 1
        else:
            catalog.chains.put(ino, parent)
        assert all(len(set(found)) == len(found) for found in map(catalog.chains.chain, inos))
    assert closed > 20


def test_how_a_client_names_a_parent(catalog, blocks):
    space = catalog.names.parent(blocks[0])
    inner = folder(catalog, space, b"chat")
    first, second = store(catalog, inner, b"a"), store(catalog, inner, b"b")
    find = catalog.chains.find
    assert find(second, b"a") == find(second, b"chat/a") == find(second, b"/ns/chat/a") == first
    assert find(blocks[0], b"chat/a") == first
    assert find(second, b"/ns/3") == blocks[3]
    for value in (b"3", b"x", b"chat/x", b"/ns/x", b"../3", b"chat/../3", b"/chat/a"):
        refused(errno.ENOENT, find, second, value)
    for value in (b"", b"a\0", b"/ns/chat", b"/", b"."):
        refused(errno.EINVAL, find, second, value)
    refused(errno.ENAMETOOLONG, find, second, b"x" * 256)
    catalog.chains.put(second, first)
    assert catalog.chains.tell(second) == b"a"
    catalog.chains.put(second, blocks[3])
    assert catalog.chains.tell(second) == b"/ns/3"
    assert catalog.chains.tell(first) is None


def test_a_parent_is_of_the_same_namespace(catalog, blocks):
    other = store(catalog, folder(catalog, ROOT_INO, b"other", space=True), b"x")
    plain, more = store(catalog, ROOT_INO, b"plain"), store(catalog, folder(catalog, ROOT_INO, b"dir"), b"more")
    refused(errno.EXDEV, catalog.chains.put, other, blocks[0])
    refused(errno.EXDEV, catalog.chains.put, plain, blocks[0])
    refused(errno.EXDEV, catalog.chains.put, blocks[0], more)
    catalog.chains.put(plain, more)
    assert catalog.chains.chain(plain) == [more, plain]


# -- charges ----------------------------------------------------------------------------------------------------------


class Tops:
    """Two namespaces and a plain directory; what is told of objects that moved."""

    def __init__(self, catalog):
        self.catalog = catalog
        self.one, self.two = (folder(catalog, ROOT_INO, name, space=True) for name in (b"one", b"two"))
        self.plain = folder(catalog, ROOT_INO, b"plain")
        self.moved = []
        catalog.charges.moved = self.moved.append

    def used(self):
        """Blocks below both namespaces and in neither, as the triggers have them and as they are."""
        charges_ = self.catalog.charges
        found = [charges_.used_blocks(self.one), charges_.used_blocks(self.two)]
        every = self.catalog.db.scalar("SELECT coalesce(sum(blocks), 0) FROM top_use")
        assert every == self.catalog.db.scalar("SELECT coalesce(sum(blocks), 0) FROM copy")
        counted = [0, 0]
        for (ino,) in self.catalog.db.execute("SELECT ino FROM copy").fetchall():
            top = self.catalog.namespaces.top(ino)
            if top in (self.one, self.two):
                counted[top == self.two] += BLOCKS
        assert found == counted
        return found[0] // BLOCKS, found[1] // BLOCKS, every // BLOCKS - sum(found) // BLOCKS


@pytest.fixture
def tops(catalog):
    return Tops(catalog)


def test_copies_are_charged_where_they_are(catalog, tops):
    inner = folder(catalog, tops.one, b"inner")
    inos = [store(catalog, parent, b"f") for parent in (ROOT_INO, tops.one, inner, tops.two, tops.plain)]
    assert tops.used() == (2, 1, 2)
    catalog.placements.drop_copy(inos[2])
    catalog.names.vanish(inos[3], 9)
    assert tops.used() == (1, 0, 2)
    assert catalog.db.scalar("SELECT count(*) FROM top_use WHERE copies=0") == 0
    catalog.placements.put_copy(replaced := catalog.placements.copy(inos[1]), bytes(8))
    assert replaced is not None
    assert tops.used() == (1, 0, 2)


def test_a_file_that_moves_is_charged_there(catalog, tops):
    ino = store(catalog, tops.one, b"f")
    rename = catalog.charges.rename
    rename(tops.one, b"f", tops.one, b"g", 0, 9)
    assert (tops.used(), tops.moved) == ((1, 0, 0), [])
    rename(tops.one, b"g", tops.two, b"g", 0, 9)
    assert (tops.used(), tops.moved) == ((0, 1, 0), [ino])
    rename(tops.two, b"g", ROOT_INO, b"g", 0, 9)
    assert tops.used() == (0, 0, 1)
    rename(ROOT_INO, b"g", tops.one, b"g", 0, 9)
    assert tops.used() == (1, 0, 0)
    other = store(catalog, tops.two, b"h")
    rename(tops.one, b"g", tops.two, b"h", RENAME_EXCHANGE, 9)
    assert (tops.used(), tops.moved[-2:]) == ((1, 1, 0), [ino, other])


def test_a_directory_moves_with_all_in_it(catalog, tops):
    top = folder(catalog, ROOT_INO, b"dir")
    inner = folder(catalog, top, b"inner")
    inos = [store(catalog, inner, b"%d" % number) for number in range(5)]
    assert tops.used() == (0, 0, 5)
    catalog.charges.rename(ROOT_INO, b"dir", tops.one, b"dir", 0, 9)
    assert tops.used() == (5, 0, 0)
    assert set(tops.moved) >= set(inos)
    catalog.charges.rename(top, b"inner", tops.two, b"inner", 0, 9)
    assert tops.used() == (0, 5, 0)
    catalog.charges.rename(tops.two, b"inner", ROOT_INO, b"inner", 0, 9)
    assert tops.used() == (0, 0, 5)


def test_a_directory_with_very_many_names_does_not_move_between_namespaces(catalog, tops, monkeypatch):
    monkeypatch.setattr(charges, "MOVED_MAX", 5)
    inner = folder(catalog, tops.one, b"inner")
    for number in range(6):
        store(catalog, inner, b"%d" % number)
    refused(errno.EXDEV, catalog.charges.rename, tops.one, b"inner", tops.two, b"inner", 0, 9)
    refused(errno.EXDEV, catalog.charges.rename, tops.one, b"inner", ROOT_INO, b"inner", 0, 9)
    assert tops.used() == (6, 0, 0)
    deep = folder(catalog, tops.one, b"deep")
    catalog.charges.rename(tops.one, b"inner", deep, b"inner", 0, 9)  # within one it does
    catalog.names.vanish(catalog.names.lookup(inner, b"0").ino, 9)
    catalog.charges.rename(deep, b"inner", tops.two, b"inner", 0, 9)
    assert tops.used() == (0, 5, 0)


def test_what_has_names_in_several_places_is_charged_where_it_is_still(catalog, tops):
    ino = store(catalog, tops.one, b"f")
    catalog.charges.link(ino, tops.two, b"f", 9)
    assert (tops.used()[2], tops.moved) == (0, [])
    catalog.charges.unlink(tops.one, b"f", 9)
    assert (tops.used(), tops.moved) == ((0, 1, 0), [ino])
    catalog.charges.unlink(tops.two, b"f", 9)
    catalog.names.remove(ino)
    assert tops.used() == (0, 0, 0)


def test_what_had_no_name_is_charged_where_it_gets_one(catalog, tops):
    ino = store(catalog, tops.one, None)
    assert tops.used() == (0, 0, 1)
    catalog.charges.link(ino, tops.one, b"f", 9)
    assert (tops.used(), tops.moved) == ((1, 0, 0), [ino])


def test_invalidated_content_is_charged_to_nobody(catalog, tops):
    store(catalog, tops.one, b"f")
    new, _ = catalog.namespaces.bury(tops.one, 9)
    tops.one = new
    assert tops.used() == (0, 0, 1)
    store(catalog, new, b"f")
    assert tops.used() == (1, 0, 1)


def test_a_rename_that_fails_changes_nothing(catalog, tops, monkeypatch):
    store(catalog, tops.one, b"f")
    inner = folder(catalog, tops.one, b"inner")
    store(catalog, inner, b"g")

    def fail(*_args):
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(
        catalog.charges, "_recharge", lambda inos: [catalog.namespaces.top(ino) for ino in inos] and fail()
    )
    for name in (b"f", b"inner"):
        refused(errno.ENOSPC, catalog.charges.rename, tops.one, name, tops.two, name, 0, 9)
    monkeypatch.undo()
    assert tops.used() == (2, 0, 0)
    assert catalog.namespaces.top(inner) == tops.one


def test_a_directory_that_becomes_a_namespace_is_counted(catalog, tops):
    inner = folder(catalog, ROOT_INO, b"dir")
    store(catalog, inner, b"f")
    catalog.charges.rename(ROOT_INO, b"dir", tops.plain, b"dir", 0, 9)  # charged to where it was: nobody's either way
    catalog.namespaces.put(Namespace(tops.plain, "", "all", "back", "eio", 1))
    catalog.charges.recount()
    assert catalog.charges.used_blocks(tops.plain) == BLOCKS
    assert tops.used() == (0, 0, 1)
