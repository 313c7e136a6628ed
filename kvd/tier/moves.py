"""Moving one object between its tier files. The caller holds the object's lock.

A move is: frames first, then bytes, then durability, then the catalogue, then the engine's tables, then the removal of
what is no longer needed. A crash between any two of these leaves one whole object and, at most, a file that the next
start sweeps.
"""

from __future__ import annotations

import errno
import os
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import structlog
import trio

from kvd.errors import DamagedError, OfflineError, VanishedError
from kvd.format.errors import StoredFileError
from kvd.tier.directory import DirectoryOfflineError
from kvd.tier.extents import copy_charges
from kvd.tier.makingroom import in_room, no_room
from kvd.tier.mover import ChecksumError
from kvd.tier.storage import punch
from kvd.tier.storing import MoveCounts, Storing, used_ns
from kvdriver import BLOCK_BYTES, Tier

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from kvd.catalog.catalog import Catalog
    from kvd.catalog.records import Copy
    from kvd.errors import KvdError
    from kvd.tier.books import Books
    from kvd.tier.copyfiles import CopyFiles
    from kvd.tier.ddr import DdrStore
    from kvd.tier.describer import Describer
    from kvd.tier.live import Live
    from kvd.tier.makingroom import MakeRoom
    from kvd.tier.mover import Mover
    from kvd.tier.nvme import NvmeStore
    from kvd.tier.storing import Made
    from kvd.tier.stream import Stream

log = structlog.get_logger(__name__)


