"""Who keeps a copy of the catalogue hears of every change before it, and of its end."""

import errno
from contextlib import suppress

import pytest

from kvd.catalog.catalog import Catalog
from kvd.catalog.records import Copy
from kvd.catalog.schema import ROOT_INO
from kvd.catalog.told import Telling


class Recorder:
    """Notes what it is told, and at each settling what has changed that it was not told of."""

    def __init__(self, catalog):
        self.catalog, self.telling = catalog, Telling(catalog.db)
        self.inodes, self.names, self.vanished = set(), set(), []
        self.settled = 0
        self.before = self.look()

    def look(self):
        db = self.catalog.db
        told = {("inode", ino): self.telling.inode(ino) for (ino,) in db.execute("SELECT ino FROM inode").fetchall()}
        for parent, name, *entry in db.execute("SELECT parent, name, id, ino FROM dentry").fetchall():
            told["name", parent, name] = entry
        return told

    def inode_changing(self, ino):
        self.inodes.add(ino)

    def name_changing(self, parent, name):
        self.names.add((parent, name))

    def name_vanishing(self, parent, name):
        self.vanished.append((parent, name))

    def settle(self):
        self.settled += 1

    def check(self):
        """Fail if anything is other than at the last check that was not announced, but for new inodes."""
        now = self.look()
        for key in now.keys() | self.before.keys():
            if now.get(key) != self.before.get(key) and (key[0] == "name" or key in self.before):
                assert key[1] in self.inodes if key[0] == "inode" else key[1:] in self.names, key
        self.before = now
        self.inodes.clear()
        self.names.clear()


@pytest.fixture
def watched(scratch):
    catalog = Catalog.open(scratch, page_bytes=65536)
    recorder = Recorder(catalog)
    catalog.db.watch(recorder)
    yield catalog, recorder
    catalog.close()


def make(catalog, name, parent=ROOT_INO, mode=0o100644):
    ino = catalog.names.make(parent, name, mode=mode, uid=1, gid=2, now_ns=3).ino
    if mode >> 12 == 0o10:
        catalog.placements.add(ino)
    return ino


def copy(ino, size=100_000):
    return Copy(ino=ino, gen=1, dirs=(0,), size=size, mtime_ns=5, current=True, runs=((0, 2),))


def test_no_change_goes_unsaid(watched):
    catalog, recorder = watched
    names, placements = catalog.names, catalog.placements
    a, b, folder = make(catalog, b"a"), make(catalog, b"b"), make(catalog, b"d", mode=0o40755)
    other = make(catalog, b"e", mode=0o40755)
    recorder.check()
    steps = [
        lambda: names.setattr(a, mode=0o100600, size=7, atime_ns=9),
        lambda: names.link(a, folder, b"link", 10),
        lambda: names.rename(ROOT_INO, b"a", folder, b"moved", 0, 11),
        lambda: names.rename(folder, b"moved", ROOT_INO, b"b", 2, 12),
        lambda: names.rename(ROOT_INO, b"b", folder, b"moved", 0, 13),
        lambda: names.rename(ROOT_INO, b"e", folder, b"e", 0, 14),
        lambda: names.set_xattr(a, b"user.x", b"y", 15),
        lambda: names.remove_xattr(a, b"user.x", 16),
        lambda: placements.seal(a, 1, changed=True),
        lambda: placements.fill(a),
        lambda: placements.put_copy(copy(a), b"\0" * 8),
        lambda: placements.put_copy(copy(a, size=70_000), b"\0" * 8),
        lambda: placements.revert(a, 3),
        lambda: placements.drop_copy(a),
        lambda: names.unlink(folder, b"link", 17),
        lambda: names.rmdir(folder, b"e", 18),
        lambda: names.remove(other),
        lambda: names.vanish(a, 19),
        lambda: names.make(folder, b"new", mode=0o10644, uid=0, gid=0, now_ns=20),
    ]
    for number, step in enumerate(steps):
        settled = recorder.settled
        step()
        assert recorder.settled == settled + 1, number
        recorder.check()
    assert b not in [key[1] for key in recorder.before if key[0] == "name"]


def test_it_is_settled_once_when_the_outermost_transaction_ends(watched):
    catalog, recorder = watched
    with catalog.db.transaction():
        ino = make(catalog, b"a")
        catalog.names.setattr(ino, size=5)
        assert recorder.settled == 0
    assert recorder.settled == 1
    with suppress(OSError), catalog.db.transaction():
        catalog.names.setattr(ino, size=6)
        raise OSError(errno.EIO, "stop")
    assert recorder.settled == 2
    assert catalog.names.inode(ino).size == 5


def test_a_name_that_vanishes_is_named_and_one_that_is_removed_is_not(watched):
    catalog, recorder = watched
    make(catalog, b"a")
    ino = make(catalog, b"b")
    catalog.names.unlink(ROOT_INO, b"a", 5)
    assert recorder.vanished == []
    catalog.names.vanish(ino, 6)
    assert recorder.vanished == [(ROOT_INO, b"b")]


def test_nothing_is_said_any_more(watched):
    catalog, recorder = watched
    catalog.db.watch(None)
    make(catalog, b"a")
    assert (recorder.settled, recorder.names) == (0, set())


def test_batches_are_what_the_listing_is(scratch):
    catalog = Catalog.open(scratch, page_bytes=65536)
    inos = {b"%d" % index: make(catalog, b"%d" % index) for index in range(600)}
    read = [line for batch in Telling(catalog.db).batches(ROOT_INO) for line in batch]
    listing = catalog.names.listing(ROOT_INO)
    assert [(cookie, name, told.ino) for cookie, name, told in read] == [
        (e.cookie, e.name, e.inode.ino) for e in listing
    ]
    assert len(read) == len(inos)
    catalog.close()
