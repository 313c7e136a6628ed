"""The sessions in memory: those with an object in DDR, open or being moved. The others are cold, and the catalogue's.

Objects say by themselves what becomes of them (`kvd.tier.live.SessionWatch`), between two awaits; nobody looks through them.
What the data plane opens and releases without telling is looked at once a second, as is who has been idle for long.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import replace
from typing import TYPE_CHECKING

import structlog
import trio

from kvd.session.machine import ENDED, STEPS_MAX, Machine, due
from kvd.session.session import NOTHING, Change, Member, Session, Told
from kvdriver import Tier
from kvdriver.abi import Event, State

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvd.catalog.catalog import Catalog
    from kvd.catalog.records import Pin
    from kvd.tier.live import Live
    from kvd.tier.objects import Objects

log = structlog.get_logger(__name__)

AGE_TICK_S = 10.0
"""A session that nobody used for so long begins to cool."""
LOOK_S = 1.0
"""How often the data plane is asked who has open what it opened by itself."""
SLICE = 512
"""Sessions or objects that are looked at before others have their turn: about a millisecond."""


class Sessions:
    """Keeps them.

    Attributes
    ----------
    by_ino
        The sessions in memory.
    machine
        Takes their steps.
    changes
        How many changes of state there were since the start, by the new one.
    watchers
        Hear of each change of state; must not wait.
    """

    def __init__(self, catalog: Catalog, objects: Objects) -> None:
        self._catalog = catalog
        self._rows = catalog.sessions
        self._objects = objects
        self._lives = objects.lives
        self.machine = Machine()
        self.by_ino: dict[int, Session] = {}
        self._members: dict[int, Member] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()
        self._touched: set[int] = set()
        self._leased: OrderedDict[int, None] = OrderedDict()
        self._unstored: set[int] = set()
        self._moves = catalog.names.folder_moves
        self._regroup: list[int] = []
        self.changes: Counter[State] = Counter()
        self.watchers: set[Callable[[Change], None]] = set()
        self.held: Counter[int] = Counter()
        """API leases by the inode, a session or an object, that they are of (`kvd.session.leases`)."""
        self.pinned: dict[int, Pin] = self._rows.pinned()
        self.went_from_memory: Callable[[Live, Session], None] = lambda _live, _session: None
        """Hears of each object that leaves memory, before its session forgets it."""
        self.came_to_rest: Callable[[int], None] = lambda _ino: None
        """Hears of each object that was sealed, or has been closed by the last of its users."""
        self._lives.session_watch = self
        objects.evicting.is_held = lambda ino: self.held[ino] > 0
        catalog.names.named = self.moved

    def __repr__(self) -> str:
        return f"<Sessions {len(self.by_ino)} in memory {self.machine!r}>"

    # -- what objects say ----------------------------------------------------------------------------------------

    def came(self, live: Live) -> None:
        """See `kvd.tier.live.SessionWatch`."""
        session = self._session(self._rows.of(live.ino))
        self._join(live, session)
        told = self._tell(live)
        self._members[live.ino] = Member(session, told)
        if session.state is State.NEW and not told.filling and live.tier is not Tier.NONE:
            session.state = self._first(live, session)
            if session.state is not State.COLD:
                self._idle[session.ino] = None
        self._count(session, NOTHING, told)
        self._settle(session)

    def _session(self, ino: int) -> Session:
        session = self.by_ino.get(ino)
        if session is None:
            now_s = trio.current_time()
            session = self.by_ino[ino] = Session(ino=ino, since_s=now_s, used_s=now_s)
        return session

    def _first(self, live: Live, session: Session) -> State:
        """Return the state of a session whose first object has come into memory, sealed."""
        if live.tier is Tier.DDR and self._rows.get(session.ino).state == State.RELEASED:
            session.stored = True
            return State.RELEASED
        return State.IDLE if live.tier is Tier.DDR else State.COLD

    def _join(self, live: Live, session: Session) -> None:
        if live.ino != session.ino:
            session.members = session.members or set()
            session.members.add(live.ino)
        live.held = bool(self.held) and (self.held[live.ino] > 0 or self.held[session.ino] > 0)
        if session.ino in self.pinned and not live.pinned:
            try:
                self._catalog.placements.pin(live.ino, pinned=True)
            except OSError as error:
                log.info("an object of a pinned session is not pinned", ino=live.ino, errno=error.errno)
                return
            live.pinned = True

    def went(self, live: Live) -> None:
        """See `kvd.tier.live.SessionWatch`."""
        member = self._members.pop(live.ino, None)
        if member is None:
            return
        session = member.session
        self.went_from_memory(live, session)
        self._touched.discard(live.ino)
        self._leased.pop(live.ino, None)
        self._count(session, member.told, NOTHING)
        if session.members is not None:
            session.members.discard(live.ino)
        self._settle(session)
        if not session.members and not session.facts.coming:
            self._forget(session)

    def _forget(self, session: Session) -> None:
        self._idle.pop(session.ino, None)
        self.by_ino.pop(session.ino, None)

    def note(self, live: Live) -> None:
        """See `kvd.tier.live.SessionWatch`."""
        member = self._members.get(live.ino)
        if member is None or (told := self._tell(live)) == member.told:
            return
        session = member.session
        if told.open > member.told.open:
            session.used_s = trio.current_time()
        self._members[live.ino] = Member(session, told)
        self._count(session, member.told, told)
        self._settle(session)
        if told.open + told.filling < member.told.open + member.told.filling:
            self.came_to_rest(live.ino)

    def used(self, live: Live) -> None:
        """See `kvd.tier.live.SessionWatch`."""
        member = self._members.get(live.ino)
        if member is not None:
            member.session.used_s = trio.current_time()
            self._touched.add(live.ino)

    def _tell(self, live: Live) -> Told:
        resident = live.tier is Tier.DDR
        return Told(
            open=int(live.opens > 0 or live.ino in self._leased),
            filling=int(not live.sealed),
            resident=int(resident),
            coming=int(live.streaming is not None and not resident),
            damaged=int(live.damaged),
        )

    @staticmethod
    def _count(session: Session, before: Told, after: Told) -> None:
        facts = session.facts
        facts.open += after.open - before.open
        facts.filling += after.filling - before.filling
        facts.resident += after.resident - before.resident
        facts.coming += after.coming - before.coming
        facts.damaged += after.damaged - before.damaged

    # -- states --------------------------------------------------------------------------------------------------

    def _settle(self, session: Session) -> None:
        """Bring a session's state into line with its facts."""
        for _ in range(STEPS_MAX):
            event = due(session.state, session.facts)
            if event is None:
                return
            self._step(session, event)

    def _step(self, session: Session, event: Event) -> None:
        before = session.state
        after = self.machine.step(before, event)
        if after is before:
            return
        session.state = after
        session.since_s = trio.current_time()
        self.changes[after] += 1
        if after in (State.IDLE, State.RELEASED):
            self._idle[session.ino] = None
            self._idle.move_to_end(session.ino)
        else:
            self._idle.pop(session.ino, None)
        if session.stored or after is State.RELEASED:
            self._unstored.add(session.ino)
        for watcher in tuple(self.watchers):
            watcher(Change(session.ino, before, after))

    def ask(self, ino: int, event: Event) -> State:
        """Let what a client asks happen to a session, in memory or not; return its state then.

        Raises
        ------
        RefusedError
            It can't happen now.
        """
        session = self.by_ino.get(ino)
        if session is None:
            return self.machine.step(self._away(ino), event)
        self._look_at(session)
        self._step(session, event)
        self._settle(session)
        return session.state

    def state(self, ino: int) -> State:
        """Return the state of a session, in memory or not."""
        session = self.by_ino.get(ino)
        return self._away(ino) if session is None else session.state

    def _away(self, ino: int) -> State:
        """Return the state of a session of which nothing is in memory."""
        try:
            placement = self._catalog.placements.get(ino)
        except LookupError:
            return State.COLD if self._catalog.namespaces.count_in(ino) else State.NEW
        if placement.damaged:
            return State.FAULTED
        return State.COLD if placement.sealed else State.NEW

    def is_open(self, ino: int) -> bool:
        """Whether somebody has any of a session open or mapped now."""
        session = self.by_ino.get(ino)
        if session is None:
            return False
        self._look_at(session)
        return session.facts.open > 0

    def expect(self, ino: int) -> None:
        """Count a session as one that is on its way to DDR, until `arrived`; it is in memory as long."""
        session = self._session(ino)
        if session.state is State.NEW and not session.facts.filling:
            session.state = State.COLD
        session.facts.coming += 1
        self._settle(session)

    def arrived(self, ino: int) -> None:
        """Count it no longer, whatever has come of it."""
        session = self.by_ino[ino]
        session.facts.coming -= 1
        self._settle(session)
        if not session.members and not session.facts.coming and ino not in self._members:
            self._forget(session)

    # -- who is in which -----------------------------------------------------------------------------------------

    def of(self, ino: int) -> int:
        """Return the session that an inode belongs to."""
        member = self._members.get(ino)
        return self._rows.of(ino) if member is None else member.session.ino

    def objects(self, ino: int) -> list[int]:
        """Return a session's objects in memory."""
        session = self.by_ino.get(ino)
        if session is None:
            return []
        return [ino] if session.members is None else sorted(session.members)

    def moved(self, ino: int) -> None:
        """Take note that an object has another name: it may belong to another session now."""
        member, live = self._members.get(ino), self._lives.peek(ino)
        if member is None or live is None or self._rows.of(ino) == member.session.ino:
            return
        live.sessions = None
        self.went(live)
        live.sessions = self
        self.came(live)

    def regroup(self) -> None:
        """Look soon at who belongs where: a policy or the place of a directory has changed."""
        self._regroup = list(self._members)

    def hold(self, ino: int, delta: int) -> None:
        """Count a lease of a session or an object, and keep what it is of where it is."""
        self.held[ino] += delta
        if not self.held[ino]:
            del self.held[ino]
        session = self.by_ino.get(ino)
        for each in [ino] if session is None or session.members is None else session.members:
            member, live = self._members.get(each), self._lives.peek(each)
            if member is not None and live is not None:
                live.held = bool(self.held[each] or self.held[member.session.ino])

    # -- with time -----------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Look after them, for ever."""
        while True:
            await trio.sleep(LOOK_S)
            self._objects.sharing.drain()
            await self.look()

    async def look(self) -> None:
        """Look once at what nobody tells, in slices."""
        for some in (self._look_touched, self._look_leased, self._look_idle, self._look_moved, self._store):
            while some():
                await trio.lowlevel.checkpoint()

    def _look_touched(self) -> bool:
        for _ in range(min(SLICE, len(self._touched))):
            ino = self._touched.pop()
            self._look_at_object(ino)
            member = self._members.get(ino)
            if member is not None and not member.told.open:
                self._visit(member.session)
        return bool(self._touched)

    def _look_at(self, session: Session) -> None:
        """Look at who has a session's objects open now."""
        for ino in [session.ino] if session.members is None else tuple(session.members):
            self._look_at_object(ino)

    def _look_at_object(self, ino: int) -> None:
        live = self._lives.peek(ino)
        if live is None:
            return
        if live.shared and self._objects.sharing.is_leased(live):
            self._leased[ino] = None
        else:
            self._leased.pop(ino, None)
        self.note(live)

    def _visit(self, session: Session) -> None:
        """Let somebody have opened and released it since it was looked at."""
        if session.state not in (State.IDLE, State.ACTIVE, State.FAULTED, *ENDED):
            session.facts.open += 1
            self._settle(session)
            session.facts.open -= 1
            self._settle(session)

    def _look_leased(self) -> bool:
        """Look at some of those that the data plane had given leases of, in turn."""
        for ino in list(self._leased)[:SLICE]:
            self._leased.move_to_end(ino)
            self._look_at_object(ino)
        return False

    def _look_idle(self) -> bool:
        """Let time pass for those that were idle longest."""
        now_s = trio.current_time()
        for _ in range(min(SLICE, len(self._idle))):
            session = self.by_ino[next(iter(self._idle))]
            if now_s - session.since_s < AGE_TICK_S:
                return False
            if now_s - session.used_s < AGE_TICK_S:
                session.since_s = session.used_s
                self._idle.move_to_end(session.ino)
                continue
            self._step(session, Event.TICK)
            self._settle(session)
        return bool(self._idle)

    def _look_moved(self) -> bool:
        if self._moves != self._catalog.names.folder_moves:
            self._moves = self._catalog.names.folder_moves
            self.regroup()
        for _ in range(min(SLICE, len(self._regroup))):
            self.moved(self._regroup.pop())
        return bool(self._regroup)

    def _store(self) -> bool:
        """Bring the catalogue's states up to date: only what objects do not tell by themselves is kept."""
        some = [self._unstored.pop() for _ in range(min(SLICE, len(self._unstored)))]
        try:
            with self._catalog.db.transaction():
                for ino in some:
                    session = self.by_ino.get(ino)
                    released = session is not None and session.state is State.RELEASED
                    self._rows.put(replace(self._rows.get(ino), state=State.RELEASED if released else 0))
                    if session is not None:
                        session.stored = released
        except OSError as error:
            self._unstored.update(some)
            log.info("states of sessions can't be stored now", errno=error.errno)
            return False
        return bool(self._unstored)
