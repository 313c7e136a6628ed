"""The catalogue: names as ext4 would have them, placements, crash consistency."""

import errno
import os
import resource
import sqlite3
import stat
import subprocess
import sys

import pytest

from kvd.catalog.catalog import Catalog
from kvd.catalog.database import FILE_NAME
from kvd.catalog.names import BATCH, RENAME_EXCHANGE, RENAME_NOREPLACE
from kvd.catalog.records import Copy
from kvd.catalog.schema import ROOT_INO, SCHEMA_VERSION
from kvd.errors import CatalogError

PAGE_BYTES = 65536
DIR = stat.S_IFDIR | 0o755
FILE = stat.S_IFREG | 0o644


@pytest.fixture
def catalog(tmp_path):
    opened = Catalog.open(tmp_path, page_bytes=PAGE_BYTES)
    yield opened
    opened.close()


def make(catalog, parent, name, mode=FILE, **more):
    return catalog.names.make(parent, name, mode=mode, uid=1, gid=2, now_ns=7, **more)


def refused(code, call, *args, **more):
    with pytest.raises(OSError, match=f"Errno {code}\\]"):
        call(*args, **more)


def test_root_is_a_sticky_directory_for_everybody(catalog):
    root = catalog.names.inode(ROOT_INO)
    assert root.is_dir
    assert stat.S_IMODE(root.mode) == 0o1777
    assert root.nlink == 2


def test_names_links_and_counts(catalog):
    folder = make(catalog, ROOT_INO, b"d", DIR)
    assert catalog.names.inode(ROOT_INO).nlink == 3
    file = make(catalog, folder.ino, b"f")
    other = catalog.names.link(file.ino, ROOT_INO, b"g", 8)
    assert other.nlink == 2
    assert catalog.names.path(file.ino) in (b"/d/f", b"/g")
    assert catalog.names.unlink(folder.ino, b"f", 9).nlink == 1
    assert catalog.names.unlink(ROOT_INO, b"g", 9).nlink == 0
    assert catalog.names.orphans() == [file.ino]
    refused(errno.ENOENT, catalog.names.unlink, ROOT_INO, b"g", 9)


def test_setgid_directories_give_their_group(catalog):
    folder = catalog.names.make(ROOT_INO, b"d", mode=DIR | stat.S_ISGID, uid=1, gid=77, now_ns=0)
    assert make(catalog, folder.ino, b"f").gid == 77
    inner = make(catalog, folder.ino, b"e", DIR)
    assert inner.gid == 77
    assert inner.mode & stat.S_ISGID


@pytest.mark.parametrize(
    ("code", "name"), [(errno.EEXIST, b"there"), (errno.ENAMETOOLONG, b"x" * 256), (errno.EEXIST, b"\xff\xfe")]
)
def test_names_that_cannot_be_made(catalog, code, name):
    make(catalog, ROOT_INO, b"there")
    make(catalog, ROOT_INO, b"\xff\xfe")
    refused(code, make, catalog, ROOT_INO, name)


def test_removing_directories(catalog):
    folder = make(catalog, ROOT_INO, b"d", DIR)
    make(catalog, folder.ino, b"f")
    refused(errno.ENOTEMPTY, catalog.names.rmdir, ROOT_INO, b"d", 9)
    refused(errno.EISDIR, catalog.names.unlink, ROOT_INO, b"d", 9)
    refused(errno.ENOTDIR, catalog.names.rmdir, folder.ino, b"f", 9)
    catalog.names.unlink(folder.ino, b"f", 9)
    assert catalog.names.rmdir(ROOT_INO, b"d", 9).nlink == 0
    assert catalog.names.inode(ROOT_INO).nlink == 2
    refused(errno.ENOENT, make, catalog, folder.ino, b"late")


