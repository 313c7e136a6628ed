"""Objects without a mount that live through failing NVMe directories, and how those are looked after."""

from __future__ import annotations

import errno
import os
import random
import threading
import time
from dataclasses import dataclass

import pytest
import trio

from kvd.errors import OfflineError
from kvd.tier.directory import Directory
from kvd.tier.health import State
from kvd.tier.mover import DeviceError
from kvd.tier.tending import Tending
from kvdriver import Tier
from support.stores import DEADLINE_S, back, offline, store_at, tended, until
from support.tiers import MIB, PAGE_BYTES, tiers_at

random_bytes = random.Random(2).randbytes


# -- objects ---------------------------------------------------------------------------------------------------------


async def test_a_copy_that_one_directory_fails_is_made_in_another(root, monkeypatch):
    async with tiers_at(root, nvme_dirs=2) as tiers:
        mover = tiers.objects.moves._mover
        real, tried = mover.demote, []

        async def demote(**job):
            tried.append([part.device for part in job["parts"]])
            if len(tried) == 1:
                raise DeviceError(errno.EIO, "demote", job["parts"][0].device)
            return await real(**job)

        monkeypatch.setattr(mover, "demote", demote)
        content = random_bytes(100_000)
        ino = await tiers.make(b"a", content)
        await tiers.objects.demote(ino)
        (first,), (second,) = tried
        assert first != second
        assert tiers.catalog.placements.copy(ino).dirs == (second,)
        assert tiers.nvme.directories[first].health.state is State.SUSPECT
        assert len((await tiers.nvme.files())[0]) == 1, "of the first try nothing is left"
        assert await tiers.read(ino) == content


async def test_a_copy_that_all_directories_fail_leaves_the_object_in_ddr(root, monkeypatch):
    async with tiers_at(root, nvme_dirs=2) as tiers:

        async def demote(**job):
            raise DeviceError(errno.EIO, "demote", job["parts"][0].device)

        ino = await tiers.make(b"a", b"abc")
        with monkeypatch.context() as patch:
            patch.setattr(tiers.objects.moves._mover, "demote", demote)
            with pytest.raises(OSError, match="Input/output"):
                await tiers.objects.demote(ino)
        assert await tiers.used_blocks(Tier.NVME) == 0
        assert (await tiers.nvme.files())[0] == {}
        assert await tiers.read(ino) == b"abc"
        await tiers.objects.demote(ino)
        assert await tiers.read(ino) == b"abc"


async def test_moves_under_way_end_when_their_directory_goes_offline(root, monkeypatch, claim_log):
    claim_log("nvme directory is offline")
    async with tiers_at(root, nvme_dirs=2) as tiers:
        mover = tiers.objects.moves._mover
        real, hung = mover.demote, []

        async def demote(**job):
            if not hung:
                hung.append(job["parts"][0].device)
                await trio.sleep_forever()
            return await real(**job)

        monkeypatch.setattr(mover, "demote", demote)
        ino = await tiers.make(b"a", b"abc")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(tiers.objects.demote, ino)
            await until(lambda: hung)
            offline(tiers.nvme.directories[hung[0]])
        assert tiers.catalog.placements.copy(ino).dirs == (1 - hung[0],)
        assert not tiers.nvme.directories[1 - hung[0]].moves

        async def promote(**job):
            offline(tiers.nvme.directories[job["parts"][0].device])
            await trio.sleep_forever()

        monkeypatch.setattr(mover, "promote", promote)
        with pytest.raises(OfflineError):
            await tiers.objects.open(ino, write=False)
        assert tiers.catalog.placements.faults(10) == [], "it is no fault of the object"
        assert await tiers.used_blocks(Tier.DDR) == 0


@pytest.mark.parametrize("parts", [2, 3])
async def test_striped_objects_come_back_right_and_all_their_parts_go(root, parts):
    async with tiers_at(root, nvme_dirs=parts) as tiers:
        content = random_bytes(MIB + 777)
        ino = await tiers.make(b"a", content)
        await tiers.objects.demote(ino)
        copy = tiers.catalog.placements.copy(ino)
        assert sorted(copy.dirs) == list(range(parts))
        assert copy.stripe_bytes == PAGE_BYTES
        assert await tiers.read(ino) == content
        await tiers.objects.demote(ino)
    async with tiers_at(root, nvme_dirs=parts) as tiers:
        assert tiers.recovered.on_nvme == 1
        assert tiers.recovered.swept == 0
        assert await tiers.read(ino) == content
        tiers.catalog.names.unlink(1, b"a", 7)
        await tiers.objects.discard(ino)
        assert (await tiers.nvme.files())[0] == {}


