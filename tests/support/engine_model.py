"""What a page-table engine must do, in plain dictionaries; shares nothing with the engine but the command types."""

from __future__ import annotations

import itertools
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

from kvdriver import (
    AgeScan,
    Command,
    Event,
    Flush,
    Lease,
    Map,
    QuerySession,
    QueryTier,
    Remap,
    Reserve,
    Resize,
    SessionCreate,
    SessionDestroy,
    SessionTransition,
    State,
    Status,
    Tier,
    Touch,
    Translate,
    Unmap,
    WindowAdvance,
)

PAGES_MAX = 1 << 47
BLOCKS_MAX = 1 << 52
LEASES_MAX = (1 << 63) - 1
WORD = 1 << 64
PLANES_MAX = 1 << 16
AGE_MAX = 127
LIFE = tomllib.loads((Path(__file__).parents[2] / "driver/spec/session.toml").read_text())


class RefusedError(Exception):
    """A command ends with this status."""

    def __init__(self, status: Status, value: int = 0) -> None:
        super().__init__(status.name)
        self.status = status
        self.value = value


@dataclass
class Page:
    """A mapped page; `frame` is the model's own name for a frame."""

    tier: Tier
    blocks: int
    frame: int
    generation: int
    used: bool = False


@dataclass
class Session:
    key: int
    leases: int = 0
    state: State = State.NEW
    window_start: dict[int, int] = field(default_factory=dict)
    reserved: dict[Tier, int] = field(default_factory=dict)
    slots: dict[int, dict[int, Page]] = field(default_factory=dict)

    def pages(self) -> list[Page]:
        return [page for slot in self.slots.values() for page in slot.values()]


@dataclass(frozen=True)
class Expected:
    """`value` is None where the engine is free to choose (the handle of a new session)."""

    status: Status
    value: int | None = 0
    pages: dict[int, Page] = field(default_factory=dict)