def test_rename_replaces_and_refuses(catalog):
    names = catalog.names
    one, two = make(catalog, ROOT_INO, b"one"), make(catalog, ROOT_INO, b"two")
    folder = make(catalog, ROOT_INO, b"d", DIR)
    full = make(catalog, ROOT_INO, b"full", DIR)
    inner = make(catalog, full.ino, b"inner", DIR)
    refused(errno.EEXIST, names.rename, ROOT_INO, b"one", ROOT_INO, b"two", RENAME_NOREPLACE, 9)
    refused(errno.ENOTEMPTY, names.rename, ROOT_INO, b"d", ROOT_INO, b"full", 0, 9)
    refused(errno.EISDIR, names.rename, ROOT_INO, b"one", ROOT_INO, b"d", 0, 9)
    refused(errno.ENOTDIR, names.rename, ROOT_INO, b"d", ROOT_INO, b"one", 0, 9)
    refused(errno.EINVAL, names.rename, ROOT_INO, b"full", inner.ino, b"loop", 0, 9)
    refused(errno.EINVAL, names.rename, ROOT_INO, b"one", ROOT_INO, b"x", 4, 9)
    refused(errno.ENOENT, names.rename, ROOT_INO, b"none", ROOT_INO, b"x", 0, 9)
    lost = names.rename(ROOT_INO, b"one", ROOT_INO, b"two", 0, 9)
    assert lost is not None
    assert (lost.ino, lost.nlink) == (two.ino, 0)
    assert names.lookup(ROOT_INO, b"two").ino == one.ino
    assert names.rename(ROOT_INO, b"d", full.ino, b"d", 0, 9) is None
    assert names.inode(full.ino).nlink == 4
    assert names.parent(folder.ino) == full.ino
    names.link(one.ino, ROOT_INO, b"same", 9)
    assert names.rename(ROOT_INO, b"two", ROOT_INO, b"same", 0, 9) is None
    assert names.lookup(ROOT_INO, b"two").ino == one.ino, "rename between two links of a file does nothing (POSIX)"


def test_exchange_keeps_link_counts(catalog):
    names = catalog.names
    left, right = make(catalog, ROOT_INO, b"l", DIR), make(catalog, ROOT_INO, b"r", DIR)
    folder, file = make(catalog, left.ino, b"x", DIR), make(catalog, right.ino, b"y")
    assert names.rename(left.ino, b"x", right.ino, b"y", RENAME_EXCHANGE, 9) is None
    assert names.lookup(left.ino, b"x").ino == file.ino
    assert names.lookup(right.ino, b"y").ino == folder.ino
    assert (names.inode(left.ino).nlink, names.inode(right.ino).nlink) == (2, 3)


def test_listing_cookies_survive_changes(catalog):
    for index in range(10):
        make(catalog, ROOT_INO, b"%02d" % index)
    first = catalog.names.listing(ROOT_INO, limit=4)
    for index in range(6):
        catalog.names.unlink(ROOT_INO, b"%02d" % index, 9)
    make(catalog, ROOT_INO, b"late")
    rest = catalog.names.listing(ROOT_INO, after=first[-1].cookie)
    assert [entry.name for entry in rest] == [b"06", b"07", b"08", b"09", b"late"]


def test_a_large_directory_is_read_in_batches(catalog):
    folder = make(catalog, ROOT_INO, b"d", DIR)
    made = [make(catalog, folder.ino, b"%03d" % index).ino for index in range(2 * BATCH + 10)]
    batches = catalog.names.batches(folder.ino)
    found = next(batches)
    for name in (b"late", b"later"):
        make(catalog, folder.ino, name)
    catalog.names.unlink(folder.ino, b"%03d" % BATCH, 9)
    rest = list(batches)
    assert [len(batch) for batch in (found, *rest)] == [BATCH, BATCH, 9]
    inos = [entry.inode.ino for batch in (found, *rest) for entry in batch]
    assert inos == [*made[:BATCH], *made[BATCH + 1 :]]
    files = [inode for batch in catalog.names.walk(ROOT_INO) for inode in batch]
    assert len(files) == len(made) + 1
    assert [[inode.ino for inode in batch] for batch in catalog.names.walk(made[0])] == [[made[0]]]


def test_a_hundred_levels(catalog):
    parent = ROOT_INO
    for _ in range(100):
        parent = make(catalog, parent, b"deep", DIR).ino
    path = catalog.names.path(parent)
    assert path == b"/deep" * 100
    assert catalog.names.resolve(path).ino == parent


