"""The catalogue is lost: it is made anew from the files, and the next start serves all that was durable, as it was."""

import os
import random
import shutil
import stat
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from kvd.errors import ConfigError
from kvd.fsck import examine
from kvd.fsck.rebuild import rebuild
from kvd.session.windows import BYTES_PER_TOKEN
from kvd.tier import describe, treefile
from support.tiers import PAGE_BYTES, config_at, tiers_at

random_bytes = random.Random(5).randbytes
CATALOGUE = "state/catalog.sqlite"


@pytest.fixture
def root(scratch):
    ddr = Path(tempfile.mkdtemp(prefix="kvd-", dir="/dev/shm"))
    (scratch / "ddr").symlink_to(ddr)
    yield scratch
    shutil.rmtree(ddr)


def tree_of(tiers):
    """Return every name with all that is known of it, the root included."""
    names, found = tiers.catalog.names, {b"/": attributes(tiers, 1)}
    todo = [(b"/", 1)]
    while todo:
        path, ino = todo.pop()
        for entry in names.listing(ino):
            below = path + entry.name + (b"/" if entry.inode.is_dir else b"")
            found[below] = attributes(tiers, entry.inode.ino)
            if entry.inode.is_dir:
                todo.append((below, entry.inode.ino))
    return found


def attributes(tiers, ino):
    names = tiers.catalog.names
    return names.inode(ino), tuple((name, names.xattr(ino, name)) for name in names.xattrs(ino))


async def contents_of(tiers, tree):
    return {path: await tiers.read(inode.ino) for path, (inode, _) in tree.items() if inode.is_file}


async def holes_of(tiers, tree):
    return {path: tiers.catalog.placements.copy(inode.ino).runs for path, (inode, _) in tree.items() if inode.is_file}


async def a_life(tiers):
    """Make one of everything, and change much of it after it is on NVMe."""
    names, objects = tiers.catalog.names, tiers.objects
    folder = names.make(1, b"folder\xff", mode=stat.S_IFDIR | 0o750, uid=3, gid=4, now_ns=10).ino
    inner = names.make(folder, b"inner", mode=stat.S_IFDIR | 0o755, uid=0, gid=0, now_ns=20).ino
    names.make(inner, b"link", mode=stat.S_IFLNK | 0o777, uid=5, gid=6, now_ns=30, target=b"../\xfe")
    names.make(inner, b"pipe", mode=stat.S_IFIFO | 0o600, uid=5, gid=6, now_ns=30)
    names.set_xattr(folder, b"user.note", b"\0of a folder", 40)
    small = await tiers.make(b"small", random_bytes(5))
    empty = await tiers.make(b"empty", b"")
    sparse = await tiers.begin(b"sparse")
    for page in range(0, 400, 2):
        tiers.write(sparse, b"x%d" % page, page * PAGE_BYTES)
    await objects.release(sparse, write=True)
    plain = await tiers.make(b"plain", random_bytes(3 * PAGE_BYTES + 7))
    inos = (small, empty, sparse, plain)
    for ino in inos:
        await objects.demote(ino)
    assert describe.is_aside(tiers.catalog.placements.copy(sparse))
    names.rename(1, b"small", inner, b"moved", 0, 1000)
    names.setattr(plain, mode=0o100604, uid=77, gid=88, mtime_ns=123_456_789, ctime_ns=2000)
    names.link(plain, folder, b"other name", 3000)
    names.set_xattr(plain, b"user.tag", b"value", 4000)
    names.set_xattr(empty, b"user.large", bytes(9000), 4000)
    for number in range(9):
        names.link(empty, inner, b"name %d" % number, 5000)
    gone = await tiers.make(b"gone", b"deleted before the end")
    await objects.demote(gone)
    names.unlink(1, b"gone", 6000)
    await objects.discard(gone)
    tiers.catalog.db.execute(
        "INSERT INTO namespace(ino, fingerprint, admit, durability, on_fault, created_ns) VALUES(?,?,?,?,?,?)",
        (folder, '{"model":"m"}', "all", "back", "eio", 1),
    )


