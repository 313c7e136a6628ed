"""Large cold objects are opened at once: who joins, who waits, and what is left when it goes wrong."""

import os
import random
from contextlib import suppress

import pytest
import trio

from kvd.errors import BusyError
from kvd.tier.plane import Mode
from kvdriver import BLOCK_BYTES, Lost, Tier
from support.fake_plane import FakePlane
from support.streaming import BLOCKS, DATA, SIZE, cold_alone, copy_files, in_ddr_alone, settled, streaming
from support.tiers import MIB, PAGE_BYTES


async def test_an_open_is_answered_before_anything_has_moved(root):
    async with streaming(root) as (tiers, ino):
        await tiers.objects.open(ino, write=False)
        spec = tiers.plane.objects[ino]
        assert spec.stream_address
        assert (spec.mode, spec.writable, spec.sums.crc) == (Mode.DIRECT, False, b"")
        assert os.fstat(spec.fd).st_size == SIZE
        assert tiers.catalog.placements.get(ino).tier == Tier.NVME
        info = await tiers.books.tier(Tier.DDR)
        assert (info.used_blocks, info.reserved_blocks) == (0, BLOCKS)
        tiers.mover.gate.set()
        await settled(tiers, ino)
        spec = tiers.plane.objects[ino]
        assert (spec.stream_address, spec.mode) == (0, Mode.DIRECT)
        assert tiers.plane.limits[ino] == BLOCKS * BLOCK_BYTES
        assert tiers.see(ino) == DATA
        await tiers.objects.release(ino, write=False)
        await in_ddr_alone(tiers, ino)
        await tiers.objects.open(ino, write=False)
        assert tiers.plane.objects[ino].mode is Mode.PASSTHROUGH, "later opens pass through"
        await tiers.objects.release(ino, write=False)
        assert tiers.objects.moves.counts.promoted_bytes == SIZE


async def test_small_objects_come_whole(root):
    async with streaming(root) as (tiers, _):
        small = await tiers.make(b"small", DATA[: 3 * PAGE_BYTES])
        await tiers.objects.demote(small)
        assert await tiers.read(small) == DATA[: 3 * PAGE_BYTES]
        assert [job["stream_address"] for job in tiers.mover.promotions] == [0]


@pytest.mark.parametrize("direct_mmap", [True, False])
async def test_without_passthrough_it_is_the_same(root, direct_mmap):
    async with streaming(root, plane=FakePlane(passthrough=False, direct_mmap=direct_mmap)) as (tiers, ino):
        await tiers.objects.open(ino, write=False)
        assert tiers.plane.objects[ino].mode is (Mode.DIRECT if direct_mmap else Mode.CACHED)
        tiers.mover.gate.set()
        await settled(tiers, ino)
        assert tiers.see(ino) == DATA
        await tiers.objects.release(ino, write=False)
        await in_ddr_alone(tiers, ino)


async def test_more_readers_join_and_one_that_leaves_ends_nothing(root):
    async with streaming(root) as (tiers, ino):
        await tiers.objects.open(ino, write=False)
        await tiers.objects.open(ino, write=False)
        await tiers.objects.release(ino, write=False)
        await tiers.objects.release(ino, write=False)
        assert tiers.plane.objects == {}
        assert ino in tiers.objects.lives.by_ino, "it comes all the same"
        await tiers.objects.open(ino, write=False)
        assert tiers.plane.objects[ino].stream_address
        await tiers.objects.release(ino, write=False)
        tiers.mover.gate.set()
        await settled(tiers, ino)
        assert len(tiers.mover.promotions) == 1
        await in_ddr_alone(tiers, ino)
        assert await tiers.read(ino) == DATA