class Moves:
    """Promotion, demotion and copying of objects."""

    def __init__(
        self, catalog: Catalog, books: Books, ddr: DdrStore, nvme: NvmeStore, mover: Mover, describer: Describer
    ) -> None:
        self._catalog = catalog
        self._books = books
        self._ddr = ddr
        self._nvme = nvme
        self._mover = mover
        self.counts = MoveCounts()
        self._storing = Storing(catalog, books, nvme, mover, describer, self.counts)
        self.on_damage: Callable[[int], object] = lambda _ino: None
        """Hears of each object that was quarantined, when that is recorded."""
        self.make_room: MakeRoom = no_room
        """Is asked for room on NVMe, where a copy has none (`kvd.tier.evicting`)."""

    async def copy_out(self, live: Live) -> None:
        """Make an object's DDR bytes durable on NVMe; it stays in DDR, so the copy is of exactly these bytes.

        Raises
        ------
        OSError
            ENOSPC if the tier is full, otherwise what the device said; the older copy is untouched.
        """
        await self._copy(live, leaves=False)

    async def _copy(self, live: Live, *, leaves: bool) -> None:
        """Make a copy; of an object that `leaves` DDR it may be in a lossy format, and with it the object is cold."""
        fd = live.ddr_fd if live.ddr_fd >= 0 else self._ddr.open(live.ino)
        try:
            made = await self._store(live, fd, leaves=leaves)
        finally:
            if fd != live.ddr_fd:
                os.close(fd)
        await self._made(live, made, leaves=leaves)

    async def _made(self, live: Live, made: Made, *, leaves: bool) -> None:
        """Let a new copy be the object's; its row is there."""
        with trio.CancelScope(shield=True):
            await self._books.copy_commit(live)
            old, live.copy, live.gen = live.copy, made.copy, made.copy.gen
            if leaves:
                await self._leave(live, made.copy)
            if old is not None:
                await self._nvme.remove(old)
        self.counts.demoted_bytes += made.moved_bytes

    async def _store(self, live: Live, fd: int, *, leaves: bool, exact: bool = False) -> Made:
        """Make a copy, where NVMe is full as often as room is made for it."""

        def make() -> Awaitable[Made]:
            return self._storing.store(live, fd, leaves=leaves, exact=exact)

        return await in_room(make, live, self.counts, self.make_room, leaves=leaves)

    async def twin(self, live: Live, fd: int) -> None:
        """Make a new object of what another's DDR file holds, on NVMe; the caller holds that one's lock, too.

        Raises
        ------
        OSError
            As `copy_out`; the new object has nothing.
        """
        await self._made(live, await self._store(live, fd, leaves=True, exact=True), leaves=True)

    async def clone(self, live: Live, origin: Copy, *, share_only: bool = False) -> bool:
        """Make a new object of another's copy; see `Storing.clone`. False: it was to share storage, and can't."""

        def make() -> Awaitable[Made | None]:
            return self._storing.clone(live, origin, share_only=share_only)

        made = await in_room(make, live, self.counts, self.make_room, leaves=True)
        if made is None:
            return False
        await self._made(live, made, leaves=True)
        return True

    async def _leave(self, live: Live, copy: Copy) -> None:
        """Let go of what DDR has: the catalogue has the object on NVMe."""
        await self._books.to_nvme(live, copy_charges(copy.runs, copy.size, self._books.page_bytes))
        await self._ddr.remove(live.ino, used=False)

    async def demote(self, live: Live) -> None:
        """Move a sealed, unleased object to NVMe; without I/O if its copy there is current, and small enough for its age.

        Only here an object comes into a lossy format: nobody has it open, and what DDR has goes in the same step, so that
        no reader ever sees both what was written and what comes back.

        Raises
        ------
        OSError
            As `copy_out`; the object stays in DDR.
        """
        assert live.sealed
        assert not live.opens
        if not self.stored(live) or self._storing.shrinks(live) or self._gave_more(live):
            await self._copy(live, leaves=True)
        else:
            await self.leave(live)

    def _gave_more(self, live: Live) -> bool:
        """Whether a new copy would be smaller for what was given back since this one; a lossy one is not worth a second loss."""
        lossy = live.copy is not None and live.copy.form is not None and live.copy.form.lossy_bytes
        return not lossy and self._catalog.given.is_ahead(live.ino)

    async def leave(self, live: Live) -> None:
        """Take an object out of DDR whose copy is current; no I/O."""
        copy = live.copy
        assert copy is not None
        assert copy.current
        with trio.CancelScope(shield=True):
            self._catalog.placements.leave(live.ino, Tier.NVME, used_ns(live))
            await self._leave(live, copy)

    async def promote(self, live: Live, *, ahead: bool = False) -> int:
        """Bring an object to DDR, out of its reservation; return a descriptor of its DDR file.

        `ahead`: nobody waits for it yet.

        Raises
        ------
        DamagedError
            A page failed its checksum or could not be read; nothing was moved. A failed checksum quarantines.
        VanishedError
            The copy's file has vanished; so has the object now.
        OSError
            ENOSPC if the tmpfs is full.
        """
        files = await self.open_copy(live)
        try:
            dst_fd = self._ddr.create(live.ino)
            try:
                await self._ddr.spares.lay(dst_fd, self.extents(live))
                moved_bytes = await self._fetch(live, files, dst_fd, ahead=ahead)
                with trio.CancelScope(shield=True):
                    await self.settle_in_ddr(live, dst_fd)
            except BaseException:
                os.close(dst_fd)
                with trio.CancelScope(shield=True):
                    await self._ddr.remove(live.ino)
                raise
        finally:
            files.close()
        self.counts.promoted_bytes += moved_bytes
        return dst_fd

    def extents(self, live: Live) -> list[tuple[int, int]]:
        """Return where a cold object has data, in bytes, whole blocks; nothing of a stored one with holes: its head has them."""
        assert live.copy is not None
        page_bytes = self._books.page_bytes
        end = -(-live.copy.object_bytes // BLOCK_BYTES) * BLOCK_BYTES
        if live.copy.form is not None:
            return [(0, end)] if live.copy.form.object_blocks * BLOCK_BYTES >= end else []
        return [(first * page_bytes, min(end, (first + count) * page_bytes)) for first, count in live.copy.runs]

    async def stream(self, live: Live, files: CopyFiles, dst_fd: int, stream: Stream, *, ahead: bool) -> None:
        """Fill an object's DDR file while it is read, and end `stream`; the books are the caller's.

        The caller does not hold the lock: what is read of the object here does not change while it is cold.

        Raises
        ------
        DamagedError
            As `promote`: it is noted, and a failed checksum has quarantined the object.
        OSError
            ENOSPC if the tmpfs is full.
        """
        self.counts.promoted_bytes += await self._fetch(live, files, dst_fd, ahead=ahead, stream=stream)

    def shrinks(self, live: Live) -> bool:
        """Whether the ladder has a smaller format for an object at its age than its copy is in."""
        return self._storing.shrinks(live)

    def stored(self, live: Live) -> bool:
        """Whether NVMe holds the same bytes where they can be read."""
        return live.clean and live.copy is not None and self._nvme.usable(live.copy)

    def check_reachable(self, live: Live) -> None:
        """Refuse what would have to read from a directory that is offline; nothing waits for one.

        Raises
        ------
        OfflineError
            The object is cold and its directory is offline.
        """
        if live.tier is Tier.NVME and live.copy is not None:
            try:
                self._nvme.check_usable(live.copy)
            except DirectoryOfflineError as error:
                raise self._offline(live, error) from error

    @staticmethod
    def _offline(live: Live, error: OSError) -> OfflineError:
        return OfflineError(f"object {live.ino}: {error.strerror}")

    async def open_copy(self, live: Live) -> CopyFiles:
        """Open an object's files on NVMe for reading.

        Raises
        ------
        VanishedError
            One has vanished; so has the object now.
        DamagedError
            They can't be opened: something else is in their place, or the device says no.
        OfflineError
            A directory of them is offline.
        """
        assert live.copy is not None
        try:
            return await self._nvme.open(live.copy)
        except FileNotFoundError as error:
            self.lose(live, "its file on NVMe has vanished")
            raise VanishedError(f"object {live.ino}: its file on NVMe has vanished") from error
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
                raise
            raise self._unreadable(live, error) from error

    def _unreadable(self, live: Live, error: OSError) -> KvdError:
        """Record that an object can't be read; that a directory does not answer is no fault of the object."""
        assert live.copy is not None
        if not self._nvme.usable(live.copy):
            return self._offline(live, error)
        place = self._nvme.place(live.copy, 0) if len(live.copy.dirs) == 1 else ""
        self.note(live, None, f"can't be read: {error.strerror}", place)
        return DamagedError(f"object {live.ino} can't be read from NVMe: {error}")

    async def _fetch(
        self, live: Live, files: CopyFiles, dst_fd: int, *, ahead: bool, stream: Stream | None = None
    ) -> int:
        """Fill an object's DDR file; return the bytes that were read."""
        copy = live.copy
        assert copy is not None
        inode = self._catalog.names.inode(live.ino)
        try:
            with self._nvme.using(copy.dirs):
                moved_bytes = await self._bring(copy, files, dst_fd, ahead=ahead, stream=stream)
        except ChecksumError as error:
            place = self._nvme.place(copy, error.page * self._books.page_bytes)
            self.damage(live, error.page, "checksum differs", place)
            raise
        except StoredFileError as error:  # what is on the drive is what was written there
            self.damage(live, None, f"can't be decoded: {error.strerror}", self._nvme.place(copy, 0))
            raise DamagedError(f"object {live.ino} can't be decoded: {error.strerror}") from error
        except OSError as error:
            self._storing.blame(error, write=False)
            if error.errno == errno.ENOSPC:
                raise
            raise self._unreadable(live, error) from error
        os.utime(dst_fd, ns=(inode.atime_ns, inode.mtime_ns))
        return moved_bytes

    async def _bring(self, copy: Copy, files: CopyFiles, dst_fd: int, *, ahead: bool, stream: Stream | None) -> int:
        sums = self._catalog.placements.sums(copy.ino)
        if copy.form is None:
            result = await self._mover.promote(
                parts=files.parts,
                stripe_bytes=files.stripe_bytes,
                ddr_fd=dst_fd,
                size_bytes=copy.size,
                runs=copy.runs,
                sums=sums,
                ahead=ahead,
                stream_address=0 if stream is None else stream.address,
            )
            return result.moved_bytes
        status = -errno.EIO
        try:
            moved_bytes = await self._storing.recoder.fetch(copy, sums, files, dst_fd, ahead=ahead, stream=stream)
            if copy.form.lossy_bytes:  # what it makes of zeroes need not be zero
                for start, end in self._catalog.given.of(copy.ino):
                    punch(dst_fd, start, end - start)
            status = 0
        finally:
            if stream is not None:
                stream.end(status)
        return moved_bytes

    async def settle_in_ddr(self, live: Live, ddr_fd: int) -> None:
        """Note that an object's pages are in DDR now, whole and verified, out of its reservation."""
        copy = live.copy
        assert copy is not None
        page_bytes = self._books.page_bytes
        charges = copy_charges(copy.runs, copy.size, page_bytes)
        if copy.form is None:
            await self._books.to_ddr(live)
        else:
            await self._books.unfold(live, self._ddr.settle(ddr_fd, page_bytes), charges)
        try:
            self._catalog.placements.move(live.ino, Tier.DDR)
        except OSError:
            await self._books.to_nvme(live, charges)
            raise

    async def forget_copy(self, live: Live) -> None:
        """Remove an object's copy: its bytes are about to be given up (truncation)."""
        if live.copy is not None:
            copy, live.copy = live.copy, None
            await self._nvme.remove(copy)

    # -- damage --------------------------------------------------------------------------------------------------

    def damage(self, live: Live, page: int | None, what: str, place: str = "") -> None:
        """Quarantine an object: it answers EIO until its bytes are replaced. `place`: file and offset of the damage."""
        live.damaged = True
        path = self._path(live)
        log.error("object quarantined", path=path, ino=live.ino, page=page, what=what, place=place)
        self._record(lambda: self._catalog.placements.damage(live.ino, path, page, what, place))
        self.on_damage(live.ino)

    def note(self, live: Live, page: int | None, what: str, place: str = "") -> None:
        """Record a failure that is not proof of damage."""
        path = self._path(live)
        log.error("object can't be read", path=path, ino=live.ino, page=page, what=what, place=place)
        self._record(lambda: self._catalog.placements.note_fault(live.ino, path, page, what, place))

    def _record(self, write: Callable[[], None]) -> None:
        """Write to the catalogue what must not depend on it: the failure is known and logged already."""
        try:
            write()
        except OSError as error:
            log.warning("fault can't be recorded", errno=error.errno, error=str(error))

    def cut(self, live: Live, size: int, written_size: int) -> None:
        """Record that an object ends before what was written: the kernel let a writer pass the longest length."""
        path, what = self._path(live), f"cut at {size} bytes: no object can have {written_size}"
        self._catalog.placements.note_fault(live.ino, path, None, what)
        log.warning("object cut", path=path, ino=live.ino, what=what)

    def lose(self, live: Live, what: str) -> None:
        """Remove the names of an object whose bytes are gone."""
        path = self._path(live)
        with self._catalog.db.transaction():
            self._catalog.placements.note_fault(live.ino, path, None, what)
            self._catalog.names.vanish(live.ino, time.time_ns())
        live.copy = None
        log.error("object lost", path=path, ino=live.ino, what=what)

    def _path(self, live: Live) -> bytes:
        return self._catalog.names.path(live.ino) or b""


def stale(copy: Copy | None) -> Copy | None:
    """Return `copy` as it is once the object has a writer."""
    return None if copy is None else replace(copy, current=False)