async def remade(root, *, data=False, **settings):
    return await rebuild(config_at(root, **settings), page_bytes=PAGE_BYTES, data=data)


def lose_catalogue(root):
    for path in (root / "state").glob("catalog.sqlite*"):
        path.unlink()


@pytest.mark.parametrize("data", [False, True])
async def test_everything_is_as_it_was(root, data):
    async with tiers_at(root, ddr_mib=64) as tiers:
        await a_life(tiers)
        before = tree_of(tiers)
        holes = await holes_of(tiers, before)
        rows = tiers.catalog.db.execute("SELECT * FROM namespace").fetchall()
        last, uuid = (
            tiers.catalog.db.scalar("SELECT seq FROM sqlite_sequence WHERE name='inode'"),
            tiers.catalog.db.uuid,
        )
        contents = await contents_of(tiers, before)
        for ino in [inode.ino for inode, _ in before.values() if inode.is_file]:
            await tiers.objects.demote(ino)
    lose_catalogue(root)
    made = await remade(root, data=data)
    assert (made.left_out, made.lost_found, made.kept) == ([], 0, "")
    assert (made.objects, made.directories, made.others) == (4, 2, 2)
    async with tiers_at(root, ddr_mib=64) as tiers:
        assert tiers.catalog.db.uuid == uuid
        after = tree_of(tiers)
        assert after == before
        assert await holes_of(tiers, after) == holes
        assert await contents_of(tiers, after) == contents
        assert tiers.catalog.db.execute("SELECT * FROM namespace").fetchall() == rows
        assert tiers.catalog.db.scalar("SELECT seq FROM sqlite_sequence WHERE name='inode'") == last
        assert tiers.catalog.placements.count_damaged() == 0
    assert await examine(config_at(root), page_bytes=PAGE_BYTES, data=True) == []


async def test_the_old_catalogue_is_kept_and_a_rebuild_can_be_done_again(root):
    async with tiers_at(root) as tiers:
        await tiers.objects.demote(await tiers.make(b"a", b"abc"))
    old = (root / CATALOGUE).read_bytes()
    first = await remade(root)
    assert Path(first.kept).read_bytes() == old
    second = await remade(root)
    assert (second.objects, second.left_out) == (1, [])
    async with tiers_at(root) as tiers:
        assert await tiers.read(tiers.catalog.names.lookup(1, b"a").ino) == b"abc"


async def test_what_a_window_gave_back_is_told_afterwards(root):
    async with tiers_at(root) as tiers:
        ino = await tiers.make(b"a", random_bytes(6 * PAGE_BYTES))
        tiers.catalog.names.set_xattr(ino, BYTES_PER_TOKEN, b"4096", 7)
        tiers.sessions.set_number(tiers.catalog.names.inode(ino), "window", 20)
        await tiers.sessions.windows.step()
        content = await tiers.read(ino)
        await tiers.objects.demote(ino)
    lose_catalogue(root)
    made = await remade(root, data=True)
    assert (made.objects, made.left_out) == (1, [])
    async with tiers_at(root) as tiers:
        inode = tiers.catalog.names.lookup(1, b"a")
        assert await tiers.sessions.windows.valid(inode) == ((64, 96),)
        assert await tiers.read(inode.ino) == content
        assert content[: 64 * 4096] == bytes(64 * 4096)


async def test_an_object_that_was_being_written_is_its_last_copy(root):
    async with tiers_at(root) as tiers:
        ino = await tiers.make(b"a", b"old bytes")
        await tiers.objects.fsync(ino)
        await tiers.objects.open(ino, write=True)
        tiers.write(ino, b"newer and longer bytes")
        await tiers.objects.release(ino, write=True)
        await tiers.make(b"only in ddr", b"never durable")
        copy = tiers.catalog.placements.copy(ino)
        assert not copy.current
    made = await remade(root)
    assert made.objects == 1
    assert ["2 files in DDR" in line for line in made.left_out] == [True]
    async with tiers_at(root) as tiers:
        found = tiers.catalog.names.lookup(1, b"a")
        assert (found.size, found.mtime_ns) == (9, copy.mtime_ns)
        assert await tiers.read(found.ino) == b"old bytes"
        assert tiers.catalog.names.lookup(1, b"only in ddr") is None