def test_xattrs(catalog):
    ino = make(catalog, ROOT_INO, b"f").ino
    catalog.names.set_xattr(ino, b"user.a", b"\x00\xff", 9)
    assert catalog.names.xattr(ino, b"user.a") == b"\x00\xff"
    assert catalog.names.xattrs(ino) == [b"user.a"]
    catalog.names.remove_xattr(ino, b"user.a", 9)
    refused(errno.ENODATA, catalog.names.xattr, ino, b"user.a")
    refused(errno.ENODATA, catalog.names.remove_xattr, ino, b"user.a", 9)


def test_xattrs_of_an_inode_are_bounded(catalog):
    ino, other = make(catalog, ROOT_INO, b"f").ino, make(catalog, ROOT_INO, b"g").ino
    value = bytes(64 << 10)
    for number in range(16):
        catalog.names.set_xattr(ino, b"user.%d" % number, value, 9)
    refused(errno.ENOSPC, catalog.names.set_xattr, ino, b"user.more", b"x", 9)
    catalog.names.set_xattr(ino, b"user.0", value, 9)  # what is replaced does not count twice
    catalog.names.set_xattr(ino, b"user.0", b"", 9)
    catalog.names.set_xattr(ino, b"user.more", b"x", 9)
    for number in range(256):
        catalog.names.set_xattr(other, b"user.%s%03d" % (b"n" * 247, number), b"", 9)
    refused(errno.ENOSPC, catalog.names.set_xattr, other, b"user.x", b"", 9)
    assert sum(len(name) + 1 for name in catalog.names.xattrs(other)) == 64 << 10
    assert b"user.x" not in catalog.names.xattrs(other)


def test_a_copy_comes_back_as_it_was_put(catalog):
    ino = make(catalog, ROOT_INO, b"f").ino
    catalog.placements.add(ino)
    runs = ((0, 2), (1 << 40, 1))
    copy = Copy(ino=ino, gen=3, dirs=(1, 0), stripe_bytes=1 << 24, size=1 << 40, mtime_ns=5, current=True, runs=runs)
    catalog.placements.put_copy(copy, b"abcdefghijkl")
    assert catalog.placements.copy(ino) == copy
    assert catalog.placements.sums(ino) == b"abcdefghijkl"
    catalog.placements.fill(ino)
    assert not catalog.placements.copy(ino).current
    assert not catalog.placements.get(ino).sealed


def test_transactions_are_all_or_nothing(catalog):
    def half_done():
        with catalog.db.transaction():
            make(catalog, ROOT_INO, b"f")
            raise KeyError

    with pytest.raises(KeyError):
        half_done()
    assert catalog.names.lookup(ROOT_INO, b"f") is None


