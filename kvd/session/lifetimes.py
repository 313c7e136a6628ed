"""Times to live and pins: one queue for both, of objects and of sessions alike.

The queue is an index of the catalogue's table `session`: it survives a restart, takes no memory, and a slice of it costs the same
with a million rows. Times are on ticks, so that what ends at about the same time ends in one transaction. A use costs nothing: what a
use has put off is found out when the time comes, and kept when an object leaves memory.

What expires is gone by name at once; who has it open keeps it until the release. A soft pin ends by itself. Nothing expires
while a hard pin is on it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import structlog
import trio

from kvd.catalog.records import NS, Pin
from kvd.errors import InvalidError, NotFoundError
from kvd.session.machine import RefusedError
from kvdriver.abi import Event

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvd.catalog.catalog import Catalog
    from kvd.catalog.records import Inode, Said
    from kvd.session.session import Session
    from kvd.session.sessions import Sessions
    from kvd.tier.live import Live
    from kvd.tier.objects import Objects

log = structlog.get_logger(__name__)

TICK_NS = NS // 10
"""Ends are at whole ticks since the epoch."""
LIFETIME_S_MAX = 100 * 365 * 86400.0
SLICE = 64
"""Of what is due so much is done before others have their turn: some 5 ms."""
GRAVES_MAX = 64
"""Directories that are being deleted; with as many, the next ones wait."""
LOOK_AGAIN_S = 30.0
"""The clock may be set: the queue is looked at this often whatever it says."""
RETRY_S = 1.0
COMPLAIN_S = 60.0


@dataclass(slots=True)
class LifetimeCounts:
    """Since the start: files and directories whose time was over, ends that a use had put off, soft pins that ended."""

    expired: int = 0
    postponed: int = 0
    unpinned: int = 0


class Lifetimes:
    """Keeps times.

    Parameters
    ----------
    now_ns
        The time since the epoch; tests have their own.
    """

    def __init__(
        self, catalog: Catalog, objects: Objects, sessions: Sessions, *, now_ns: Callable[[], int] = time.time_ns
    ) -> None:
        self._catalog = catalog
        self._rows = catalog.sessions
        self._objects = objects
        self._sessions = sessions
        self.now_ns = now_ns
        self._wake = trio.Event()
        self._wakes_ns = 0  # when it wakes by itself
        self._complained_s = -COMPLAIN_S
        self.counts = LifetimeCounts()
        sessions.went_from_memory = self._went
        objects.on_unpin = self._unpinned

    def __repr__(self) -> str:
        return f"<Lifetimes {self.counts}>"

    # -- saying --------------------------------------------------------------------------------------------------

    def live(self, ino: int, ttl_s: float, *, refresh: bool) -> Said:
        """Give an object or a session a time to live from now on; 0 takes it away.

        Parameters
        ----------
        ino
            The file or the directory.
        ttl_s
            Seconds.
        refresh
            Each use begins the time anew; otherwise the end is fixed.
        """
        if not 0 <= ttl_s <= LIFETIME_S_MAX:
            raise InvalidError(f"a time to live is 0 to {LIFETIME_S_MAX:.0f} s")
        ttl_ns = int(ttl_s * NS)
        expire_ns = _on_tick(self.now_ns() + ttl_ns) if ttl_ns else 0
        said = replace(self._rows.get(ino), ttl_ns=ttl_ns, refresh=refresh and bool(ttl_ns), expire_ns=expire_ns)
        self._rows.put(said)
        self._wake_by(said.expire_ns)
        return said

    def _wake_by(self, at_ns: int) -> None:
        """Make sure that the queue is looked at when something ends."""
        if at_ns and at_ns < self._wakes_ns:
            self._wake.set()

    async def pin(self, ino: int, pin: Pin, *, for_s: float = 0.0) -> int:
        """Pin an object or a session with all its objects, those that come later too; return how many objects changed.

        Parameters
        ----------
        ino
            The file or the directory.
        pin
            How firmly; `Pin.NONE` unpins, also objects that were pinned by themselves.
        for_s
            When a soft pin ends, in seconds from now; 0 for never.
        """
        if not 0 <= for_s <= LIFETIME_S_MAX or (for_s and pin is not Pin.SOFT):
            raise InvalidError(f"a soft pin lasts 0 to {LIFETIME_S_MAX:.0f} s; others have no end")
        until_ns = _on_tick(self.now_ns() + int(for_s * NS)) if for_s else 0
        if pin is Pin.NONE:
            changed = await self._unpin(ino)
            self._rows.put(self._due_again(replace(self._rows.get(ino), pin=pin, pin_until_ns=0)))
            self._wake.set()
        else:
            self._rows.put(replace(self._rows.get(ino), pin=pin, pin_until_ns=until_ns))
            self._sessions.pinned[ino] = pin
            changed = await self._pin_objects(ino, pinned=True)
            self._wake_by(until_ns)
        return changed

    async def _unpin(self, ino: int) -> int:
        self._sessions.pinned.pop(ino, None)  # or what comes into memory meanwhile would be pinned again
        return await self._pin_objects(ino, pinned=False)

    async def _pin_objects(self, ino: int, *, pinned: bool) -> int:
        changed = 0
        for batch in self._catalog.names.walk(ino):
            for inode in batch:
                try:
                    changed += await self._objects.pin(inode.ino, pinned=pinned)
                except NotFoundError:
                    continue  # removed meanwhile
            await trio.lowlevel.checkpoint()
        return changed

    def _unpinned(self, ino: int) -> None:
        """Let the time of an object go on that a hard pin has held up."""
        said = self._rows.get(ino)
        if said.ttl_ns and not said.expire_ns:
            self._rows.put(self._due_again(said))
            self._wake.set()

    def _due_again(self, said: Said) -> Said:
        """Return what is said of something that is pinned no longer: its time goes on, and may be over."""
        if said.ttl_ns and not said.expire_ns:
            return replace(said, expire_ns=_on_tick(self.now_ns()))
        return said

    # -- keeping -------------------------------------------------------------------------------------------------

    def _went(self, live: Live, session: Session) -> None:
        """Keep when an object was used last, which is forgotten with it: what it has put off stays so."""
        if not self._rows.some:
            return
        try:
            for ino, used_s in ((live.ino, live.last_use_s), (session.ino, session.used_s)):
                self._postpone(ino, used_s)
                if live.ino == session.ino:
                    break
        except OSError as error:
            log.info("the last use of an object is not kept", ino=live.ino, errno=error.errno)

    def _postpone(self, ino: int, used_s: float) -> None:
        said = self._rows.get(ino)
        if said.refresh and said.expire_ns:
            used_ns = self.now_ns() - int((trio.current_time() - used_s) * NS)
            self._rows.postpone(ino, _on_tick(used_ns + said.ttl_ns))

    def store(self) -> None:
        """Keep of everything in memory when it was used last: the daemon ends."""
        with self._catalog.db.transaction():
            for ino, _ in self._rows.refreshed():
                used_s = self._used_s(ino)
                if used_s is not None:
                    self._postpone(ino, used_s)

    def _used_s(self, ino: int) -> float | None:
        """Return when an object or a session was used last, by trio's clock; None if nothing of it is in memory."""
        session, live = self._sessions.by_ino.get(ino), self._objects.lives.peek(ino)
        used_s = [session.used_s] if session is not None else []
        return max([*used_s, live.last_use_s] if live is not None else used_s, default=None)

    # -- ending --------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """End what is due, for ever."""
        while True:
            self._wake = trio.Event()
            try:
                while await self.step():
                    await trio.lowlevel.checkpoint()
                wait_s = self._wait_s()
            except OSError as error:
                self._complain(error)
                wait_s = RETRY_S
            self._wakes_ns = self.now_ns() + int(wait_s * NS)
            with trio.move_on_after(wait_s):
                await self._wake.wait()

    def _wait_s(self) -> float:
        next_ns = self._rows.next_ns()
        if not next_ns:
            return LOOK_AGAIN_S
        if len(self._catalog.namespaces.graves) >= GRAVES_MAX:
            return RETRY_S
        return min(LOOK_AGAIN_S, max(0.0, (next_ns - self.now_ns()) / NS))

    async def step(self) -> bool:
        """End a slice of what is due; whether there may be more."""
        now_ns = self.now_ns()
        pins = self._rows.unpinned(now_ns, 1)
        for said in pins:
            await self._unpin(said.ino)
            self._rows.put(self._due_again(replace(self._rows.get(said.ino), pin=Pin.NONE, pin_until_ns=0)))
            self.counts.unpinned += 1
            log.info("pin is over", ino=said.ino)
        self._objects.sharing.drain()
        due = self._rows.expired(now_ns, SLICE)
        files: list[int] = []
        folders: list[Said] = []
        names: list[tuple[int, bytes]] = []
        with self._catalog.db.transaction():
            for said in due:
                if self._put_off(said, now_ns):
                    continue
                inode = self._inode(said.ino)
                if inode is not None and inode.is_dir:
                    folders.append(said)
                    continue
                self._rows.put(_ended(said))
                if inode is not None:
                    self._tell(said.ino)
                    names += self._catalog.namespaces.unname(said.ino, now_ns)
                    files.append(said.ino)
        for ino in files:
            self._objects.reaper.unnamed(ino)
        for parent, name in names:
            self._objects.reaper.keeper.forget_name(parent, name)
        self.counts.expired += len(files)
        room = max(0, GRAVES_MAX - len(self._catalog.namespaces.graves))
        for said in folders[:room]:
            await self.vanish_folder(said, Event.EXPIRE)
            self.counts.expired += 1
        return bool(pins) or (len(due) == SLICE and len(folders) <= room)

    def _inode(self, ino: int) -> Inode | None:
        try:
            return self._catalog.names.inode(ino)
        except OSError:
            return None

    def _put_off(self, said: Said, now_ns: int) -> bool:
        """Keep what is not due: a use has put it off, or a hard pin holds it."""
        if self._is_held_by_pin(said):
            self._rows.put(replace(said, expire_ns=0))
            return True
        if not said.refresh:
            return False
        used_s = self._used_s(said.ino)
        if used_s is None:
            return False
        used_ns = now_ns - int((trio.current_time() - used_s) * NS)
        end_ns = _on_tick(used_ns + said.ttl_ns)
        if end_ns <= now_ns:
            return False
        self._rows.postpone(said.ino, end_ns)
        self.counts.postponed += 1
        return True

    def _is_held_by_pin(self, said: Said) -> bool:
        if said.pin is not Pin.NONE:
            return said.pin is Pin.HARD
        session = self._sessions.of(said.ino)
        pin = self._sessions.pinned.get(session, Pin.NONE)
        if pin is not Pin.NONE:
            return pin is Pin.HARD
        try:
            return self._catalog.placements.get(said.ino).pinned
        except LookupError:
            return False  # a directory

    async def vanish_folder(self, said: Said, event: Event) -> None:
        """Let a directory go with all that is in it, at once; who has any of it open keeps that."""
        row = self._catalog.db.execute("SELECT parent, name FROM dentry WHERE ino=?", (said.ino,)).fetchone()
        self._rows.put(_ended(said))
        if row is None:
            return
        parent, name = int(row[0]), bytes(row[1])
        self._catalog.namespaces.retire(parent, name, said.ino, self.now_ns())
        if event is Event.EXPIRE:
            self._tell(said.ino)
        self._objects.reaper.wake()
        with trio.CancelScope(shield=True):
            await self._objects.reaper.keeper.forget_tree(parent, name)

    def vanish_file(self, said: Said) -> None:
        """Let a file go; who has it open keeps it."""
        with self._catalog.db.transaction():
            self._rows.put(_ended(said))
            names = self._catalog.namespaces.unname(said.ino, self.now_ns())
        self._objects.reaper.unnamed(said.ino)
        for parent, name in names:
            self._objects.reaper.keeper.forget_name(parent, name)

    def _tell(self, ino: int) -> None:
        """Let the session know, if it is one."""
        if self._sessions.by_ino.get(ino) is not None:
            try:
                self._sessions.ask(ino, Event.EXPIRE)
            except RefusedError as error:
                log.info("session was over already", ino=ino, state=error.state.name.lower())

    def _complain(self, error: OSError) -> None:
        now_s = trio.current_time()
        if now_s - self._complained_s >= COMPLAIN_S:
            self._complained_s = now_s
            log.warning("times to live can't be kept now", errno=error.errno, error=str(error))


def _ended(said: Said) -> Said:
    """Return what is left to say of what has no name any more."""
    return replace(said, ttl_ns=0, expire_ns=0, pin=Pin.NONE, pin_until_ns=0)


def _on_tick(at_ns: int) -> int:
    """Return the tick at or after a time."""
    return -(-at_ns // TICK_NS) * TICK_NS
