"""Moving one object between its tier files. The caller holds the object's lock.

A move is: frames first, then bytes, then durability, then the catalogue, then the engine's tables, then the removal of
what is no longer needed. A crash between any two of these leaves one whole object and, at most, a file that the next
start sweeps.
"""

from __future__ import annotations

import errno
import os
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import structlog
import trio

from kvd.catalog.records import Copy
from kvd.errors import DamagedError, VanishedError
from kvd.tier.extents import copy_charges, data_extents, page_runs, total_blocks
from kvd.tier.mover import ChecksumError, MoveResult
from kvdriver import Tier

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvd.catalog.catalog import Catalog
    from kvd.tier.books import Books
    from kvd.tier.ddr import DdrStore
    from kvd.tier.live import Live
    from kvd.tier.mover import Mover
    from kvd.tier.nvme import NvmeStore

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class MoveCounts:
    """Bytes moved since start, and what could not be."""

    promoted_bytes: int = 0
    demoted_bytes: int = 0
    refused_blocks: int = 0
    """What the last copy needed that NVMe had no room for; 0 since one as large was made."""


class Moves:
    """Promotion, demotion and copying of objects."""

    def __init__(self, catalog: Catalog, books: Books, ddr: DdrStore, nvme: NvmeStore, mover: Mover) -> None:
        self._catalog = catalog
        self._books = books
        self._ddr = ddr
        self._nvme = nvme
        self._mover = mover
        self.counts = MoveCounts()

    async def copy_out(self, live: Live) -> None:
        """Make an object's DDR bytes durable on NVMe; it stays in DDR.

        Raises
        ------
        OSError
            ENOSPC if the tier is full, otherwise what the device said; the older copy is untouched.
        """
        fd = live.ddr_fd if live.ddr_fd >= 0 else self._ddr.open(live.ino)
        try:
            info = os.fstat(fd)
            runs = page_runs(data_extents(fd, info.st_size), self._books.page_bytes)
            charges = copy_charges(runs, info.st_size, self._books.page_bytes)
            try:
                await self._books.copy_map(live, charges)
            except OSError:
                self.counts.refused_blocks = total_blocks(charges)
                raise
            gen = live.gen + 1
            new = None
            try:
                new = await self._nvme.create(live.ino, gen)
                result, sums = await self._mover.demote(
                    src_fd=fd,
                    dst_fd=new.fd,
                    dir_fd=new.dir_fd,
                    size_bytes=info.st_size,
                    runs=runs,
                    direct=self._nvme.direct[new.dir_index],
                )
                copy = Copy(
                    ino=live.ino,
                    gen=gen,
                    dir_index=new.dir_index,
                    size=info.st_size,
                    mtime_ns=info.st_mtime_ns if not live.sealed else self._catalog.names.inode(live.ino).mtime_ns,
                    current=live.sealed,
                    runs=runs,
                )
                self._catalog.placements.put_copy(copy, sums)
            except BaseException:
                with trio.CancelScope(shield=True):
                    await self._books.copy_abort(live)
                    if new is not None:
                        await self._nvme.remove_file(new.path)
                raise
            finally:
                if new is not None:
                    new.close()
        finally:
            if fd != live.ddr_fd:
                os.close(fd)
        with trio.CancelScope(shield=True):
            await self._books.copy_commit(live)
            old, live.copy, live.gen = live.copy, copy, gen
            if old is not None:
                await self._nvme.remove(old)
        self.counts.demoted_bytes += result.moved_bytes
        if total_blocks(charges) >= self.counts.refused_blocks:
            self.counts.refused_blocks = 0

    async def demote(self, live: Live) -> None:
        """Move a sealed, unleased object to NVMe; without I/O if its copy there is current.

        Raises
        ------
        OSError
            As `copy_out`; the object stays in DDR.
        """
        assert live.sealed
        assert not live.opens
        if not live.clean:
            await self.copy_out(live)
        copy = live.copy
        assert copy is not None
        with trio.CancelScope(shield=True):
            self._catalog.placements.move(live.ino, Tier.NVME)
            await self._books.to_nvme(live, copy_charges(copy.runs, copy.size, self._books.page_bytes))
            await self._ddr.remove(live.ino)

    async def promote(self, live: Live) -> int:
        """Bring an object to DDR, out of its reservation; return a descriptor of its DDR file.

        Raises
        ------
        DamagedError
            A page failed its checksum or could not be read; nothing was moved. A failed checksum quarantines.
        VanishedError
            The copy's file has vanished; so has the object now.
        OSError
            ENOSPC if the tmpfs is full.
        """
        src_fd = self.open_copy(live)
        try:
            dst_fd = self._ddr.create(live.ino)
            try:
                result = await self._fetch(live, src_fd, dst_fd)
                with trio.CancelScope(shield=True):
                    await self._settle_in_ddr(live)
            except BaseException:
                os.close(dst_fd)
                with trio.CancelScope(shield=True):
                    await self._ddr.remove(live.ino)
                raise
        finally:
            os.close(src_fd)
        self.counts.promoted_bytes += result.moved_bytes
        return dst_fd

    def open_copy(self, live: Live) -> int:
        """Open an object's file on NVMe for reading.

        Raises
        ------
        VanishedError
            It has vanished; so has the object now.
        DamagedError
            It can't be opened: something else is in its place, or the device says no.
        """
        assert live.copy is not None
        try:
            return self._nvme.open(live.copy)
        except FileNotFoundError as error:
            self.lose(live, "its file on NVMe has vanished")
            raise VanishedError(f"object {live.ino}: its file on NVMe has vanished") from error
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
                raise
            raise self._unreadable(live, error) from error

    def _unreadable(self, live: Live, error: OSError) -> DamagedError:
        self.note(live, None, f"can't be read: {error.strerror}")
        return DamagedError(f"object {live.ino} can't be read from NVMe: {error}")

    async def _fetch(self, live: Live, src_fd: int, dst_fd: int) -> MoveResult:
        copy = live.copy
        assert copy is not None
        sums = self._catalog.placements.sums(live.ino)
        inode = self._catalog.names.inode(live.ino)
        try:
            result = await self._mover.promote(
                src_fd=src_fd,
                dst_fd=dst_fd,
                size_bytes=copy.size,
                runs=copy.runs,
                sums=sums,
                direct=self._nvme.direct[copy.dir_index],
            )
        except ChecksumError as error:
            self.damage(live, error.page, "checksum differs")
            raise
        except OSError as error:
            if error.errno == errno.ENOSPC:
                raise
            raise self._unreadable(live, error) from error
        os.utime(dst_fd, ns=(inode.atime_ns, inode.mtime_ns))
        return result

    async def _settle_in_ddr(self, live: Live) -> None:
        copy = live.copy
        assert copy is not None
        await self._books.to_ddr(live)
        try:
            self._catalog.placements.move(live.ino, Tier.DDR)
        except OSError:
            await self._books.to_nvme(live, copy_charges(copy.runs, copy.size, self._books.page_bytes))
            raise

    async def forget_copy(self, live: Live) -> None:
        """Remove an object's copy: its bytes are about to be given up (truncation)."""
        if live.copy is not None:
            copy, live.copy = live.copy, None
            await self._nvme.remove(copy)

    # -- damage --------------------------------------------------------------------------------------------------

    def damage(self, live: Live, page: int | None, what: str) -> None:
        """Quarantine an object: it answers EIO until its bytes are replaced."""
        live.damaged = True
        path = self._path(live)
        log.error("object quarantined", path=path, ino=live.ino, page=page, what=what)
        self._record(lambda: self._catalog.placements.damage(live.ino, path, page, what))

    def note(self, live: Live, page: int | None, what: str) -> None:
        """Record a failure that is not proof of damage."""
        path = self._path(live)
        log.error("object can't be read", path=path, ino=live.ino, page=page, what=what)
        self._record(lambda: self._catalog.placements.note_fault(live.ino, path, page, what))

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
