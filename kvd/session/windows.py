"""Sliding windows: what slid out of a session's files is given back while they grow, when they are sealed, and when a window is set.

Looked at is once a second, whatever happens in between, and when a writer asks for room. Of each file its own tokens count:
those of a directory's files lie side by side, as the layers of a model do.
"""

from __future__ import annotations

import errno
import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog
import trio

from kvd.catalog.records import Said
from kvd.errors import InvalidError, KvdError
from kvd.format import window
from kvd.format.errors import HeaderError, LayoutError
from kvd.format.layout import parse_declaration
from kvd.format.plan import contents_of
from kvdriver import BLOCK_BYTES, EngineError

if TYPE_CHECKING:
    from kvd.catalog.catalog import Catalog
    from kvd.catalog.records import Inode
    from kvd.format.layout import Declaration
    from kvd.format.ranges import Ranges
    from kvd.format.window import Layout
    from kvd.session.sessions import Sessions
    from kvd.tier.heads import Seen
    from kvd.tier.live import Live
    from kvd.tier.objects import Objects

log = structlog.get_logger(__name__)

LOOK_S = 1.0
SLICE = 512
"""Objects that are looked at in a second."""
DUE_MAX = 65536
"""Objects that wait to be looked at, and files or directories of which something was said; what is beyond is looked at when it is
used next."""
TOKEN_BYTES_MAX = 1 << 30
PAGE_BYTES = 65536
"""What is given back is whole pages of this size."""
BYTES_PER_TOKEN = b"user.kvd.bytes_per_token"
"""Of a file, a session or a namespace: tokens of so many bytes are appended from the first byte on, or behind a header."""


@dataclass(slots=True)
class WindowCounts:
    """Bytes that were given back since the start, by tier, and looks that failed."""

    ddr_bytes: int = 0
    nvme_bytes: int = 0
    failed: int = 0