async def test_a_start_without_a_directory_takes_nothing_for_vanished(root, claim_log, monkeypatch):
    claim_log("nvme directory is offline")
    async with tiers_at(root, nvme_dirs=2) as tiers:
        inos = [await tiers.make(f"{number}".encode(), b"x" * (number + 1)) for number in range(6)]
        for ino in inos:
            await tiers.objects.demote(ino)
    let_go = threading.Event()
    real = Directory._claim

    def claim(directory, **how):
        if directory.index == 1:
            let_go.wait()
        real(directory, **how)

    with monkeypatch.context() as patch:
        patch.setattr(Directory, "_claim", claim)
        async with tiers_at(root, nvme_dirs=2, deadline_s=DEADLINE_S) as tiers:
            assert tiers.recovered.on_nvme == 6
            assert tiers.recovered.dropped == tiers.recovered.damaged == 0
            results = {}
            for ino in inos:
                (index,) = tiers.catalog.placements.copy(ino).dirs
                try:
                    results[ino] = index, await tiers.read(ino)
                except OfflineError:
                    results[ino] = index, None
            assert {index for index, _ in results.values()} == {0, 1}
            assert all((found is None) == (index == 1) for index, found in results.values())
            let_go.set()
            patch.undo()
            async with tended(tiers):
                await until(lambda: tiers.nvme.directories[1].health.usable)
            for number, ino in enumerate(inos):
                assert await tiers.read(ino) == b"x" * (number + 1)


async def test_what_is_in_ddr_with_its_copy_on_a_dead_drive_is_dirty_again(root, claim_log):
    claim_log("nvme directory is offline")
    async with tiers_at(root, nvme_dirs=2) as tiers:
        ino = await tiers.make(b"a", b"abc")
        await tiers.objects.fsync(ino)
        (index,) = tiers.catalog.placements.copy(ino).dirs
        assert tiers.objects.count_dirty() == 0
        offline(tiers.nvme.directories[index])
        assert tiers.objects.count_dirty() == 1
        await tiers.objects.demote(ino)
        assert tiers.catalog.placements.copy(ino).dirs == (1 - index,)
        assert await tiers.read(ino) == b"abc"
        assert tiers.nvme.directories[index].unswept, "the older copy's removal is owed"
        async with tended(tiers):
            await until(lambda: tiers.nvme.directories[index].health.usable)
            path = tiers.nvme.file(index, ino, 1)
            await until(lambda: not path.exists())


# -- tending ---------------------------------------------------------------------------------------------------------


@dataclass
class Age:
    oldest_s: float = 0.0


def tending_of(store, ages, rows=None):
    return Tending(
        store,
        deadline_s=DEADLINE_S,
        probe_s=0.01,
        ages=lambda: ages,
        row=(rows or {}).get,
        changed=lambda: None,
    )


async def test_a_request_that_is_too_old_turns_its_directory_offline_and_only_once(root, claim_log):
    claim_log("nvme directory is offline")
    async with store_at(root, dirs=2) as store, trio.open_nursery() as nursery:
        first, second = store.directories
        ages = Age(), Age()
        began_s = time.time()
        nursery.start_soon(tending_of(store, ages).run)
        await until(lambda: time.time() - began_s > 2 * DEADLINE_S)
        ages[0].oldest_s = 1.5 * DEADLINE_S
        await until(lambda: first.health.offline_count == 1)
        await until(lambda: first.health.state is State.ONLINE)
        ages[0].oldest_s = time.time() - began_s + DEADLINE_S  # the drive never gave that one back
        counted = first.health.offline_count
        measured_s = time.time()
        await until(lambda: time.time() - measured_s > 2 * DEADLINE_S)
        assert first.health.offline_count == counted, "it is not held against it again"
        assert second.health.offline_count == 0
        nursery.cancel_scope.cancel()


async def test_a_slow_directory_is_suspect_until_a_probe_has_passed(root):
    async with store_at(root) as store, trio.open_nursery() as nursery:
        (directory,) = store.directories
        seen = []
        real = directory.meet
        directory.meet = lambda event: (real(event), seen.append(directory.health.state))
        ages = (Age(),)
        began_s = time.time()
        nursery.start_soon(tending_of(store, ages).run)
        await until(lambda: time.time() - began_s > DEADLINE_S)
        ages[0].oldest_s = DEADLINE_S / 2
        await until(lambda: State.SUSPECT in seen)
        ages[0].oldest_s = 0.0
        await until(lambda: directory.health.state is State.ONLINE)
        assert State.OFFLINE not in seen
        nursery.cancel_scope.cancel()


