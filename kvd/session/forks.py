"""Forks of sessions: new sessions with the objects of others, up to a block or a byte (docs/decisions/032-forks.md).

A fork is of one moment: the names are read at one go, and who gets a writer from then on to the end ends the fork. It is made where no
path leads and gets its name in one transaction. So nobody ever sees half of one, also after a crash.
"""

from __future__ import annotations

import errno
import os
import time
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import structlog
import trio

from kvd.catalog.names import NAME_BYTES_MAX
from kvd.catalog.namespaces import is_name
from kvd.errors import (
    BusyError,
    DamagedError,
    ExistsError,
    InvalidError,
    KvdError,
    MismatchError,
    NoSpaceError,
    NotFoundError,
    OfflineError,
)
from kvd.format.errors import LayoutError
from kvd.format.layout import parse_declaration
from kvdriver import EngineError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from kvd.api.sessions import ForkPoint
    from kvd.catalog.catalog import Catalog
    from kvd.catalog.forks import Member
    from kvd.catalog.records import Inode
    from kvd.tier.objects import Objects

log = structlog.get_logger(__name__)

NAMES_MAX = 16384
"""Of a session that is forked: reading more at one go would hold up others for long."""
BATCH = 32
"""Objects whose rows are made at one go."""
OBJECTS_AT_ONCE = 8
FORKS_AT_ONCE = 2
"""Others wait for their turn."""