async def test_a_writer_waits_for_the_whole(root):
    async with streaming(root) as (tiers, ino):
        await tiers.objects.open(ino, write=False)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: tiers.objects.open(ino, write=True))
            await trio.testing.wait_all_tasks_blocked()
            assert tiers.objects.lives.by_ino[ino].writers == 0
            tiers.mover.gate.set()
        spec = tiers.plane.objects[ino]
        assert (spec.mode, spec.writable) == (Mode.DIRECT, True)
        tiers.write(ino, b"new", 5)
        await tiers.objects.release(ino, write=True)
        await tiers.objects.release(ino, write=False)
        assert await tiers.read(ino) == DATA[:5] + b"new" + DATA[8:]


async def test_a_truncation_ends_what_nobody_reads(root):
    async with streaming(root) as (tiers, ino):
        await tiers.objects.open(ino, write=False)
        await tiers.objects.release(ino, write=False)
        with trio.fail_after(10):
            await tiers.objects.truncate(ino, 0)
        assert await tiers.read(ino) == b""
        assert (await tiers.books.tier(Tier.DDR)).reserved_blocks == 0


async def test_a_truncation_waits_for_readers_to_have_all(root):
    async with streaming(root) as (tiers, ino):
        await tiers.objects.open(ino, write=False)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(tiers.objects.truncate, ino, 0)
            await trio.testing.wait_all_tasks_blocked()
            assert tiers.catalog.names.inode(ino).size == SIZE
            tiers.mover.gate.set()
        assert tiers.see(ino) == b""
        await tiers.objects.release(ino, write=False)


async def test_demoting_ends_what_nobody_reads(root):
    async with streaming(root) as (tiers, ino):
        await tiers.objects.open(ino, write=False)
        await tiers.objects.release(ino, write=False)
        with trio.fail_after(10):
            assert await tiers.objects.demote(ino) == 0
        await cold_alone(tiers, ino)
        await tiers.objects.open(ino, write=False)
        with pytest.raises(BusyError, match="in use"):
            await tiers.objects.demote(ino)
        await tiers.objects.release(ino, write=False)


async def test_promoting_waits_for_the_one_that_runs(root):
    async with streaming(root) as (tiers, ino):
        await tiers.objects.open(ino, write=False)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(tiers.objects.promote, ino)
            await trio.testing.wait_all_tasks_blocked()
            tiers.mover.gate.set()
        assert tiers.objects.lives.by_ino[ino].tier is Tier.DDR
        assert len(tiers.mover.promotions) == 1
        await tiers.objects.release(ino, write=False)


async def test_pins_and_syncs_do_not_wait(root):
    async with streaming(root) as (tiers, ino):
        await tiers.objects.open(ino, write=False)
        with trio.fail_after(10):
            assert await tiers.objects.pin(ino, pinned=True)
            await tiers.objects.fsync(ino)
        tiers.mover.gate.set()
        await settled(tiers, ino)
        await tiers.objects.release(ino, write=False)
        with pytest.raises(BusyError, match="pinned"):
            await tiers.objects.demote(ino)


async def test_deleting_ends_it(root):
    async with streaming(root) as (tiers, ino):
        await tiers.objects.open(ino, write=False)
        tiers.catalog.names.unlink(1, b"a", 5)
        await tiers.objects.discard(ino)
        assert tiers.plane.objects[ino].stream_address, "open: it stays"
        await tiers.objects.release(ino, write=False)
        with trio.fail_after(10):
            await tiers.objects.discard(ino)
        assert tiers.objects.lives.sessions == {}
        assert copy_files(tiers) == []
        assert [path.name for path in tiers.config.ddr.path.iterdir()] == ["kvd-ddr.json"]
        info = await tiers.books.tier(Tier.DDR)
        assert (info.used_blocks, info.reserved_blocks) == (0, 0)


