"""Room in DDR when NVMe takes nothing, and objects that leave memory."""

import random

import pytest
import trio

from kvd.errors import NotFoundError
from kvdriver import BLOCK_BYTES, Tier
from support.fake_plane import FakePlane
from support.tiers import MIB, tiers_at

random_bytes = random.Random(1).randbytes


async def refused(tiers, ino, need_bytes):
    with pytest.raises(OSError, match="No space"):
        await tiers.objects.grow(ino, need_bytes)


async def test_many_writers_are_refused_in_time_when_both_tiers_are_full(scratch, claim_log):
    claim_log("demotion failed")
    async with tiers_at(scratch, ddr_mib=4, nvme_mib=1, write_wait_s=0.5, plane=FakePlane(passthrough=False)) as tiers:
        stored = {await tiers.make(b"%d" % index, data): data for index, data in enumerate([random_bytes(2 * MIB)] * 2)}
        writers = [await tiers.begin(b"w%d" % index) for index in range(3)]
        with trio.fail_after(20):
            async with trio.open_nursery() as nursery:
                for ino in writers:
                    nursery.start_soon(refused, tiers, ino, MIB)
        for ino in writers:
            await tiers.objects.release(ino, write=True)
        for ino, data in stored.items():
            assert await tiers.read(ino) == data


async def test_a_writer_waits_for_room_that_nvme_gets(scratch, claim_log):
    claim_log("demotion failed")
    async with tiers_at(scratch, ddr_mib=4, nvme_mib=1, write_wait_s=30, plane=FakePlane(passthrough=False)) as tiers:
        await tiers.make(b"held", random_bytes(4 * MIB))
        writer = await tiers.begin(b"w")
        with trio.fail_after(20):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(tiers.objects.grow, writer, MIB)
                await trio.testing.wait_all_tasks_blocked(0.05)
                await tiers.books.resize(Tier.NVME, 8 * MIB // BLOCK_BYTES)
        await tiers.objects.release(writer, write=True)


async def test_what_policy_demotes_leaves_memory_and_keeps_its_hits(scratch):
    async with tiers_at(scratch, ddr_mib=4) as tiers:
        first = await tiers.make(b"first", random_bytes(MIB))
        for _ in range(3):
            await tiers.read(first)
        for index in range(6):
            await tiers.make(b"%d" % index, random_bytes(MIB))
        assert tiers.catalog.placements.get(first).tier == Tier.NVME
        assert first not in tiers.objects.lives.by_ino
        assert tiers.catalog.placements.get(first).hits == 3
        for live in tiers.objects.lives.by_ino.values():
            assert live.tier is Tier.DDR


@pytest.mark.parametrize("operation", ["promote", "demote", "fsync"])
async def test_who_waited_for_an_object_that_is_deleted_gets_a_miss(scratch, operation):
    async with tiers_at(scratch) as tiers:
        ino = await tiers.make(b"a", random_bytes(MIB))
        await tiers.objects.demote(ino)
        tiers.catalog.names.unlink(1, b"a", 5)

        async def late():
            with pytest.raises(NotFoundError):
                await getattr(tiers.objects, operation)(ino)

        async with trio.open_nursery() as nursery, tiers.objects.lives.hold(ino):
            nursery.start_soon(tiers.objects.discard, ino)
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(late)
            await trio.testing.wait_all_tasks_blocked()


async def test_what_is_leaving_already_is_not_asked_for_twice(scratch):
    async with tiers_at(scratch, ddr_mib=8, write_wait_s=20, plane=FakePlane(passthrough=False)) as tiers:
        for index in range(8):
            await tiers.make(b"%d" % index, random_bytes(MIB))
        first, second = [await tiers.begin(name) for name in (b"first", b"second")]
        room = tiers.objects.room
        gate, real = trio.Event(), tiers.mover.demote

        async def demote(**job):
            await gate.wait()
            return await real(**job)

        tiers.mover.demote = demote
        with trio.fail_after(20):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(tiers.objects.grow, first, 2 * MIB)
                await trio.testing.wait_all_tasks_blocked(0.05)
                leaving = sum(blocks for _, blocks in room._leaving.values())
                assert leaving
                nursery.start_soon(tiers.objects.grow, second, MIB)
                await trio.testing.wait_all_tasks_blocked(0.05)
                more = sum(blocks for _, blocks in room._leaving.values()) - leaving
                assert 0 < more <= MIB // BLOCK_BYTES, "for the second, and not again for the first"
                gate.set()
        for ino in (first, second):
            await tiers.objects.release(ino, write=True)
