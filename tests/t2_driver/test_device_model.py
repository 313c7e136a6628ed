"""A Hypothesis state machine: the in-process device against a model of plain dictionaries."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, TypeVar

import hypothesis.strategies as st
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kvdriver import (
    AgeCursor,
    AgeScan,
    Command,
    Event,
    Flush,
    InProcessDevice,
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
from support.engine_model import PAGES_MAX, EngineModel

if TYPE_CHECKING:
    from collections.abc import Coroutine

KEYS = 4
SESSIONS_MAX = 3
PAGE_BLOCKS = 16
CAPACITY = {Tier.DDR: 200, Tier.NVME: 400}

T = TypeVar("T")

# A session is drawn as a key; the machine puts the handle in.
KEY = st.integers(0, KEYS - 1)
SLOT = st.sampled_from([0, 0, 0, 1, 1, 1, 7, 8])
TIER = st.sampled_from([Tier.DDR, Tier.DDR, Tier.NVME, Tier.NVME, Tier.CARD])
BLOCKS = st.sampled_from([1, 2, 16, 16, 0, 17])
FLAG = st.booleans()
# Near the edges of the engine's leaves and levels, and over the end.
PAGE = st.sampled_from([0, 0, 0, 7, 63, 508, 511, 512, (1 << 18) - 2, 1 << 46, PAGES_MAX - 2, PAGES_MAX])
COUNT = st.sampled_from([1, 2, 3, 5, 9, 0, PAGES_MAX])
MAP_RUN = st.builds(MapRun, first_page=PAGE, count=st.sampled_from([1, 2, 3, 5, 20]), blocks=BLOCKS)

WINDOW = st.builds(
    WindowAdvance,
    session=KEY,
    slot=SLOT,
    base=st.sampled_from([0, 0, 4096, 65536, 1 << 60, (1 << 64) - 1]),
    planes=st.sampled_from([1, 1, 2, 3, 0, 1 << 16]),
    plane_bytes=st.sampled_from([3 * 65536, 3 * 65536, 65536, 0, 1 << 63]),
    token_bytes=st.sampled_from([4096, 16384, 65536, 0]),
    tokens=st.sampled_from([0, 3, 12, 48, 1 << 60]),
    window_tokens=st.sampled_from([0, 1, 5, (1 << 64) - 1]),
    sink_tokens=st.sampled_from([0, 0, 1, 4]),
    runs_max=st.sampled_from([300, 300, 0]),
)

HASH = st.sampled_from([b"a" * 8, b"b" * 8, b"a" * 16, b"a" * 24, b"a" * 32, b"a" * 7])
CHAIN = {
    "namespace": st.integers(0, 1),
    "hashes": HASH.flatmap(lambda one: st.lists(st.sampled_from([one, one[::-1], one[1:] + b"c"]), max_size=4)).map(
        tuple
    ),
    "first": st.sampled_from([0, 0, 1, 2, PAGES_MAX - 1, PAGES_MAX]),
}
# What answers at once; whole scans are a rule of their own.
SCAN = st.builds(
    AgeScan,
    count=st.just(0),
    least_age=st.sampled_from([0, 127, 128]),
    tier=st.sampled_from([Tier.NONE, Tier.DDR, Tier.POOL]),
    cursor=st.sampled_from([AgeCursor(), AgeCursor(session=1), AgeCursor(done=True)]),
    runs_max=st.integers(0, 2),
)

COMMAND: st.SearchStrategy[Command] = st.one_of(
    st.builds(SessionCreate, key=KEY),
    st.builds(SessionDestroy, session=KEY),
    st.builds(Lease, session=KEY, delta=st.integers(-2, 1)),
    st.builds(Reserve, session=KEY, tier=TIER, blocks=st.integers(0, 250)),
    st.builds(
        Map,
        session=KEY,
        slot=SLOT,
        tier=TIER,
        runs=st.lists(MAP_RUN, max_size=3).map(tuple),
        reserved=FLAG,
    ),
    st.builds(Unmap, session=KEY, slot=SLOT, first_page=PAGE, count=COUNT),
    st.builds(Translate, session=KEY, slot=SLOT, first_page=PAGE, count=COUNT),
    st.builds(
        Remap,
        session=KEY,
        slot=SLOT,
        other_slot=SLOT,
        tier=TIER,
        keep=FLAG,
        take=FLAG,
        reserved=FLAG,
        first_page=PAGE,
        count=COUNT,
    ),
    st.builds(SessionTransition, session=KEY, event=st.sampled_from(Event)),
    st.builds(Touch, session=KEY, slot=SLOT, first_page=PAGE, count=COUNT, dirty=FLAG),
    WINDOW,
    st.builds(Share, session=KEY, slot=SLOT, source=KEY, source_slot=SLOT, first_page=PAGE, count=COUNT),
    st.builds(
        Unshare, session=KEY, slot=SLOT, first_page=PAGE, count=COUNT, copies_max=st.sampled_from([600, 600, 600, 0])
    ),
    st.builds(TranslateList, session=KEY, slot=SLOT, pages=st.lists(PAGE, max_size=6).map(tuple)),
    st.builds(PrefixInsert, session=KEY, **CHAIN),
    st.builds(PrefixMatch, **CHAIN),
    st.builds(PrefixRemove, session=KEY, **CHAIN),
    SCAN,
    st.builds(Flush),
    st.builds(QueryTier, tier=TIER),
    st.builds(QuerySession, session=KEY),
    st.builds(Resize, tier=TIER, blocks=st.integers(0, 500)),
)


def finish(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never waits, as the in-process device's are."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    raise AssertionError("the in-process device waited")


class DeviceMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.device = InProcessDevice.open(
            page_bytes=PAGE_BLOCKS * 4096, capacity_blocks=CAPACITY, sessions_max=SESSIONS_MAX, arena_bytes=8 << 20
        )
        model = EngineModel(page_blocks=PAGE_BLOCKS, capacity_blocks=CAPACITY, sessions_max=SESSIONS_MAX, slots_max=8)
        self.comparer = EngineComparer(model)

    def handle(self, key: int) -> int:
        return self.comparer.handles.get(key, 0)

    @rule(commands=st.lists(COMMAND, min_size=1, max_size=6))
    def submit(self, commands: list[Command]) -> None:
        resolved = [
            dataclasses.replace(
                command,
                **{
                    name: self.handle(getattr(command, name))
                    for name in ("session", "source")
                    if hasattr(command, name)
                },
            )
            for command in commands
        ]
        self.comparer.compare(resolved, finish(self.device.submit(resolved)))

    @rule(
        tier=st.sampled_from([Tier.NONE, Tier.DDR, Tier.NVME]),
        least_age=st.sampled_from([0, 0, 1, 2, 5, 127]),
        advance=FLAG,
        step=st.sampled_from([1 << 40, 600, 97, 11]),
        runs_max=st.sampled_from([100, 3, 1]),
        ticks=st.sampled_from([1, 1, 1, 1, 1, 2, 3, 140]),
    )
    def scan(self, *, tier: Tier, least_age: int, advance: bool, step: int, runs_max: int, ticks: int) -> None:
        for _ in range(ticks):
            if ticks > 3:
                step, runs_max = 1 << 40, 100
            command = AgeScan(count=step, least_age=least_age, tier=tier, advance=advance, runs_max=runs_max)
            finish(self.comparer.scan(self.device, command))

    @rule(first=TIER, second=TIER)
    def promote_and_demote(self, first: Tier, second: Tier) -> None:
        """The life that objects lead, more often than chance would have it."""
        run = MapRun(first_page=509, count=6, blocks=2)
        self.submit(
            [
                SessionCreate(key=0),
                Map(session=0, slot=0, tier=first, runs=(run,)),
                Remap(session=0, slot=0, other_slot=1, tier=second, keep=True),
                Translate(session=0, slot=1),
                Remap(session=0, slot=0, other_slot=1, tier=first, take=True),
            ]
        )

    @rule(slot=SLOT, count=COUNT, dirty=FLAG)
    def fork_and_write(self, *, slot: int, count: int, dirty: bool) -> None:
        """The same for sharing: a fork, and the copies of its first write."""
        self.submit(
            [
                SessionCreate(key=1),
                Share(session=1, slot=slot, source=0, source_slot=0),
                Remap(session=1, slot=slot, tier=Tier.NVME),
                Unshare(session=1, slot=slot, first_page=509, count=count, copies_max=600),
                Touch(session=1, slot=slot, first_page=509, count=count, dirty=dirty),
                TranslateList(session=0, slot=0, pages=(509, 510, 511)),
                TranslateList(session=1, slot=slot, pages=(509, 510, 511)),
            ]
        )

    @invariant()
    def tables_are_consistent(self) -> None:
        assert finish(self.device.check()) == []

    def teardown(self) -> None:
        finish(self.comparer.compare_all(self.device))
        assert finish(self.device.check()) == []
        self.device.close()


DeviceMachine.TestCase.settings = settings(
    max_examples=250, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
TestDeviceMachine = DeviceMachine.TestCase
