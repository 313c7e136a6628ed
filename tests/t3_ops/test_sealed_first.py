"""Opening a sealed object for writing harms nothing yet: whatever ends the daemon, its sealed bytes are there."""

import random
import shutil
import tempfile
from pathlib import Path

import pytest
import trio

from kvdriver import BLOCK_BYTES, Tier
from support.fake_plane import FakePlane
from support.tiers import MIB, tiers_at

random_bytes = random.Random(3).randbytes


@pytest.fixture
def root(scratch):
    ddr = Path(tempfile.mkdtemp(prefix="kvd-", dir="/dev/shm"))
    (scratch / "ddr").symlink_to(ddr)
    yield scratch
    shutil.rmtree(ddr)


async def test_an_object_that_is_only_held_open_for_writing_survives_a_crash(root):
    data = random_bytes(MIB + 7)
    async with tiers_at(root) as tiers:
        ino = await tiers.make(b"a", data)
        await tiers.objects.open(ino, write=True)
    async with tiers_at(root) as tiers:
        assert await tiers.read(ino) == data


async def test_it_is_the_sealed_bytes_that_a_crash_falls_back_to_not_older_ones(root):
    async with tiers_at(root) as tiers:
        ino = await tiers.make(b"v", b"old")
        await tiers.objects.fsync(ino)
        await tiers.objects.open(ino, write=True, truncate=True)
        tiers.write(ino, b"new")
        await tiers.objects.release(ino, write=True)
        await tiers.objects.open(ino, write=True)
        tiers.write(ino, b"XXX")
    async with tiers_at(root) as tiers:
        assert await tiers.read(ino) == b"new"


async def test_a_guess_throws_nobody_out(root):
    async with tiers_at(root, ddr_mib=8) as tiers:
        large = await tiers.make(b"large", random_bytes(6 * MIB))
        tiers.catalog.names.unlink(1, b"large", 5)
        await tiers.objects.discard(large)
        hot = [await tiers.make(b"%d" % index, random_bytes(MIB // 2)) for index in range(10)]
        small = await tiers.make(b"small", b"x")
        assert all(tiers.catalog.placements.get(ino).tier == Tier.DDR for ino in [*hot, small])


async def test_what_can_never_fit_demotes_nothing(root):
    async with tiers_at(root, ddr_mib=4, plane=FakePlane(passthrough=False)) as tiers:
        hot = [await tiers.make(b"%d" % index, random_bytes(MIB // 2)) for index in range(4)]
        writer = await tiers.begin(b"w")
        with trio.fail_after(2), pytest.raises(OSError, match="No space"):
            await tiers.objects.grow(writer, 1 << 42)
        assert all(tiers.catalog.placements.get(ino).tier == Tier.DDR for ino in hot)


async def test_beyond_the_budget_the_oldest_go_at_once_idle_or_not(root):
    async with tiers_at(root, ddr_mib=2, idle_s=3600.0) as tiers:
        first = await tiers.make(b"first", random_bytes(MIB))
        await tiers.make(b"second", random_bytes(MIB + MIB // 2))
        assert await tiers.used_blocks(Tier.DDR) > 2 * MIB // BLOCK_BYTES
        assert tiers.objects.lives.by_ino[first].last_use_s > trio.current_time() - tiers.config.ddr.idle_s
        async with trio.open_nursery() as nursery:
            await tiers.objects.room._keep_watermarks(nursery)
        assert await tiers.used_blocks(Tier.DDR) <= 2 * MIB // BLOCK_BYTES
        assert tiers.catalog.placements.get(first).tier == Tier.NVME
