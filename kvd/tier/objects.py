"""Objects: all that the file system and the control API ask of them.

An operation holds the object's lock from start to end, so within one object everything is in sequence; between objects
nothing is, except room in DDR (`kvd.tier.room`), which never waits for a lock.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from typing import TYPE_CHECKING

import trio

from kvd.errors import BusyError, DamagedError, NoSpaceError, NotFoundError
from kvd.tier.ddr import held_blocks
from kvd.tier.lives import Lives
from kvd.tier.mending import Mending
from kvd.tier.moves import Moves
from kvd.tier.opening import OBJECT_BYTES_MAX, Opening
from kvd.tier.plane import Mode
from kvd.tier.prefetch import Prefetch
from kvd.tier.recovery import fall_back
from kvd.tier.room import Room
from kvdriver import BLOCK_BYTES, Tier

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvd.catalog.catalog import Catalog
    from kvd.config import Config
    from kvd.tier.books import Books
    from kvd.tier.ddr import DdrStore
    from kvd.tier.live import Live
    from kvd.tier.mover import Mover
    from kvd.tier.nvme import NvmeStore
    from kvd.tier.plane import DataPlane

GROW_BYTES = 16 << 20
"""What a writer that asks is given at once, where there is room."""
SAMPLE_S = 0.1
"""How often writers in passthrough are looked at; at 3 GB/s they write 300 MB meanwhile: the burst reserve's work."""