async def test_without_room_it_is_read_from_nvme(root):
    async with streaming(root, ddr_mib=2) as (tiers, ino):
        held = await tiers.make(b"held", bytes(3 * MIB // 2))
        await tiers.objects.open(held, write=False)
        await tiers.objects.open(ino, write=False)
        spec = tiers.plane.objects[ino]
        assert (spec.stream_address, len(spec.sums.crc)) == (0, 4 * 17)
        await tiers.objects.release(ino, write=False)
        await tiers.objects.release(held, write=False)
        tiers.mover.gate.set()
        assert tiers.mover.promotions == []
        await tiers.objects.open(ino, write=False)
        assert tiers.plane.objects[ino].stream_address, "the idle one makes room"
        await settled(tiers, ino)
        await tiers.objects.release(ino, write=False)


async def test_engine_tables_made_anew_meanwhile_keep_its_reservation(root):
    async with streaming(root) as (tiers, ino):
        await tiers.objects.open(ino, write=False)
        await tiers.objects.mending.mend(Lost(sessions=frozenset(), every=True))
        assert (await tiers.books.tier(Tier.DDR)).reserved_blocks == BLOCKS
        tiers.mover.gate.set()
        await settled(tiers, ino)
        assert tiers.see(ino) == DATA
        await tiers.objects.release(ino, write=False)
        await in_ddr_alone(tiers, ino)


async def test_what_is_fetched_ahead_is_joined_by_its_open(root):
    async with streaming(root) as (tiers, ino):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(tiers.objects._opening.bringing.fetch, ino)
            with trio.fail_after(10):
                while not tiers.mover.promotions:
                    await trio.sleep(0.001)
            assert [job["ahead"] for job in tiers.mover.promotions] == [True]
            await tiers.objects.open(ino, write=False)
            assert tiers.plane.objects[ino].stream_address
            tiers.mover.gate.set()
        assert len(tiers.mover.promotions) == 1
        assert tiers.see(ino) == DATA
        await tiers.objects.release(ino, write=False)


async def use_at_random(tiers, inos, draw, steps):
    """One client: opens, reads what it can, closes, and now and then demotes."""
    for _ in range(steps):
        ino = draw.choice(inos)
        match draw.randrange(6):
            case 0:
                with suppress(BusyError):
                    await tiers.objects.demote(ino)
            case 1:
                with suppress(BusyError):
                    await tiers.objects.promote(ino)
            case 2:
                await tiers.objects.open(ino, write=True)
                assert tiers.see(ino) == DATA
                await trio.sleep(draw.choice((0, 0.001)))
                await tiers.objects.release(ino, write=True)
            case _:
                await tiers.objects.open(ino, write=False)
                await trio.sleep(draw.choice((0, 0.001, 0.004)))
                if not tiers.plane.objects[ino].stream_address:
                    assert tiers.see(ino) == DATA
                await tiers.objects.release(ino, write=False)


@pytest.mark.parametrize("seed", range(4))
async def test_clients_at_random_leave_everything_right(root, seed):
    draw = random.Random(seed)
    async with streaming(root, ddr_mib=16) as (tiers, first):
        tiers.mover.gate.set()
        inos = [first]
        for number in range(2):
            inos.append(await tiers.make(b"%d" % number, DATA))
            await tiers.objects.demote(inos[-1])
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                for client in range(5):
                    nursery.start_soon(use_at_random, tiers, inos, random.Random(f"{seed} {client}"), 40)
                for _ in range(20):  # cancelled clients too
                    with trio.move_on_after(draw.random() * 0.01):
                        await tiers.read(draw.choice(inos))
        for ino in inos:
            await settled(tiers, ino)
        info = await tiers.books.tier(Tier.DDR)
        in_ddr = [ino for ino in inos if tiers.catalog.placements.get(ino).tier == Tier.DDR]
        assert (info.used_blocks, info.reserved_blocks) == (BLOCKS * len(in_ddr), 0)
        files = {path.name for path in tiers.config.ddr.path.iterdir()} - {"kvd-ddr.json"}
        assert files == {f"{ino:x}" for ino in in_ddr}
        assert tiers.plane.objects == {}
