"""How a cold object gets to those who open it: promoted, streamed, or read where it is."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import trio

from kvd.errors import NoSpaceError, VanishedError
from kvd.tier.streaming import Streaming
from kvdriver import Tier

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvd.tier.books import Books
    from kvd.tier.ddr import DdrStore
    from kvd.tier.live import Live
    from kvd.tier.lives import Lives
    from kvd.tier.moves import Moves
    from kvd.tier.plane import DataPlane, Mode, PlaneObject
    from kvd.tier.room import Room


def close_files(live: Live) -> None:
    """Close an object's tier files."""
    if live.ddr_fd >= 0:
        os.close(live.ddr_fd)
        live.ddr_fd = -1
    close_nvme(live)


def close_nvme(live: Live) -> None:
    """Close an object's files on NVMe."""
    if live.nvme_files is not None:
        live.nvme_files.close()
        live.nvme_files, live.nvme_fd = None, -1


class Bringing:
    """Opens the tier files of objects; the caller holds the object's lock but for `fetch`.

    Parameters
    ----------
    spec
        What the data plane is to be told of an object.
    stored_wait_s
        How long a reader waits for room whose object can't be read where it is.
    """

    def __init__(
        self,
        lives: Lives,
        books: Books,
        ddr: DdrStore,
        moves: Moves,
        room: Room,
        plane: DataPlane,
        spec: Callable[[Live, Mode], PlaneObject],
        *,
        stored_wait_s: float,
    ) -> None:
        self._lives = lives
        self._books = books
        self._ddr = ddr
        self._moves = moves
        self._room = room
        self._plane = plane
        self._spec = spec
        self._stored_wait_s = stored_wait_s
        self.streaming = Streaming(lives, books, ddr, moves, room, plane, spec)

    def __repr__(self) -> str:
        return f"<Bringing {self.streaming!r}>"

    async def bring(self, live: Live, *, write: bool) -> None:
        """Open the object's DDR file, promoting it; a reader whom DDR has no room for reads from NVMe.

        What is kept in a format can't be read there: its reader waits for room as a writer does.
        """
        if live.tier is Tier.DDR:
            live.ddr_fd = self._ddr.open(live.ino)
            return
        run = live.streaming
        if not write and (live.nvme_fd >= 0 or (run is not None and run.runs)):
            if run is not None:
                run.ahead = False
            return
        stored = live.copy is not None and live.copy.form is not None
        wait_s = self._stored_wait_s if stored else 0.0
        if write or not self.streaming.wants(live):
            there = await self.promote(live, wait_s=wait_s)
        else:
            there = await self.streaming.begin(live, wait_s=wait_s)
        if not there:
            if write or stored:
                raise NoSpaceError(f"no room in DDR for object {live.ino}")
            await self._open_copy(live)
        if live.mode is not None:  # read from NVMe until now, or from what a failed promotion left
            await self._plane.object_switch(self._spec(live, live.mode))
            if there:
                close_nvme(live)
            await self.streaming.leave(live)

    async def _open_copy(self, live: Live) -> None:
        try:
            live.nvme_files = await self._moves.open_copy(live)
            live.nvme_fd = live.nvme_files.parts[0].fd
        except VanishedError:
            await self._forget(live)
            raise

    async def _forget(self, live: Live) -> None:
        """Free what an object held that has vanished from the catalogue."""
        with trio.CancelScope(shield=True):
            await self._books.destroy(self._lives.sessions.pop(live.ino))

    async def fetch(self, ino: int) -> None:
        """Bring a cold object to DDR ahead of its reader, if there is room without demotions."""
        async with self._lives.hold(ino) as live:
            if live.tier is not Tier.NVME or live.opens or live.damaged or live.streaming is not None:
                return
            self._moves.check_reachable(live)
            if self.streaming.wants(live):
                await self.streaming.begin(live, ahead=True)
            elif await self._room.grant(live, live.promoted_blocks) and await self._fetch(live, ahead=True):
                close_files(live)
                live.from_nvme = True
                live.last_use_s = trio.current_time()
            run = live.streaming
        if run is not None:
            await run.ended.wait()

    async def promote(self, live: Live, *, wait_s: float = 0.0) -> bool:
        """Bring a cold object to DDR and open it there; False if there is no room, also not within `wait_s`."""
        self._moves.check_reachable(live)
        return await self._room.reserve(live, live.promoted_blocks, wait_s=wait_s) and await self._fetch(live)

    async def _fetch(self, live: Live, *, ahead: bool = False) -> bool:
        """Promote into the reservation."""
        try:
            live.ddr_fd = await self._moves.promote(live, ahead=ahead)
        except VanishedError:
            await self._forget(live)
            raise
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            return False
        finally:
            with trio.CancelScope(shield=True):
                if live.ino in self._lives.sessions:
                    await self._books.reserve(live, 0)
        return True
