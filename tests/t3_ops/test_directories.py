"""NVMe directories without a mount: deadlines, where copies go, and whether it is the right place."""

from __future__ import annotations

import errno
import os
import threading

import pytest
import trio

from kvd.catalog.packing import part_of
from kvd.errors import OfflineError
from kvd.tier.directory import THREADS_MAX, DirectoryOfflineError
from kvd.tier.health import Gone, State, WriteFailed
from support.stores import back, offline, store_at, tended, until
from support.tiers import tiers_at

# -- operations with a deadline --------------------------------------------------------------------------------------


async def test_an_operation_that_hangs_ends_and_turns_the_directory_offline(root, claim_log):
    claim_log("nvme directory is offline")
    async with store_at(root) as store:
        (directory,) = store.directories
        let_go, disposed = threading.Event(), threading.Event()

        def hang():
            let_go.wait()
            return "late"

        with pytest.raises(OSError, match="no answer within") as info:
            await directory.run(hang, doing="hang", write=False, dispose=lambda result: disposed.set())
        assert info.value.errno == errno.ETIMEDOUT
        assert directory.health.state is State.OFFLINE
        ran = []
        with pytest.raises(DirectoryOfflineError):
            await directory.run(lambda: ran.append(1), doing="try", write=False)
        assert not ran, "nothing asks it"
        assert not disposed.is_set()
        let_go.set()
        await until(disposed.is_set)


async def test_threads_that_are_kept_are_few(root, claim_log):
    claim_log("nvme directory is offline")
    async with store_at(root) as store:
        (directory,) = store.directories
        let_go, began, failed = threading.Event(), [], []

        def hang():
            began.append(1)
            let_go.wait()

        async def ask():
            try:
                await directory.run(hang, doing="hang", write=False)
            except OSError as error:
                failed.append(error.errno)

        async with trio.open_nursery() as nursery:
            for _ in range(3 * THREADS_MAX):
                nursery.start_soon(ask)
        assert len(began) == THREADS_MAX
        assert failed == [errno.ETIMEDOUT] * (3 * THREADS_MAX)
        let_go.set()
        await until(lambda: not directory._threads.borrowed_tokens)
        assert len(began) == THREADS_MAX, "what was given up before it began does not begin"


async def test_a_cancelled_operation_leaves_no_descriptor(root):
    async with store_at(root) as store:
        (directory,) = store.directories
        let_go, began = threading.Event(), threading.Event()
        real = directory.measure

        def slow():
            began.set()
            let_go.wait()
            real()

        directory.measure = slow
        before = len(os.listdir("/proc/self/fd"))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(store.create, 1, 1, 10)
            await until(began.is_set)
            nursery.cancel_scope.cancel()
        let_go.set()
        await until(lambda: directory.unswept)
        await until(lambda: len(os.listdir("/proc/self/fd")) <= before)
        assert not store.making


async def test_a_late_removal_never_hits_a_new_file_of_the_name(root, claim_log):
    claim_log("nvme directory is offline")
    async with store_at(root, dirs=2) as store:
        first, second = store.directories
        let_go = threading.Event()
        real = first.check_place

        def hang():
            let_go.wait()
            real()

        first.check_place = hang
        await store.remove_file(0, 7, 1)
        assert not first.health.usable
        first.check_place = real
        back(first)
        for _ in range(4):
            files = await store.create(7, 1, 10)
            assert files.dirs == (second.index,), "the first one may still remove a file of that name"
            await store.discard(files, 7, 1)
        let_go.set()
        await until(lambda: not store._removing)


# -- where copies go -------------------------------------------------------------------------------------------------


async def test_small_copies_go_by_turns_and_large_ones_are_striped(root):
    async with store_at(root, dirs=3, striped_bytes_min=100, stripe_bytes=40) as store:
        small = [await store.create(number, 1, 99) for number in range(6)]
        assert sorted(files.dirs for files in small) == [(0,), (0,), (1,), (1,), (2,), (2,)]
        assert all(files.stripe_bytes == 0 for files in small)
        large = await store.create(10, 1, 1000)
        assert sorted(large.dirs) == [0, 1, 2]
        assert large.stripe_bytes == 40
        at = [part_of(offset, large.stripe_bytes, len(large.parts)) for offset in (0, 39, 80, 120)]
        assert at == [0, 0, 2, 0]
        offline_one = store.directories[1]
        offline_one.health.meet(Gone(why="pulled"), 1.0)
        assert sorted((await store.create(11, 1, 1000)).dirs) == [0, 2]
        assert {(await store.create(20 + number, 1, 1)).dirs for number in range(4)} == {(0,), (2,)}


async def test_a_directory_without_room_is_left_out_and_only_all_are_enospc(root):
    async with store_at(root, dirs=2) as store:
        first, second = store.directories

        def full():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        first.measure = full
        assert {(await store.create(number, 1, 10)).dirs for number in range(4)} == {(1,)}
        second.measure = full
        with pytest.raises(OSError, match="No space") as info:
            await store.create(9, 1, 10)
        assert info.value.errno == errno.ENOSPC
        assert first.health.state is second.health.state is State.ONLINE
        assert all(key[1] != 9 for key in store.making)


async def test_a_suspect_directory_gets_copies_only_where_no_other_takes_them(root):
    async with store_at(root, dirs=2) as store:
        first, second = store.directories
        first.meet(WriteFailed(why="EIO"))
        assert {(await store.create(number, 1, 10)).dirs for number in range(4)} == {(1,)}
        second.meet(WriteFailed(why="EIO"))
        assert {(await store.create(10 + number, 1, 10)).dirs for number in range(4)} == {(0,), (1,)}


async def test_room_of_one_file_system_counts_once_and_that_of_an_offline_directory_not(root, claim_log):
    claim_log("nvme directory is offline")
    async with store_at(root, dirs=2) as store:
        first, second = store.directories
        assert first.device == second.device
        one = first.free_bytes // 4096
        assert abs(store.capacity_blocks(5, 0) - one - 5) <= one // 10
        assert store.capacity_blocks(5, 4096 * 8) == 8
        assert store.size_bytes() == first.size_bytes
        offline(first)
        offline(second)
        assert store.capacity_blocks(5, 0) == 5


# -- the place -------------------------------------------------------------------------------------------------------


async def test_a_missing_marker_is_a_missing_drive_and_no_missing_object(root, claim_log):
    claim_log("nvme directory is offline")
    async with tiers_at(root) as tiers:
        ino = await tiers.make(b"a", b"abc")
        await tiers.objects.demote(ino)
        top = tiers.config.nvme.dirs[0]
        aside = top.with_name("aside")
        top.rename(aside)
        top.mkdir()
        for _ in range(2):
            with pytest.raises(OfflineError):
                await tiers.objects.open(ino, write=False)
        assert tiers.catalog.names.lookup(1, b"a") is not None
        assert tiers.catalog.placements.faults(10) == []
        await tiers.make(b"b", b"stays in ddr")
        assert not list(top.iterdir()), "it is not filled"
        top.rmdir()
        aside.rename(top)
        async with tended(tiers):
            await until(lambda: tiers.nvme.directories[0].health.usable)
        assert await tiers.read(ino) == b"abc"