class EngineModel:
    """`execute` says how a command must end; `adopt` tells it the handle of a session that was made."""

    def __init__(
        self, *, page_blocks: int, capacity_blocks: dict[Tier, int], sessions_max: int, slots_max: int
    ) -> None:
        self.page_blocks = page_blocks
        self.capacity = dict(capacity_blocks)
        self.total_frames = dict(capacity_blocks)
        self.sessions_max = sessions_max
        self.slots_max = slots_max
        self.sessions: dict[int, Session] = {}
        self.frames = itertools.count()
        self.generation = 0

    def adopt(self, key: int, handle: int) -> None:
        self.sessions[handle] = Session(key)

    def used_blocks(self, tier: Tier) -> int:
        return sum(page.blocks for s in self.sessions.values() for page in s.pages() if page.tier == tier)

    def used_frames(self, tier: Tier) -> int:
        return sum(page.tier == tier for s in self.sessions.values() for page in s.pages())

    def reserved_blocks(self, tier: Tier) -> int:
        return sum(s.reserved.get(tier, 0) for s in self.sessions.values())

    def execute(self, command: Command) -> Expected:
        try:
            return self._execute(command)
        except RefusedError as refused:
            return Expected(refused.status, refused.value)

    def _execute(self, command: Command) -> Expected:
        self._check_arguments(command)
        match command:
            case SessionCreate(key=key):
                return self._create(key)
            case QueryTier():
                return Expected(Status.OK)
            case Flush():
                return Expected(Status.OK, None)
            case Resize(tier=tier, blocks=blocks):
                self._require(blocks <= BLOCKS_MAX)
                self.capacity[tier] = blocks
                return Expected(Status.OK)
            case _:
                if command.session not in self.sessions:
                    raise RefusedError(Status.NO_SESSION)
                return getattr(self, f"_{type(command).__name__.lower()}")(self.sessions[command.session], command)

    def _sessiondestroy(self, session: Session, command: SessionDestroy) -> Expected:
        self._refuse_leased(session)
        del self.sessions[command.session]
        return Expected(Status.OK, len(session.pages()))

    def _lease(self, session: Session, command: Lease) -> Expected:
        self._require(0 <= session.leases + command.delta <= LEASES_MAX)
        session.leases += command.delta
        return Expected(Status.OK, session.leases)

    def _reserve(self, session: Session, command: Reserve) -> Expected:
        more = command.blocks - session.reserved.get(command.tier, 0)
        self._admit(session, command.tier, frames=0, blocks=max(more, 0), reserved=False)
        session.reserved[command.tier] = command.blocks
        return Expected(Status.OK)

    def _unmap(self, session: Session, command: Unmap) -> Expected:
        slot, inside = self._range(session, command)
        for number in inside:
            del slot[number]
        return Expected(Status.OK, len(inside))

    def _translate(self, session: Session, command: Translate) -> Expected:
        slot, inside = self._range(session, command)
        return Expected(Status.OK, None, {number: slot[number] for number in inside})

    def _querysession(self, session: Session, command: QuerySession) -> Expected:
        assert self.sessions[command.session] is session
        return Expected(Status.OK)

    def _sessiontransition(self, session: Session, command: SessionTransition) -> Expected:
        after = LIFE.get(session.state.name.lower(), {}).get(Event(command.event).name.lower())
        if after is None:
            raise RefusedError(Status.BAD_TRANSITION, session.state)
        session.state = State[after.upper()]
        return Expected(Status.OK, session.state)

    def _touch(self, session: Session, command: Touch) -> Expected:
        slot, inside = self._range(session, command)
        for number in inside:
            slot[number].used = True
        return Expected(Status.OK, len(inside))

    def _windowadvance(self, session: Session, command: WindowAdvance) -> Expected:
        written = command.tokens * command.token_bytes
        end = command.base + (command.planes - 1) * command.plane_bytes + written
        page_bytes = self.page_blocks * 4096
        self._require(0 < command.planes <= PLANES_MAX and command.token_bytes > 0)
        self._require(command.planes == 1 or written <= command.plane_bytes)
        self._require(end < WORD and end // page_bytes < PAGES_MAX)
        slid = max(0, command.tokens - command.window_tokens)
        out = []
        for plane in range(command.planes if slid > command.sink_tokens else 0):
            begin = command.base + plane * command.plane_bytes
            first, last = begin + command.sink_tokens * command.token_bytes, begin + slid * command.token_bytes
            if out and out[-1][1] == first:
                out[-1] = (out[-1][0], last)
            else:
                out.append((first, last))
        slot = session.slots.get(command.slot, {})
        gone = {
            number: slot[number]
            for number in sorted(slot)
            if any(first <= number * page_bytes and (number + 1) * page_bytes <= last for first, last in out)
        }
        for number in gone:
            del slot[number]
        session.window_start[command.slot] = max(session.window_start.get(command.slot, 0), slid)
        return Expected(Status.OK, None, gone)

    def scan(self, command: AgeScan) -> dict[tuple[int, int, int], tuple[Page, int]]:
        """Return page and age of all that a whole scan reports, by session, slot and number."""
        self.generation += command.advance
        found = {}
        for handle, session in self.sessions.items():
            for slot, pages in session.slots.items():
                for number, page in pages.items():
                    if page.used:
                        page.generation, page.used = self.generation, False
                    age = min(self.generation - page.generation, AGE_MAX)
                    if age >= command.least_age and command.tier in {Tier.NONE, page.tier}:
                        found[handle, slot, number] = (page, age)
        return found

    def _require(self, good: bool) -> None:
        if not good:
            raise RefusedError(Status.BAD_ARGUMENT)

    def _refuse_leased(self, session: Session) -> None:
        if session.leases:
            raise RefusedError(Status.LEASED)

    def _check_arguments(self, command: Command) -> None:
        if isinstance(command, Map | Unmap | Translate | Remap | Touch | WindowAdvance):
            self._require(command.slot < self.slots_max)
        if isinstance(command, Map | Remap | Reserve | QueryTier | Resize):
            self._require(command.tier in self.total_frames)

    def _create(self, key: int) -> Expected:
        for handle, session in self.sessions.items():
            if session.key == key:
                raise RefusedError(Status.EXISTS, handle)
        if len(self.sessions) == self.sessions_max:
            raise RefusedError(Status.NO_TABLE)
        return Expected(Status.OK, None)

    def _admit(self, session: Session, tier: Tier, *, frames: int, blocks: int, reserved: bool) -> int:
        """Return what the reservation pays, or refuse."""
        own = min(session.reserved.get(tier, 0), blocks) if reserved else 0
        pool = blocks - own
        taken = self.used_blocks(tier) + self.reserved_blocks(tier)
        if pool and taken + pool > self.capacity[tier]:
            raise RefusedError(Status.NO_SPACE)
        if self.used_frames(tier) + frames > self.total_frames[tier]:
            raise RefusedError(Status.NO_SPACE)
        return own

    def _range(self, session: Session, command: Unmap | Translate | Remap | Touch) -> tuple[dict[int, Page], list[int]]:
        self._require(command.first_page < PAGES_MAX)
        slot = session.slots.setdefault(command.slot, {})
        end = command.first_page + command.count
        return slot, sorted(number for number in slot if command.first_page <= number < end)

    def _map(self, session: Session, command: Map) -> Expected:
        for run in command.runs:
            self._require(0 < run.blocks <= self.page_blocks and run.count > 0)
            self._require(run.first_page + run.count <= PAGES_MAX)
        pages = sum(run.count for run in command.runs)
        blocks = sum(run.count * run.blocks for run in command.runs)
        own = self._admit(session, command.tier, frames=pages, blocks=blocks, reserved=command.reserved)
        slot = dict(session.slots.get(command.slot, {}))
        for run in command.runs:
            for number in range(run.first_page, run.first_page + run.count):
                if number in slot:
                    raise RefusedError(Status.ALREADY_MAPPED)
                slot[number] = Page(command.tier, run.blocks, next(self.frames), self.generation)
        session.slots[command.slot] = slot
        self._pay(session, command.tier, own)
        return Expected(Status.OK, pages)

    def _pay(self, session: Session, tier: Tier, own: int) -> None:
        session.reserved[tier] = session.reserved.get(tier, 0) - own

    def _remap(self, session: Session, command: Remap) -> Expected:
        slot, inside = self._range(session, command)
        with_other = command.keep or command.take
        self._require(not with_other or (command.other_slot < self.slots_max and command.other_slot != command.slot))
        self._refuse_leased(session)
        moving = [number for number in inside if slot[number].tier != command.tier]
        other = session.slots.setdefault(command.other_slot, {}) if with_other else {}
        for number in moving:
            if command.take and (number not in other or other[number].tier != command.tier):
                raise RefusedError(Status.NOT_MAPPED)
            if command.keep and not command.take and number in other:
                raise RefusedError(Status.ALREADY_MAPPED)
        if not command.take:
            blocks = sum(slot[number].blocks for number in moving)
            own = self._admit(session, command.tier, frames=len(moving), blocks=blocks, reserved=command.reserved)
            self._pay(session, command.tier, own)
        for number in moving:
            old = slot[number]
            if command.take:
                slot[number] = other.pop(number)
            else:
                slot[number] = Page(command.tier, old.blocks, next(self.frames), old.generation, old.used)
            if command.keep:
                other[number] = old
        return Expected(Status.OK, len(moving))
