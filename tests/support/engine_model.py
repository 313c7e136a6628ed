"""What a page-table engine must do, in plain dictionaries; shares nothing with the engine but the command types."""

from __future__ import annotations

import itertools
import tomllib
from collections import Counter
from dataclasses import replace
from pathlib import Path

from kvdriver import (
    AgeScan,
    Command,
    Event,
    Flush,
    Lease,
    Map,
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
    State,
    Status,
    Tier,
    Touch,
    Translate,
    TranslateList,
    Unmap,
    Unshare,
    WindowAdvance,
)
from support.engine_parts import Expected, Page, RefusedError, Session
from support.prefix_model import PrefixModel

PAGES_MAX = 1 << 47
BLOCKS_MAX = 1 << 52
LEASES_MAX = (1 << 63) - 1
WORD = 1 << 64
PLANES_MAX = 1 << 16
AGE_MAX = 127
LIFE = tomllib.loads((Path(__file__).parents[2] / "driver/spec/session.toml").read_text())


Ranged = Unmap | Translate | Remap | Touch | Share | Unshare


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
        self.prefixes = PrefixModel()

    def adopt(self, key: int, handle: int) -> None:
        self.sessions[handle] = Session(key)

    def pages(self) -> list[Page]:
        return [page for session in self.sessions.values() for page in session.pages()]

    def holders(self) -> Counter[int]:
        """Return how many pages have each frame."""
        return Counter(page.frame for page in self.pages())

    def used_blocks(self, tier: Tier) -> int:
        return sum({page.frame: page.blocks for page in self.pages() if page.tier == tier}.values())

    def used_frames(self, tier: Tier) -> int:
        return len({page.frame for page in self.pages() if page.tier == tier})

    def reserved_blocks(self, tier: Tier) -> int:
        return sum(s.reserved.get(tier, 0) for s in self.sessions.values())

    def execute(self, command: Command) -> Expected:
        try:
            return self._execute(command)
        except RefusedError as refused:
            return Expected(refused.status, refused.value)

    def _execute(self, command: Command) -> Expected:
        self._check_arguments(command)
        if not isinstance(command, SessionCreate | QueryTier | AgeScan | PrefixMatch | PrefixRemove | Flush | Resize):
            if command.session not in self.sessions:
                raise RefusedError(Status.NO_SESSION)
            return getattr(self, f"_{type(command).__name__.lower()}")(self.sessions[command.session], command)
        match command:
            case SessionCreate(key=key):
                return self._create(key)
            case AgeScan():
                return self._agescan(command)
            case PrefixMatch() | PrefixRemove():
                return self._prefix(command)
            case Resize(tier=tier, blocks=blocks):
                self._require(blocks <= BLOCKS_MAX)
                self.capacity[tier] = blocks
        return Expected(Status.OK, None if isinstance(command, Flush) else 0)

    def _prefix(self, command: PrefixMatch | PrefixRemove) -> Expected:
        self._require(self.prefixes.sound(command))
        if isinstance(command, PrefixMatch):
            return Expected(Status.OK, *self.prefixes.match(command))
        if command.session and command.session not in self.sessions:
            raise RefusedError(Status.NO_SESSION)
        return Expected(Status.OK, self.prefixes.remove(command))

    def _sessiondestroy(self, session: Session, command: SessionDestroy) -> Expected:
        self._refuse_leased(session)
        del self.sessions[command.session]
        self.prefixes.drop(command.session)
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
        return Expected(Status.OK, None, pages={number: slot[number] for number in inside})

    def _translatelist(self, session: Session, command: TranslateList) -> Expected:
        slot = session.slots.get(command.slot, {})
        return Expected(Status.OK, len(command.pages), listed=tuple(slot.get(number) for number in command.pages))

    def _prefixinsert(self, session: Session, command: PrefixInsert) -> Expected:
        assert self.sessions[command.session] is session
        self._require(self.prefixes.sound(command))
        return Expected(Status.OK, self.prefixes.insert(command))

    def _share(self, session: Session, command: Share) -> Expected:
        slot, inside = self._range(session, command)
        self._require(command.source_slot < self.slots_max)
        if command.source not in self.sessions:
            raise RefusedError(Status.NO_SESSION)
        self._require((command.source, command.source_slot) != (command.session, command.slot))
        if inside:
            raise RefusedError(Status.ALREADY_MAPPED)
        source = self.sessions[command.source].slots.get(command.source_slot, {})
        end = command.first_page + command.count
        shared = {number: page for number, page in source.items() if command.first_page <= number < end}
        slot.update({number: replace(page, used=False, dirty=False) for number, page in shared.items()})
        return Expected(Status.OK, len(shared))

    def _unshare(self, session: Session, command: Unshare) -> Expected:
        slot, inside = self._range(session, command)
        holders = self.holders()
        made: dict[int, Page] = {}
        blocks: Counter[Tier] = Counter()
        for number in inside:
            old = slot[number]
            if holders[old.frame] == 1:
                continue
            blocks[old.tier] += old.blocks
            made[number] = replace(old, frame=next(self.frames), dirty=False)
            frames = sum(page.tier == old.tier for page in made.values())
            self._admit(session, old.tier, frames=frames, blocks=blocks[old.tier], reserved=False)
        self._refuse_small(made, command.copies_max)
        old_frames = {number: slot[number].frame for number in made}
        slot.update(made)
        return Expected(Status.OK, None, len(made), pages=made, old=old_frames)

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
            slot[number].dirty |= command.dirty
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
        self._refuse_small(gone, command.runs_max)
        for number in gone:
            del slot[number]
        session.window_start[command.slot] = max(session.window_start.get(command.slot, 0), slid)
        return Expected(Status.OK, None, len(gone), pages=gone)

    def _agescan(self, command: AgeScan) -> Expected:
        """Answer a scan that is refused, or that looks at nothing; `scan` is for the others."""
        self._require(command.least_age <= AGE_MAX and command.tier in {Tier.NONE, *self.total_frames})
        if command.runs_max < 1:
            raise RefusedError(Status.BUFFER_SMALL, 1)
        at = command.cursor
        self._require(not at.done and not (command.advance and (at.session or at.slot or at.page)))
        assert command.count == 0
        assert not command.advance
        return Expected(Status.OK)

    def scan(self, command: AgeScan) -> dict[tuple[int, int, int], tuple[Page, int]]:
        """Return page and age of all that a whole scan reports, by session, slot and number."""
        self.generation += command.advance
        found = {}
        for handle, session in self.sessions.items():
            for slot, pages in session.slots.items():
                for number, page in pages.items():
                    if page.used:
                        page.generation, page.used = self.generation, False
                    page.generation = max(page.generation, self.generation - AGE_MAX)
                    age = self.generation - page.generation
                    if age >= command.least_age and command.tier in {Tier.NONE, page.tier}:
                        found[handle, slot, number] = (page, age)
        return found

    def _require(self, good: bool) -> None:
        if not good:
            raise RefusedError(Status.BAD_ARGUMENT)

    @staticmethod
    def _refuse_small(pages: dict[int, Page], runs_max: int) -> None:
        """Refuse for want of room; how many runs there are is the engine's, so the room is for none or for all."""
        if pages and not runs_max:
            raise RefusedError(Status.BUFFER_SMALL, None)
        assert len(pages) <= runs_max or not pages

    def _refuse_leased(self, session: Session) -> None:
        if session.leases:
            raise RefusedError(Status.LEASED)

    def _check_arguments(self, command: Command) -> None:
        if isinstance(command, Map | Ranged | TranslateList | WindowAdvance):
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

    def _range(self, session: Session, command: Ranged) -> tuple[dict[int, Page], list[int]]:
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
        holders = self.holders()
        for number in moving:
            if holders[slot[number].frame] > 1:
                raise RefusedError(Status.SHARED)
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
