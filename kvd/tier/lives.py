"""The objects in memory: one `Live` for each that is in DDR, open or being moved; the others are the catalogue's."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

import trio

from kvd.errors import VanishedError
from kvd.tier.extents import copy_charges, total_blocks
from kvd.tier.live import Live
from kvd.tier.plane import Mode
from kvdriver import Tier

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from kvd.catalog.catalog import Catalog


class Lives:
    """Finds and locks objects.

    Attributes
    ----------
    by_ino
        The objects in memory.
    sessions
        Engine session of every object.
    """

    def __init__(self, catalog: Catalog, *, page_bytes: int) -> None:
        self._catalog = catalog
        self._page_bytes = page_bytes
        self.by_ino: dict[int, Live] = {}
        self.sessions: dict[int, int] = {}

    def __repr__(self) -> str:
        return f"<Lives {len(self.sessions)} known, {len(self.by_ino)} in memory>"

    def adopt(self, sessions: dict[int, int], resident: dict[int, int]) -> None:
        """Take over what recovery found: engine sessions, and the blocks of the objects in DDR."""
        self.sessions.update(sessions)
        for ino, blocks in resident.items():
            self._live(ino).mapped_blocks = blocks

    def _live(self, ino: int) -> Live:
        live = self.by_ino.get(ino)
        if live is None:
            placement = self._catalog.placements.get(ino)
            inode = self._catalog.names.inode(ino)
            copy = self._catalog.placements.copy(ino)
            charges = copy_charges(copy.runs, copy.size, self._page_bytes) if copy else ()
            live = self.by_ino[ino] = Live(
                ino=ino,
                session=self.sessions[ino],
                tier=Tier(placement.tier),
                size=inode.size,
                sealed=placement.sealed,
                pinned=placement.pinned,
                damaged=placement.damaged,
                hits=placement.hits,
                stored_hits=placement.hits,
                copy=copy,
                gen=copy.gen if copy else 0,
                mapped_blocks=total_blocks(charges) if placement.tier == Tier.NVME else 0,
                last_use_s=trio.current_time(),
            )
        return live

    @contextlib.asynccontextmanager
    async def hold(self, ino: int) -> AsyncIterator[Live]:
        """Lock an object; `VanishedError` if there is none. A cold one leaves memory when nobody holds it."""
        try:
            live = self._live(ino)
        except (LookupError, OSError) as error:
            raise VanishedError(f"no object {ino}") from error
        async with live.lock:
            if ino not in self.sessions:  # deleted while this waited
                raise VanishedError(f"no object {ino}")
            try:
                yield live
            finally:
                self.let_go_if_cold(live)

    def let_go_if_cold(self, live: Live) -> None:
        """Take an object out of memory that is not in DDR and that nobody uses or waits for; called under its lock."""
        cold = live.tier is not Tier.DDR and not live.opens
        if cold and not live.lock.statistics().tasks_waiting and self.by_ino.get(live.ino) is live:
            self.store_hits(live)
            del self.by_ino[live.ino]

    def store_hits(self, live: Live) -> None:
        """Bring the catalogue's count of an object's opens up to date, if it can be: it is not worth a failure."""
        if live.hits != live.stored_hits:
            with contextlib.suppress(OSError):
                self._catalog.placements.hit(live.ino, live.hits)
                live.stored_hits = live.hits

    def peek(self, ino: int) -> Live | None:
        """Return the object if it is in memory; to read only, and only until the next await."""
        return self.by_ino.get(ino)

    def is_passthrough(self, ino: int) -> bool:
        """Whether the kernel itself reads and writes the object's DDR file."""
        live = self.by_ino.get(ino)
        return live is not None and live.mode is Mode.PASSTHROUGH

    def attributes(self, ino: int) -> os.stat_result | None:
        """Return what the DDR file says of an object that has a writer; the catalogue knows only at the seal."""
        live = self.by_ino.get(ino)
        return os.fstat(live.ddr_fd) if live is not None and live.writers and live.ddr_fd >= 0 else None

    def held_blocks(self, ino: int) -> int:
        """Return the 4 KiB blocks that an object's present bytes are charged."""
        live = self.by_ino.get(ino)
        if live is not None:
            return live.mapped_blocks
        copy = self._catalog.placements.copy(ino)
        return total_blocks(copy_charges(copy.runs, copy.size, self._page_bytes)) if copy else 0
