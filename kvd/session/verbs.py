"""What can be asked of sessions by path: for the control API, for xattrs, for clients."""

from __future__ import annotations

import errno
import os
from collections import Counter, deque
from dataclasses import replace
from typing import TYPE_CHECKING

import trio

from kvd.api.sessions import LeaseGrant, SessionChange, SessionDetail, SessionEntry, SessionStatus
from kvd.catalog.records import NS, Pin
from kvd.errors import BusyError, InvalidError, KvdError, NotFoundError
from kvd.format.ranges import total
from kvd.session.forks import Forks
from kvd.session.leases import Leases, Peer
from kvd.session.lifetimes import Lifetimes
from kvd.session.moving import Moving
from kvd.session.sessions import Sessions
from kvd.session.windows import Windows
from kvdriver import Tier
from kvdriver.abi import Event, State

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from kvd.api.sessions import ForkPoint, Socket
    from kvd.catalog.catalog import Catalog
    from kvd.catalog.records import Inode, Said
    from kvd.session.session import Change
    from kvd.tier.objects import Objects

CHANGES_KEPT = 1024
"""Of who watches and does not take them so many wait; older ones are lost, and counted."""
PRIORITY_MAX = 255
TOKENS_MAX = (1 << 31) - 1


class NoSessionError(KvdError):
    """A directory that is no session: it has some, or is a part of one."""

    errno = errno.EOPNOTSUPP