@pytest.fixture
def full_disk():
    """A function that lets files grow no more, or again."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda full: resource.setrlimit(resource.RLIMIT_FSIZE, (4096 if full else soft, hard))
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_commit_that_fails_is_undone_and_does_not_swallow_the_next(catalog, full_disk):
    before = make(catalog, ROOT_INO, b"before")
    full_disk(True)
    refused(errno.EIO, make, catalog, ROOT_INO, b"during")
    refused(errno.EIO, catalog.placements.add, before.ino)
    full_disk(False)
    assert catalog.names.lookup(ROOT_INO, b"during") is None
    make(catalog, ROOT_INO, b"after")
    catalog.close()
    again = Catalog.open(catalog.db.path.parent, page_bytes=PAGE_BYTES)
    assert {entry.name for entry in again.names.listing(ROOT_INO)} == {b"before", b"after"}
    again.close()


def test_a_full_disk_is_enospc_and_undoes_the_operation(catalog):
    pages = catalog.db.scalar("PRAGMA page_count")
    catalog.db.execute(f"PRAGMA max_page_count={pages + 2}")
    made = 0
    with pytest.raises(OSError, match="full") as info:  # noqa: PT012 (the one that fails is the last of many)
        while made < 10_000:
            make(catalog, ROOT_INO, b"%0200d" % made)
            made += 1
    assert info.value.errno == errno.ENOSPC
    assert len(catalog.names.listing(ROOT_INO)) == made
    catalog.names.unlink(ROOT_INO, b"%0200d" % 0, 9)


def test_faults_are_bounded(catalog, monkeypatch):
    monkeypatch.setattr("kvd.catalog.placements.FAULTS_MAX", 5)
    for page in range(12):
        catalog.placements.note_fault(1, b"/f", page, "bad")
    assert [row.page for row in catalog.placements.faults(100)] == [11, 10, 9, 8, 7]


def test_what_was_committed_survives_a_killed_process(tmp_path):
    program = (
        "import os, sys; from pathlib import Path; from kvd.catalog.catalog import Catalog\n"
        "c = Catalog.open(Path(sys.argv[1]), page_bytes=65536)\n"
        "for i in range(50):\n"
        "    c.names.make(1, b'%d' % i, mode=0o100644, uid=0, gid=0, now_ns=1)\n"
        "with c.db.transaction():\n"
        "    c.names.make(1, b'half', mode=0o100644, uid=0, gid=0, now_ns=1)\n"
        "    os.kill(os.getpid(), 9)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, tmp_path], check=False)
    assert done.returncode == -9
    catalog = Catalog.open(tmp_path, page_bytes=PAGE_BYTES)
    names = {entry.name for entry in catalog.names.listing(ROOT_INO)}
    catalog.close()
    assert names == {b"%d" % index for index in range(50)}


def rewrite(path, statement):
    with sqlite3.connect(path) as connection:
        connection.execute(statement)
    connection.close()


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda path: rewrite(path, "PRAGMA application_id = 99"), "is not a kvd catalogue"),
        (lambda path: rewrite(path, f"PRAGMA user_version = {SCHEMA_VERSION + 1}"), "install a newer kvd"),
        (lambda path: path.write_bytes(b"not a database at all" * 100), "not a usable catalogue"),
        (lambda path: rewrite(path, "DELETE FROM meta"), "not a usable catalogue"),
        (lambda path: rewrite(path, "UPDATE meta SET value=4096 WHERE key='page_bytes'"), "pages of 4096 bytes"),
    ],
)
def test_a_catalogue_that_is_not_ours_is_refused_and_left_alone(tmp_path, spoil, says):
    Catalog.open(tmp_path, page_bytes=PAGE_BYTES).close()
    path = tmp_path / FILE_NAME
    spoil(path)
    before = path.read_bytes()
    with pytest.raises(CatalogError, match=says):
        Catalog.open(tmp_path, page_bytes=PAGE_BYTES)
    assert path.read_bytes() == before


def test_a_foreign_database_is_refused(tmp_path):
    rewrite(tmp_path / FILE_NAME, "CREATE TABLE other(x)")
    with pytest.raises(CatalogError, match="is not a kvd catalogue"):
        Catalog.open(tmp_path, page_bytes=PAGE_BYTES)


async def test_sync_and_checkpoint(catalog, monkeypatch):
    monkeypatch.setattr("kvd.catalog.database.CHECKPOINT_WAL_BYTES", 0)
    make(catalog, ROOT_INO, b"f")
    await catalog.db.sync()
    await catalog.db.checkpoint()
    assert os.stat(catalog.db.path).st_size > 0
    with sqlite3.connect(f"file:{catalog.db.path}?mode=ro&immutable=1", uri=True) as direct:
        assert direct.execute("SELECT count(*) FROM dentry").fetchone() == (1,), "checkpointed into the main file"
    direct.close()


async def test_a_checkpoint_that_fails_is_a_warning(catalog, monkeypatch, claim_log):
    claim_log("checkpoint failed")
    monkeypatch.setattr("kvd.catalog.database.CHECKPOINT_WAL_BYTES", 0)

    def full(path):
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr("kvd.catalog.database._checkpoint", full)
    make(catalog, ROOT_INO, b"f")
    await catalog.db.checkpoint()
    assert catalog.names.lookup(ROOT_INO, b"f") is not None
