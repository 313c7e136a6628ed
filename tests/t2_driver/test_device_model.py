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
    Completion,
    Event,
    Flush,
    InProcessDevice,
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
    SessionTransition,
    Status,
    Tier,
    Touch,
    Translate,
    Unmap,
    WindowAdvance,
)
from support.engine_model import PAGES_MAX, EngineModel, Expected

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
    runs_max=st.just(128),
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
        self.model = EngineModel(
            page_blocks=PAGE_BLOCKS, capacity_blocks=CAPACITY, sessions_max=SESSIONS_MAX, slots_max=8
        )
        self.handles: dict[int, int] = {}
        self.frames: dict[int, tuple[Tier, int]] = {}

    @rule(commands=st.lists(COMMAND, min_size=1, max_size=6))
    def submit(self, commands: list[Command]) -> None:
        resolved = [
            dataclasses.replace(command, session=self.handles.get(command.session, 0))
            if not isinstance(command, SessionCreate | QueryTier | Resize | Flush)
            else command
            for command in commands
        ]
        completions = finish(self.device.submit(resolved))
        for command, completion in zip(resolved, completions, strict=True):
            self.compare(command, completion)

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
            whole = AgeScan(count=step, least_age=least_age, tier=tier, advance=advance, runs_max=runs_max)
            expected = self.model.scan(whole)
            if ticks > 3:
                step, runs_max = 1 << 40, 100
            found = self.scan_parts(dataclasses.replace(whole, count=step, runs_max=runs_max))
            assert found.keys() == expected.keys()
            for place, (tier_found, frame, age) in found.items():
                page, age_expected = expected[place]
                assert (tier_found, age) == (page.tier, age_expected), place
                assert self.frames.setdefault(page.frame, (tier_found, frame)) == (tier_found, frame)

    def scan_parts(self, command: AgeScan) -> dict[tuple[int, int, int], tuple[Tier, int, int]]:
        found = {}
        while True:
            completion = finish(self.device.run(command))
            assert completion.second <= command.count
            for run in completion.cold:
                for at in range(run.count):
                    place = (run.session, run.slot, run.first_page + at)
                    assert place not in found
                    found[place] = (run.tier, run.first_frame + at, run.age)
            assert isinstance(completion.cursor, AgeCursor)
            if completion.cursor.done:
                return found
            command = dataclasses.replace(command, advance=False, cursor=completion.cursor)

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

    def compare(self, command: Command, completion: Completion) -> None:
        expected = self.model.execute(command)
        assert completion.status is expected.status, command
        if expected.value is not None:
            assert completion.value == expected.value, command
        if isinstance(command, SessionCreate) and completion.status is Status.OK:
            assert completion.value not in self.handles.values()
            self.handles[command.key] = completion.value
            self.model.adopt(command.key, completion.value)
        if isinstance(command, WindowAdvance) and completion.status is Status.OK:
            assert completion.second == len(expected.pages)
        if isinstance(command, Translate | WindowAdvance):
            self.compare_runs(completion, expected)
        if isinstance(command, QuerySession) and completion.status is Status.OK:
            self.compare_session(command.session, completion)
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
            # A page that moves between slots keeps its frame.
            assert self.frames.setdefault(page.frame, (tier, frame)) == (tier, frame)

    def compare_session(self, handle: int, completion: Completion) -> None:
        session = self.model.sessions[handle]
        told = completion.session
        assert told is not None
        assert (told.key, told.leases, told.state) == (session.key, session.leases, session.state)
        assert {slot: start for slot, start in enumerate(told.window_start) if start} == {
            slot: start for slot, start in session.window_start.items() if start
        }
        for tier in told.mapped_pages:
            pages = [page for page in session.pages() if page.tier == tier]
            assert told.mapped_pages[tier] == len(pages)
            assert told.mapped_blocks[tier] == sum(page.blocks for page in pages)
            assert told.reserved_blocks[tier] == session.reserved.get(tier, 0)

    def compare_tier(self, tier: Tier, completion: Completion) -> None:
        told = completion.tier
        assert told is not None
        assert told.capacity_blocks == self.model.capacity[tier]
        assert told.total_frames == self.model.total_frames[tier]
        assert told.used_blocks == self.model.used_blocks(tier)
        assert told.used_frames == self.model.used_frames(tier)
        assert told.reserved_blocks == self.model.reserved_blocks(tier)

    @invariant()
    def tables_are_consistent(self) -> None:
        assert finish(self.device.check()) == []

    def teardown(self) -> None:
        for handle, session in self.model.sessions.items():
            self.compare(QuerySession(session=handle), finish(self.device.run(QuerySession(session=handle))))
            for slot in session.slots:
                translate = Translate(session=handle, slot=slot)
                self.compare(translate, finish(self.device.submit([translate]))[0])
        for tier in CAPACITY:
            self.compare(QueryTier(tier=tier), finish(self.device.run(QueryTier(tier=tier))))
        assert finish(self.device.check()) == []
        self.device.close()


DeviceMachine.TestCase.settings = settings(
    max_examples=250, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
TestDeviceMachine = DeviceMachine.TestCase