class SessionVerbs:
    """See `kvd.api.sessions.SessionControl`.

    Attributes
    ----------
    parts, lifetimes, leases, moving, windows
        The parts; the daemon runs each.
    """

    def __init__(self, catalog: Catalog, objects: Objects, *, now_ns: Callable[[], int] | None = None) -> None:
        self._catalog = catalog
        self._rows = catalog.sessions
        self._objects = objects
        self._inodes = catalog.names
        self.parts = Sessions(catalog, objects)
        self.lifetimes = Lifetimes(catalog, objects, self.parts, **({"now_ns": now_ns} if now_ns else {}))
        self.leases = Leases(self.parts)
        self.leases.on_free = self._freed
        self.moving = Moving(catalog, objects, self.parts)
        self.forks = Forks(catalog, objects)
        self.windows = Windows(catalog, objects, self.parts)

    def __repr__(self) -> str:
        return f"<SessionVerbs {self.parts!r} {self.leases!r}>"

    async def run(self) -> None:
        """Look after all of it, for ever."""
        async with trio.open_nursery() as nursery:
            for part in (self.parts, self.lifetimes, self.leases, self.moving, self.windows):
                nursery.start_soon(part.run)

    def stop(self) -> None:
        """Keep what a start could not know."""
        self.lifetimes.store()

    def status(self) -> SessionStatus:
        """Return the counts of all together."""
        states = Counter(each.state for each in self.parts.by_ino.values())
        return SessionStatus(
            states={state.name.lower(): states[state] for state in State},
            refused=self.parts.machine.refused.total(),
            expired=self.lifetimes.counts.expired,
            unpinned=self.lifetimes.counts.unpinned,
            leases=len(self.leases),
            leases_lost=self.leases.counts.lost,
            given_ddr_bytes=self.windows.counts.ddr_bytes,
            given_nvme_bytes=self.windows.counts.nvme_bytes,
        )

    def _freed(self, ino: int) -> None:
        """Have deleted what lost its name while it was leased."""
        for each in {ino, *self.parts.objects(ino)}:
            try:
                nameless = self._inodes.inode(each).nlink == 0
            except OSError:
                continue
            if nameless:
                self._objects.reaper.unnamed(each)
        self._objects.room.changed()

    # -- finding -------------------------------------------------------------------------------------------------

    def find(self, path: bytes) -> Inode:
        """Return what a path names, a file or a session's directory.

        Raises
        ------
        NotFoundError
            There is nothing.
        NoSessionError
            It is a directory that is no session.
        """
        ino = self._inodes.number(path)
        if ino is None:
            raise NotFoundError(f"{os.fsdecode(path)}: no such file or directory in the mount")
        inode = self._inodes.inode(ino)
        if inode.is_file or self._rows.is_session(inode.ino, is_dir=True):
            return inode
        raise NoSessionError(f"{os.fsdecode(path)}: is no session; its namespace says what one is")

    def _session_of(self, path: bytes) -> Inode:
        """Return the file or directory that is the session a path belongs to."""
        return self.session_of(self.find(path))

    def session_of(self, inode: Inode) -> Inode:
        """Return the file or directory that is the session of an object, or that it is by itself."""
        ino = self.parts.of(inode.ino) if inode.is_file else inode.ino
        return inode if ino == inode.ino else self._inodes.inode(ino)

    def entry(self, inode: Inode, path: bytes | None = None) -> SessionEntry:
        """Describe a session."""
        session = self.parts.by_ino.get(inode.ino)
        said = self._rows.get(inode.ino)
        return SessionEntry(
            path=path if path is not None else self._inodes.path(inode.ino) or b"",
            ino=inode.ino,
            kind="dir" if inode.is_dir else "file",
            state=self.parts.state(inode.ino).name.lower(),
            since_s=None if session is None else round(trio.current_time() - session.since_s, 3),
            open_objects=0 if session is None else session.facts.open,
            leases=self.leases.of(inode.ino),
            pin=self.pin_of(inode, said).name.lower(),
            pin_until_s=said.pin_until_ns / NS,
            ttl_s=said.ttl_ns / NS,
            refresh=said.refresh,
            expires_s=said.expire_ns / NS,
            priority=said.priority,
            window=said.window,
            sink=said.sink,
        )

    def pin_of(self, inode: Inode, said: Said) -> Pin:
        """Return how firmly something is pinned: by what was said of it, or an object by itself or by its session."""
        if said.pin is not Pin.NONE or not inode.is_file:
            return said.pin
        if not self._catalog.placements.get(inode.ino).pinned:
            return Pin.NONE
        return self.parts.pinned.get(self.parts.of(inode.ino), Pin.HARD)

    async def sessions(self, path: bytes) -> AsyncIterator[SessionEntry]:
        """Tell of the sessions at or below a path."""
        try:
            pending = deque([self._inodes.resolve(path)])
        except OSError as error:
            raise NotFoundError(f"{os.fsdecode(path)}: no such file or directory in the mount") from error
        if pending[0].is_file:
            yield self.entry(self._session_of(path))
            return
        while pending:
            inode = pending.popleft()
            if inode.is_file or self._rows.is_session(inode.ino, is_dir=True):
                yield self.entry(inode)
                continue
            for batch in self._inodes.batches(inode.ino):
                for found in batch:
                    if found.inode.is_dir:
                        pending.append(found.inode)
                    elif found.inode.is_file:
                        yield self.entry(found.inode)
                await trio.lowlevel.checkpoint()

    def session(self, path: bytes) -> SessionEntry:
        """Describe a session."""
        return self.entry(self._session_of(path))

    async def session_detail(self, path: bytes) -> SessionDetail:
        """Describe a session and what it holds."""
        return await self.detail(self._session_of(path))

    async def detail(self, inode: Inode) -> SessionDetail:
        """Describe a session, or an object of one, and what it holds."""
        tiers: Counter[str] = Counter()
        formats: Counter[str] = Counter()
        objects = hits = chained = given_bytes = 0
        for batch in self._inodes.walk(inode.ino):
            for each in batch:
                placement, live = self._catalog.placements.get(each.ino), self._objects.lives.peek(each.ino)
                tiers[Tier(placement.tier).name.lower()] += each.size
                copy = self._catalog.placements.copy(each.ino)
                if copy is not None:
                    formats[copy.format] += copy.size
                hits += placement.hits if live is None else live.hits
                given_bytes += total(self.windows.given(each.ino))
                objects += 1
                chained += self._catalog.chains.parent(each.ino) is not None
            await trio.lowlevel.checkpoint()
        return SessionDetail(
            session=self.entry(inode),
            objects=objects,
            tiers=dict(tiers),
            hits=hits,
            formats=dict(formats),
            chained=chained,
            given_bytes=given_bytes,
        )

    # -- life ----------------------------------------------------------------------------------------------------

    def ask(self, path: bytes, what: str) -> str:
        """Ask ``release``, ``resume`` or ``prefetch`` of a session; return its state then."""
        inode = self._session_of(path)
        if what == "release":
            self.release(inode)
        else:
            self.resume(inode, prefetch=what == "prefetch")
        return self.parts.state(inode.ino).name.lower()

    def release_session(self, path: bytes) -> SessionEntry:
        """Say that a session is not needed soon."""
        inode = self._session_of(path)
        self.release(inode)
        return self.entry(inode)

    def release(self, inode: Inode) -> None:
        """Say of a session that it is not needed soon."""
        state = self.parts.ask(inode.ino, Event.RELEASE)
        if state is not State.COLD:
            self.moving.want(inode.ino, bring=False)

    def resume_session(self, path: bytes, *, prefetch: bool = False) -> SessionEntry:
        """Say that a session is needed soon."""
        inode = self._session_of(path)
        self.resume(inode, prefetch=prefetch)
        return self.entry(inode)

    def resume(self, inode: Inode, *, prefetch: bool = False) -> None:
        """Say of a session that it is needed soon."""
        state = self.parts.ask(inode.ino, Event.WARM if prefetch else Event.RESUME)
        if inode.is_dir or state is State.WARMING:  # of a directory some may be on NVMe whatever its state is
            self.moving.want(inode.ino, bring=True)

    async def close_session(self, path: bytes) -> None:
        """End a session."""
        inode = self._session_of(path)
        if self.parts.is_open(inode.ino):
            raise BusyError(f"{os.fsdecode(path)}: in use: open or mapped")
        if self.leases.of(inode.ino):
            raise BusyError(f"{os.fsdecode(path)}: in use: leased")
        self.parts.ask(inode.ino, Event.CLOSE)
        said = self._rows.get(inode.ino)
        if inode.is_dir:
            await self.lifetimes.vanish_folder(said, Event.CLOSE)
        else:
            self.lifetimes.vanish_file(said)
        await self._catalog.db.sync()

    async def fork_session(self, path: bytes, new_path: bytes, at: ForkPoint) -> SessionEntry:
        """Make a session that has what another has up to a point."""
        return self.entry(await self.forks.fork(self._session_of(path), new_path, at))

    async def pin_session(self, path: bytes, pin: str, *, for_s: float = 0.0) -> int:
        """Pin or unpin a session, or an object by itself."""
        if pin.upper() not in Pin.__members__:
            raise InvalidError(f"a pin is none, soft or hard, not {pin!r}")
        return await self.lifetimes.pin(self.find(path).ino, Pin[pin.upper()], for_s=for_s)

    def live_session(self, path: bytes, ttl_s: float, *, refresh: bool) -> SessionEntry:
        """Give a session, or an object by itself, a time to live."""
        self.give_time(path, ttl_s, refresh=refresh)
        return self.entry(self.find(path))

    def give_time(self, path: bytes, ttl_s: float, *, refresh: bool) -> float:
        """Give a session, or an object by itself, a time to live; return when it ends, in seconds since 1970."""
        return self.lifetimes.live(self.find(path).ino, ttl_s, refresh=refresh).expire_ns / NS

    def set_number(self, inode: Inode, what: str, number: int) -> None:
        """Set a session's ``priority``, ``window`` or ``sink``."""
        number_max = PRIORITY_MAX if what == "priority" else TOKENS_MAX
        if not 0 <= number <= number_max:
            raise InvalidError(f"{what} is 0 to {number_max}")
        said = self._rows.get(inode.ino)
        match what:
            case "priority":
                self._rows.put(replace(said, priority=number))
            case "window":
                self._slide(replace(said, window=number))
            case _:
                self._slide(replace(said, sink=number))

    def _slide(self, said: Said) -> None:
        self._rows.put(said)
        self.windows.changed(said.ino)

    # -- leases --------------------------------------------------------------------------------------------------

    def lease(self, path: bytes, for_s: float, sock: Socket) -> LeaseGrant:
        """Keep a session or an object where it is."""
        lease = self.leases.give(self.find(path).ino, for_s, sock)
        return LeaseGrant(lease=lease.number, for_s=for_s)

    def renew_lease(self, number: int, for_s: float, sock: Socket) -> LeaseGrant:
        """Keep a lease for longer."""
        return LeaseGrant(lease=self.leases.renew(number, for_s, Peer.of(sock).pid).number, for_s=for_s)

    def end_lease(self, number: int, sock: Socket) -> None:
        """Give a lease back."""
        self.leases.end(number, Peer.of(sock).pid)

    # -- watching ------------------------------------------------------------------------------------------------

    async def watch_sessions(self, path: bytes) -> AsyncIterator[SessionChange]:
        """Tell of changes at or below a path, for ever."""
        below = path.rstrip(b"/") + b"/"
        changes: deque[tuple[bytes, Change]] = deque()
        lost = 0
        came = trio.Event()

        def hear(change: Change) -> None:
            nonlocal lost
            where = self._inodes.path(change.ino) or b""
            if where != path and not where.startswith(below):
                return
            if len(changes) >= CHANGES_KEPT:
                changes.popleft()
                lost += 1
            changes.append((where, change))
            came.set()

        self.parts.watchers.add(hear)
        try:
            while True:
                await came.wait()
                came = trio.Event()
                while changes:
                    where, change = changes.popleft()
                    gone, lost = lost, 0
                    before, after = change.before.name.lower(), change.after.name.lower()
                    yield SessionChange(path=where, ino=change.ino, before=before, after=after, lost=gone)
        finally:
            self.parts.watchers.discard(hear)
