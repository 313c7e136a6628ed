"""Memory of objects that left DDR goes to those that come: within the budget, with nothing of the old bytes, not for ever."""

import contextlib
import mmap
import os
import random
import tempfile
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from kvd.tier.books import Books
from kvd.tier.extents import held_blocks
from kvd.tier.hostmemory import MEMINFO, host_takes_free_memory
from kvd.tier.live import Live
from kvd.tier.plane import Mode
from kvd.tier.spares import HUGE_BYTES, IDLE_S, LOOK_S, PREFIX, Spares
from kvd.tier.storage import allocate
from kvdriver import BLOCK_BYTES, InProcessDevice, Tier
from support.tiers import MIB, PAGE_BYTES, config_at, tiers_at

random_bytes = random.Random(5).randbytes
BUDGET_MIB = 64
SIZE = 4 * MIB
TOTAL_KIB = 1 << 20


@pytest.fixture
def tiers_with_spares(root):
    return lambda **settings: tiers_at(root, **{"ddr_mib": BUDGET_MIB, "burst_mib": 8, "spare": "on"} | settings)


def spare_bytes(tiers):
    """What the files hold, which is what is counted."""
    held = sum(path.stat().st_blocks * 512 for path in tiers.config.ddr.path.glob(f"{PREFIX}*"))
    assert held == tiers.objects.ddr.spares.blocks * BLOCK_BYTES
    return held


async def make_and_demote(tiers, name, content):
    ino = await tiers.make(name, content)
    await tiers.objects.demote(ino)
    return ino


