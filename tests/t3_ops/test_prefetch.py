"""What is fetched ahead: a small folder as one, long ones in the order they are read."""

import random

import pytest
import trio

from kvd.catalog.neighbours import Neighbours
from kvd.tier import prefetch
from kvdriver import BLOCK_BYTES, Tier
from support.tiers import PAGE_BYTES, tiers_at

DATA = random.Random(1).randbytes(PAGE_BYTES + 5)
BLOCKS = -(-len(DATA) // BLOCK_BYTES)


async def make_cold(tiers, names):
    """Make objects in that order; return their numbers by name."""
    inos = {name: await tiers.make(name, DATA) for name in names}
    for ino in inos.values():
        await tiers.objects.demote(ino)
    return inos


async def opened(tiers, inos):
    """Open objects one after the other, and wait until nothing more comes; return those in DDR."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(tiers.objects.prefetch.run)
        for ino in inos:
            assert await tiers.read(ino) == DATA
        with trio.fail_after(10):
            while tiers.objects.prefetch._queued:
                await trio.sleep(0.002)
        nursery.cancel_scope.cancel()
    return {live.ino for live in tiers.objects.lives.by_ino.values() if live.tier is Tier.DDR}


async def test_a_small_folder_comes_as_one_from_the_first_open_on(root):
    async with tiers_at(root) as tiers:
        inos = list((await make_cold(tiers, [b"%d" % number for number in range(9)])).values())
        assert await opened(tiers, inos[2:3]) == set(inos[2:])
        ahead = [job["ahead"] for job in tiers.mover.promotions]
        assert sorted(ahead) == [False] + [True] * 6, "only the first has somebody who waits"
        info = await tiers.books.tier(Tier.DDR)
        assert (info.used_blocks, info.reserved_blocks) == (7 * BLOCKS, 0)


@pytest.mark.parametrize(("names_max", "bytes_max"), [(8, 1 << 30), (128, 9 * len(DATA) - 1)])
async def test_a_long_folder_comes_only_in_order(root, monkeypatch, names_max, bytes_max):
    monkeypatch.setattr(prefetch, "SMALL_NAMES_MAX", names_max)
    monkeypatch.setattr(prefetch, "SMALL_BYTES_MAX", bytes_max)
    async with tiers_at(root) as tiers:
        inos = list((await make_cold(tiers, [b"%d" % number for number in range(9)])).values())
        assert await opened(tiers, inos[3:4]) == {inos[3]}
        assert await opened(tiers, inos[4:5]) == set(inos[3:9])


async def test_a_chain_is_followed_by_its_names_too(root, monkeypatch):
    monkeypatch.setattr(prefetch, "SMALL_NAMES_MAX", 0)
    names = [b"block-%02d" % number for number in range(12)]
    made = random.Random(4).sample(names, len(names))
    async with tiers_at(root) as tiers:
        inos = await make_cold(tiers, made)
        assert await opened(tiers, [inos[names[1]]]) == {inos[names[1]]}
        assert await opened(tiers, [inos[names[2]]]) == {inos[name] for name in names[1:7]}


async def test_nothing_comes_where_there_is_no_free_room(root):
    async with tiers_at(root, ddr_mib=1) as tiers:
        inos = list((await make_cold(tiers, [b"%d" % number for number in range(4)])).values())
        held = await tiers.make(b"held", bytes(0xE0000))
        await tiers.objects.open(held, write=False)
        assert await opened(tiers, inos[:1]) == {held, inos[0]}
        await tiers.objects.release(held, write=False)
        assert (await tiers.books.tier(Tier.DDR)).reserved_blocks == 0


async def test_neighbours(root):
    async with tiers_at(root) as tiers:
        neighbours = Neighbours(tiers.catalog.db)
        inos = {name: await tiers.make(name, DATA) for name in (b"m", b"z", b"a")}
        place = neighbours.place(inos[b"z"])
        assert (place.before, place.name_before) == (neighbours.place(inos[b"m"]).cookie, b"m")
        assert neighbours.after(place, 9) == [inos[b"a"]]
        assert neighbours.after_by_name(neighbours.place(inos[b"a"]), 9) == [inos[b"m"], inos[b"z"]]
        assert neighbours.place(inos[b"a"]).name_before == b""
        assert neighbours.place(inos[b"m"]).before == 0
        assert neighbours.is_small(1, names_max=3, bytes_max=3 * len(DATA))
        assert not neighbours.is_small(1, names_max=2, bytes_max=1 << 40)
        assert not neighbours.is_small(1, names_max=3, bytes_max=3 * len(DATA) - 1)
        assert neighbours.place(99) is None
