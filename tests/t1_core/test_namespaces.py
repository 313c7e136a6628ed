"""The catalogue's namespaces: belonging, renames and links between them, and what invalidation leaves."""

from __future__ import annotations

import errno
import stat
from contextlib import contextmanager

import pytest

from kvd.catalog.catalog import Catalog
from kvd.catalog.names import RENAME_EXCHANGE, RENAME_NOREPLACE
from kvd.catalog.namespaces import NAMESPACES_MAX
from kvd.catalog.records import Namespace
from kvd.catalog.schema import ROOT_INO

PAGE_BYTES = 65536


class Tree:
    """A catalogue with namespaces a and b (fingerprints differ), c (as a), and a plain directory d."""

    def __init__(self, catalog: Catalog) -> None:
        self.catalog = catalog
        self.names = catalog.names
        self.spaces = catalog.namespaces
        for name, text in (("a", '{"m":"1"}'), ("b", '{"m":"2"}'), ("c", '{"m":"1"}'), ("d", None)):
            ino = self.folder(ROOT_INO, name)
            setattr(self, name, ino)
            if text is not None:
                self.spaces.put(space(ino, text))

    def folder(self, parent: int, name: str) -> int:
        return self._make(parent, name, stat.S_IFDIR | 0o755)

    def file(self, parent: int, name: str | None) -> int:
        ino = self._make(parent, name, stat.S_IFREG | 0o644)
        self.catalog.placements.add(ino)
        return ino

    def _make(self, parent: int, name: str | None, mode: int) -> int:
        encoded = None if name is None else name.encode()
        return self.names.make(parent, encoded, mode=mode, uid=0, gid=0, now_ns=1).ino

    def refusal(self, old: tuple[int, bytes], new: tuple[int, bytes], flags: int = 0) -> str | None:
        """Do a rename as a handler does; return the errno's name or None."""
        try:
            self.spaces.check_rename(*old, *new, flags)
        except OSError as error:
            return errno.errorcode[error.errno]
        self.names.rename(*old, *new, flags, 2)
        return None


def space(ino: int, text: str = "", **more: str) -> Namespace:
    policies = {"admit": "all", "durability": "back", "on_fault": "eio", **more}
    return Namespace(ino=ino, fingerprint=text, created_ns=1, **policies)


@contextmanager
def opened(scratch):
    catalog = Catalog.open(scratch, page_bytes=PAGE_BYTES)
    try:
        yield catalog
    finally:
        catalog.close()


@pytest.fixture
def tree(scratch):
    with opened(scratch) as catalog:
        yield Tree(catalog)


def test_what_lies_below_belongs_to_it(tree) -> None:
    sub = tree.folder(tree.a, "sub")
    deep = tree.file(tree.folder(sub, "deeper"), "x")
    for ino in (tree.a, sub, deep):
        assert tree.spaces.of(ino).ino == tree.a
        assert tree.spaces.top(ino) == tree.a
    assert tree.spaces.of(tree.file(tree.d, "y")) is None
    assert tree.spaces.of(tree.file(ROOT_INO, "z")) is None
    assert tree.spaces.of(ROOT_INO) is None
    assert tree.spaces.relative(deep) == (tree.a, b"sub/deeper/x")
    assert tree.spaces.relative(sub, b"n") == (tree.a, b"sub/n")
    assert tree.spaces.relative(tree.d, b"n") == (ROOT_INO, b"/d/n")


def test_belonging_follows_a_directory_that_is_moved(tree) -> None:
    sub = tree.folder(tree.a, "sub")
    file = tree.file(sub, "x")
    assert tree.spaces.of(file).ino == tree.a
    assert tree.refusal((tree.a, b"sub"), (tree.c, b"sub")) is None  # the same fingerprint
    assert tree.spaces.of(file).ino == tree.c
    other = tree.folder(tree.a, "other")
    inner = tree.file(other, "i")
    assert tree.spaces.of(inner).ino == tree.a
    assert tree.refusal((tree.a, b"other"), (tree.c, b"sub"), RENAME_EXCHANGE) is None
    assert tree.spaces.of(inner).ino == tree.c
    assert tree.spaces.of(file).ino == tree.a