class Forks:
    """Makes them."""

    def __init__(self, catalog: Catalog, objects: Objects) -> None:
        self._catalog = catalog
        self._names = catalog.names
        self._rows = catalog.forks
        self._objects = objects
        self._turns = trio.Semaphore(FORKS_AT_ONCE)
        self._slots = trio.CapacityLimiter(OBJECTS_AT_ONCE)

    def __repr__(self) -> str:
        return f"<Forks {self._turns!r}>"

    async def fork(self, session: Inode, new_path: bytes, at: ForkPoint) -> Inode:
        """Fork a session; return what the new one is, a file or a directory as the old one.

        Raises
        ------
        ExistsError, NotFoundError, InvalidError, MismatchError
            `new_path` is taken, is in no directory, can't be a session of this kind, or is below another fingerprint; or
            the session has no such point.
        BusyError
            An object of it has a writer, or gets one before the fork is there.
        NoSpaceError, DamagedError, OfflineError, KvdError
            As that object says; there is no fork then.
        """
        folder, _, name = new_path.rpartition(b"/")
        parent = self._names.number(folder)
        if parent is None or not self._names.inode(parent).is_dir:
            raise NotFoundError(f"{os.fsdecode(folder) or '/'}: no such directory in the mount")
        with _told(new_path):
            self._check(session, parent, name)
        async with self._turns:
            began_s = trio.current_time()
            make = self._folder if session.is_dir else self._file
            with _told(new_path):
                self._check(session, parent, name)  # it has waited
                ino = await make(session, parent, name, at)
            took_s = round(trio.current_time() - began_s, 3)
        log.info("session forked", ino=session.ino, fork=ino, path=new_path, took_s=took_s)
        return self._names.inode(ino)

    def _check(self, session: Inode, parent: int, name: bytes) -> None:
        """Refuse a place that can't be the fork's; asked again in the step that gives it the name."""
        if not is_name(name) or len(name) > NAME_BYTES_MAX:
            raise InvalidError(f"{os.fsdecode(name)!r} can't name a session")
        if not self._catalog.sessions.has_place(parent, is_dir=session.is_dir):
            where = (
                "right below a namespace whose sessions are directories" if session.is_dir else "not within a session"
            )
            raise InvalidError(f"a fork of this session has its place {where}")
        now = self._names.inode(session.ino)
        if not now.nlink or self._catalog.namespaces.is_dead(now.ino):
            raise NotFoundError("the session has ended")
        self._catalog.namespaces.refuse_dead(parent)
        self._catalog.namespaces.check_link(now, 0, parent)
        if self._names.lookup(parent, name) is not None:
            raise ExistsError(f"{os.fsdecode(name)}: is there already")

    async def _risen(
        self, session: Inode, parent: int, name: bytes, make: Callable[[int], Awaitable[int]], written: set[int]
    ) -> int:
        """Make a fork in a grave of its own, and give it its name; return its number."""
        grave = self._rows.begin(parent, time.time_ns())
        try:
            ino = await make(grave)
            self._refuse_written(written)
            self._check(session, parent, name)
            self._rows.rise(grave, name, parent, name, time.time_ns())
        except BaseException:
            self._rows.give_up(grave)
            self._objects.reaper.wake()
            raise
        with trio.CancelScope(shield=True):
            await self._objects.reaper.keeper.forget_names([(parent, name)])  # that there was none
            await self._catalog.db.sync()
        return ino

    def _refuse_written(self, written: set[int]) -> None:
        if written:
            raise BusyError(f"{self._path(min(written))}: written while it was forked")

    def _top(self, session: Inode, grave: int, name: bytes, *, sealed: bool = True) -> int:
        """Make the fork's own inode, with the numbers that were said of the session; its pin and time are its own."""
        with self._catalog.db.transaction():
            ino = self._rows.make(session.ino, grave, name, time.time_ns(), sealed=sealed)
            said = self._catalog.sessions.get(session.ino)
            own = replace(self._catalog.sessions.get(ino), priority=said.priority, window=said.window, sink=said.sink)
            self._catalog.sessions.put(own)
        return ino

    def _path(self, ino: int) -> str:
        return os.fsdecode(self._names.path(ino) or b"an object that is gone")

    # -- a file --------------------------------------------------------------------------------------------------

    async def _file(self, session: Inode, parent: int, name: bytes, at: ForkPoint) -> int:
        size = self._cut_at(session, at)

        async def make(grave: int) -> int:
            whole = size == self._names.inode(session.ino).size
            ino = self._top(session, grave, name, sealed=whole)
            with self._about(session.ino):
                if whole:
                    await self._objects.forking.announce([ino])
                    await self._objects.forking.whole(session.ino, ino)
                else:
                    await self._objects.forking.part(session.ino, ino, size)
            return ino

        with self._objects.forking.watching([session.ino]) as written:
            return await self._risen(session, parent, name, make, written)

    def _cut_at(self, session: Inode, at: ForkPoint) -> int:
        """Return how many bytes of a file its fork has."""
        size = self._names.inode(session.ino).size
        if at.until:
            raise InvalidError("a session that is a file has no blocks with names: say how many bytes or tokens")
        wanted = size if at.count is None else at.count
        if at.tokens is not None:
            if min(at.tokens, at.bytes_per_token) < 0:
                raise InvalidError("tokens and their bytes are counted from 0")
            whole = at.tokens * at.bytes_per_token
            wanted = whole if at.bytes_per_token else self._token_end(session, at.tokens)
        if not 0 <= wanted <= size:
            raise InvalidError(f"it has {size} bytes, not {wanted}")
        return wanted

    def _token_end(self, session: Inode, tokens: int) -> int:
        """Return where a token ends by what the namespace declares of its objects."""
        namespace = self._catalog.namespaces.of(session.ino)
        try:
            end = parse_declaration(namespace.layout).token_end(tokens) if namespace and namespace.layout else None
        except LayoutError as error:
            raise InvalidError(str(error)) from error
        if end is None:
            raise InvalidError(
                "nobody knows where a token ends: say its bytes; the layout has other axes before tokens"
            )
        return end

    # -- a directory ---------------------------------------------------------------------------------------------

    async def _folder(self, session: Inode, parent: int, name: bytes, at: ForkPoint) -> int:
        if at.tokens is not None:
            raise InvalidError("a session that is a directory is forked at a block: say its name, or how many")
        members = self._cut(session, self._rows.members(session.ino, NAMES_MAX), at)
        for each in members:
            if not each.sealed:
                raise BusyError(f"{self._path(each.ino)}: open for writing")

        async def make(grave: int) -> int:
            top = self._top(session, grave, name)
            folders = {session.ino: top}
            others = [each for each in members if not each.is_dir]
            with self._catalog.db.transaction():
                for each in _from_the_top([each for each in members if each.is_dir], session.ino):
                    folders[each.ino] = self._rows.make(each.ino, folders[each.parent], each.name, time.time_ns())
            for start in range(0, len(others), BATCH):
                await self._objects_of(others[start : start + BATCH], folders)
            return top

        with self._objects.forking.watching(each.ino for each in members if each.is_file) as written:
            return await self._risen(session, parent, name, make, written)

    def _cut(self, session: Inode, members: list[Member], at: ForkPoint) -> list[Member]:
        """Return what of a directory is in its fork: blocks in the order in which they got their names, and what they are in."""
        if not at.until and at.count is None:
            return members
        files = [each for each in members if each.is_file]
        ways = {each.ino: each for each in members if each.is_dir}
        count = len(files) if at.count is None else at.count
        if not 0 <= count <= len(files):
            raise InvalidError(f"it has {len(files)} blocks, not {count}")
        if at.until:
            until = os.fsencode(at.until).removeprefix(b"./")
            found = [number for number, each in enumerate(files, 1) if _way(each, ways, session.ino) == until]
            if not found:
                raise NotFoundError(f"{at.until}: no such block in the session")
            count = min(count, found[0])
        last = files[count - 1].cookie if count else 0
        kept: set[int] = set()
        for each in members:
            at_ino = each.parent if each.cookie <= last else session.ino
            while at_ino != session.ino and at_ino not in kept:
                kept.add(at_ino)
                at_ino = ways[at_ino].parent
        return [each for each in members if each.cookie <= last or each.ino in kept]

    async def _objects_of(self, batch: list[Member], folders: dict[int, int]) -> None:
        """Make a few objects of a fork, and what else is no directory."""
        made: list[tuple[int, int]] = []
        with self._catalog.db.transaction():
            for each in batch:
                ino = self._rows.make(each.ino, folders[each.parent], each.name, time.time_ns())
                if each.is_file:
                    made.append((each.ino, ino))
        await self._objects.forking.announce([ino for _, ino in made])
        failed: list[Exception] = []

        async def copy(origin: int, ino: int) -> None:
            async with self._slots:
                if failed:
                    return
                try:
                    with self._about(origin):
                        await self._objects.forking.whole(origin, ino)
                except (KvdError, OSError, EngineError) as error:  # those in hand end: that leaves no work for a sweep
                    failed.append(error)

        async with trio.open_nursery() as nursery:
            for origin, ino in made:
                nursery.start_soon(copy, origin, ino)
        if failed:
            raise failed[0]

    @contextmanager
    def _about(self, origin: int) -> Iterator[None]:
        """Say of which object it is that something can't be done, and what that means for a fork."""
        try:
            yield
        except NotFoundError as error:
            raise BusyError(f"{self._path(origin)}: removed while it was forked") from error
        except (BusyError, DamagedError, NoSpaceError, OfflineError) as error:
            kinds = (BusyError, DamagedError, NoSpaceError, OfflineError)
            kind = next(each for each in kinds if isinstance(error, each))
            raise kind(f"{self._path(origin)}: {error}") from error


