"""The scrubber: bad pages and bad descriptions are found, healed from DDR or quarantined with their place."""

import os
import random
from dataclasses import replace

import pytest
import trio

from kvd.config import ScrubConfig
from kvd.errors import DamagedError, VanishedError
from kvd.tier.reading import pieces, without
from kvd.tier.scrub import BAD_PAGES_MAX, OBJECT_BYTES_MIN, Pace
from support.tiers import PAGE_BYTES, tiers_at

random_bytes = random.Random(2).randbytes
SIZE = 3 * PAGE_BYTES + 777


def copy_file(tiers, ino):
    copy = tiers.catalog.placements.copy(ino)
    return tiers.nvme.file(copy.dir_index, ino, copy.gen)


def flip(path, at):
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 2]))


async def test_sound_copies_are_read_and_nothing_is_said(root):
    async with tiers_at(root) as tiers:
        cold = await tiers.make(b"cold", random_bytes(SIZE))
        both = await tiers.make(b"both", random_bytes(SIZE))
        hot = await tiers.make(b"hot", random_bytes(SIZE))
        await tiers.objects.demote(cold)
        await tiers.objects.fsync(both)
        scrub = tiers.objects.scrub
        assert [await scrub.scrub(ino) for ino in (cold, both, hot)] == [SIZE, SIZE, 0]
        assert (scrub.counts.objects, scrub.counts.verified_bytes, scrub.counts.bad_pages) == (2, 2 * SIZE, 0)
        assert tiers.catalog.placements.count_faults() == 0


async def test_a_bad_page_of_a_cold_object_is_quarantined_with_its_place(root, claim_log):
    claim_log("object quarantined")
    async with tiers_at(root) as tiers:
        ino = await tiers.make(b"a", random_bytes(SIZE))
        other = await tiers.make(b"b", random_bytes(SIZE))
        for each in (ino, other):
            await tiers.objects.demote(each)
        path = copy_file(tiers, ino)
        flip(path, PAGE_BYTES + 9)
        flip(path, SIZE - 1)
        with pytest.raises(DamagedError, match="page 1 failed its checksum"):
            await tiers.objects.scrub.scrub(ino)
        faults = {fault.page: fault for fault in tiers.catalog.placements.faults(9)}
        assert set(faults) == {1, 3}
        assert (faults[1].path, faults[1].what, faults[1].place) == (
            b"/a",
            "checksum differs",
            f"{path} at {PAGE_BYTES}",
        )
        assert faults[3].place == f"{path} at {3 * PAGE_BYTES}"
        for _ in range(2):
            with pytest.raises(DamagedError):
                await tiers.objects.open(ino, write=False)
        with pytest.raises(DamagedError, match="is quarantined"):
            await tiers.objects.scrub.scrub(ino)
        counts = tiers.objects.scrub.counts
        assert (counts.bad_pages, counts.quarantined, counts.healed) == (2, 1, 0)
        assert await tiers.objects.scrub.scrub(other) == SIZE


async def test_a_bad_copy_of_an_object_in_ddr_is_healed(root, claim_log):
    claim_log("bad copy healed")
    content = random_bytes(SIZE)
    async with tiers_at(root) as tiers:
        ino = await tiers.make(b"a", content)
        await tiers.objects.fsync(ino)
        path = copy_file(tiers, ino)
        flip(path, 5)
        await tiers.objects.open(ino, write=False)  # also while it is read
        assert await tiers.objects.scrub.scrub(ino) == SIZE
        await tiers.objects.release(ino, write=False)
        (fault,) = tiers.catalog.placements.faults(9)
        assert (fault.what, fault.place) == ("checksum differs; healed by a new copy", f"{path} at 0")
        assert not path.exists()
        assert copy_file(tiers, ino).read_bytes() == content
        assert tiers.catalog.placements.count_damaged() == 0
        await tiers.objects.demote(ino)
        assert await tiers.read(ino) == content
        assert tiers.objects.scrub.counts.healed == 1


async def test_the_copy_that_a_writer_would_fall_back_to_is_not_replaced_by_half_written_bytes(root, claim_log):
    claim_log("object can't be read")
    async with tiers_at(root) as tiers:
        ino = await tiers.make(b"a", random_bytes(SIZE))
        await tiers.objects.fsync(ino)
        await tiers.objects.open(ino, write=True)
        tiers.write(ino, b"half")
        gen = tiers.catalog.placements.copy(ino).gen
        flip(copy_file(tiers, ino), 5)
        await tiers.objects.scrub.scrub(ino)
        assert tiers.catalog.placements.copy(ino).gen == gen
        assert "would fall back to" in tiers.catalog.placements.faults(1)[0].what
        await tiers.objects.release(ino, write=True)
        await tiers.objects.demote(ino)
        assert (await tiers.read(ino))[:4] == b"half"


