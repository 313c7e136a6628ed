"""Promotions that are streamed and fail, are stopped, or are cut short by the daemon's death."""

import errno
import os

import pytest
import trio

from kvd.errors import DamagedError, VanishedError
from kvdriver import Tier
from support.streaming import BLOCKS, DATA, SIZE, cold_alone, copy_file, in_ddr_alone, settled, streaming
from support.tiers import PAGE_BYTES, tiers_at


def spoil(tiers, page):
    """Flip a bit of the object on NVMe."""
    with copy_file(tiers).open("r+b") as raw:
        raw.seek(page * PAGE_BYTES + 9)
        byte = raw.read(1)[0]
        raw.seek(page * PAGE_BYTES + 9)
        raw.write(bytes([byte ^ 1]))


async def test_a_bad_page_quarantines_and_its_readers_keep_what_has_landed(root, claim_log):
    claim_log("quarantined")
    async with streaming(root) as (tiers, ino):
        spoil(tiers, 9)
        await tiers.objects.open(ino, write=False)
        stream = tiers.objects.lives.by_ino[ino].streaming.stream
        tiers.mover.gate.set()
        await settled(tiers, ino)
        live = tiers.objects.lives.by_ino[ino]
        assert (live.damaged, live.tier, live.streaming.failed) == (True, Tier.NVME, True)
        assert stream.status == -errno.EBADMSG
        assert tiers.plane.objects[ino].stream_address == stream.address, "what has landed is read on"
        with pytest.raises(DamagedError):
            await tiers.objects.open(ino, write=False)
        await tiers.objects.release(ino, write=False)
        await cold_alone(tiers, ino)
        assert tiers.catalog.placements.get(ino).damaged


async def test_a_damaged_object_is_healed_by_new_bytes_under_its_reader(root, claim_log):
    claim_log("quarantined")
    async with streaming(root) as (tiers, ino):
        spoil(tiers, 9)
        tiers.mover.gate.set()
        await tiers.objects.open(ino, write=False)
        await settled(tiers, ino)
        await tiers.objects.open(ino, write=True, truncate=True)
        assert tiers.objects.lives.by_ino[ino].streaming is None
        tiers.write(ino, b"new")
        assert tiers.see(ino) == b"new"
        await tiers.objects.release(ino, write=True)
        await tiers.objects.release(ino, write=False)
        assert (await tiers.books.tier(Tier.DDR)).reserved_blocks == 0


async def test_after_a_failure_the_next_open_tries_anew_for_all(root, claim_log):
    claim_log("can't be read")
    async with streaming(root) as (tiers, ino):
        tiers.mover.failure = OSError(errno.EIO, "the disk says no")
        tiers.mover.gate.set()
        await tiers.objects.open(ino, write=False)
        await settled(tiers, ino)
        failed = tiers.plane.objects[ino]
        assert tiers.objects.lives.by_ino[ino].streaming.failed
        tiers.mover.shut()
        await tiers.objects.open(ino, write=False)
        again = tiers.plane.objects[ino]
        assert again.stream_address not in (0, failed.stream_address)
        assert (await tiers.books.tier(Tier.DDR)).reserved_blocks == BLOCKS
        tiers.mover.gate.set()
        await settled(tiers, ino)
        assert tiers.see(ino) == DATA
        await tiers.objects.release(ino, write=False)
        await tiers.objects.release(ino, write=False)
        await in_ddr_alone(tiers, ino)


async def test_after_a_failure_a_writer_gets_it_whole_and_readers_too(root, claim_log):
    claim_log("can't be read")
    async with streaming(root) as (tiers, ino):
        tiers.mover.failure = OSError(errno.ETIMEDOUT, "the disk says nothing")
        tiers.mover.gate.set()
        await tiers.objects.open(ino, write=False)
        await settled(tiers, ino)
        await tiers.objects.open(ino, write=True)
        spec = tiers.plane.objects[ino]
        assert (spec.stream_address, spec.writable) == (0, True)
        assert tiers.see(ino) == DATA
        await tiers.objects.release(ino, write=True)
        await tiers.objects.release(ino, write=False)
        await in_ddr_alone(tiers, ino)


async def test_what_cant_be_kept_stays_cold(root, claim_log):
    claim_log("can't be kept")
    async with streaming(root) as (tiers, ino):
        await tiers.objects.open(ino, write=False)
        fd = os.dup(tiers.plane.objects[ino].fd)  # the data plane has its own
        tiers.plane.switch_failure = OSError(errno.ENOMEM, "no memory")
        tiers.mover.gate.set()
        await settled(tiers, ino)
        live = tiers.objects.lives.by_ino[ino]
        assert (live.tier, live.streaming.failed, live.streaming.stream.status) == (Tier.NVME, True, 0)
        assert os.pread(fd, SIZE + 1, 0) == DATA, "the readers have it all"
        os.close(fd)
        await tiers.objects.release(ino, write=False)
        await cold_alone(tiers, ino)


async def test_a_copy_that_has_vanished_is_a_miss(root, claim_log):
    claim_log("object lost")
    async with streaming(root) as (tiers, ino):
        copy_file(tiers).unlink()
        with pytest.raises(VanishedError):
            await tiers.objects.open(ino, write=False)
        assert tiers.objects.lives.sessions == {}
        info = await tiers.books.tier(Tier.DDR)
        assert (info.used_blocks, info.reserved_blocks) == (0, 0)


async def test_stopping_ends_all_and_begins_none(root):
    async with streaming(root) as (tiers, ino):
        await tiers.objects.open(ino, write=False)
        await tiers.objects.close_all()
        with trio.fail_after(10):
            await tiers.objects.streaming.stop()
        await cold_alone(tiers, ino)
        assert await tiers.read(ino) == DATA
        assert tiers.mover.promotions[-1]["stream_address"] == 0


async def test_stopping_while_one_ends(root):
    async with streaming(root) as (tiers, ino):
        for _ in range(5):
            await tiers.objects.open(ino, write=False)
            tiers.mover.gate.set()
            await trio.sleep(0)
        with trio.fail_after(10):
            await tiers.objects.streaming.stop()
        assert not tiers.objects.streaming._running
        tiers.objects.streaming.bytes_min = 0
        assert not tiers.objects.streaming.wants(tiers.objects.lives.by_ino[ino])
        for _ in range(5):
            await tiers.objects.release(ino, write=False)


async def test_a_bug_costs_one_promotion(root, claim_log):
    claim_log("promotion failed")
    async with streaming(root) as (tiers, ino):
        tiers.mover.failure = RuntimeError("a bug")
        tiers.mover.gate.set()
        await tiers.objects.open(ino, write=False)
        await settled(tiers, ino)
        await tiers.objects.release(ino, write=False)
        await cold_alone(tiers, ino)
        assert await tiers.read(ino)
        await settled(tiers, ino)
        assert await tiers.read(ino) == DATA


async def test_a_kill_in_the_middle_leaves_it_on_nvme(root):
    async with streaming(root) as (tiers, ino):
        await tiers.objects.open(ino, write=False)
        left = tiers.config.ddr.path / f"{ino:x}"
        assert left.stat().st_size == SIZE
        os.link(left, left.with_name("kept"))  # what the end of this life removes, a kill leaves
    left.with_name("kept").rename(left)
    async with tiers_at(root) as tiers:
        assert (tiers.recovered.on_nvme, tiers.recovered.swept) == (1, 1)
        assert not left.exists()
        assert await tiers.read(ino) == DATA
