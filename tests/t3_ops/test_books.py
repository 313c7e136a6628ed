"""Dealings with the engine are whole, also where it lets others run in between."""

from __future__ import annotations

import trio

from kvdriver import MapRun, Tier
from support.tiers import tiers_at


async def test_settling_grows_the_budget_by_what_is_there_and_no_more(root) -> None:
    """Others reserve while a writer settles that outran its reservation: both get what they were told."""
    async with tiers_at(root, ddr_mib=1) as tiers:
        a, b = await tiers.begin(b"a"), await tiers.begin(b"b")
        lives = tiers.objects.lives
        budget = (await tiers.books.tier(Tier.DDR)).capacity_blocks
        async with trio.open_nursery() as nursery:
            charges = (MapRun(first_page=0, count=budget // 16 + 1, blocks=16),)
            nursery.start_soon(tiers.books.settle, lives.by_ino[a], charges)

            async def reserve() -> None:
                for blocks in range(20, budget, 20):
                    await tiers.books.reserve(lives.by_ino[b], blocks)

            nursery.start_soon(reserve)
        info = await tiers.books.tier(Tier.DDR)
        assert info.used_blocks == budget + 16
        assert info.reserved_blocks == lives.by_ino[b].reserved_blocks
        assert info.used_blocks + info.reserved_blocks <= info.capacity_blocks
        await tiers.objects.release(a, write=True)
        await tiers.objects.release(b, write=True)


async def test_cancelled_dealing_is_done_all_the_same(root) -> None:
    async with tiers_at(root) as tiers:
        ino = await tiers.begin(b"a")
        live = tiers.objects.lives.by_ino[ino]
        with trio.CancelScope() as scope:
            scope.cancel()
            assert await tiers.books.reserve(live, 7)
        assert live.reserved_blocks == 7
        assert (await tiers.books.tier(Tier.DDR)).reserved_blocks == 7
        await tiers.objects.release(ino, write=True)


async def test_time_that_is_set_while_the_last_writer_closes_is_kept(root) -> None:
    async with tiers_at(root) as tiers:
        ino = await tiers.begin(b"a")
        tiers.write(ino, b"x" * 100_000)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: tiers.objects.release(ino, write=True))
            await trio.lowlevel.checkpoint()
            await trio.lowlevel.checkpoint()
            tiers.objects.touch(ino, 123_000_000_456)
            tiers.catalog.names.setattr(ino, mtime_ns=123_000_000_456, ctime_ns=5)
        assert tiers.catalog.names.inode(ino).mtime_ns == 123_000_000_456
