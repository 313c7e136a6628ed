"""What a start must know before it serves: which objects are in DDR, and what those are that are not where they should be.

The catalogue decides. A DDR file counts if its object was sealed there and the file has the object's length; otherwise
the copy on NVMe counts, with its own length and time; without one the name goes. DDR files that no row knows are removed.

What is on NVMe by the catalogue is taken at its word until `kvd.tier.index` has looked at it, while the daemon serves. So a
start takes as long as what is in DDR asks, whatever is on NVMe.
"""

from __future__ import annotations

import contextlib
import os
import time
from typing import TYPE_CHECKING, NamedTuple

import structlog

from kvd.catalog.cold import Cold
from kvd.tier.extents import charged, data_extents, ddr_charges
from kvd.tier.found import Found, Recovered, Resident
from kvd.tier.listing import lengths_of
from kvdriver import Tier

if TYPE_CHECKING:
    from kvd.catalog.catalog import Catalog
    from kvd.catalog.records import Copy, Placement
    from kvd.tier.books import Books
    from kvd.tier.ddr import DdrStore
    from kvd.tier.nvme import NvmeStore
    from kvdriver.bulk import Charge

log = structlog.get_logger(__name__)

BATCH = 256
"""Objects that are adopted, or whose copies are looked at, at once."""


class _InDdr(NamedTuple):
    placement: Placement
    size: int
    charges: list[Charge]
    copy: Copy | None


class Recovery:
    """One start's work; `run` once, before the mount."""

    def __init__(self, catalog: Catalog, books: Books, ddr: DdrStore, nvme: NvmeStore) -> None:
        self._catalog = catalog
        self._cold = Cold(catalog.db, tier=Tier.NVME)
        self._books = books
        self._ddr = ddr
        self._nvme = nvme
        self._found = Recovered()
        self._copy_blocks = 0  # of those in DDR

    async def run(self) -> Recovered:
        """Bring together what must be before anybody is served."""
        with self._catalog.db.transaction():
            for ino in self._catalog.names.orphans():
                self._catalog.names.remove(ino)
        unsettled = self._cold.unsettled()
        for at in range(0, len(unsettled), BATCH):
            await self._adopt(self._settle(unsettled[at : at + BATCH]))
        self._sweep_ddr()
        found = self._found
        totals = self._cold.totals()
        found.cold = totals.objects - len(found.resident)
        self._books.unadopted_blocks = totals.copy_blocks - self._copy_blocks
        log.info(
            "recovered",
            in_ddr=found.in_ddr,
            cold=found.cold,
            reverted=found.reverted,
            dropped=found.dropped,
            swept=found.swept,
        )
        return found

    def _settle(self, placed: list[tuple[Placement, int]]) -> list[_InDdr]:
        """Return those that are whole in DDR; make the others their copies, in one transaction."""
        copies = {copy.ino: copy for copy in self._cold.copies([placement.ino for placement, _ in placed])}
        whole: list[_InDdr] = []
        with self._catalog.db.transaction():
            for placement, size in placed:
                copy = copies.get(placement.ino)
                charges = self._held(placement, size)
                if charges is not None:
                    whole.append(_InDdr(placement, size, charges, copy))
                elif copy is not None:
                    self._found.reverted += not copy.current
                    fall_back(self._catalog, copy)
                else:
                    self._found.dropped += 1
                    self._catalog.names.vanish(placement.ino, time.time_ns())
        return whole

    def _held(self, placement: Placement, size: int) -> list[Charge] | None:
        """Return what a sealed object's DDR file holds, if it is there with the object's length."""
        if placement.tier != Tier.DDR or not placement.sealed:
            return None
        try:
            fd = self._ddr.open(placement.ino)
        except FileNotFoundError:
            return None
        try:
            if os.fstat(fd).st_size != size:
                return None
            charges = ddr_charges(data_extents(fd, size), self._books.page_bytes)
        finally:
            os.close(fd)
        return [(charge.first_page, charge.count, charge.blocks) for charge in charges]

    async def _adopt(self, whole: list[_InDdr]) -> None:
        """Take objects over that are in DDR, with those of their copies that are what the catalogue says."""
        if not whole:
            return
        copies = [each.copy for each in whole if each.copy is not None]
        lengths = dict(
            zip([copy.ino for copy in copies], await lengths_of(self._nvme.directories, copies), strict=True)
        )
        founds: list[Found] = []
        for number, each in enumerate(whole):
            copy = each.copy
            if copy is not None and lengths[copy.ino] != copy.size:
                log.info("copy on NVMe is gone or has the wrong length, forgotten", ino=copy.ino)
                self._catalog.placements.drop_copy(copy.ino)
                copy = None
            whole[number] = each._replace(copy=copy)
            second = [] if copy is None else charged(copy.runs, copy.size, self._books.page_bytes)
            self._copy_blocks += _blocks(second)
            founds.append(Found(each.placement.ino, Tier.DDR, each.charges, second))
        sessions = await self._books.adopt(founds)
        for each, session in zip(whole, sessions, strict=True):
            blocks = _blocks(each.charges)
            self._found.resident.append(Resident(each.placement, each.size, each.copy, session, blocks))
        self._found.in_ddr += len(whole)

    def _sweep_ddr(self) -> None:
        known = {resident.placement.ino for resident in self._found.resident}
        for ino in [ino for ino in self._ddr.inos() if ino not in known]:
            with contextlib.suppress(FileNotFoundError):
                self._ddr.file(ino).unlink()
            self._found.swept += 1


def _blocks(charges: list[Charge]) -> int:
    return sum([count * blocks for _, count, blocks in charges])


def fall_back(catalog: Catalog, copy: Copy) -> None:
    """Make an object its copy: with the copy's own length and time, if those are not the object's any more."""
    with catalog.db.transaction():
        if not copy.current:
            catalog.names.setattr(copy.ino, size=copy.object_bytes, mtime_ns=copy.mtime_ns)
        catalog.placements.revert(copy.ino, Tier.NVME)
        catalog.given.fall_back(copy.ino)