def test_content_does_not_get_under_another_fingerprint(tree) -> None:
    tree.file(tree.a, "x")
    tree.folder(tree.a, "sub")
    tree.file(tree.d, "y")
    tree.file(ROOT_INO, "z")
    for source in ((tree.a, b"x"), (tree.a, b"sub")):
        assert tree.refusal(source, (tree.b, b"n")) == "EXDEV"
        assert tree.refusal(source, (tree.d, b"n")) == "EXDEV"
        assert tree.refusal(source, (ROOT_INO, b"n")) == "EXDEV"
    for source in ((tree.d, b"y"), (ROOT_INO, b"z"), (ROOT_INO, b"d")):
        assert tree.refusal(source, (tree.a, b"n")) == "EXDEV"
    assert tree.refusal((tree.a, b"x"), (tree.d, b"y"), RENAME_EXCHANGE) == "EXDEV"
    assert tree.refusal((tree.a, b"x"), (tree.a, b"n")) is None
    assert tree.refusal((tree.a, b"n"), (tree.c, b"n")) is None
    assert tree.refusal((tree.d, b"y"), (ROOT_INO, b"y")) is None


def test_a_namespace_stays_in_the_root_and_is_not_replaced(tree) -> None:
    assert tree.refusal((ROOT_INO, b"a"), (tree.d, b"a")) == "EBUSY"
    assert tree.refusal((ROOT_INO, b"d"), (ROOT_INO, b"a")) == "EBUSY"
    tree.folder(tree.d, "sub")
    assert tree.refusal((tree.d, b"sub"), (ROOT_INO, b"a"), RENAME_EXCHANGE) == "EBUSY"
    assert tree.refusal((ROOT_INO, b"a"), (ROOT_INO, b"e")) is None
    assert tree.refusal((ROOT_INO, b"e"), (ROOT_INO, b"e")) is None
    assert tree.refusal((ROOT_INO, b"e"), (ROOT_INO, b"b"), RENAME_EXCHANGE) is None
    assert [(name, one.ino) for name, one in tree.spaces.all()] == [(b"b", tree.a), (b"c", tree.c), (b"e", tree.b)]
    with pytest.raises(FileExistsError):
        tree.refusal((ROOT_INO, b"d"), (ROOT_INO, b"b"), RENAME_NOREPLACE)


def test_links_keep_to_the_fingerprint_too(tree) -> None:
    names = tree.names
    named, unnamed = tree.file(tree.a, "x"), tree.file(tree.a, None)
    for parent in (tree.b, tree.d, ROOT_INO):
        for ino, born in ((named, 0), (unnamed, tree.a)):
            with pytest.raises(OSError, match="Invalid cross-device") as caught:
                tree.spaces.check_link(names.inode(ino), born, parent)
            assert caught.value.errno == errno.EXDEV
    for parent in (tree.a, tree.c):
        tree.spaces.check_link(names.inode(named), 0, parent)
        tree.spaces.check_link(names.inode(unnamed), tree.a, parent)


def test_an_unnamed_file_from_before_an_invalidation_gets_no_name(tree) -> None:
    sub = tree.folder(tree.a, "sub")
    old, deep = tree.file(tree.a, None), tree.file(sub, None)
    now, _ = tree.spaces.bury(tree.a, 5)
    new = tree.file(now, None)
    for _ in range(2):
        for ino, born in ((old, tree.a), (deep, sub)):
            with pytest.raises(FileNotFoundError):
                tree.spaces.check_link(tree.names.inode(ino), born, now)
        tree.spaces.check_link(tree.names.inode(new), now, now)
        while tree.spaces.graves:  # and once more when all is deleted
            if not tree.spaces.exhume(tree.a, 3):
                tree.spaces.close_grave(tree.a)


def test_a_removed_directory_takes_its_row_along(tree) -> None:
    removed = tree.names.rmdir(ROOT_INO, b"a", 3)
    tree.names.remove(removed.ino)
    assert [name for name, _ in tree.spaces.all()] == [b"b", b"c"]
    assert tree.catalog.db.scalar("SELECT count(*) FROM namespace") == 2


def test_namespaces_are_bounded(tree) -> None:
    with tree.catalog.db.transaction():
        for ino in range(NAMESPACES_MAX):
            tree.catalog.db.execute(
                "INSERT INTO namespace VALUES(?,'','all','back','eio',1,'file','raw','',0,0,0,0,0,'')", (ino + 1000,)
            )
    with pytest.raises(OSError, match="No space") as caught:
        tree.spaces.put(space(tree.d))
    assert caught.value.errno == errno.ENOSPC


