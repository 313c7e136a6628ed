"""Objects: all that the file system and the control API ask of them.

An operation holds the object's lock from start to end, so within one object everything is in sequence; between objects
nothing is, except room in DDR (`kvd.tier.room`), which never waits for a lock.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import time
from typing import TYPE_CHECKING

import trio

from kvd.errors import BusyError, DamagedError, NoSpaceError, NotFoundError
from kvd.tier.admission import Admission
from kvd.tier.descending import Descending
from kvd.tier.describer import Describer
from kvd.tier.evicting import Evicting
from kvd.tier.forking import Forking
from kvd.tier.heads import Heads
from kvd.tier.homes import remember_uses, worth_in
from kvd.tier.index import Index
from kvd.tier.lives import Lives
from kvd.tier.mending import Mending
from kvd.tier.moves import Moves
from kvd.tier.namespacing import Namespacing
from kvd.tier.opening import OBJECT_BYTES_MAX, Opening
from kvd.tier.prefetch import Prefetch
from kvd.tier.quotas import Quotas
from kvd.tier.reading import place
from kvd.tier.reaping import NobodyRemembers, Reaper
from kvd.tier.recovery import fall_back
from kvd.tier.room import Room
from kvd.tier.scrub import Scrub
from kvd.tier.sharing import Sharing, shared_max
from kvd.tier.sliding import Sliding
from kvd.tier.tending import Tending
from kvd.tier.warming import Warming
from kvd.tier.writing import Writing
from kvdriver import BLOCK_BYTES, Tier

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvd.catalog.catalog import Catalog
    from kvd.config import Config
    from kvd.tier.books import Books
    from kvd.tier.ddr import DdrStore
    from kvd.tier.directory import Directory
    from kvd.tier.found import Recovered
    from kvd.tier.live import Live
    from kvd.tier.mover import Mover
    from kvd.tier.nvme import NvmeStore
    from kvd.tier.plane import DataPlane, Leases


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
        leases: Leases,
    ) -> None:
        self._catalog = catalog
        self._books = books
        self._ddr = self.ddr = ddr
        books.spares = ddr.spares
        ddr.spares.begin(config.ddr, books)
        self.nvme = nvme
        self.lives = Lives(catalog, page_bytes=books.page_bytes)
        self.worth = worth_in(catalog, config.ageing.policy)
        self.lives.census.worth = self.worth
        files_max, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self.sharing = Sharing(self.lives, catalog, leases, self.worth, objects_max=shared_max(files_max))
        self.lives.watch = self.sharing
        self.index = Index(self.lives, catalog, books, nvme)
        self.describer = Describer(catalog, nvme, page_bytes=books.page_bytes)
        self.moves = Moves(catalog, books, ddr, nvme, mover, self.describer)
        self.reaper = Reaper(catalog, NobodyRemembers(catalog.names, self.discard))
        self.admission = Admission(catalog, self.lives, books, ddr, self.moves, self.reaper, defaults=config.admission)
        budget_blocks = config.ddr.budget_bytes // BLOCK_BYTES
        self.quotas = Quotas(catalog, self.lives, books, budget_blocks, config.nvme.on_full)
        self.namespacing = Namespacing(catalog, self.admission, self.reaper, self.quotas, defaults=config.admission)
        self.room = Room(self.lives, books, self.admission, nvme, self.sharing, self.worth, self.quotas, config)
        self.evicting = Evicting(catalog, self.lives, books, self.room, self.admission, self.reaper, config)
        self.moves.make_room = self.evicting.make_room
        self.writing = Writing(config, self.lives, books, ddr, self.room, plane)
        self.warming: Warming | None = None
        if config.ddr.warm == "start":
            self.warming = Warming(ddr.path, books, self.room, budget_bytes=config.ddr.budget_bytes)
        self._opening = Opening(self.lives, catalog, books, ddr, self.moves, self.room, plane, self.writing)
        self._opening.on_seal = self.admission.sealed
        self.sharing.leave = self._opening.leave
        self.mending = Mending(self.lives, books, ddr, self.moves, self.room, plane)
        self.streaming = self._opening.streaming
        self.tending = Tending(
            nvme,
            deadline_s=config.nvme.deadline_s,
            probe_s=config.nvme.probe_s,
            ages=mover.device_statistics,
            row=catalog.placements.copy,
            changed=self.room.nvme_changed,
        )
        self.heads = Heads(self.lives, catalog, ddr, nvme, mover, page_bytes=books.page_bytes)
        self.sliding = Sliding(catalog, books, ddr, nvme, self.describer, self.writing, self.room, self.heads)
        self.prefetch = Prefetch(catalog, self._opening.bringing)
        self.descending = Descending(catalog, self.lives, books, self.moves, self.room)
        self.scrub = Scrub(config.scrub, catalog, self.lives, books, nvme, mover, self.moves, self.describer)
        for directory in nvme.directories:
            _follow(directory, plane)
        self.create = self._opening.create
        self.release = self._opening.release
        self.close_all = self._opening.close_all
        self.grow = self.writing.grow
        self.forking = Forking(catalog, self, books)
        self.give_back = self.sliding.give_back
        self.on_unpin: Callable[[int], None] = lambda _ino: None
        """Hears of each object that is not pinned any more."""

    def __repr__(self) -> str:
        return f"<Objects {self.lives!r}>"

    def adopt(self, found: Recovered) -> None:
        """Take over what a start has found; `index` looks at the rest."""
        self.lives.adopt(found.resident)
        found.resident.clear()
        self.index.begin(found)

    async def open(self, ino: int, *, write: bool, truncate: bool = False) -> None:
        """Open an object; see `Opening.open`."""
        live = self.lives.by_ino.get(ino)
        if not write and (live is None or live.tier is not Tier.DDR or live.from_nvme):
            # Before the open, so that the next objects fill the gaps which this one leaves in the disk's queue.
            self.prefetch.opened(ino, fetched=live is not None and live.from_nvme)
        if write:
            self.admission.opened_for_writing(ino)
        try:
            await self._opening.open(ino, write=write, truncate=truncate)
        except DamagedError as error:
            raise self.admission.answer(ino, error) from error
        if live is not None:
            live.from_nvme = False
        if not write and (used := self.lives.by_ino.get(ino)) is not None:
            self.worth.used([used])

    async def remember_uses(self) -> None:
        """See `kvd.tier.homes.remember_uses`."""
        await remember_uses(self._catalog, self.worth)

    def keeps_cache(self, ino: int) -> bool:
        """Whether pages that the kernel has of an object from earlier opens are its bytes still.

        Not where they may be from before it came back from a lossy format: the kernel drops them at such an open.
        """
        live = self.lives.by_ino.get(ino)
        return live is None or live.copy is None or live.copy.form is None or not live.copy.form.lossy_bytes

    # -- ending --------------------------------------------------------------------------------------------------

    async def abandon(self, ino: int) -> None:
        """Undo `create` of an object that is gone from the catalogue already."""
        self.lives.take_out(ino)
        session = self.lives.sessions.pop(ino, None)
        if session is not None:
            await self._books.destroy(session)
        await self._ddr.remove(ino)

    async def discard(self, ino: int) -> None:
        """Delete an object that has no name and no user left."""
        if ino not in self.lives.sessions and self.lives.finder is None:
            return
        with trio.CancelScope(shield=True), contextlib.suppress(NotFoundError):  # two may be told to
            async with self.streaming.hold(ino, cancel=True, readers=False) as live:
                if live.held or not await self.sharing.take_back(live, only_idle=True):
                    return  # who holds it has it deleted when the lease ends
                self._catalog.names.remove(ino)
                live.tier = Tier.NONE
                await self._books.destroy(self.lives.sessions.pop(ino))
                await self._ddr.remove(ino, used=not live.sealed)
                await self.moves.forget_copy(live)
        self.room.gave_back()

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

    def check_link(self, ino: int, parent: int) -> None:
        """Refuse another name for a file below another fingerprint; see `Namespaces.check_link`."""
        live = self.lives.peek(ino)
        self._catalog.namespaces.check_link(self._catalog.names.inode(ino), live.usual_key if live else 0, parent)

    # -- changing ------------------------------------------------------------------------------------------------

    async def truncate(self, ino: int, size: int) -> None:
        """Set an object's length; growth is a hole."""
        if size > OBJECT_BYTES_MAX:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
        await self.open(ino, write=True, truncate=size == 0)
        try:
            live = self.lives.by_ino[ino]
            before = os.fstat(live.ddr_fd).st_size
            os.ftruncate(live.ddr_fd, size)
            if size < before:
                self._catalog.given.cut(ino, size)
            if live.writers > 1:
                await self.writing.resized(live, size, shorter=size < before)
        finally:
            await self.release(ino, write=True)

    def touch(self, ino: int, mtime_ns: int) -> None:
        """Set the modification time of an object that has a writer, where `attributes` reads it."""
        live = self.lives.by_ino.get(ino)
        if live is not None and live.ddr_fd >= 0:
            os.utime(live.ddr_fd, ns=(mtime_ns, mtime_ns))

    async def sample_writers(self) -> None:
        """Keep up with what the kernel does by itself, and seal what could not be sealed, for ever."""
        while True:
            pause_s = await self.writing.look()
            await self.seal_late()
            await self.sharing.tend()
            await trio.sleep(pause_s)

    async def seal_late(self) -> None:
        """Seal the objects without a writer that the catalogue could not take when their last writer closed."""
        for live in [live for live in self.lives.census.unsealed.values() if not live.writers]:
            if not live.locked:
                await self._opening.seal_late(live)

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
        async with self.streaming.hold(ino, cancel=True, readers=False) as live:
            if live.streaming is not None and live.streaming.runs:
                raise BusyError("in use: open or mapped")
            if live.tier is not Tier.DDR:
                return 0
            if live.damaged:
                raise DamagedError("quarantined")
            if not live.sealed or self.sharing.opens(live):
                raise BusyError("in use: open or mapped")
            if live.pinned:
                raise BusyError("pinned")
            if live.held:
                raise BusyError("leased through the API")
            if not await self.sharing.take_back(live, only_idle=True):
                raise BusyError("in use: just opened")
            await self.moves.demote(live)
        self.room.changed()
        return live.size

    async def promote(self, ino: int) -> int:
        """Bring an object to DDR; return its bytes, 0 if it was there."""
        async with self.streaming.hold(ino) as live:
            if live.damaged:
                raise DamagedError("quarantined")
            if live.tier is Tier.DDR:
                return 0
            if live.opens:
                raise BusyError("in use: read from NVMe, since there was no room in DDR")
            if not await self._opening.bringing.promote(live):
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
            self.on_unpin(ino)
            self.room.changed()
        return changed

    def bad_page(self, ino: int, page: int) -> None:
        """Quarantine an object: the data plane met a page whose checksum differs."""
        live = self.lives.by_ino.get(ino)
        if live is not None and not live.damaged:
            where = "" if live.copy is None else place(self.nvme, live.copy, page, self._books.page_bytes)
            self.moves.damage(live, page, "checksum differs", where)

    def failed_io(self, ino: int, code: int, device: int | None = None) -> None:
        """Take in an I/O error that the data plane met and answered; `device` is the directory that is to blame.

        A drive that does not answer is its directory's trouble; anything else is noted as the object's, too.
        """
        if device is not None:
            error = OSError(code, os.strerror(code))
            self.nvme.directories[device].failed(error, write=False, doing="read of an open object")
        live = self.lives.by_ino.get(ino)
        if live is not None and not (device is not None and code == errno.ETIMEDOUT):
            self.moves.note(live, None, f"I/O error: {os.strerror(code)}")

    def count_dirty(self) -> int:
        """Return how many sealed objects have bytes that are only in DDR, or also where they can't be read."""
        lives = self.lives
        if all(directory.health.usable for directory in self.nvme.directories):
            return len(lives.census.dirty)
        there = [lives.by_ino[ino] for ino in lives.census.resident]
        return sum(1 for live in there if live.sealed and not live.damaged and not self.moves.stored(live))


def _follow(directory: Directory, plane: DataPlane) -> None:
    """Let the data plane know, from now on, whether a directory may be asked."""

    def told(usable: bool) -> None:
        plane.device_usable(directory.index, usable=usable)

    directory.told = told
    told(directory.health.usable)
