"""Long random sequences of commands, each held against a model that shares no code with any engine."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, get_args

import pytest

from kvdriver import (
    AgeCursor,
    AgeScan,
    Command,
    Completion,
    Device,
    Event,
    Flush,
    Gather,
    Lease,
    Map,
    MapRun,
    PrefixInsert,
    PrefixMatch,
    PrefixRemove,
    QuerySession,
    QueryTier,
    Remap,
    Reserve,
    Resize,
    Scatter,
    SessionCreate,
    SessionDestroy,
    SessionTransition,
    Share,
    Tier,
    Touch,
    Translate,
    TranslateList,
    Unmap,
    Unshare,
    WindowAdvance,
)
from support.engine_compare import EngineComparer
from support.engine_model import EngineModel

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

CAPACITY = {Tier.DDR: 4096, Tier.NVME: 65536}
PAGE_BYTES = 65536
PAGES = 64
KEYS = 6
ENTRIES_MAX = 1 << 40
SCAN_SHARE = 0.1
"""Of the batches: a whole scan in their place."""


class Player:
    """Plays random batches on a device and on the model."""

    def __init__(self, device: Device, seed: int) -> None:
        self.random = random.Random(seed)
        self.device = device
        told = device.capabilities
        self.model = EngineModel(
            page_blocks=told.page_bytes // 4096,
            capacity_blocks=dict(CAPACITY),
            sessions_max=told.sessions_max,
            slots_max=told.slots_max,
        )
        self.comparer = EngineComparer(self.model)
        # Each often is refused: pages, keys and room are few.
        self.weighted: dict[Callable[[], Command], int] = {
            lambda: SessionCreate(key=self.random.randrange(KEYS)): 20,
            lambda: SessionDestroy(session=self.session()): 3,
            lambda: Lease(session=self.session(), delta=self.random.choice([1, -1, -1, -1])): 10,
            lambda: Reserve(session=self.session(), tier=self.tier(), blocks=self.random.choice([0, 5, 300, 5000])): 10,
            self.map: 40,
            lambda: Unmap(**self.range()): 10,
            lambda: Translate(**self.range()): 20,
            self.remap: 25,
            lambda: QuerySession(session=self.session()): 10,
            lambda: QueryTier(tier=self.tier()): 10,
            lambda: Resize(tier=self.tier(), blocks=self.random.choice([0, 100, 4096, 65536])): 2,
            lambda: SessionTransition(session=self.session(), event=self.random.choice(list(Event))): 10,
            lambda: Share(**self.range(), source=self.session(), source_slot=self.slot()): 10,
            self.fork: 8,
            lambda: Unshare(**self.range(), copies_max=self.room()): 10,
            self.window: 15,
            lambda: Touch(**self.range(), dirty=self.chance(0.5)): 10,
            self.scan: 3,
            lambda: PrefixInsert(session=self.session(), **self.chain()): 10,
            lambda: PrefixMatch(**self.chain()): 10,
            lambda: PrefixRemove(session=self.random.choice([0, self.session()]), **self.chain()): 5,
            Flush: 2,
            lambda: TranslateList(session=self.session(), slot=self.slot(), pages=self.pages()): 10,
        }

    @property
    def handles(self) -> dict[int, int]:
        """The sessions that were made, by key."""
        return self.comparer.handles

    def chance(self, share: float) -> bool:
        return self.random.random() < share

    def session(self) -> int:
        return self.handles.get(self.random.randrange(KEYS), self.random.choice([0, 1 << 33]))

    def slot(self) -> int:
        return self.random.choice([0, 0, 1, 1, 1, 1, 2, 2, 2, 9])

    def tier(self) -> Tier:
        return self.random.choice([Tier.DDR] * 4 + [Tier.NVME] * 3 + [Tier.CARD])

    def room(self) -> int:
        """Return room for runs: for none, or for as many as there can be."""
        return self.random.choice([0, PAGES + 8, PAGES + 8])

    def range(self) -> dict[str, int]:
        first, count = self.random.randrange(PAGES), self.random.randrange(PAGES)
        return {"session": self.session(), "slot": self.slot(), "first_page": first, "count": count}

    def pages(self) -> tuple[int, ...]:
        return tuple(self.random.choices([*range(PAGES), 1 << 46, 1 << 47, (1 << 64) - 1], k=self.random.randrange(20)))

    def map(self) -> Map:
        pick = self.random
        runs = tuple(
            MapRun(first_page=pick.randrange(PAGES), count=pick.randrange(1, 9), blocks=pick.randrange(1, 17))
            for _ in range(pick.randrange(3))
        )
        return Map(session=self.session(), slot=self.slot(), tier=self.tier(), runs=runs, reserved=self.chance(0.3))

    def fork(self) -> Share:
        return Share(session=self.session(), slot=self.slot(), source=self.session(), source_slot=self.slot())

    def remap(self) -> Remap:
        keep, take, reserved = (self.chance(0.3) for _ in range(3))
        other = self.random.choice([0, 1, 2])
        return Remap(**self.range(), tier=self.tier(), other_slot=other, keep=keep, take=take, reserved=reserved)

    def window(self) -> WindowAdvance:
        pick = self.random
        return WindowAdvance(
            session=self.session(),
            slot=self.slot(),
            base=pick.choice([0, 0, PAGE_BYTES, 1000]),
            planes=pick.choice([1, 2, 3, 0]),
            plane_bytes=20 * PAGE_BYTES,
            token_bytes=pick.choice([4096, 5000, PAGE_BYTES, 0]),
            tokens=pick.randrange(24),
            window_tokens=pick.randrange(8),
            sink_tokens=pick.randrange(4),
            runs_max=self.room(),
        )

    def scan(self) -> AgeScan:
        """Return a scan that is refused, or looks at nothing; others are no part of a batch."""
        pick = self.random
        return AgeScan(
            count=0,
            least_age=pick.choice([0, 127, 128]),
            tier=pick.choice([Tier.NONE, Tier.DDR, Tier.POOL]),
            cursor=AgeCursor(done=self.chance(0.5)),
            runs_max=pick.choice([0, 1, 9]),
        )

    def chain(self) -> dict[str, int | tuple[bytes, ...]]:
        pick = self.random
        width = pick.choice([7, 8, 16, 16, 24, 32])
        hashes = tuple(bytes([pick.randrange(3)]) * width for _ in range(pick.randrange(6)))
        return {"namespace": pick.randrange(2), "hashes": hashes, "first": pick.choice([0, 0, 1, 3, (1 << 47) - 2])}

    def command(self) -> Command:
        [chosen] = self.random.choices(list(self.weighted), list(self.weighted.values()))
        return chosen()

    async def play(self, batches: int) -> None:
        for _ in range(batches):
            batch = [self.command() for _ in range(self.random.choice([1, 2, 10, 40]))]
            self.compare(batch, await self.device.submit(batch))
            if self.chance(SCAN_SHARE):
                await self.play_scan()

    async def play_scan(self) -> None:
        """Age all pages, in one command or a part at a time."""
        pick = self.random
        command = AgeScan(
            count=pick.choice([ENTRIES_MAX, 700, 50]),
            least_age=pick.choice([0, 1, 2]),
            tier=pick.choice([Tier.NONE, Tier.DDR, Tier.NVME]),
            advance=self.chance(0.7),
            runs_max=pick.choice([20, 1000]),
        )
        await self.comparer.scan(self.device, command)

    def compare(self, batch: Sequence[Command], completions: Sequence[Completion]) -> None:
        self.comparer.compare(batch, completions)

    async def capacity(self, tier: Tier) -> int:
        """Return what the device says a tier may hold."""
        told = (await self.device.run(QueryTier(tier=tier))).tier
        assert told is not None
        return told.capacity_blocks

    async def compare_all(self) -> None:
        """Compare what all sessions hold with the model."""
        await self.comparer.compare_all(self.device)


async def test_player_knows_every_command(device: Device) -> None:
    """What moves bytes has memory to be given, and tests of its own."""
    player = Player(device, 0)
    played = {type(make()) for make in player.weighted}
    assert played == set(get_args(Command)) - {Gather, Scatter}


@pytest.mark.parametrize("seed", range(20))
async def test_random_batches(device: Device, seed: int) -> None:
    player = Player(device, seed)
    await player.play(60)
    await player.compare_all()
    assert await device.check() == []
