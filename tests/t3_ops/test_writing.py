"""Who is passed through, whose turn it is, and what statfs tells."""

import os
import random

import pytest
import trio

from kvd.tier.plane import Mode
from kvd.tier.turns import ASKS_AGAIN_S, Turns
from kvdriver import BLOCK_BYTES, Tier
from support.fake_plane import FakePlane
from support.tiers import MIB, tiers_at

random_bytes = random.Random(2).randbytes
BUDGET_MIB = 64
KIND = 1
"""`Tiers.begin` makes everything in the root folder."""


def mode_of(tiers, ino):
    return tiers.objects.lives.by_ino[ino].mode


async def used_and_all(tiers):
    blocks, used = await tiers.objects.writing.space()
    return used, blocks


async def test_a_kind_not_seen_yet_is_trusted_as_far_as_the_burst_reserve_goes(scratch):
    """The first guess is 4 MiB of 64, the burst reserve 1 MiB."""
    async with tiers_at(scratch, ddr_mib=BUDGET_MIB) as tiers:
        first, second = await tiers.begin(b"a"), await tiers.begin(b"b")
        assert (mode_of(tiers, first), mode_of(tiers, second)) == (Mode.PASSTHROUGH, Mode.DIRECT)
        tiers.write(first, random_bytes(4 * MIB))
        await tiers.objects.release(first, write=True)
        third = await tiers.begin(b"c")
        assert mode_of(tiers, third) is Mode.PASSTHROUGH
        for ino in (second, third):
            await tiers.objects.release(ino, write=True)


async def test_a_kind_that_was_right_is_trusted_with_many_and_one_that_was_wrong_is_not(scratch):
    async with tiers_at(scratch, ddr_mib=BUDGET_MIB, burst_mib=8) as tiers:
        for index in range(3):
            await tiers.make(b"known%d" % index, random_bytes(MIB))
        many = [await tiers.begin(b"many%d" % index) for index in range(16)]
        assert [mode_of(tiers, ino) for ino in many] == [Mode.PASSTHROUGH] * 8 + [Mode.DIRECT] * 8
        for ino in many[1:]:
            await tiers.objects.release(ino, write=True)
        await tiers.objects.grow(many[0], 2 * MIB, gate=True)  # it outgrew its 1 MiB
        after = [await tiers.begin(b"after%d" % index) for index in range(4)]
        assert Mode.PASSTHROUGH not in {mode_of(tiers, ino) for ino in after}
        for ino in [many[0], *after]:
            await tiers.objects.release(ino, write=True)


async def test_small_objects_are_written_through_the_split_without_asking(scratch):
    async with tiers_at(scratch, ddr_mib=BUDGET_MIB) as tiers:
        for index in range(3):
            await tiers.make(b"small%d" % index, random_bytes(64 << 10))
        ino = await tiers.begin(b"a")
        assert mode_of(tiers, ino) is Mode.DIRECT
        assert tiers.plane.limits[ino] == 64 << 10
        await tiers.objects.release(ino, write=True)


async def test_a_length_that_was_declared_is_reserved(scratch):
    async with tiers_at(scratch, ddr_mib=BUDGET_MIB) as tiers:
        ino = await tiers.begin(b"a")
        await tiers.objects.truncate(ino, 12 * MIB)
        assert tiers.plane.limits[ino] >= 12 * MIB
        await tiers.objects.release(ino, write=True)
        await tiers.objects.open(ino, write=True)
        live = tiers.objects.lives.by_ino[ino]
        assert (live.mode, live.reserved_blocks * BLOCK_BYTES) == (Mode.PASSTHROUGH, 12 * MIB)
        await tiers.objects.release(ino, write=True)


async def test_what_a_shorter_length_gives_back_is_there_while_it_is_open(scratch):
    async with tiers_at(scratch, ddr_mib=BUDGET_MIB) as tiers:
        ino = await tiers.begin(b"a")
        tiers.write(ino, random_bytes(20 * MIB))
        await tiers.objects.writing.look()
        before = await tiers.books.tier(Tier.DDR)
        assert before.used_blocks + before.reserved_blocks >= 20 * MIB // BLOCK_BYTES
        await tiers.objects.truncate(ino, MIB)
        after = await tiers.books.tier(Tier.DDR)
        assert after.used_blocks + after.reserved_blocks == MIB // BLOCK_BYTES
        await tiers.objects.release(ino, write=True)


async def test_many_writers_that_all_want_more_than_half_come_to_their_ends(scratch):
    """Together they want eight times the room; without turns each would hold an eighth of it for ever."""
    plane = FakePlane(passthrough=False)
    async with tiers_at(scratch, ddr_mib=16, nvme_mib=256, write_wait_s=20, plane=plane) as tiers:

        async def write(index):
            ino = await tiers.begin(b"%d" % index)
            for end in range(MIB, 11 * MIB, MIB):
                await tiers.objects.grow(ino, end)
                tiers.write(ino, random_bytes(MIB), end - MIB)
                await trio.sleep(0)
            await tiers.objects.release(ino, write=True)

        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(tiers.objects.room.run)
                async with trio.open_nursery() as writers:
                    for index in range(12):
                        writers.start_soon(write, index)
                nursery.cancel_scope.cancel()
        info = await tiers.books.tier(Tier.DDR)
        assert info.used_blocks <= 16 * MIB // BLOCK_BYTES
        assert not tiers.objects.writing.turns.growing


