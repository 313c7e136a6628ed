"""Objects without a mount: residency, books, leases, room, restarts."""

import errno
import os
import random
import subprocess

import pytest
import trio

from kvd.errors import BusyError, NoSpaceError
from kvd.tier.plane import Mode
from kvdriver import BLOCK_BYTES, Tier
from support.fake_plane import FakePlane
from support.tiers import MIB, PAGE_BYTES, tiers_at

random_bytes = random.Random(1).randbytes


async def test_a_life_from_ddr_to_nvme_and_back(root):
    content = random_bytes(3 * PAGE_BYTES + 777)
    async with tiers_at(root) as tiers:
        ino = await tiers.make(b"a", content)
        blocks = -(-len(content) // BLOCK_BYTES)
        assert await tiers.used_blocks(Tier.DDR) == blocks
        assert tiers.catalog.names.inode(ino).size == len(content)
        assert await tiers.objects.demote(ino) == len(content)
        assert await tiers.used_blocks(Tier.DDR) == 0
        assert await tiers.used_blocks(Tier.NVME) == blocks
        assert not (tiers.config.ddr.path / f"{ino:x}").exists()
        assert await tiers.read(ino) == content
        assert await tiers.used_blocks(Tier.DDR) == blocks
        assert await tiers.used_blocks(Tier.NVME) == blocks, "the copy stays"
        demoted = tiers.objects.moves.counts.demoted_bytes
        await tiers.objects.demote(ino)
        assert tiers.objects.moves.counts.demoted_bytes == demoted, "a clean object demotes for free"
        assert await tiers.read(ino) == content


async def test_sparse_objects_are_charged_for_what_they_hold(root):
    async with tiers_at(root) as tiers:
        ino = await tiers.begin(b"a")
        tiers.write(ino, b"x", 100 * MIB)
        tiers.write(ino, b"y", 5)
        await tiers.objects.release(ino, write=True)
        assert await tiers.used_blocks(Tier.DDR) == 2
        await tiers.objects.demote(ino)
        content = await tiers.read(ino)
        assert (len(content), content[5:6], content[-1:]) == (100 * MIB + 1, b"y", b"x")


async def test_what_fallocate_put_beside_the_data_is_given_back(root):
    async with tiers_at(root) as tiers:
        ino = await tiers.begin(b"a")
        tiers.write(ino, b"x" * 5000)
        fd = tiers.plane.objects[ino].fd
        subprocess.run(["fallocate", "-l", str(MIB), f"/proc/{os.getpid()}/fd/{fd}"], check=True)
        subprocess.run(["fallocate", "-n", "-o", str(MIB), "-l", str(MIB), f"/proc/{os.getpid()}/fd/{fd}"], check=True)
        assert os.fstat(fd).st_blocks * 512 >= 2 * MIB - 8192
        await tiers.objects.release(ino, write=True)
        assert await tiers.used_blocks(Tier.DDR) == 2
        held = (tiers.config.ddr.path / f"{ino:x}").stat()
        assert (held.st_size, held.st_blocks * 512) == (MIB, 8192)
        assert await tiers.read(ino) == b"x" * 5000 + bytes(MIB - 5000)


async def test_times_set_while_closed_are_kept_by_the_next_writer(root):
    async with tiers_at(root) as tiers:
        ino = await tiers.make(b"a", b"abc")
        tiers.catalog.names.setattr(ino, mtime_ns=123_000_000_456)
        await tiers.objects.open(ino, write=True)
        assert tiers.objects.lives.attributes(ino).st_mtime_ns == 123_000_000_456
        await tiers.objects.release(ino, write=True)
        assert tiers.catalog.names.inode(ino).mtime_ns == 123_000_000_456


async def test_empty_objects_travel_too(root):
    async with tiers_at(root) as tiers:
        ino = await tiers.make(b"a", b"")
        await tiers.objects.demote(ino)
        assert await tiers.read(ino) == b""


async def test_what_is_open_or_pinned_stays(root):
    async with tiers_at(root) as tiers:
        ino = await tiers.make(b"a", b"abc")
        await tiers.objects.open(ino, write=False)
        with pytest.raises(BusyError, match="in use"):
            await tiers.objects.demote(ino)
        await tiers.objects.release(ino, write=False)
        assert await tiers.objects.pin(ino, pinned=True)
        with pytest.raises(BusyError, match="pinned"):
            await tiers.objects.demote(ino)
        assert not await tiers.objects.pin(ino, pinned=True)
        await tiers.objects.pin(ino, pinned=False)
        await tiers.objects.demote(ino)


async def test_one_mode_from_first_open_to_last_release(root):
    async with tiers_at(root) as tiers:
        ino = await tiers.make(b"a", b"abc")
        await tiers.objects.open(ino, write=False)
        spec = tiers.plane.objects[ino]
        assert spec.mode is Mode.PASSTHROUGH
        await tiers.objects.open(ino, write=True)
        assert tiers.plane.objects[ino] == spec
        assert len(tiers.plane.backings) == 1
        await tiers.objects.release(ino, write=True)
        await tiers.objects.release(ino, write=False)
        assert tiers.plane.objects == {}
        assert tiers.plane.backings == {}


@pytest.mark.parametrize(("direct_mmap", "mode"), [(True, Mode.DIRECT), (False, Mode.CACHED)])
async def test_without_passthrough_the_split_serves(root, direct_mmap, mode):
    async with tiers_at(root, plane=FakePlane(passthrough=False, direct_mmap=direct_mmap)) as tiers:
        ino = await tiers.begin(b"a")
        assert tiers.plane.objects[ino].mode is mode
        assert tiers.plane.limits[ino] == 0
        await tiers.objects.grow(ino, 5000)
        assert tiers.plane.limits[ino] >= 5000
        tiers.write(ino, b"x" * 5000)
        await tiers.objects.release(ino, write=True)
        assert await tiers.used_blocks(Tier.DDR) == 2
        info = await tiers.books.tier(Tier.DDR)
        assert info.reserved_blocks == 0


async def test_a_full_ddr_is_emptied_for_new_objects_oldest_first(root):
    async with tiers_at(root, ddr_mib=8) as tiers:
        content = {}
        for index in range(20):
            data = random_bytes(MIB)
            content[await tiers.make(b"%d" % index, data)] = data
            await trio.sleep(0.002)
        info = await tiers.books.tier(Tier.DDR)
        assert info.used_blocks * BLOCK_BYTES <= 8 * MIB
        tiers_of = [tiers.catalog.placements.get(ino).tier for ino in content]
        assert tiers_of == sorted(tiers_of, reverse=True), "the oldest are on NVMe"
        for ino, data in content.items():
            assert await tiers.read(ino) == data


async def test_a_reader_whom_ddr_has_no_room_for_reads_from_nvme(root):
    async with tiers_at(root, ddr_mib=2) as tiers:
        data = random_bytes(MIB + 5)
        cold = await tiers.make(b"cold", data)
        await tiers.objects.demote(cold)
        held = await tiers.make(b"held", random_bytes(3 * MIB // 2))
        await tiers.objects.open(held, write=False)
        await tiers.objects.open(cold, write=False)
        spec = tiers.plane.objects[cold]
        assert spec.mode is Mode.DIRECT
        assert not spec.writable
        assert spec.sums is not None
        assert len(spec.sums.crc) == 4 * 17
        with pytest.raises(NoSpaceError):
            await tiers.objects.open(cold, write=True)
        with pytest.raises(BusyError):
            await tiers.objects.promote(cold)
        await tiers.objects.release(held, write=False)
        await tiers.objects.open(cold, write=True)
        assert tiers.plane.objects[cold].writable, "promoted under its reader, in the same mode"
        assert tiers.see(cold) == data
        await tiers.objects.release(cold, write=True)
        await tiers.objects.release(cold, write=False)


async def test_growing_past_the_budget_is_enospc_and_harms_nothing(root):
    async with tiers_at(root, ddr_mib=2, plane=FakePlane(passthrough=False)) as tiers:
        other = await tiers.make(b"other", b"")
        ino = await tiers.begin(b"a")
        with pytest.raises(OSError, match="No space") as info:
            await tiers.objects.grow(ino, 3 * MIB)
        assert info.value.errno == errno.ENOSPC
        await tiers.objects.grow(ino, MIB)
        await tiers.objects.release(ino, write=True)
        assert await tiers.read(other) == b""


async def test_a_writer_waits_for_room_that_a_release_makes(root):
    async with tiers_at(root, ddr_mib=2, write_wait_s=20, plane=FakePlane(passthrough=False)) as tiers:
        held = await tiers.begin(b"held")
        await tiers.objects.grow(held, MIB)
        tiers.write(held, random_bytes(MIB))
        ino = await tiers.begin(b"a")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(tiers.objects.grow, ino, 3 * MIB // 2)
            await trio.testing.wait_all_tasks_blocked()
            assert tiers.plane.limits[ino] == 0
            await tiers.objects.release(held, write=True)
        assert tiers.plane.limits[ino] >= 3 * MIB // 2
        await tiers.objects.release(ino, write=True)


async def test_a_writer_that_outruns_its_reservation_uses_the_burst_reserve(root):
    async with tiers_at(root, ddr_mib=2) as tiers:
        ino = await tiers.begin(b"a")
        tiers.write(ino, random_bytes(5 * MIB // 2))
        await tiers.objects.release(ino, write=True)
        info = await tiers.books.tier(Tier.DDR)
        assert info.used_blocks == 5 * MIB // 2 // BLOCK_BYTES
        assert info.capacity_blocks == info.used_blocks
        await tiers.objects.demote(ino)
        with trio.move_on_after(0.3):
            await tiers.objects.room.run()
        assert (await tiers.books.tier(Tier.DDR)).capacity_blocks == 2 * MIB // BLOCK_BYTES


async def test_the_watermarks_are_kept_by_idle_objects(root):
    async with tiers_at(root, ddr_mib=8) as tiers:
        for index in range(15):
            await tiers.make(b"%d" % index, random_bytes(MIB // 2))
        with trio.fail_after(10):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(tiers.objects.room.run)
                while (await tiers.used_blocks(Tier.DDR)) * BLOCK_BYTES > 4 * MIB:
                    await trio.sleep(0.02)
                nursery.cancel_scope.cancel()


async def test_a_full_nvme_keeps_what_is_stored(root, claim_log):
    claim_log("demotion failed")
    async with tiers_at(root, ddr_mib=4, nvme_mib=1) as tiers:
        data = random_bytes(2 * MIB)
        ino = await tiers.make(b"a", data)
        for operation in (tiers.objects.demote, tiers.objects.fsync):
            with pytest.raises(OSError, match="No space"):
                await operation(ino)
        assert await tiers.used_blocks(Tier.NVME) == 0
        assert await tiers.read(ino) == data
        writer = await tiers.begin(b"b")
        with pytest.raises(OSError, match="No space"):
            await tiers.objects.grow(writer, 3 * MIB)
        await tiers.objects.release(writer, write=True)


async def test_unlinked_objects_live_until_released(root):
    async with tiers_at(root) as tiers:
        ino = await tiers.make(b"a", b"abc")
        await tiers.objects.open(ino, write=False)
        tiers.catalog.names.unlink(1, b"a", 5)
        await tiers.objects.discard(ino)
        assert tiers.see(ino) == b"abc"
        await tiers.objects.release(ino, write=False)
        await tiers.objects.discard(ino)
        assert await tiers.used_blocks(Tier.DDR) == 0
        assert tiers.objects.lives.sessions == {}
        assert [path.name for path in tiers.config.ddr.path.iterdir()] == ["kvd-ddr.json"]


async def test_truncate_through_the_tiers(root):
    async with tiers_at(root) as tiers:
        data = random_bytes(3 * PAGE_BYTES)
        ino = await tiers.make(b"a", data)
        await tiers.objects.demote(ino)
        await tiers.objects.truncate(ino, PAGE_BYTES + 1)
        assert await tiers.read(ino) == data[: PAGE_BYTES + 1]
        await tiers.objects.demote(ino)
        await tiers.objects.truncate(ino, 0)
        assert await tiers.read(ino) == b""
        await tiers.objects.truncate(ino, 10)
        assert await tiers.read(ino) == bytes(10)
        with pytest.raises(OSError, match="too large"):
            await tiers.objects.truncate(ino, 1 << 60)
        assert await tiers.used_blocks(Tier.NVME) == 0


async def test_a_restart_keeps_what_was_sealed_and_reverts_what_was_not(root):
    async with tiers_at(root) as tiers:
        sealed = await tiers.make(b"sealed", b"1" * 70000)
        cold = await tiers.make(b"cold", b"2" * 70000)
        await tiers.objects.demote(cold)
        synced = await tiers.begin(b"synced")
        tiers.write(synced, b"first")
        await tiers.objects.fsync(synced)
        tiers.write(synced, b"later!")
        await tiers.begin(b"filling")
    async with tiers_at(root) as tiers:
        assert await tiers.read(sealed) == b"1" * 70000
        assert await tiers.read(cold) == b"2" * 70000
        assert await tiers.read(synced) == b"first"
        assert tiers.catalog.names.inode(synced).size == 5
        assert tiers.catalog.names.lookup(1, b"filling") is None
        found = tiers.recovered
        assert (found.in_ddr, found.on_nvme, found.reverted, found.dropped) == (1, 2, 1, 1)
    for path in (root / "ddr").iterdir():
        path.unlink()
    async with tiers_at(root) as tiers:
        found = tiers.recovered
        assert found.dropped == 1, "only in a tmpfs that is gone"
        assert {entry.name for entry in tiers.catalog.names.listing(1)} == {b"cold", b"synced"}


async def test_files_that_belong_to_nobody_are_swept(root):
    async with tiers_at(root) as tiers:
        ino = await tiers.make(b"a", b"abc")
        await tiers.objects.demote(ino)
        (tiers.config.ddr.path / "7b").write_bytes(b"left over")
        stray = tiers.nvme.file(0, 0xDEAD, 1)
        stray.parent.mkdir(parents=True)
        stray.write_bytes(b"left over")
    async with tiers_at(root) as tiers:
        assert tiers.recovered.swept == 2
        assert len((await tiers.nvme.files())[0]) == 1
        assert await tiers.read(ino) == b"abc"


async def test_objects_opened_in_order_are_fetched_ahead_into_free_room_only(root):
    async with tiers_at(root, ddr_mib=8) as tiers:
        data = {await tiers.make(b"%02d" % index, random_bytes(MIB)): index for index in range(12)}
        inos = list(data)
        for ino in inos:
            await tiers.objects.demote(ino)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(tiers.objects.prefetch.run)
            for ino in inos[:3]:
                await tiers.read(ino)
            with trio.fail_after(10):
                while (await tiers.used_blocks(Tier.DDR)) * BLOCK_BYTES < 8 * MIB:
                    await trio.sleep(0.005)
            await trio.testing.wait_all_tasks_blocked()
            assert (await tiers.books.tier(Tier.DDR)).reserved_blocks == 0
            in_ddr = [ino for ino in inos if tiers.catalog.placements.get(ino).tier == Tier.DDR]
            assert len(in_ddr) == 8
            assert in_ddr[:3] == inos[:3], "fetching ahead demotes nothing"
            nursery.cancel_scope.cancel()