async def test_a_file_that_has_vanished_is_a_miss_or_made_again(root, claim_log):
    claim_log("object lost")
    claim_log("bad copy healed")
    async with tiers_at(root) as tiers:
        cold, both = await tiers.make(b"cold", b"abc"), await tiers.make(b"both", b"def")
        await tiers.objects.demote(cold)
        await tiers.objects.fsync(both)
        for ino in (cold, both):
            copy_file(tiers, ino).unlink()
        with pytest.raises(VanishedError):
            await tiers.objects.scrub.scrub(cold)
        assert tiers.catalog.names.lookup(1, b"cold") is None
        assert await tiers.objects.scrub.scrub(both) == 0
        assert copy_file(tiers, both).read_bytes() == b"def"


async def test_a_wrong_description_is_written_anew(root):
    async with tiers_at(root) as tiers:
        ino = await tiers.make(b"a", b"abc")
        await tiers.objects.demote(ino)
        good = os.getxattr(copy_file(tiers, ino), "user.kvd")
        os.setxattr(copy_file(tiers, ino), "user.kvd", b"rubbish")
        await tiers.objects.scrub.scrub(ino)
        assert os.getxattr(copy_file(tiers, ino), "user.kvd") == good
        assert tiers.objects.scrub.counts.descriptions == 1


async def test_it_gives_up_after_many_bad_pages(root, claim_log):
    claim_log("object quarantined")
    async with tiers_at(root) as tiers:
        ino = await tiers.make(b"a", random_bytes(40 * PAGE_BYTES))
        await tiers.objects.demote(ino)
        copy_file(tiers, ino).write_bytes(bytes(40 * PAGE_BYTES))
        with pytest.raises(DamagedError):
            await tiers.objects.scrub.scrub(ino)
        assert tiers.objects.scrub.counts.bad_pages == BAD_PAGES_MAX


async def test_a_pass_reads_everything_and_the_next_start_goes_on_where_it_was(root, claim_log):
    claim_log("object quarantined")
    async with tiers_at(root) as tiers:
        inos = [await tiers.make(b"%d" % number, random_bytes(SIZE)) for number in range(6)]
        for ino in inos:
            await tiers.objects.demote(ino)
        flip(copy_file(tiers, inos[4]), 5)
        tiers.catalog.db.keep_number("scrub_began_ns", 5)
        tiers.catalog.db.keep_number("scrub_ino", inos[2])
        scrub = tiers.objects.scrub
        scrub.config = ScrubConfig(rate_bytes=1 << 30, period_s=3600.0)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(scrub.run)
            with trio.fail_after(30):
                while not scrub.ended_s > scrub.began_s > 1:
                    await trio.sleep(0.01)
            nursery.cancel_scope.cancel()
        # What was left of that pass, and, since the period is over, a whole one, without what is in quarantine now.
        assert (scrub.counts.objects, scrub.counts.pass_objects) == (3 + 5, 6)
        assert scrub.counts.quarantined == 1
        assert tiers.catalog.placements.get(inos[4]).damaged


async def test_off_means_off(root):
    async with tiers_at(root) as tiers:
        await tiers.objects.demote(await tiers.make(b"a", b"abc"))
        tiers.objects.scrub.config = replace(tiers.config.scrub, rate_bytes=0)
        with trio.fail_after(10):
            await tiers.objects.scrub.run()
        assert tiers.objects.scrub.counts.objects == 0


async def test_the_rate_is_kept(autojump_clock):
    pace = Pace(1 << 20)
    began_s = trio.current_time()
    for _ in range(40):
        await pace.take(OBJECT_BYTES_MIN)
    took_s = trio.current_time() - began_s
    assert 10 - 0.3 <= took_s <= 10.3
    await trio.sleep(100)
    began_s = trio.current_time()
    for _ in range(4):
        await pace.take(OBJECT_BYTES_MIN)
    assert 0.7 <= trio.current_time() - began_s <= 1.0, "a rest is worth a quarter of a second"


def test_pieces_are_all_of_it_in_order():
    runs = ((0, 5), (7, 1), (10, 20))
    sums = b"".join(bytes([page]) * 4 for first, count in runs for page in range(first, first + count))
    for size in (1, 3, 8, 26, 100):
        cut = list(pieces(runs, sums, size))
        pages = [page for piece, _ in cut for first, count in piece for page in range(first, first + count)]
        assert pages == [page for first, count in runs for page in range(first, first + count)]
        assert b"".join(part for _, part in cut) == sums
        for piece, part in cut:
            assert len(part) == 4 * sum(count for _, count in piece) <= 4 * size
    for page in (0, 2, 4, 7, 10, 29):
        left, kept = without(runs, sums, page)
        pages = [each for first, count in left for each in range(first, first + count)]
        assert page not in pages
        assert kept == b"".join(bytes([each]) * 4 for each in pages)
