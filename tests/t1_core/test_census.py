"""The census knows which objects are in which state without looking through all of them."""

from __future__ import annotations

import random

import pytest

from kvd.catalog.records import Copy
from kvd.tier.census import Census
from kvd.tier.live import Live
from kvd.tier.plane import Mode
from kvdriver import Tier

MANY = 2000
COPY = Copy(ino=1, gen=1, dirs=(0,), size=1, mtime_ns=0, current=True, runs=((0, 1),))


class World:
    """Objects, changed at random, and a census of them."""

    def __init__(self, count):
        self.by_ino = {}
        self.census = Census(self.by_ino)
        self.now_s = 0.0
        for ino in range(1, count + 1):
            self.add(ino)

    def add(self, ino):
        self.now_s += 1
        live = self.by_ino[ino] = Live(
            ino=ino, session=ino, tier=Tier.DDR, size=1, sealed=True, pinned=False, damaged=False, hits=0, copy=None,
            mapped_blocks=1, last_use_s=self.now_s, census=self.census,
        )  # fmt: skip
        self.census.add(live)

    def remove(self, ino):
        self.census.forget(self.by_ino.pop(ino))

    def change(self, live, chance):
        match chance.choice(["use", "pin", "damage", "seal", "copy", "mode", "fd", "tier", "stream"]):
            case "use":
                live.readers += 1
                live.readers -= 1
                self.now_s += 1
                live.last_use_s = self.now_s
            case "pin":
                live.pinned = not live.pinned
            case "damage":
                live.damaged = not live.damaged
            case "seal":
                live.sealed = not live.sealed
            case "copy":
                live.copy = None if live.copy else COPY
            case "mode":
                live.mode = None if live.mode else chance.choice([Mode.PASSTHROUGH, Mode.DIRECT])
            case "fd":
                live.ddr_fd = -1 if live.ddr_fd >= 0 else 7
            case "tier":
                live.tier = Tier.NVME if live.tier is Tier.DDR else Tier.DDR
            case "stream":
                live.streaming = None if live.streaming else object()

    def check(self):
        lives, census = self.by_ino.values(), self.census
        assert set(census.attached) == {live.ino for live in lives if live.mode}
        sampled = {live.ino for live in lives if live.mode is Mode.PASSTHROUGH and live.ddr_fd >= 0}
        assert set(census.sampled) == sampled
        assert set(census.unsealed) == {live.ino for live in lives if not live.sealed}
        assert set(census.streaming) == {live.ino for live in lives if live.streaming}
        resident = [live for live in lives if live.tier is Tier.DDR]
        assert census.resident == {live.ino for live in resident}
        dirty = {live.ino for live in resident if live.sealed and not live.damaged and not live.clean}
        assert census.dirty == dirty


@pytest.mark.parametrize("seed", range(20))
def test_the_census_is_what_looking_through_all_would_find(seed):
    chance = random.Random(seed)
    world = World(30)
    for number in range(600):
        ino = chance.randrange(1, 31)
        if ino not in world.by_ino:
            world.add(ino)
        elif chance.random() < 0.05:
            world.remove(ino)
        else:
            world.change(world.by_ino[ino], chance)
        if number % 10 == 0:
            world.check()
    world.check()


async def test_a_lock_is_made_when_it_is_wanted_and_given_back():
    live = World(1).by_ino[1]
    assert not live.locked
    assert live.made_lock is None
    async with live.lock:
        assert live.locked
        live.drop_lock()
        assert live.locked, "a lock that is held stays"
    live.drop_lock()
    assert live.made_lock is None
