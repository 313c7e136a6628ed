"""Long random sequences of commands, each held against a model that shares no code with any engine."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from kvdriver import (
    Command,
    Completion,
    Device,
    Lease,
    Map,
    MapRun,
    QuerySession,
    QueryTier,
    Remap,
    Reserve,
    Resize,
    SessionCreate,
    SessionDestroy,
    Status,
    Tier,
    Translate,
    Unmap,
)
from support.engine_model import EngineModel, Expected

if TYPE_CHECKING:
    from collections.abc import Sequence

CAPACITY = {Tier.DDR: 4096, Tier.NVME: 65536}
PAGES = 64
KEYS = 6


class Player:
    """Plays random batches on a device and on the model."""

    def __init__(self, device: Device, seed: int) -> None:
        self.random = random.Random(seed)
        self.device = device
        self.handles: dict[int, int] = {}
        self.frames: dict[int, tuple[Tier, int]] = {}
        told = device.capabilities
        self.model = EngineModel(
            page_blocks=told.page_bytes // 4096,
            capacity_blocks=dict(CAPACITY),
            sessions_max=told.sessions_max,
            slots_max=told.slots_max,
        )

    def command(self) -> Command:
        """Return a command that often is refused: pages, keys and room are few."""
        pick = self.random
        session = self.handles.get(pick.randrange(KEYS), pick.choice([0, 1 << 33]))
        slot = pick.choice([0, 1, 1, 2, 9])
        place = {"session": session, "slot": slot, "first_page": pick.randrange(PAGES), "count": pick.randrange(PAGES)}
        tier = pick.choice([Tier.DDR, Tier.DDR, Tier.NVME, Tier.CARD])
        keep, take, reserved = (pick.random() < share for share in (0.3, 0.3, 0.3))
        runs = tuple(
            MapRun(first_page=pick.randrange(PAGES), count=pick.randrange(1, 9), blocks=pick.randrange(1, 17))
            for _ in range(pick.randrange(3))
        )
        remap = {"tier": tier, "other_slot": pick.choice([0, 1, 2]), "keep": keep, "take": take, "reserved": reserved}
        weighted: list[tuple[int, Command]] = [
            (10, SessionCreate(key=pick.randrange(KEYS))),
            (3, SessionDestroy(session=session)),
            (10, Lease(session=session, delta=pick.choice([1, -1, -1]))),
            (10, Reserve(session=session, tier=tier, blocks=pick.choice([0, 5, 300, 5000]))),
            (40, Map(session=session, slot=slot, tier=tier, runs=runs, reserved=reserved)),
            (10, Unmap(**place)),
            (20, Translate(**place)),
            (10, Remap(**place, **remap)),
            (10, QuerySession(session=session)),
            (10, QueryTier(tier=tier)),
            (2, Resize(tier=tier, blocks=pick.choice([0, 100, 4096, 65536]))),
        ]
        weights, commands = zip(*weighted, strict=True)
        [chosen] = pick.choices(commands, weights)
        return chosen

    async def play(self, batches: int) -> None:
        for _ in range(batches):
            batch = [self.command() for _ in range(self.random.choice([1, 2, 10, 40]))]
            self.compare(batch, await self.device.submit(batch))

    def compare(self, batch: Sequence[Command], completions: Sequence[Completion]) -> None:
        for command, completion in zip(batch, completions, strict=True):
            expected = self.model.execute(command)
            assert completion.status is expected.status, command
            if expected.value is not None:
                assert completion.value == expected.value, command
            if isinstance(command, SessionCreate) and completion.status is Status.OK:
                assert completion.value not in self.handles.values()
                self.handles[command.key] = completion.value
                self.model.adopt(command.key, completion.value)
            if isinstance(command, Translate):
                self.compare_runs(completion, expected)
            if isinstance(command, QueryTier) and completion.status is Status.OK:
                self.compare_tier(command.tier, completion)

    def compare_runs(self, completion: Completion, expected: Expected) -> None:
        found = {
            run.first_page + at: (run.tier, run.blocks, run.first_frame + at)
            for run in completion.runs
            for at in range(run.count)
        }
        assert list(found) == list(expected.pages)
        for number, page in expected.pages.items():
            tier, blocks, frame = found[number]
            assert (tier, blocks) == (page.tier, page.blocks)
            assert self.frames.setdefault(page.frame, (tier, frame)) == (tier, frame)

    def compare_tier(self, tier: Tier, completion: Completion) -> None:
        told = completion.tier
        assert told is not None
        assert told.capacity_blocks == self.model.capacity[tier]
        assert told.used_blocks == self.model.used_blocks(tier)
        assert told.used_frames == self.model.used_frames(tier)
        assert told.reserved_blocks == self.model.reserved_blocks(tier)

    async def capacity(self, tier: Tier) -> int:
        """Return what the device says a tier may hold."""
        told = (await self.device.run(QueryTier(tier=tier))).tier
        assert told is not None
        return told.capacity_blocks

    async def compare_all(self) -> None:
        """Compare what all sessions hold with the model."""
        for handle in self.handles.values():
            for slot in range(3):
                command = Translate(session=handle, slot=slot)
                self.compare([command], await self.device.submit([command]))
        for tier in CAPACITY:
            self.compare([QueryTier(tier=tier)], await self.device.submit([QueryTier(tier=tier)]))


@pytest.mark.parametrize("seed", range(20))
async def test_random_batches(device: Device, seed: int) -> None:
    player = Player(device, seed)
    await player.play(60)
    await player.compare_all()
    assert await device.check() == []