class Windows:
    """Slides them."""

    def __init__(self, catalog: Catalog, objects: Objects, sessions: Sessions) -> None:
        self._catalog = catalog
        self._objects = objects
        self._sessions = sessions
        self._rows = catalog.sessions
        self._new: dict[int, None] = {}
        self._due: dict[int, None] = {}
        self.counts = WindowCounts()
        sessions.came_to_rest = self.look_soon
        objects.writing.slide = self._make_room

    def __repr__(self) -> str:
        return f"<Windows {len(self._due)} objects due, {self.counts}>"

    # -- when ----------------------------------------------------------------------------------------------------

    def changed(self, ino: int) -> None:
        """Take note that something was said of a file, or of all files below a directory; what slid out by that goes soon."""
        if len(self._new) < DUE_MAX:
            self._new[ino] = None

    def look_soon(self, ino: int) -> None:
        """Look at an object within a second, if its session has a window. Never raises."""
        try:
            if len(self._due) < DUE_MAX and self._said(ino).window:
                self._due[ino] = None
        except OSError as error:
            log.info("window can't be looked up", ino=ino, errno=error.errno)

    def _said(self, ino: int) -> Said:
        """Return what was said of the session of an object."""
        return self._rows.get(self._sessions.of(ino)) if self._rows.some else Said(ino=ino)

    async def run(self) -> None:
        """Look, for ever; first at what a kvd before this one may have left undone."""
        act = self.catch_up
        while True:
            try:
                await act()
            except OSError as error:
                log.info("windows can't be looked at now", errno=error.errno, error=str(error))
            act = self.step
            await trio.sleep(LOOK_S)

    async def catch_up(self) -> None:
        """Look at what a kvd before this one may have left undone; after a crash at all that has a window."""
        for ino in tuple(self._objects.lives.by_ino):
            self.look_soon(ino)
        await self.step()
        after = 0
        while self._objects.describer.unclean and (some := self._rows.windows_after(after, SLICE)):
            after = some[-1]
            self._new.update(dict.fromkeys(some))
            await self.step()
            await trio.sleep(LOOK_S)

    async def step(self) -> None:
        """Give back what slid out of the objects that are due or that grow, in some of them."""
        for ino in self._objects.lives.census.unsealed:
            self.look_soon(ino)
        for ino in list(self._new):
            del self._new[ino]
            await self._find(ino)
        for ino in list(itertools.islice(self._due, SLICE)):
            del self._due[ino]
            if await self._look(ino):
                self._due[ino] = None
            await trio.lowlevel.checkpoint()

    async def _find(self, session: int) -> None:
        """Look soon at all objects of a session."""
        try:
            for batch in self._catalog.names.walk(session):
                for inode in batch:
                    self.look_soon(inode.ino)
                await trio.lowlevel.checkpoint()
        except OSError as error:  # it has gone meanwhile
            log.info("no window where nothing is", ino=session, errno=error.errno)

    async def _look(self, ino: int) -> bool:
        """Give back what slid out of an object; whether to look again soon."""
        live = self._objects.lives.peek(ino)
        if live is not None and live.locked:
            return True
        try:
            while True:
                found = await self._objects.give_back(ino, self._slid)
                self.counts.ddr_bytes += found.ddr_bytes
                self.counts.nvme_bytes += found.nvme_bytes
                if not (found.again and found.ddr_bytes):
                    return found.again
        except (KvdError, OSError, EngineError) as error:
            self.counts.failed += 1
            log.info("window can't slide now", ino=ino, error=str(error))
            return False

    async def _make_room(self, live: Live) -> int:
        """See `Writing.slide`."""
        try:
            if not self._said(live.ino).window:
                return 0
            found = await self._objects.sliding.give_back_held(live, self._slid)
        except (KvdError, OSError, EngineError) as error:
            self.counts.failed += 1
            log.info("window can't slide for a writer", ino=live.ino, error=str(error))
            return 0
        self.counts.ddr_bytes += found.ddr_bytes
        if found.ddr_bytes:
            self._objects.room.gave_back()
        return found.ddr_bytes // BLOCK_BYTES

    # -- what ----------------------------------------------------------------------------------------------------

    def _slid(self, seen: Seen) -> Ranges:
        said, layout = self._said(seen.ino), self._layout(seen)
        if layout is None:
            return ()
        return window.slid_out(layout, window=said.window, sink=said.sink, page_bytes=PAGE_BYTES)

    def _layout(self, seen: Seen) -> Layout | None:
        """Return where an object's tokens are; None where nobody has said so, or it is not what was said."""
        token_bytes, inherited = self._token_bytes(seen.ino)
        try:
            declaration = self._declaration(seen.ino)
            contents = contents_of(seen.head, seen.size)
            if contents is not None:
                chosen = None if token_bytes else declaration
                return (
                    window.of_contents(contents, declaration=chosen, token_bytes=token_bytes) if seen.sealed else None
                )
            if token_bytes:
                other = inherited and seen.size % token_bytes  # than tokens
                return None if other else window.appended(seen.size, token_bytes)
            known = declaration is not None and (seen.sealed or window.is_appended(declaration))
            return window.declared(declaration, seen.size) if declaration is not None and known else None
        except (HeaderError, LayoutError):
            return None

    def _declaration(self, ino: int) -> Declaration | None:
        namespace = self._catalog.namespaces.of(ino)
        return parse_declaration(namespace.layout) if namespace is not None and namespace.layout else None

    def bytes_per_token(self, ino: int) -> int:
        """Return what was said of an inode, else of its session, else of its namespace; 0 if nothing was."""
        return self._token_bytes(ino)[0]

    def _token_bytes(self, ino: int) -> tuple[int, bool]:
        """As `bytes_per_token`, and whether it was not said of the inode itself."""
        namespace = self._catalog.namespaces.of(ino)
        for each in (ino, self._sessions.of(ino), 0 if namespace is None else namespace.ino):
            try:
                return int(self._catalog.names.xattr(each, BYTES_PER_TOKEN)), each != ino
            except OSError as error:
                if error.errno != errno.ENODATA:
                    raise
        return 0, False

    @staticmethod
    def check_bytes_per_token(number: int) -> None:
        """Refuse what no token can have."""
        if not 0 < number <= TOKEN_BYTES_MAX:
            raise InvalidError(f"bytes per token are 1 to {TOKEN_BYTES_MAX}")

    # -- telling -------------------------------------------------------------------------------------------------

    def given(self, ino: int) -> Ranges:
        """Return the bytes of an object that were given back."""
        return self._catalog.given.of(ino)

    async def valid(self, inode: Inode) -> Ranges | None:
        """Return the tokens of an object that are all there; None where nobody knows.

        Raises
        ------
        KvdError, OSError
            It can't be read.
        """
        seen = await self._objects.heads.see(inode.ino)
        layout = None if seen is None else self._layout(seen)
        return None if layout is None else window.valid(layout, self.given(inode.ino))