async def test_a_writer_is_refused_when_nothing_is_freed_for_so_long(scratch, claim_log):
    claim_log("demotion failed")
    plane = FakePlane(passthrough=False)
    async with tiers_at(scratch, ddr_mib=8, nvme_mib=1, write_wait_s=0.3, plane=plane) as tiers:
        stored = await tiers.make(b"stored", data := random_bytes(6 * MIB))
        writer = await tiers.begin(b"w")
        with trio.fail_after(20), pytest.raises(OSError, match="No space"):
            await tiers.objects.grow(writer, 4 * MIB)
        await tiers.books.resize(Tier.NVME, 32 * MIB // BLOCK_BYTES)
        await tiers.objects.grow(writer, 4 * MIB)  # room was made: it goes on
        await tiers.objects.release(writer, write=True)
        assert await tiers.read(stored) == data


async def test_statfs_counts_each_object_once(scratch):
    async with tiers_at(scratch, ddr_mib=BUDGET_MIB, nvme_mib=256) as tiers:
        none, everything = await used_and_all(tiers)
        assert (none, everything) == (0, (BUDGET_MIB + 256) * MIB // BLOCK_BYTES)
        ino = await tiers.make(b"a", random_bytes(5 * MIB))
        one = 5 * MIB // BLOCK_BYTES
        assert await used_and_all(tiers) == (one, everything)
        await tiers.objects.sync(ino)  # in both tiers
        assert await used_and_all(tiers) == (one, everything)
        await tiers.objects.demote(ino)
        assert await used_and_all(tiers) == (one, everything)
        await tiers.objects.promote(ino)
        assert await used_and_all(tiers) == (one, everything)
        await tiers.objects.open(ino, write=True)
        tiers.write(ino, random_bytes(3 * MIB), 5 * MIB)
        grown = one + 3 * MIB // BLOCK_BYTES
        assert await used_and_all(tiers) == (grown, everything), "before it is sealed"
        await tiers.objects.release(ino, write=True)
        await tiers.objects.sync(ino)
        assert await used_and_all(tiers) == (grown, everything)
        await tiers.objects.truncate(ino, 0)
        assert await used_and_all(tiers) == (0, everything)
        tiers.catalog.names.unlink(1, b"a", 5)
        await tiers.objects.discard(ino)
        assert await used_and_all(tiers) == (0, everything)
        assert tiers.books.beside.blocks == 0


async def test_statfs_is_the_same_after_a_restart(scratch):
    async with tiers_at(scratch, ddr_mib=BUDGET_MIB) as tiers:
        ino = await tiers.make(b"a", random_bytes(5 * MIB))
        await tiers.objects.sync(ino)
        await tiers.make(b"b", random_bytes(MIB))
        before = await used_and_all(tiers)
    async with tiers_at(scratch, ddr_mib=BUDGET_MIB) as tiers:
        assert await used_and_all(tiers) == before
        assert tiers.books.beside.blocks == 5 * MIB // BLOCK_BYTES


async def test_storage_that_others_hold_is_waited_for(scratch, monkeypatch):
    async with tiers_at(scratch, write_wait_s=5, plane=FakePlane(passthrough=False)) as tiers:
        left = [0, 0, 4 * MIB]
        monkeypatch.setattr(
            tiers.objects.writing._ddr, "free_bytes", lambda: left[0] if len(left) == 1 else left.pop(0)
        )
        writer = await tiers.begin(b"w")
        await tiers.objects.grow(writer, MIB)
        assert len(left) == 1
        left[:] = [0]
        with trio.fail_after(30), pytest.raises(OSError, match="No space"):
            await tiers.objects.grow(writer, 2 * MIB)
        left[:] = [4 * MIB]
        await tiers.objects.release(writer, write=True)
        assert os.listdir(tiers.config.ddr.path)


class FakeLive:
    def __init__(self, ino, held):
        self.ino, self.mapped_blocks, self.reserved_blocks = ino, held, 0


async def test_turns(autojump_clock):
    turns = Turns(budget_blocks=200)
    first, second, third = FakeLive(1, 10), FakeLive(2, 10), FakeLive(3, 10)
    for live in (first, second, third):
        turns.ask(live)
    assert turns.claim(first, 190), "all there is"
    assert turns.claim(second, 30)
    assert not turns.claim(third, 1), "the claims of the first do not count, those of others do"
    turns.unclaim(second)
    assert turns.claim(third, 30)
    turns.unclaim(third)
    turns.served(first)
    await trio.sleep(ASKS_AGAIN_S / 2)
    assert not turns.claim(second, 60), "it is busy with what it got"
    await trio.sleep(ASKS_AGAIN_S)
    turns.unclaim(first)
    assert turns.claim(second, 90)
    turns.ask(first)
    turns.unclaim(second)
    assert not turns.claim(second, 90), "it is back in its place"
    turns.leave(1)
    assert turns.claim(second, 90)
    for live in (second, third):
        turns.leave(live.ino)
    assert not turns.growing