async def test_a_probe_that_hangs_harms_nobody_and_none_follows_it(root, claim_log):
    claim_log("nvme directory is offline")
    async with store_at(root) as store, trio.open_nursery() as nursery:
        (directory,) = store.directories
        let_go, begun = threading.Event(), []
        real = directory.measure

        def hang():
            begun.append(1)
            let_go.wait()
            real()

        directory.measure = hang
        offline(directory)
        nursery.start_soon(tending_of(store, (Age(),)).run)
        await until(lambda: begun)
        began_s = time.time()
        await until(lambda: time.time() - began_s > 3 * DEADLINE_S)
        assert len(begun) == 1
        assert not directory.health.usable
        directory.measure = real
        let_go.set()
        await until(lambda: directory.health.usable)
        nursery.cancel_scope.cancel()


async def test_a_full_drive_passes_its_probe_and_a_failing_one_does_not(root, monkeypatch):
    async with store_at(root) as store:
        (directory,) = store.directories
        for code, passes in ((errno.ENOSPC, True), (errno.EIO, False)):

            def write(fd, data, code=code):
                raise OSError(code, os.strerror(code))

            with monkeypatch.context() as patch:
                patch.setattr("kvd.tier.probing.os.write", write)
                assert await directory.probe() is passes
            assert not (directory.path / "kvd-probe").exists()
        assert "Input/output error" in directory.probe_why
        assert await directory.probe()


async def test_a_directory_that_is_back_is_swept(root, claim_log):
    claim_log("nvme directory is offline")
    async with tiers_at(root) as tiers:
        ino = await tiers.make(b"a", b"abc")
        await tiers.objects.demote(ino)
        (directory,) = tiers.nvme.directories
        kept = tiers.nvme.file(0, ino, 1)
        stray = [tiers.nvme.file(0, 0xDEAD, 1), tiers.nvme.file(0, ino, 2)]
        for path in stray:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        making = await tiers.nvme.create(0xBEEF, 1, 10)
        offline(directory)
        async with tended(tiers):
            await until(lambda: not any(path.exists() for path in stray))
        assert kept.exists()
        assert making.parts[0].path.exists(), "it is being made"
        await tiers.nvme.discard(making, 0xBEEF, 1)
        assert not making.parts


# -- what the data plane reads by itself -----------------------------------------------------------------------------


async def test_a_drive_that_keeps_a_read_of_an_open_object_turns_its_directory_offline(root, claim_log):
    claim_log("nvme directory is offline")
    async with tiers_at(root, ddr_mib=2, nvme_dirs=2) as tiers:
        content = random_bytes(MIB - 1)
        cold = await tiers.make(b"cold", content)
        await tiers.objects.demote(cold)
        held = await tiers.make(b"held", random_bytes(3 * MIB // 2))
        await tiers.objects.open(held, write=False)
        await tiers.objects.open(cold, write=False)
        (device, *_) = tiers.plane.objects[cold].devices
        assert tiers.plane.objects[cold].devices == tiers.catalog.placements.copy(cold).dirs
        assert tiers.plane.down == set()
        tiers.objects.failed_io(cold, errno.ETIMEDOUT, device)
        assert tiers.plane.down == {device}, "what is open there is refused, too"
        assert not tiers.nvme.directories[device].health.usable
        assert tiers.catalog.placements.faults(10) == [], "it is no fault of the object"
        back(tiers.nvme.directories[device])
        assert tiers.plane.down == set()
        assert tiers.see(cold) == content
        for ino in (cold, held):
            await tiers.objects.release(ino, write=False)


async def test_a_read_of_an_open_object_that_fails_is_noted_and_its_directory_tried_out(root, claim_log):
    claim_log("object can't be read")
    async with tiers_at(root) as tiers:
        ino = await tiers.make(b"a", b"abc")
        await tiers.objects.demote(ino)
        await tiers.objects.open(ino, write=False)
        tiers.objects.failed_io(ino, errno.EIO, 0)
        await tiers.objects.release(ino, write=False)
        assert tiers.nvme.directories[0].health.state is State.SUSPECT
        assert [fault.ino for fault in tiers.catalog.placements.faults(10)] == [ino]


async def test_the_data_plane_is_told_of_what_is_offline_from_the_start(root, monkeypatch, claim_log):
    claim_log("nvme directory is offline")
    monkeypatch.setattr(Directory, "_look", _fails)
    async with tiers_at(root) as tiers:
        assert tiers.plane.down == {0}


def _fails(self, *, claim):
    raise OSError(errno.EIO, os.strerror(errno.EIO))
