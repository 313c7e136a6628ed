"""What the hot table is told of names and attributes: always the truth, and soon all of it."""

import errno
import os
import random

import pytest
import trio

from kvd.catalog.schema import ROOT_INO
from kvd.fs.hot_folders import LOAD_AFTER, NAMES_A_LOOKUP
from kvdriver import Tier
from support import hot_truth
from support.fake_hot import Folder
from support.fake_kernel import Kernel, refused
from support.fake_plane import FakePlane
from support.tiers import MIB, tiers_at

random_bytes = random.Random(3).randbytes
PAUSE_S = 0.02
"""Far longer than a load leaves the loop alone between two batches of names."""
NOTHING = Folder()


async def loaded(kernel, folder=ROOT_INO):
    """Load a directory as the daemon's task does."""
    await kernel.tiers.hot._folders.load(folder)
    assert kernel.table.folders[folder].complete


async def test_a_name_is_asked_for_once(scratch):
    async with tiers_at(scratch) as tiers:
        kernel = Kernel(tiers)
        ino = await kernel.write(b"a", b"content")
        for _ in range(3):
            assert await kernel.lookup(b"a") == ino
            assert await kernel.lookup(b"b") == 0
            assert await kernel.size(ino) == 7
        assert kernel.forwarded["lookup"] == 2
        assert kernel.forwarded["getattr"] == 0


async def test_a_directory_that_is_used_becomes_complete(scratch):
    async with tiers_at(scratch) as tiers:
        kernel = Kernel(tiers)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(tiers.hot.run)
            for index in range(LOAD_AFTER):
                assert await kernel.lookup(b"%d" % index) == 0
            await trio.testing.wait_all_tasks_blocked(PAUSE_S)
            assert kernel.table.folders[ROOT_INO].complete
            before = kernel.forwarded["lookup"]
            assert await kernel.lookup(b"never asked for") == 0
            assert kernel.forwarded["lookup"] == before
            nursery.cancel_scope.cancel()


async def test_a_listing_loads_a_directory_and_then_comes_from_the_table(scratch):
    async with tiers_at(scratch) as tiers:
        kernel = Kernel(tiers)
        for name in (b"a", b"b", b"c"):
            await kernel.write(name, b"x")
        assert kernel.table.readdir(ROOT_INO) is None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(tiers.hot.run)
            tiers.hot.listed(ROOT_INO)
            await trio.testing.wait_all_tasks_blocked(PAUSE_S)
            nursery.cancel_scope.cancel()
        assert kernel.table.readdir(ROOT_INO) == [b"a", b"b", b"c"]
        assert await kernel.lookup(b".kvd") == kernel.operations._virtual.lookup(ROOT_INO, b".kvd").ino


async def test_a_large_directory_is_loaded_when_it_is_asked_for_often(scratch):
    async with tiers_at(scratch) as tiers:
        kernel = Kernel(tiers)
        for index in range(LOAD_AFTER * NAMES_A_LOOKUP + 1):
            await kernel.mkdir(b"d%d" % index)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(tiers.hot._folders._load_wanted)
            asked = 0
            while not kernel.table.folders.get(ROOT_INO, NOTHING).complete:
                asked += 1
                assert await kernel.lookup(b"%d" % asked) == 0
                await trio.testing.wait_all_tasks_blocked(PAUSE_S)
            assert 2 * LOAD_AFTER <= asked < 4 * LOAD_AFTER  # a few come while it is loaded
            nursery.cancel_scope.cancel()
        await kernel.forget_all()


async def test_a_start_loads_what_there_is_into_half_of_the_table(scratch):
    plane = FakePlane()
    plane.hot.names_max = 64
    async with tiers_at(scratch, plane=plane) as tiers:
        kernel = Kernel(tiers)
        folders = [await kernel.mkdir(b"d%d" % index) for index in range(4)]
        for folder in folders:
            for index in range(16):
                await kernel.write(b"%d" % index, b"", folder)
        for folder in folders:
            await tiers.hot._folders._forget(folder)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(tiers.hot.run)
            await trio.sleep(1)
            complete = [folder for folder in (ROOT_INO, *folders) if kernel.table.folders.get(folder, NOTHING).complete]
            assert complete == [ROOT_INO, *folders[:2]]
            nursery.cancel_scope.cancel()
        await kernel.forget_all()