def files_of(root):
    return sorted((root / "nvme0/objects").rglob("*.[0-9a-f]"))


async def three(root):
    """Make three cold objects in a folder; return their files."""
    async with tiers_at(root) as tiers:
        folder = tiers.catalog.names.make(1, b"d", mode=0o040755, uid=0, gid=0, now_ns=1).ino
        made = []
        for name in (b"a", b"b", b"c"):
            ino = await tiers.make(name, name * 100_000)
            await tiers.objects.demote(ino)
            tiers.catalog.names.rename(1, name, folder, name, 0, 10)
            made.append(tiers.nvme.file(0, ino, tiers.catalog.placements.copy(ino).gen))
    lose_catalogue(root)
    return made


async def names_in(root, path):
    async with tiers_at(root) as tiers:
        found = tiers.catalog.names.resolve(path)
        for entry in tiers.catalog.names.listing(found.ino):
            if entry.inode.is_file:
                assert await tiers.read(entry.inode.ino) in {name * 100_000 for name in (b"a", b"b", b"c")}
        return {entry.name for entry in tiers.catalog.names.listing(found.ino)}


def torn(path):
    os.truncate(path, 5000)


def undescribed(path):
    os.removexattr(path, "user.kvd")


def flipped_description(path):
    value = bytearray(os.getxattr(path, "user.kvd"))
    value[60] ^= 1
    os.setxattr(path, "user.kvd", bytes(value))


def misplaced(path):
    path.rename(path.with_name(path.name.replace(".1", ".2")))


LEFT_OUT = {
    torn: "it has 5000 bytes instead of 100000",
    undescribed: "it is not described",
    flipped_description: "its checksum differs",
    misplaced: "it is a copy of inode",
}


@pytest.mark.parametrize("spoil", LEFT_OUT)
async def test_what_can_not_be_believed_is_left_out_and_told(root, spoil):
    path, *_ = await three(root)
    spoil(path)
    made = await remade(root)
    assert made.objects == 2
    assert len(made.left_out) == 1
    assert LEFT_OUT[spoil] in made.left_out[0]
    assert path.name.split(".")[0] in made.left_out[0]
    assert await names_in(root, b"/d") == {b"b", b"c"}


async def test_a_flipped_byte_is_found_with_data_and_else_when_it_is_read(root, claim_log):
    claim_log("object quarantined")
    path, *_ = await three(root)
    content = bytearray(path.read_bytes())
    content[70_000] ^= 1
    path.write_bytes(bytes(content))
    made = await remade(root, data=True)
    assert (made.objects, len(made.left_out)) == (2, 1)
    assert "page 1 failed its checksum" in made.left_out[0]
    lose_catalogue(root)
    assert (await remade(root)).objects == 3


async def test_the_newest_whole_copy_counts(root):
    async with tiers_at(root) as tiers:
        ino = await tiers.make(b"a", b"old")
        await tiers.objects.fsync(ino)
        old = tiers.nvme.file(0, ino, 1)
        kept = old.with_name("kept"), os.getxattr(old, "user.kvd")
        kept[0].write_bytes(old.read_bytes())
        await tiers.objects.open(ino, write=True)
        tiers.write(ino, b"new")
        await tiers.objects.release(ino, write=True)
        await tiers.objects.demote(ino)
        new = tiers.nvme.file(0, ino, 2)
    lose_catalogue(root)
    kept[0].rename(old)
    os.setxattr(old, "user.kvd", kept[1])
    assert (await remade(root)).objects == 1
    async with tiers_at(root) as tiers:
        assert await tiers.read(ino) == b"new"
        await tiers.objects.demote(ino)
    lose_catalogue(root)
    old.write_bytes(b"old")
    os.setxattr(old, "user.kvd", kept[1])
    torn(new)
    made = await remade(root)
    assert (made.objects, len(made.left_out)) == (1, 1)
    async with tiers_at(root) as tiers:
        assert await tiers.read(ino) == b"old"