def test_invalidation_is_one_transaction(tree, monkeypatch) -> None:
    file = tree.file(tree.a, "x")
    tree.folder(tree.a, "sub")

    def full(*_args) -> None:
        raise OSError(errno.ENOSPC, "catalogue")

    monkeypatch.setattr(tree.spaces, "_retire", full)
    for call in (lambda: tree.spaces.bury(tree.a, 5, '{"m":"9"}'), lambda: tree.spaces.remove_whole(b"a", tree.a, 5)):
        with pytest.raises(OSError, match="catalogue"):
            call()
        assert [entry.name for entry in tree.names.listing(tree.a)] == [b"x", b"sub"]
        assert tree.names.inode(tree.a).nlink == 3
        assert tree.names.lookup(ROOT_INO, b"a").ino == tree.a
        assert tree.spaces.of(file).fingerprint == '{"m":"1"}'
        assert not tree.spaces.is_dead(file)
        assert tree.spaces.graves == ()


def fill(tree) -> list[int]:
    inos = [tree.file(tree.a, f"f{number}") for number in range(7)]
    sub = tree.folder(tree.folder(tree.a, "sub"), "deeper")
    tree.folder(tree.a, "empty")
    return [*inos, *(tree.file(sub, f"g{number}") for number in range(5))]


def test_nothing_old_is_found_after_an_invalidation(tree) -> None:
    inos = fill(tree)
    sub = tree.names.lookup(tree.a, b"sub").ino
    elsewhere = tree.names.link(inos[0], tree.c, b"kept", 4)
    tree.names.set_xattr(tree.a, b"user.mine", b"x", 4)
    grave = tree.a
    new, moved = tree.spaces.bury(tree.a, 5)
    assert moved == 9
    assert tree.names.lookup(ROOT_INO, b"a").ino == new
    assert tree.names.listing(new) == []
    assert tree.names.inode(new).nlink == 2
    assert tree.names.inode(new).mode == tree.names.inode(grave).mode
    assert tree.names.xattr(new, b"user.mine") == b"x"
    assert tree.spaces.get(new).fingerprint == '{"m":"1"}'
    assert tree.spaces.get(grave) is None
    assert tree.spaces.graves == (grave,)
    for ino in (grave, sub, inos[-1]):
        assert tree.spaces.is_dead(ino)
    assert not tree.spaces.is_dead(new)
    assert tree.names.path(sub) is None
    assert grave not in tree.names.orphans()
    for folder in (grave, sub):
        with pytest.raises(FileNotFoundError):
            tree.spaces.refuse_dead(folder)
    tree.spaces.refuse_dead(new)
    assert tree.names.lookup(tree.c, b"kept").ino == elsewhere.ino == inos[0]


@pytest.mark.parametrize("crash_after", [0, 1, 3, 100])
def test_a_grave_is_emptied_also_over_a_crash(scratch, crash_after) -> None:
    with opened(scratch) as catalog:
        tree = Tree(catalog)
        inos = fill(tree)
        kept = tree.names.link(inos[0], tree.c, b"kept", 4).ino
        grave, (new, _) = tree.a, tree.spaces.bury(tree.a, 5)
        exhumed = [each for _ in range(crash_after) for each in tree.spaces.exhume(grave, 3)]
        assert all(each.parent == grave for each in exhumed if each.name.startswith(b"f"))
        if crash_after > 50:
            assert tree.spaces.exhume(grave, 3) == []
    with opened(scratch) as catalog:
        assert catalog.namespaces.graves == (grave,)
        while catalog.namespaces.exhume(grave, 3):
            pass
        catalog.namespaces.close_grave(grave)
        assert catalog.namespaces.graves == ()
        assert catalog.names.inode(kept).nlink == 1
        unnamed = set(catalog.names.orphans())
        assert unnamed >= set(inos[1:])
        assert kept not in unnamed
        assert grave in unnamed
        assert catalog.names.lookup(ROOT_INO, b"a").ino == new
        assert catalog.db.scalar("SELECT count(*) FROM dentry WHERE parent NOT IN (SELECT ino FROM inode)") == 0
    with opened(scratch) as catalog:
        assert catalog.namespaces.graves == ()


def test_a_file_without_names_is_an_orphan(tree) -> None:
    ino = tree.file(tree.a, "x")
    tree.names.link(ino, tree.c, b"y", 4)
    assert sorted(tree.spaces.unname(ino, 5)) == sorted([(tree.a, b"x"), (tree.c, b"y")])
    assert tree.names.orphans() == [ino]
    assert tree.names.listing(tree.a) == []
    assert tree.names.inode(tree.c).mtime_ns == 5