async def test_a_new_directory_is_complete_at_once(scratch):
    async with tiers_at(scratch) as tiers:
        kernel = Kernel(tiers)
        folder = await kernel.mkdir(b"folder")
        assert kernel.table.readdir(folder) == []
        assert await kernel.lookup(b"a", folder) == 0
        ino = await kernel.write(b"a", b"x", folder)
        assert await kernel.lookup(b"a", folder) == ino
        assert kernel.forwarded["lookup"] == 0
        assert kernel.table.folders[folder].parent == ROOT_INO
        await kernel.unlink(b"a", folder)
        await kernel.rmdir(b"folder")
        assert folder not in kernel.table.folders
        assert folder not in kernel.table.inodes


async def test_a_renamed_directory_has_its_new_parent(scratch):
    async with tiers_at(scratch) as tiers:
        kernel = Kernel(tiers)
        await loaded(kernel)
        one, other = await kernel.mkdir(b"one"), await kernel.mkdir(b"other")
        await kernel.rename(b"one", b"moved", parents=(ROOT_INO, other))
        assert kernel.table.folders[one].parent == other
        assert await kernel.lookup(b"one") == 0
        assert await kernel.lookup(b"moved", other) == one
        assert kernel.forwarded["lookup"] == 0


async def test_what_has_a_writer_is_not_told_of(scratch):
    async with tiers_at(scratch) as tiers:
        kernel = Kernel(tiers)
        await loaded(kernel)
        ino = await kernel.write(b"a", b"x")
        fh = await kernel.open(ino, os.O_WRONLY)
        assert kernel.table.getattr(ino) is None
        assert kernel.table.lookup(ROOT_INO, b"a") is None
        tiers.write(ino, b"longer")
        assert await kernel.size(ino) == 6
        await kernel.release(fh)
        assert kernel.table.getattr(ino).size == 6
        await kernel.truncate(ino, 2)
        assert kernel.table.getattr(ino).size == 2


async def test_replaced_exchanged_and_linked_names(scratch):
    async with tiers_at(scratch) as tiers:
        kernel = Kernel(tiers)
        await loaded(kernel)
        a, b = await kernel.write(b"a", b"aa"), await kernel.write(b"b", b"b")
        await kernel.link(a, b"link")
        assert kernel.table.getattr(a).nlink == 2
        await kernel.rename(b"a", b"b", flags=2)
        assert [kernel.table.lookup(ROOT_INO, name).node for name in (b"a", b"b")] == [b, a]
        await kernel.rename(b"b", b"a")
        assert kernel.table.lookup(ROOT_INO, b"a").node == a
        assert b not in kernel.table.inodes
        await kernel.unlink(b"a")
        assert kernel.table.getattr(a).nlink == 1
        await kernel.unlink(b"link")
        assert a not in kernel.table.inodes
        assert await kernel.lookup(b"link") == 0
        assert kernel.forwarded["lookup"] == 0


async def test_set_id_files_are_asked_for_each_time(scratch):
    async with tiers_at(scratch) as tiers:
        kernel = Kernel(tiers)
        await loaded(kernel)
        ino = await kernel.write(b"a", b"x")
        await kernel.chmod(ino, 0o4755)
        assert kernel.table.getattr(ino).attr_timeout_ms == 0


async def test_a_change_that_fails_leaves_the_table_as_the_catalogue(scratch, monkeypatch):
    async with tiers_at(scratch) as tiers:
        kernel = Kernel(tiers)
        await loaded(kernel)
        ino = await kernel.write(b"a", b"x")

        def broken(*_):
            raise OSError(errno.EIO, "disk")

        monkeypatch.setattr(tiers.catalog.names, "_links", broken)
        assert await refused(errno.EIO, kernel.unlink, b"a")
        monkeypatch.undo()
        assert kernel.table.lookup(ROOT_INO, b"a").node == ino
        assert kernel.table.getattr(ino).nlink == 1


@pytest.mark.parametrize("hook", ["inode_changing", "name_changing"])
async def test_the_check_finds_a_broken_protocol(scratch, monkeypatch, hook):
    async with tiers_at(scratch) as tiers:
        kernel = Kernel(tiers)
        await loaded(kernel)
        ino = await kernel.write(b"a", b"x")
        monkeypatch.setattr(tiers.hot, hook, lambda *_: None)
        with pytest.raises(AssertionError):  # noqa: PT012
            tiers.catalog.names.setattr(ino, mode=0o100600)
            tiers.catalog.db.execute("UPDATE dentry SET ino=? WHERE name=?", (ROOT_INO, b"a"))
        monkeypatch.setattr(hot_truth, "check", lambda *_: None)  # the end meets the same, and is not what is tested