@asynccontextmanager
async def spares_of(*sizes, budget_mib=BUDGET_MIB, meminfo=MEMINFO):
    """Yield spares of these sizes, in a folder of a tmpfs, and books that have nothing in them."""
    with tempfile.TemporaryDirectory(prefix="kvd-", dir="/dev/shm") as name:
        folder = Path(name)
        (folder / "root").mkdir()
        config = replace(config_at(folder / "root", ddr_mib=budget_mib, spare="on").ddr, path=folder)
        capacity = {Tier.DDR: config.budget_bytes // BLOCK_BYTES, Tier.NVME: 1}
        with closing(InProcessDevice.open(page_bytes=PAGE_BYTES, capacity_blocks=capacity, sessions_max=8)) as device:
            books = Books(device)
            spares = books.spares = Spares(folder, meminfo=meminfo)
            spares.begin(config, books)
            for number, size in enumerate(sizes):
                path = folder / str(number)
                path.write_bytes(b"x" * size)
                assert await spares.keep(path)
            yield spares, books, folder


def file_bytes(folder):
    return sum(path.stat().st_blocks * 512 for path in folder.glob(f"{PREFIX}*"))


async def known_kind(tiers, content):
    """Let a kind of objects be known, and one of them leave its memory."""
    for number in range(2):
        await tiers.make(b"known%d" % number, content)
    await make_and_demote(tiers, b"old", content)


async def test_what_is_demoted_leaves_its_memory_and_what_is_promoted_gets_it(tiers_with_spares):
    content = random_bytes(SIZE + 100)
    async with tiers_with_spares() as tiers:
        ino = await make_and_demote(tiers, b"a", content)
        assert spare_bytes(tiers) == SIZE + BLOCK_BYTES
        assert await tiers.read(ino) == content
        assert spare_bytes(tiers) == 0
        assert not list(tiers.config.ddr.path.glob(f"{PREFIX}*"))


async def test_a_hole_stays_one(tiers_with_spares):
    async with tiers_with_spares() as tiers:
        await make_and_demote(tiers, b"a", random_bytes(3 * SIZE))
        ino = await tiers.begin(b"b")
        tiers.write(ino, b"x" * MIB)
        tiers.write(ino, b"y" * MIB, offset=2 * SIZE)
        await tiers.objects.release(ino, write=True)
        await tiers.objects.demote(ino)
        assert await tiers.read(ino) == b"x" * MIB + bytes(2 * SIZE - MIB) + b"y" * MIB
        assert await tiers.used_blocks(Tier.DDR) * BLOCK_BYTES == 2 * MIB


async def test_a_new_object_of_a_known_kind_gets_memory_before_it_is_written(tiers_with_spares):
    async with tiers_with_spares() as tiers:
        await known_kind(tiers, b"\xff" * SIZE)
        ino = await tiers.begin(b"new")
        live = tiers.objects.lives.by_ino[ino]
        assert live.mode is Mode.PASSTHROUGH
        assert held_blocks(live.ddr_fd) * BLOCK_BYTES == SIZE
        assert os.fstat(live.ddr_fd).st_size == 0
        assert spare_bytes(tiers) == 0
        # Nothing of it counts as written, and nothing of what was there before is to be seen.
        assert tiers.objects.writing.unsealed_blocks() == tiers.objects.lives.held_blocks(ino) == 0
        assert not await tiers.objects.writing.sample(live)
        assert live.reserved_blocks * BLOCK_BYTES == SIZE
        os.ftruncate(live.ddr_fd, SIZE)
        assert tiers.see(ino) == bytes(SIZE)
        os.ftruncate(live.ddr_fd, 0)
        tiers.write(ino, b"short")
        assert tiers.objects.writing.unsealed_blocks() == 1
        used = await tiers.used_blocks(Tier.DDR)
        await tiers.objects.release(ino, write=True)
        assert await tiers.used_blocks(Tier.DDR) == used + 1
        assert await tiers.read(ino) == b"short"
        assert tiers.objects.ddr.file(ino).stat().st_blocks * 512 == BLOCK_BYTES


async def test_a_writer_that_outgrows_it_asks_as_others_do(tiers_with_spares):
    async with tiers_with_spares() as tiers:
        await known_kind(tiers, random_bytes(SIZE))
        ino = await tiers.begin(b"new")
        live = tiers.objects.lives.by_ino[ino]
        content = random_bytes(SIZE + MIB)
        tiers.write(ino, content)
        assert await tiers.objects.writing.sample(live)
        assert live.reserved_blocks * BLOCK_BYTES > SIZE + MIB
        await tiers.objects.release(ino, write=True)
        assert await tiers.read(ino) == content


async def test_a_large_object_is_streamed_into_it(tiers_with_spares):
    content = random_bytes(20 * MIB + 12345)
    async with tiers_with_spares() as tiers, trio.open_nursery() as nursery:
        nursery.start_soon(tiers.objects.streaming.run)
        await trio.testing.wait_all_tasks_blocked()
        ino = await make_and_demote(tiers, b"a", content)
        await tiers.objects.open(ino, write=False)
        run = tiers.objects.lives.by_ino[ino].streaming
        assert run is not None
        with trio.fail_after(10):  # before the mover has begun
            while held_blocks(run.fd) < -(-len(content) // BLOCK_BYTES):
                await trio.lowlevel.checkpoint()
        assert spare_bytes(tiers) == 0
        tiers.mover.gate.set()
        with trio.fail_after(10):
            await run.ended.wait()
        assert tiers.see(ino) == content
        await tiers.objects.release(ino, write=False)
        nursery.cancel_scope.cancel()


async def test_spares_give_way_within_the_budget(tiers_with_spares):
    async with tiers_with_spares(ddr_mib=16) as tiers:
        inos = [await make_and_demote(tiers, b"%d" % number, random_bytes(SIZE)) for number in range(3)]
        for ino in inos:
            await tiers.objects.promote(ino)
        for ino in inos:
            await tiers.objects.demote(ino)
        assert spare_bytes(tiers) == 3 * SIZE
        live = tiers.objects.lives
        async with live.hold(inos[0]) as held:
            assert await tiers.books.reserve(held, 14 * MIB // BLOCK_BYTES)
            assert spare_bytes(tiers) == 2 * MIB
            await tiers.books.reserve(held, 0)


async def test_a_writer_that_finds_the_tmpfs_full_gets_them(tiers_with_spares, monkeypatch):
    async with tiers_with_spares() as tiers:
        await make_and_demote(tiers, b"old", random_bytes(SIZE))
        ino = await tiers.begin(b"new")
        await make_and_demote(tiers, b"other", random_bytes(SIZE))
        ddr, before = tiers.objects.ddr, spare_bytes(tiers)
        monkeypatch.setattr(ddr, "free_bytes", lambda: SIZE - spare_bytes(tiers))
        await tiers.objects.grow(ino, 2 * MIB)
        assert spare_bytes(tiers) == 2 * MIB < before
        await tiers.objects.release(ino, write=True)


async def test_what_may_be_open_yet_and_what_is_small_is_removed(tiers_with_spares):
    async with tiers_with_spares() as tiers:
        ino = await tiers.make(b"a", random_bytes(SIZE))
        await tiers.objects.ddr.remove(ino)
        assert spare_bytes(tiers) == 0
        await make_and_demote(tiers, b"small", random_bytes(MIB))
        assert spare_bytes(tiers) == 0


async def test_what_a_killed_daemon_left_goes_at_the_start(tiers_with_spares):
    async with tiers_with_spares() as tiers:
        await make_and_demote(tiers, b"a", random_bytes(SIZE))
        left = tiers.config.ddr.path
        assert list(left.glob(f"{PREFIX}*"))
    async with tiers_with_spares():
        assert not list(left.glob(f"{PREFIX}*"))


@pytest.mark.parametrize("hold", ["descriptor", "writer", "mapping"])
async def test_what_somebody_has_is_no_spare(tmp_path, hold):
    async with spares_of() as (spares, _, folder):
        path = folder / "x"
        path.write_bytes(b"x" * SIZE)
        with contextlib.ExitStack() as stack:
            file = stack.enter_context(path.open("r+b" if hold == "writer" else "rb"))
            if hold == "mapping":
                stack.enter_context(closing(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)))
                file.close()
            assert not await spares.keep(path)
        assert await spares.keep(path)
        assert not path.exists()


@pytest.mark.parametrize("how", ["a hole", "more than its length"])
async def test_what_a_cut_would_free_otherwise_is_no_spare(how):
    async with spares_of() as (spares, _, folder):
        path = folder / "x"
        with path.open("wb") as file:
            file.write(b"x" * SIZE)
            if how == "a hole":
                file.seek(2 * SIZE)
                file.write(b"x")
            else:
                allocate(file.fileno(), SIZE, SIZE)
        assert not await spares.keep(path)
        assert path.exists()


async def test_whole_huge_pages_are_cut_and_what_a_pipe_has_of_them_stays():
    async with spares_of() as (spares, _, folder):
        path = folder / "x"
        path.write_bytes(b"x" * (3 * HUGE_BYTES + 100))
        source = os.open(path, os.O_RDONLY)
        out, into = os.pipe()
        with os.fdopen(out, "rb") as pipe, os.fdopen(into, "wb"):
            assert os.splice(source, into, BLOCK_BYTES, offset_src=3 * HUGE_BYTES - BLOCK_BYTES) == BLOCK_BYTES
            os.close(source)
            assert await spares.keep(path)
            for left in (3, 2, 1, 0):
                assert await spares.give_back(1)
                assert spares.blocks * BLOCK_BYTES == file_bytes(folder) == left * HUGE_BYTES
            assert not await spares.give_back(1)
            assert pipe.read(BLOCK_BYTES) == b"x" * BLOCK_BYTES


async def writer(books, ino):
    return Live(
        ino=ino,
        session=await books.session(ino),
        tier=Tier.DDR,
        size=0,
        sealed=False,
        pinned=False,
        damaged=False,
        hits=0,
        copy=None,
        mapped_blocks=0,
        last_use_s=0.0,
    )


async def test_a_reservation_waits_for_what_is_being_exchanged():
    """Whatever is under way in threads: what is reserved and what spares hold come to no more than the budget."""
    budget_mib, laid_mib, others_mib = 200, 96, 40
    async with spares_of(*[48 * MIB] * 4, budget_mib=budget_mib) as (spares, books, folder):
        assert await books.reserve(await writer(books, 1), laid_mib * MIB // BLOCK_BYTES)
        totals = []

        async def take(live):
            for taken_mib in range(others_mib + 1):
                assert await books.reserve(live, taken_mib * MIB // BLOCK_BYTES)
                held_blocks = (await books.tier(Tier.DDR)).held_blocks
                totals.append(held_blocks * BLOCK_BYTES + file_bytes(folder))

        with (folder / "new").open("wb") as file:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(spares.lay, file.fileno(), [(0, laid_mib * MIB)])
                for ino in (2, 3):
                    nursery.start_soon(take, await writer(books, ino))
            assert held_blocks(file.fileno()) > 0
        assert len(totals) == 2 * (others_mib + 1)
        assert max(totals) <= budget_mib * MIB
        assert spares.blocks * BLOCK_BYTES == file_bytes(folder)


@pytest.mark.parametrize("why", ["idle", "memory is short"])
async def test_they_are_not_kept_for_ever(tmp_path, autojump_clock, why):
    meminfo = tmp_path / "meminfo"
    async with spares_of(SIZE, meminfo=meminfo) as (spares, _, _folder):
        meminfo.write_text(f"MemTotal: {TOTAL_KIB} kB\nMemAvailable: {TOTAL_KIB} kB\n")
        await trio.sleep(LOOK_S)
        await spares.tend()
        assert spares.blocks * BLOCK_BYTES == SIZE
        if why == "idle":
            await trio.sleep(IDLE_S)
        else:
            meminfo.write_text(f"MemTotal: {TOTAL_KIB} kB\nMemAvailable: {TOTAL_KIB // 9} kB\n")
            await trio.sleep(LOOK_S)
        await spares.tend()
        assert spares.blocks == 0
        assert not spares.left()


@pytest.mark.parametrize(
    ("features", "takes"), [("01100101", True), ("01100001", False), ("011", False), (None, False)]
)
def test_a_host_that_takes_free_memory_is_known_by_its_balloon(tmp_path, features, takes):
    if features is not None:
        (tmp_path / "virtio0").mkdir()
        (tmp_path / "virtio0" / "features").write_text(features + "0" * 56 + "\n")
    assert host_takes_free_memory(tmp_path) is takes
