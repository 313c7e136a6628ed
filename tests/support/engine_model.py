"""What a page-table engine must do, in plain dictionaries; shares nothing with the engine but the command types."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

from kvdriver import (
    Command,
    Lease,
    Map,
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

PAGES_MAX = 1 << 47
BLOCKS_MAX = 1 << 52
LEASES_MAX = (1 << 63) - 1


class RefusedError(Exception):
    """A command ends with this status."""

    def __init__(self, status: Status, value: int = 0) -> None:
        super().__init__(status.name)
        self.status = status
        self.value = value


@dataclass(frozen=True)
class Page:
    """A mapped page; `frame` is the model's own name for a frame."""

    tier: Tier
    blocks: int
    frame: int


@dataclass
class Session:
    key: int
    leases: int = 0
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

    def _require(self, good: bool) -> None:
        if not good:
            raise RefusedError(Status.BAD_ARGUMENT)

    def _refuse_leased(self, session: Session) -> None:
        if session.leases:
            raise RefusedError(Status.LEASED)

    def _check_arguments(self, command: Command) -> None:
        if isinstance(command, Map | Unmap | Translate | Remap):
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

    def _range(self, session: Session, command: Unmap | Translate | Remap) -> tuple[dict[int, Page], list[int]]:
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
                slot[number] = Page(command.tier, run.blocks, next(self.frames))
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
            slot[number] = other.pop(number) if command.take else Page(command.tier, old.blocks, next(self.frames))
            if command.keep:
                other[number] = old
        return Expected(Status.OK, len(moving))