class Objects:
    """Every regular file of the mount."""

    def __init__(
        self,
        config: Config,
        catalog: Catalog,
        books: Books,
        ddr: DdrStore,
        nvme: NvmeStore,
        mover: Mover,
        plane: DataPlane,
    ) -> None:
        self._config = config
        self._catalog = catalog
        self._books = books
        self._ddr = ddr
        self._plane = plane
        self.lives = Lives(catalog, page_bytes=books.page_bytes)
        self.moves = Moves(catalog, books, ddr, nvme, mover)
        self.room = Room(self.lives, books, self.moves, nvme, ddr_config=config.ddr, nvme_config=config.nvme)
        self._opening = Opening(
            self.lives,
            catalog,
            books,
            ddr,
            self.moves,
            self.room,
            plane,
            budget_blocks=config.ddr.budget_bytes // BLOCK_BYTES,
        )
        self.mending = Mending(self.lives, books, ddr, self.moves, self.room, plane)
        self.prefetch = Prefetch(catalog, self._opening)
        self.create = self._opening.create
        self.release = self._opening.release

    def __repr__(self) -> str:
        return f"<Objects {self.lives!r}>"

    async def open(self, ino: int, *, write: bool, truncate: bool = False) -> None:
        """Open an object; see `Opening.open`."""
        live = self.lives.by_ino.get(ino)
        if not write and (live is None or live.tier is not Tier.DDR or live.from_nvme):
            # Before the open, so that the next objects fill the gaps which this one leaves in the disk's queue.
            self.prefetch.opened(ino)
        await self._opening.open(ino, write=write, truncate=truncate)
        if live is not None:
            live.from_nvme = False

    # -- ending --------------------------------------------------------------------------------------------------

    async def close_all(self) -> None:
        """Release whatever counts as open: the kernel's side has ended, and with it every descriptor and mapping."""
        for live in list(self.lives.by_ino.values()):
            while live.opens:
                await self.release(live.ino, write=not live.readers)

    async def abandon(self, ino: int) -> None:
        """Undo `create` of an object that is gone from the catalogue already."""
        self.lives.by_ino.pop(ino, None)
        session = self.lives.sessions.pop(ino, None)
        if session is not None:
            await self._books.destroy(session)
        await self._ddr.remove(ino)

    async def discard(self, ino: int) -> None:
        """Delete an object that has no name and no user left."""
        if ino not in self.lives.sessions:
            return
        with trio.CancelScope(shield=True), contextlib.suppress(NotFoundError):  # two may be told to
            async with self.lives.hold(ino) as live:
                if live.opens:
                    return
                self._catalog.names.remove(ino)
                live.tier = Tier.NONE
                await self._books.destroy(self.lives.sessions.pop(ino))
                await self._ddr.remove(ino)
                await self.moves.forget_copy(live)
        self.room.changed()

    async def leave_ddr(self) -> None:
        """Make what is still in DDR its last copy, as the next start would; what has no name and is open goes.

        For the very end: nobody asks for anything any more, and the files in DDR go now.
        """
        lives = list(self.lives.by_ino.values())
        unnamed = set(self._catalog.names.orphans())
        with self._catalog.db.transaction():
            for live in lives:
                if live.ino in unnamed or live.tier is not Tier.DDR:
                    continue
                if live.copy is None:
                    self._catalog.names.vanish(live.ino, time.time_ns())
                else:
                    fall_back(self._catalog, live.copy)
            for ino in unnamed:
                self._catalog.names.remove(ino)
        for live in lives:
            await self._ddr.remove(live.ino)
            if live.ino in unnamed:
                await self.moves.forget_copy(live)

    # -- changing ------------------------------------------------------------------------------------------------

    async def truncate(self, ino: int, size: int) -> None:
        """Set an object's length; growth is a hole."""
        if size > OBJECT_BYTES_MAX:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
        await self.open(ino, write=True, truncate=size == 0)
        try:
            live = self.lives.by_ino[ino]
            os.ftruncate(live.ddr_fd, size)
        finally:
            await self.release(ino, write=True)

    def touch(self, ino: int, mtime_ns: int) -> None:
        """Set the modification time of an object that has a writer, where `attributes` reads it."""
        live = self.lives.by_ino.get(ino)
        if live is not None and live.ddr_fd >= 0:
            os.utime(live.ddr_fd, ns=(mtime_ns, mtime_ns))

    async def grow(self, ino: int, need_bytes: int) -> None:
        """Let an object hold `need_bytes` of storage, waiting for room; ENOSPC past the deadline."""
        need = -(-need_bytes // BLOCK_BYTES)
        async with self.lives.hold(ino) as live:
            extra = need - live.mapped_blocks
            plenty = extra + GROW_BYTES // BLOCK_BYTES
            if extra > live.reserved_blocks and not await self.room.reserve(live, plenty, wait_s=0):
                wait_s = self._config.fuse.write_wait_s
                if not await self.room.reserve(live, extra, wait_s=wait_s):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self._plane.object_limit(ino, (live.mapped_blocks + live.reserved_blocks) * BLOCK_BYTES)

    async def sample_writers(self) -> None:
        """Keep up with what the kernel does by itself, and seal what could not be sealed, for ever.

        Writers in passthrough get their reservations topped up; readers one for the holes that they mapped and touched.
        """
        while True:
            for live in [live for live in self.lives.by_ino.values() if live.mode is Mode.PASSTHROUGH]:
                await self._sample(live)
            await self.seal_late()
            await trio.sleep(SAMPLE_S)

    async def seal_late(self) -> None:
        """Seal the objects without a writer that the catalogue could not take when their last writer closed."""
        for live in [live for live in self.lives.by_ino.values() if not live.sealed and not live.writers]:
            if not live.lock.locked():
                await self._opening.seal_late(live)

    async def _sample(self, live: Live) -> None:
        if live.lock.locked():
            return
        async with live.lock:
            if not live.opens or live.ddr_fd < 0:
                return
            extra = held_blocks(live.ddr_fd) - live.mapped_blocks
            if extra > live.reserved_blocks * 3 // 4:
                slack = max(GROW_BYTES // BLOCK_BYTES, extra // 2) if live.writers else 0
                if not await self.room.reserve(live, extra + slack, wait_s=0):
                    await self.room.reserve(live, max(extra, live.reserved_blocks), wait_s=0)

    # -- durability and movement ---------------------------------------------------------------------------------

    async def fsync(self, ino: int) -> None:
        """Make an object's bytes and the catalogue durable on NVMe."""
        async with self.lives.hold(ino) as live:
            await self._copy_if_dirty(live)
        await self._catalog.db.sync()

    async def _copy_if_dirty(self, live: Live) -> int:
        if live.damaged:
            raise DamagedError(f"object {live.ino} is quarantined")
        if live.tier is not Tier.DDR or (live.sealed and live.clean):
            return 0
        await self.moves.copy_out(live)
        return live.size

    async def sync(self, ino: int) -> int:
        """As `fsync`, without the catalogue's part; return the bytes that were copied."""
        async with self.lives.hold(ino) as live:
            return await self._copy_if_dirty(live)

    async def demote(self, ino: int) -> int:
        """Move an object to NVMe; return its bytes, 0 if it was there.

        Raises
        ------
        BusyError
            It is open, mapped or pinned.
        """
        async with self.lives.hold(ino) as live:
            if live.tier is not Tier.DDR:
                return 0
            if live.damaged:
                raise DamagedError("quarantined")
            if live.opens or not live.sealed:
                raise BusyError("in use: open or mapped")
            if live.pinned:
                raise BusyError("pinned")
            await self.moves.demote(live)
        self.room.changed()
        return live.size

    async def promote(self, ino: int) -> int:
        """Bring an object to DDR; return its bytes, 0 if it was there."""
        async with self.lives.hold(ino) as live:
            if live.damaged:
                raise DamagedError("quarantined")
            if live.tier is Tier.DDR:
                return 0
            if live.opens:
                raise BusyError("in use: read from NVMe, since there was no room in DDR")
            if not await self._opening.promote(live):
                raise NoSpaceError("no room in DDR")
            os.close(live.ddr_fd)
            live.ddr_fd = -1
            live.last_use_s = trio.current_time()
            return live.size

    async def pin(self, ino: int, *, pinned: bool) -> bool:
        """Pin or unpin an object; whether that changed anything."""
        async with self.lives.hold(ino) as live:
            changed = live.pinned != pinned
            self._catalog.placements.pin(ino, pinned=pinned)
            live.pinned = pinned
        if changed and not pinned:
            self.room.changed()
        return changed

    def bad_page(self, ino: int, page: int) -> None:
        """Quarantine an object: the data plane met a page whose checksum differs."""
        live = self.lives.by_ino.get(ino)
        if live is not None and not live.damaged:
            self.moves.damage(live, page, "checksum differs")

    def failed_io(self, ino: int, code: int) -> None:
        """Record an I/O error that the data plane met and answered."""
        live = self.lives.by_ino.get(ino)
        if live is not None:
            self.moves.note(live, None, f"I/O error: {os.strerror(code)}")

    def dirty(self) -> Iterator[int]:
        """Yield the sealed objects whose bytes are only in DDR."""
        return (
            ino
            for ino, live in list(self.lives.by_ino.items())
            if live.tier is Tier.DDR and live.sealed and not live.clean and not live.damaged
        )
