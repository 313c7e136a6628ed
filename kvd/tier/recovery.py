"""What a start finds: catalogue, DDR files and NVMe files are brought together, and the engine's tables made from them.

The catalogue decides. A DDR file counts if its object was sealed there and the file has the object's length; otherwise
the copy on NVMe counts, with its own length and time; without one the name goes. Files that no row knows are removed.
"""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import structlog

from kvd.tier.extents import copy_charges, data_extents, ddr_charges, total_blocks
from kvd.tier.live import COPY_SLOTS, LIVE_SLOT
from kvdriver import Tier

if TYPE_CHECKING:
    from kvd.catalog.catalog import Catalog
    from kvd.catalog.records import Copy, Placement
    from kvd.tier.books import Books
    from kvd.tier.ddr import DdrStore
    from kvd.tier.nvme import NvmeStore

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class Recovered:
    """What a start found and did, in objects.

    Attributes
    ----------
    reverted
        Had a writer, or were only in a DDR that is gone; they are their last copy again.
    dropped
        The same without a copy; their names are gone.
    damaged
        Their file on NVMe has the wrong length; they answer EIO.
    swept
        Files without a row, removed.
    sessions
        Engine session of each object.
    resident
        Blocks in DDR of each object that is there.
    """

    in_ddr: int = 0
    on_nvme: int = 0
    reverted: int = 0
    dropped: int = 0
    damaged: int = 0
    swept: int = 0
    sessions: dict[int, int] = field(default_factory=dict)
    resident: dict[int, int] = field(default_factory=dict)


class Recovery:
    """One start's work; `run` once, before the mount."""

    def __init__(self, catalog: Catalog, books: Books, ddr: DdrStore, nvme: NvmeStore) -> None:
        self._catalog = catalog
        self._books = books
        self._ddr = ddr
        self._nvme = nvme
        self._found = Recovered()
        self._dropped_copies: set[int] = set()
        self._files: dict[tuple[int, int, int], int] = {}

    async def run(self) -> Recovered:
        """Bring everything together."""
        for ino in self._catalog.names.orphans():
            self._catalog.names.remove(ino)
        self._files = {(dir_index, ino, gen): size for dir_index, ino, gen, size in self._nvme.files()}
        copies = {copy.ino: copy for copy in self._catalog.placements.copies()}
        with self._catalog.db.transaction():
            for placement in self._catalog.placements.all():
                await self._object(placement, copies.get(placement.ino))
        await self._sweep(copies)
        found = self._found
        log.info(
            "recovered",
            in_ddr=found.in_ddr,
            on_nvme=found.on_nvme,
            reverted=found.reverted,
            dropped=found.dropped,
            damaged=found.damaged,
            swept=found.swept,
        )
        return found

    async def _object(self, placement: Placement, copy: Copy | None) -> None:
        ino = placement.ino
        if placement.tier == Tier.DDR and placement.sealed:
            fd = self._open_whole(ino)
            if fd >= 0:
                try:
                    await self._adopt_ddr(ino, fd, copy)
                finally:
                    os.close(fd)
                return
        if copy is None:
            self._drop(ino)
        elif placement.tier == Tier.NVME and placement.sealed:
            await self._adopt_nvme(placement, copy)
        else:
            self._found.reverted += not copy.current
            fall_back(self._catalog, copy)
            await self._adopt_nvme(placement, copy)

    def _open_whole(self, ino: int) -> int:
        """Open an object's DDR file if it is there with the object's length; else -1."""
        try:
            fd = self._ddr.open(ino)
        except FileNotFoundError:
            return -1
        if os.fstat(fd).st_size == self._catalog.names.inode(ino).size:
            return fd
        os.close(fd)
        return -1

    async def _adopt_ddr(self, ino: int, fd: int, copy: Copy | None) -> None:
        page_bytes = self._books.page_bytes
        session = self._found.sessions[ino] = await self._books.session(ino)
        size = os.fstat(fd).st_size
        held = ddr_charges(data_extents(fd, size), page_bytes)
        await self._books.adopt(session, LIVE_SLOT, Tier.DDR, held)
        if copy is not None:
            if self._size_of(copy) == copy.size:
                charges = copy_charges(copy.runs, copy.size, page_bytes)
                await self._books.adopt(session, COPY_SLOTS[0], Tier.NVME, charges)
            else:
                log.info("copy on NVMe is gone or has the wrong length, forgotten", ino=ino)
                self._catalog.placements.drop_copy(ino)
                self._dropped_copies.add(ino)
        self._found.in_ddr += 1
        self._found.resident[ino] = total_blocks(held)

    async def _adopt_nvme(self, placement: Placement, copy: Copy) -> None:
        size = self._size_of(copy)
        if size is None:
            self._note(copy.ino, "its file on NVMe has vanished")
            self._drop(copy.ino)
            return
        if size != copy.size and not placement.damaged:
            path = self._catalog.names.path(copy.ino) or b""
            what = f"its file on NVMe has {size} bytes instead of {copy.size}"
            self._catalog.placements.damage(copy.ino, path, None, what)
            log.error("object quarantined", path=path, ino=copy.ino, what=what)
            self._found.damaged += 1
        session = self._found.sessions[copy.ino] = await self._books.session(copy.ino)
        charges = copy_charges(copy.runs, copy.size, self._books.page_bytes)
        await self._books.adopt(session, LIVE_SLOT, Tier.NVME, charges)
        self._found.on_nvme += 1

    def _size_of(self, copy: Copy) -> int | None:
        return self._files.get((copy.dir_index, copy.ino, copy.gen))

    def _note(self, ino: int, what: str) -> None:
        path = self._catalog.names.path(ino) or b""
        self._catalog.placements.note_fault(ino, path, None, what)
        log.error("object lost", path=path, ino=ino, what=what)

    def _drop(self, ino: int) -> None:
        self._found.dropped += 1
        self._catalog.names.vanish(ino, time.time_ns())

    async def _sweep(self, copies: dict[int, Copy]) -> None:
        """Remove files that belong to nothing that was found."""
        sessions = self._found.sessions
        known = {
            (copy.dir_index, copy.ino, copy.gen)
            for copy in copies.values()
            if copy.ino in sessions and copy.ino not in self._dropped_copies
        }
        resident = self._found.resident
        for dir_index, ino, gen in self._files.keys() - known:
            self._nvme.file(dir_index, ino, gen).unlink(missing_ok=True)
            self._found.swept += 1
        for ino in [ino for ino in self._ddr.inos() if ino not in resident]:
            with contextlib.suppress(FileNotFoundError):
                self._ddr.file(ino).unlink()
            self._found.swept += 1


def fall_back(catalog: Catalog, copy: Copy) -> None:
    """Make an object its copy: with the copy's own length and time, if those are not the object's any more."""
    with catalog.db.transaction():
        if not copy.current:
            catalog.names.setattr(copy.ino, size=copy.size, mtime_ns=copy.mtime_ns)
        catalog.placements.revert(copy.ino, Tier.NVME)