async def test_of_two_that_claim_a_name_the_later_has_it_and_the_other_is_kept(root):
    async with tiers_at(root) as tiers:
        first = await tiers.make(b"a", b"a" * 100_000)
        await tiers.objects.demote(first)
        stale = os.getxattr(tiers.nvme.file(0, first, 1), "user.kvd")
        tiers.catalog.names.rename(1, b"a", 1, b"b", 0, 10)
        second = await tiers.make(b"a", b"c" * 100_000)
        await tiers.objects.demote(second)
    os.setxattr(tiers.nvme.file(0, first, 1), "user.kvd", stale)  # the rename was not described before the crash
    lose_catalogue(root)
    made = await remade(root)
    assert (made.objects, made.lost_found) == (2, 1)
    assert await names_in(root, b"/lost+found") == {b"#%d" % first}
    async with tiers_at(root) as tiers:
        assert tiers.catalog.names.lookup(1, b"a").ino == second


@pytest.mark.parametrize("spoil", [lambda path: path.unlink(), lambda path: path.write_bytes(b"kvd-tree, damaged")])
async def test_without_the_tree_objects_are_in_lost_found(root, spoil):
    await three(root)
    spoil(root / "nvme0" / treefile.NAME)
    made = await remade(root)
    assert (made.objects, made.lost_found) == (3, 3)
    assert treefile.NAME in made.left_out[0]
    assert len(await names_in(root, b"/lost+found")) == 3


async def test_files_of_another_catalogue_are_left_alone_also_by_the_next_start(root):
    path, *_ = await three(root)
    value = bytearray(os.getxattr(path, "user.kvd"))
    value[16:32] = bytes(16)
    value[-4:] = describe.crc32c(bytes(value[:-4])).to_bytes(4, "little")
    os.setxattr(path, "user.kvd", bytes(value))
    made = await remade(root)
    assert made.objects == 2
    assert "left alone: it belongs to catalogue 00000000" in made.left_out[0]
    assert await names_in(root, b"/d") == {b"b", b"c"}
    assert path.read_bytes() == b"a" * 100_000


async def test_directories_that_do_not_belong_together_are_refused(root):
    await three(root)
    config = config_at(root)
    (root / "nvme1").mkdir()
    (root / "nvme1/kvd-nvme.json").write_text('{"magic": "kvd-nvme", "version": 1, "uuid": "other", "index": 1}')
    both = replace(config, nvme=replace(config.nvme, dirs=(root / "nvme0", root / "nvme1")))
    with pytest.raises(ConfigError, match="different catalogues"):
        await rebuild(both, page_bytes=PAGE_BYTES, data=False)
    alone = replace(config, nvme=replace(config.nvme, dirs=(root / "mnt",)))
    with pytest.raises(ConfigError, match="nothing to make a catalogue from"):
        await rebuild(alone, page_bytes=PAGE_BYTES, data=False)
    assert not (root / CATALOGUE).exists()


async def test_what_is_in_a_removed_directory_does_not_come_back(root):
    async with tiers_at(root) as tiers:
        names = tiers.catalog.names
        folder = names.make(1, b"d", mode=0o040755, uid=0, gid=0, now_ns=1).ino
        inner = names.make(folder, b"inner", mode=0o040755, uid=0, gid=0, now_ns=1).ino
        for name, parent in ((b"a", folder), (b"b", inner), (b"c", 1)):
            ino = await tiers.make(name, name * 100_000)
            await tiers.objects.demote(ino)
            names.rename(1, name, parent, name, 0, 10)
        names.link(tiers.catalog.names.lookup(inner, b"b").ino, 1, b"other name", 20)
        await tiers.objects.describer.catch_up()
        tiers.catalog.db.execute("DELETE FROM dentry WHERE ino=?", (folder,))
        tiers.catalog.db.execute("UPDATE inode SET nlink=0 WHERE ino=?", (folder,))
    lose_catalogue(root)
    made = await remade(root)
    assert (made.objects, made.directories, made.lost_found) == (2, 0, 0)
    assert made.left_out == [f"inode {folder}: left out with all in it: the directory was removed"]
    assert await names_in(root, b"/") == {b"c", b"other name"}