async def test_counts_of_what_loses_its_name_are_kept(scratch):
    async with tiers_at(scratch) as tiers:
        kernel = Kernel(tiers)
        await loaded(kernel)
        ino = await kernel.write(b"a", b"x")
        for _ in range(4):
            await kernel.lookup(b"a")
        assert kernel.table.inodes[ino].lookups == 4
        await kernel.unlink(b"a")
        assert ino in tiers.objects.lives.sessions
        await kernel.forget(ino)
        assert ino not in tiers.objects.lives.sessions
        assert tiers.catalog.names.orphans() == []


async def test_what_vanishes_is_told_to_the_kernel(scratch):
    async with tiers_at(scratch) as tiers:
        kernel = Kernel(tiers)
        await loaded(kernel)
        ino = await kernel.write(b"a", b"x")
        await kernel.link(ino, b"b")
        tiers.catalog.names.vanish(ino, 7)
        assert sorted(kernel.table.gone_from_kernel) == [(ROOT_INO, b"a"), (ROOT_INO, b"b")]
        assert await kernel.lookup(b"a") == 0
        await tiers.objects.sharing.tend()  # nobody may open it any more, so it is attached for nothing
        await tiers.objects.abandon(ino)


async def test_the_oldest_directories_make_room(scratch):
    plane = FakePlane()
    plane.hot.names_max = 60
    async with tiers_at(scratch, plane=plane) as tiers:
        kernel = Kernel(tiers)
        folders = [await kernel.mkdir(b"d%d" % index) for index in range(4)]
        inos = {}
        for folder in folders[:3]:
            for index in range(16):
                inos[folder, index] = await kernel.write(b"%d" % index, b"", folder)
        assert await kernel.lookup(b"3", folders[0]) == inos[folders[0], 3]  # used, so another goes first
        async with trio.open_nursery() as nursery:
            nursery.start_soon(tiers.hot.run)
            for index in range(16):
                inos[folders[3], index] = await kernel.write(b"%d" % index, b"", folders[3])
                await trio.testing.wait_all_tasks_blocked(PAUSE_S)
            assert folders[1] not in kernel.table.folders
            assert folders[0] in kernel.table.folders
            nursery.cancel_scope.cancel()
        for (folder, index), ino in inos.items():
            assert await kernel.lookup(b"%d" % index, folder) == ino
        await kernel.forget_all()


async def test_a_directory_that_is_too_large_stays_partial(scratch):
    plane = FakePlane()
    plane.hot.names_max = 32
    async with tiers_at(scratch, plane=plane) as tiers:
        kernel = Kernel(tiers)
        folder = await kernel.mkdir(b"d")
        for index in range(40):
            await kernel.write(b"%d" % index, b"", folder)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(tiers.hot.run)
            for _ in range(LOAD_AFTER):
                tiers.hot.listed(folder)
                await trio.testing.wait_all_tasks_blocked(PAUSE_S)
            nursery.cancel_scope.cancel()
        held = kernel.table.folders.get(folder)
        assert held is None or not held.complete
        assert await kernel.lookup(b"39", folder)


async def test_without_a_table_nothing_is_published(scratch):
    plane = FakePlane()
    plane.hot.is_on = False
    async with tiers_at(scratch, plane=plane) as tiers:
        kernel = Kernel(tiers)
        ino = await kernel.write(b"a", b"x")
        await kernel.lookup(b"a")
        fh = await kernel.open(ino)
        await kernel.release(fh)
        assert not plane.hot.inodes
        assert not plane.hot.folders
        assert not plane.objects


async def test_storage_that_a_move_changes_is_told(scratch):
    async with tiers_at(scratch) as tiers:
        kernel = Kernel(tiers)
        await loaded(kernel)
        ino = await kernel.write(b"a", b"")
        fh = await kernel.open(ino, os.O_WRONLY)
        tiers.write(ino, random_bytes(MIB), offset=MIB)
        await kernel.release(fh)
        assert kernel.table.getattr(ino).held_bytes == MIB
        for move, tier in ((tiers.objects.demote, Tier.NVME), (tiers.objects.promote, Tier.DDR)):
            await move(ino)
            assert tiers.catalog.placements.get(ino).tier == tier
            assert kernel.table.getattr(ino).held_bytes == MIB


async def test_directories_that_nobody_may_see_are_forgotten_at_once(scratch):
    async with tiers_at(scratch) as tiers:
        kernel = Kernel(tiers)
        kept, gone = await kernel.mkdir(b"kept"), await kernel.mkdir(b"gone")
        for folder in (kept, gone):
            await kernel.write(b"a", b"x", folder)
        tiers.hot.forget_where(lambda ino: ino == gone)
        assert kernel.table.lookup(gone, b"a") is None
        assert kernel.table.lookup(gone, b"b") is None
        assert kernel.table.readdir(gone) is None
        assert kernel.table.readdir(kept) == [b"a"]
        await kernel.forget_all()
