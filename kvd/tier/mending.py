"""Puts the engine's books right where the repair of its tables had to give something up.

The catalogue and the files hold the truth of the objects. So after a loss all that the engine knows of an object is made anew
from them, as a start does (`kvd.tier.recovery`); where that can't be done the object is quarantined.
"""

from __future__ import annotations

import contextlib
import os
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import structlog
import trio

from kvd.errors import NotFoundError
from kvd.tier.extents import copy_charges, data_extents, ddr_charges
from kvdriver import BLOCK_BYTES, EngineError, Tier

if TYPE_CHECKING:
    from kvd.tier.books import Books
    from kvd.tier.ddr import DdrStore
    from kvd.tier.live import Live
    from kvd.tier.lives import Lives
    from kvd.tier.moves import Moves
    from kvd.tier.plane import DataPlane
    from kvd.tier.room import Room
    from kvdriver import Lost, MapRun

log = structlog.get_logger(__name__)


class LossSource(Protocol):
    """Who tells of losses: `kvdriver.ResilientDevice`."""

    async def lost(self) -> Lost:
        """Wait for losses; each is told once."""
        ...


@dataclass(slots=True)
class MendCounts:
    """Objects since start whose books were made anew, and those for which that failed."""

    mended: int = 0
    damaged: int = 0


class Mending:
    """Mends objects, one after the other, each under its lock."""

    def __init__(self, lives: Lives, books: Books, ddr: DdrStore, moves: Moves, room: Room, plane: DataPlane) -> None:
        self._lives = lives
        self._books = books
        self._ddr = ddr
        self._moves = moves
        self._room = room
        self._plane = plane
        self.counts = MendCounts()

    def __repr__(self) -> str:
        return f"<Mending {self.counts.mended} mended, {self.counts.damaged} damaged>"

    async def run(self, source: LossSource) -> None:
        """Mend whatever is lost, for ever."""
        while True:
            await self.mend(await source.lost())

    async def mend(self, lost: Lost) -> None:
        """Make the books of the objects anew that have lost something."""
        async with self._books.lock:  # the dealing that met the loss has ended, and what it returned is noted
            pass
        todo = deque(ino for ino, session in self._lives.sessions.items() if lost.every or session in lost.sessions)
        seen = set(todo)
        before = self.counts.mended, self.counts.damaged
        while todo:
            taken = await self._object(todo.popleft())
            if taken is not None:
                also = [ino for ino, session in self._lives.sessions.items() if session == taken and ino not in seen]
                todo.extend(also)
                seen.update(also)
        self._room.changed()
        mended, damaged = (
            now - then for now, then in zip((self.counts.mended, self.counts.damaged), before, strict=True)
        )
        log.info("books of objects made anew", mended=mended, damaged=damaged)

    async def _object(self, ino: int) -> int | None:
        """Mend one object; return the session that another one had in its place."""
        taken = None
        with contextlib.suppress(NotFoundError):  # it went meanwhile
            async with self._lives.hold(ino) as live:
                try:
                    with trio.CancelScope(shield=True):
                        taken = await self._remake(live)
                except (EngineError, OSError) as error:
                    self.counts.damaged += 1
                    if not live.damaged:
                        self._moves.damage(live, None, f"the engine's books of it are lost: {error}")
                else:
                    self.counts.mended += 1
        return taken

    async def remake(self, live: Live) -> int | None:
        """Make the books of an object anew, whose lock the caller holds; return the session that had its place.

        Raises
        ------
        EngineError, OSError
            If that can't be done.
        """
        taken = await self._remake(live)
        self.counts.mended += 1
        return taken

    async def _remake(self, live: Live) -> int | None:
        copy: tuple[MapRun, ...] = ()
        if live.copy is not None:
            copy = copy_charges(live.copy.runs, live.copy.size, self._books.page_bytes)
        match live.tier:
            case Tier.DDR:
                charges = self._held(live)
            case Tier.NVME:
                charges, copy = copy, ()
            case _:
                charges = ()
        try:
            taken = await self._books.remake(live, charges, copy)
        finally:
            self._lives.sessions[live.ino] = live.session
        if live.mode is not None and live.ddr_fd >= 0:
            self._plane.object_limit(live.ino, (live.mapped_blocks + live.reserved_blocks) * BLOCK_BYTES)
        return taken

    def _held(self, live: Live) -> tuple[MapRun, ...]:
        """Return the charges of what an object's DDR file holds; of a writer's what it has come to."""
        fd = live.ddr_fd if live.ddr_fd >= 0 else self._ddr.open(live.ino)
        try:
            return ddr_charges(data_extents(fd, os.fstat(fd).st_size), self._books.page_bytes)
        finally:
            if fd != live.ddr_fd:
                os.close(fd)