@contextmanager
def _told(path: bytes) -> Iterator[None]:
    """Turn what tiers and catalogue say into what a client can act on."""
    try:
        yield
    except OSError as error:
        where = os.fsdecode(path)
        if error.errno == errno.EXDEV:
            raise MismatchError(f"{where}: is below another fingerprint") from error
        if error.errno == errno.E2BIG:
            raise InvalidError(f"{where}: a session that is forked has at most {NAMES_MAX} names") from error
        kinds: dict[int | None, type[KvdError]] = {
            errno.ENOSPC: NoSpaceError,
            errno.EEXIST: ExistsError,
            errno.ENOENT: NotFoundError,
            errno.ENOTDIR: NotFoundError,
            errno.ESTALE: BusyError,
        }
        raise kinds.get(error.errno, KvdError)(f"{where}: {error.strerror or error}") from error


def _way(member: Member, folders: dict[int, Member], top: int) -> bytes:
    """Return a name's path within the session."""
    parts = [member.name]
    at = member.parent
    while at != top:
        parts.append(folders[at].name)
        at = folders[at].parent
    return b"/".join(reversed(parts))


def _from_the_top(folders: list[Member], top: int) -> list[Member]:
    """Return directories so that each comes after the one that it is in."""
    below: dict[int, list[Member]] = {}
    for each in folders:
        below.setdefault(each.parent, []).append(each)
    ordered: list[Member] = []
    pending = [top]
    while pending:
        some = below.get(pending.pop(), [])
        ordered += some
        pending += [each.ino for each in some]
    return ordered
