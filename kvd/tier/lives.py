"""The objects in memory: one `Live` for each that is in DDR, open or being moved; the others are the catalogue's."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Protocol

import trio

from kvd.errors import VanishedError
from kvd.tier.census import Census
from kvd.tier.extents import copy_charges, total_blocks
from kvd.tier.live import Live
from kvd.tier.plane import Mode
from kvdriver import Tier

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Iterator

    from kvd.catalog.catalog import Catalog
    from kvd.catalog.records import Copy, Placement
    from kvd.tier.found import Resident
    from kvd.tier.live import LiveWatch, SessionWatch


class Finder(Protocol):
    """Looks at objects that are wanted before their turn: `kvd.tier.index.Index`."""

    async def find(self, ino: int) -> None:
        """Look at an object, if it was not yet."""
        ...


class Lives:
    """Finds and locks objects.

    Attributes
    ----------
    by_ino
        The objects in memory.
    census
        Which of them are in which state.
    held
        Those of them that `hold` has locked.
    sessions
        Engine session of every object that was looked at.
    unadopted
        How many there are besides: on NVMe since before the start (`kvd.tier.index`).
    finder
        Looks at one of those; None when there are none any more.
    session_watch
        Hears of objects that come and go, and of what their sessions' states follow from.
    """

    def __init__(self, catalog: Catalog, *, page_bytes: int) -> None:
        self._catalog = catalog
        self._page_bytes = page_bytes
        self.watch: LiveWatch | None = None
        self.finder: Finder | None = None
        self.session_watch: SessionWatch | None = None
        self.by_ino: dict[int, Live] = {}
        self.census = Census(self.by_ino)
        self.held: set[int] = set()
        self.sessions: dict[int, int] = {}
        self.unadopted = 0

    def __repr__(self) -> str:
        return f"<Lives {self.count} known, {len(self.by_ino)} in memory>"

    @property
    def count(self) -> int:
        """How many objects there are."""
        return len(self.sessions) + self.unadopted

    def adopt(self, resident: Iterable[Resident]) -> None:
        """Take over the objects that a start has found in DDR."""
        for placement, size, copy, session, blocks in resident:
            self.sessions[placement.ino] = session
            self._bring_in(placement, size, copy, blocks)

    def _live(self, ino: int) -> Live:
        live = self.by_ino.get(ino)
        if live is None:
            placement = self._catalog.placements.get(ino)
            inode = self._catalog.names.inode(ino)
            copy = self._catalog.placements.copy(ino)
            charges = copy_charges(copy.runs, copy.size, self._page_bytes) if copy else ()
            blocks = total_blocks(charges) if placement.tier == Tier.NVME else 0
            live = self._bring_in(placement, inode.size, copy, blocks)
        return live

    def _bring_in(self, placement: Placement, size: int, copy: Copy | None, blocks: int) -> Live:
        live = self.by_ino[placement.ino] = Live(
            ino=placement.ino,
            session=self.sessions[placement.ino],
            tier=Tier(placement.tier),
            size=size,
            sealed=placement.sealed,
            pinned=placement.pinned,
            damaged=placement.damaged,
            hits=placement.hits,
            stored_hits=placement.hits,
            copy=copy,
            gen=copy.gen if copy else 0,
            mapped_blocks=blocks,
            last_use_s=trio.current_time(),
            top=self._catalog.namespaces.charged(placement.ino),
            watch=self.watch,
            census=self.census,
        )
        self.census.add(live)
        if self.session_watch is not None:
            self.session_watch.came(live)
            live.sessions = self.session_watch
        return live

    def take_out(self, ino: int) -> None:
        """Take an object out of memory."""
        live = self.by_ino.pop(ino, None)
        if live is not None:
            self.census.forget(live)
            live.census = None
            if live.sessions is not None:
                live.sessions.went(live)
                live.sessions = None

    @contextlib.asynccontextmanager
    async def hold(self, ino: int) -> AsyncIterator[Live]:
        """Lock an object; `VanishedError` if there is none. A cold one leaves memory when nobody holds it."""
        if ino not in self.sessions and self.finder is not None:
            await self.finder.find(ino)
        try:
            live = self._live(ino)
        except (LookupError, OSError) as error:
            raise VanishedError(f"no object {ino}") from error
        async with live.lock:
            if ino not in self.sessions:  # deleted while this waited
                self.let_go_if_cold(live)
                raise VanishedError(f"no object {ino}")
            self.held.add(ino)
            try:
                yield live
            finally:
                self.held.discard(ino)
                self.let_go_if_cold(live)
        live.drop_lock()

    @contextlib.contextmanager
    def hold_free(self, ino: int) -> Iterator[Live | None]:
        """Lock an object as `hold`, without a wait; None if somebody has it, or if there is none that was looked at."""
        if ino not in self.sessions:
            yield None
            return
        try:
            live = self._live(ino)
        except (LookupError, OSError):
            yield None
            return
        try:
            live.lock.acquire_nowait()
        except trio.WouldBlock:
            yield None
            return
        self.held.add(ino)
        try:
            yield live
        finally:
            self.held.discard(ino)
            if ino in self.sessions:
                self.let_go_if_cold(live)
            else:
                self.take_out(ino)
            live.lock.release()
        live.drop_lock()

    def let_go_if_cold(self, live: Live) -> None:
        """Take an object out of memory that is not in DDR and that nobody uses or waits for; called under its lock."""
        cold = live.tier is not Tier.DDR and not live.opens and not live.attached and live.streaming is None
        if cold and not live.lock.statistics().tasks_waiting and self.by_ino.get(live.ino) is live:
            self.store_hits(live)
            self.take_out(live.ino)

    def store_hits(self, live: Live) -> None:
        """Bring the catalogue's count of an object's opens up to date, if it can be: it is not worth a failure."""
        if live.hits != live.stored_hits:
            with contextlib.suppress(OSError):
                self._catalog.placements.hit(live.ino, live.hits)
                live.stored_hits = live.hits

    def is_busy(self, asker: Live) -> bool:
        """Whether others are in DDR, or on their way there, that are in use or being worked on now."""
        census = self.census
        return (
            any(live is not asker for live in census.streaming.values())
            or any(live is not asker and live.tier is Tier.DDR for live in census.attached.values())
            or any(ino != asker.ino and ino in census.resident for ino in self.held)
        )

    def peek(self, ino: int) -> Live | None:
        """Return the object if it is in memory; to read only, and only until the next await."""
        return self.by_ino.get(ino)

    def is_passthrough(self, ino: int) -> bool:
        """Whether the kernel itself reads and writes the object's DDR file."""
        live = self.by_ino.get(ino)
        return live is not None and live.mode is Mode.PASSTHROUGH

    def attributes(self, ino: int) -> os.stat_result | None:
        """Return what the DDR file says of an object that has a writer; the catalogue knows only once it is sealed."""
        live = self.by_ino.get(ino)
        return os.fstat(live.ddr_fd) if live is not None and not live.sealed and live.ddr_fd >= 0 else None

    def held_blocks(self, ino: int) -> int:
        """Return the 4 KiB blocks that an object's present bytes are charged, or have come to while it has a writer."""
        live = self.by_ino.get(ino)
        if live is not None and not live.sealed and live.ddr_fd >= 0:
            return live.written_blocks
        return live.mapped_blocks if live is not None else self._catalog.placements.copy_blocks(ino)
