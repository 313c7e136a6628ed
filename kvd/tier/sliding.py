"""Giving back pages of an object that its session's window has left behind, in both tiers, while it is open.

First the catalogue knows of it, then the pages go, in DDR as on NVMe: after a crash in between they are there and told as given
back. What is in the window is never touched. On NVMe the row without the pages is durable, and so is the description, before the
file is punched, so that nobody ever looks for a checksum there.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import structlog
import trio

from kvd.format.ranges import Ranges, both, joined, total, whole, without
from kvd.tier.extents import copy_charges, data_extents, ddr_charges, held_blocks
from kvd.tier.heads import Seen
from kvd.tier.reading import outside
from kvd.tier.storage import punch
from kvdriver import Tier

if TYPE_CHECKING:
    from pathlib import Path

    from kvd.catalog.catalog import Catalog
    from kvd.catalog.records import Copy
    from kvd.tier.books import Books
    from kvd.tier.ddr import DdrStore
    from kvd.tier.describer import Describer
    from kvd.tier.heads import Heads
    from kvd.tier.live import Live
    from kvd.tier.nvme import NvmeStore
    from kvd.tier.room import Room
    from kvd.tier.writing import Writing

log = structlog.get_logger(__name__)

PUNCH_BYTES_MAX = 64 << 20
"""Of DDR that is freed at one time, on the loop: some milliseconds."""

Slid = Callable[[Seen], Ranges]
"""Says which bytes of an object have slid out: of whole pages, none that is needed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenBack:
    """What came of it: bytes by tier; `again`: some could not be given back now."""

    ddr_bytes: int = 0
    nvme_bytes: int = 0
    again: bool = False


NOT_NOW = GivenBack(again=True)
NOTHING = GivenBack()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cut:
    """A copy without some pages, the checksums of those that are left, and the bytes of those that are not."""

    copy: Copy
    sums: bytes
    given_bytes: int


class Sliding:
    """Gives back."""

    def __init__(
        self,
        catalog: Catalog,
        books: Books,
        ddr: DdrStore,
        nvme: NvmeStore,
        describer: Describer,
        writing: Writing,
        room: Room,
        heads: Heads,
    ) -> None:
        self._catalog = catalog
        self._books = books
        self._ddr = ddr
        self._nvme = nvme
        self._describer = describer
        self._writing = writing
        self._room = room
        self._heads = heads
        self._lives = heads.lives

    def __repr__(self) -> str:
        return f"<Sliding of {self._lives!r}>"

    async def give_back(self, ino: int, slid: Slid) -> GivenBack:
        """Give back what has slid out of an object, whole pages, in each tier that holds them; 64 MiB at most in DDR.

        A cold object that is being read, or whose drive does not answer, keeps them for now; one that is stored in a format until
        it is stored anew.

        Parameters
        ----------
        ino
            The object.
        slid
            Asked when nothing can change any more before they go.

        Raises
        ------
        VanishedError, DamagedError
            There is no such object, or its beginning can't be read.
        OSError
            What the catalogue or a file system said; what is left is given back by a next call.
        """
        async with self._lives.hold(ino) as live:
            found = await self.give_back_held(live, slid)
        if found.ddr_bytes or found.nvme_bytes:
            self._room.gave_back()
        return found

    async def give_back_held(self, live: Live, slid: Slid) -> GivenBack:
        """As `give_back`; the caller holds the object's lock."""
        if live.damaged:
            return NOTHING
        if live.tier is Tier.DDR:
            return await self._in_ddr(live, slid)
        if live.copy is None or live.copy.form is not None:
            return NOTHING
        if live.attached or live.streaming is not None or not self._nvme.usable(live.copy):
            return NOT_NOW
        return await self._on_nvme(live, slid)

    # -- DDR -----------------------------------------------------------------------------------------------------

    async def _in_ddr(self, live: Live, slid: Slid) -> GivenBack:
        """Give back; from the look at the file's length to the holes nothing awaits, so no truncation comes in between."""
        if not live.sealed and live.ddr_fd < 0:
            return NOT_NOW  # it could not be sealed yet
        with self._heads.opened(live) as fd:
            ranges = slid(self._heads.see_file(live, fd))
            there = _held(fd, ranges)
        if not there and not (live.clean and self._cut(live, ranges)):
            return await self._clear(live, ranges)
        if live.sealed:
            await self._room.sharing.take_back(live)
        with self._heads.opened(live) as fd, trio.CancelScope(shield=True):
            ranges, more = _first_of(slid(self._heads.see_file(live, fd)), fd)
            there = _held(fd, ranges)
            cut = self._cut(live, ranges) if live.clean else None
            if (not there and cut is None) or not self._note(live, ranges, cut):
                return NOTHING
            if there:
                await self._punch(live, fd, ranges)
            left = _held(fd, ranges)
            if cut is not None:
                await self._punch_copy(live, ranges)
        nvme_bytes = cut.given_bytes if cut is not None else 0
        return GivenBack(ddr_bytes=total(without(there, left)), nvme_bytes=nvme_bytes, again=more or bool(left))

    async def _punch(self, live: Live, fd: int, ranges: Ranges) -> None:
        """Free pages of a DDR file, and charge what is left."""
        info = os.fstat(fd)
        spare_blocks = 0 if live.sealed else live.mapped_blocks + live.reserved_blocks - held_blocks(fd)
        _punch_all(fd, ranges)
        if not live.sealed:
            await self._writing.punched(live, max(0, spare_blocks))
            return
        await self._books.settle(live, self._ddr.settle(fd, self._books.page_bytes))
        os.utime(fd, ns=(info.st_atime_ns, info.st_mtime_ns))

    # -- NVMe ----------------------------------------------------------------------------------------------------

    async def _on_nvme(self, live: Live, slid: Slid) -> GivenBack:
        seen = await self._heads.see_copy(live)
        ranges = slid(seen) if seen is not None else ()
        cut = self._cut(live, ranges)
        if cut is None:
            return await self._clear(live, ranges)
        with trio.CancelScope(shield=True):
            if not self._note(live, ranges, cut):
                return NOTHING
            await self._punch_copy(live, ranges)
        return GivenBack(nvme_bytes=cut.given_bytes)

    def _cut(self, live: Live, ranges: Ranges) -> _Cut | None:
        """Return a copy without the pages in some ranges; None where it has none of them or can't be changed now."""
        copy = live.copy
        if copy is None or copy.form is not None or not ranges or not self._nvme.usable(copy):
            return None
        page_bytes = self._books.page_bytes
        pages = tuple((start // page_bytes, end // page_bytes) for start, end in whole(ranges, page_bytes))
        runs, sums = outside(copy.runs, self._catalog.placements.sums(live.ino), pages)
        left = replace(copy, runs=runs)
        if left.pages == copy.pages:
            return None
        return _Cut(copy=left, sums=sums, given_bytes=(copy.pages - left.pages) * page_bytes)

    def _note(self, live: Live, ranges: Ranges, cut: _Cut | None) -> bool:
        """Have the catalogue know what is about to be given back; False if it is in too many pieces."""
        with self._catalog.db.transaction():
            if not self._catalog.given.add(live.ino, ranges, copied=cut is not None):
                log.info("window keeps what slid out: too many pieces", ino=live.ino)
                return False
            if cut is not None:
                self._catalog.placements.shrink_copy(cut.copy, cut.sums)
        if cut is not None:
            live.copy = cut.copy
        return True

    async def _punch_copy(self, live: Live, ranges: Ranges) -> None:
        """Free pages of a copy whose row does not have them any more, in the books and on the drives."""
        copy = live.copy
        assert copy is not None
        await self._charge_copy(live, copy)
        await self._catalog.db.sync()
        failed = self._describer.counts.failed
        await self._describer.mend([copy])
        if self._describer.counts.failed == failed:  # or the next look frees them
            await self._free(copy, ranges)

    async def _clear(self, live: Live, ranges: Ranges) -> GivenBack:
        """Free what a crash has left in a copy's files of pages that its row does not have; nothing is given back by that."""
        copy = live.copy
        if ranges and copy is not None and copy.current and copy.form is None and self._nvme.usable(copy):
            await self._free(copy, both(ranges, self._catalog.given.of(live.ino)))
        return NOTHING

    async def _free(self, copy: Copy, ranges: Ranges) -> None:
        for index in copy.dirs:  # of a striped copy each part has holes where the others have stripes
            punching = partial(_punch_file, self._nvme.file(index, copy.ino, copy.gen), ranges)
            await self._nvme.directories[index].run(punching, doing="give back pages", write=True)

    async def _charge_copy(self, live: Live, copy: Copy) -> None:
        charges = copy_charges(copy.runs, copy.size, self._books.page_bytes)
        if live.tier is Tier.NVME:
            await self._books.remake(live, charges, ())
        else:
            with self._heads.opened(live) as fd:
                present = ddr_charges(data_extents(fd, os.fstat(fd).st_size), self._books.page_bytes)
            await self._books.remake(live, present, charges)
        self._lives.sessions[live.ino] = live.session


def _first_of(ranges: Ranges, fd: int) -> tuple[Ranges, bool]:
    """Return the first of some ranges, up to where a file has so much data in them as goes at one time; whether there are more."""
    left_bytes = PUNCH_BYTES_MAX
    for start, end in _held(fd, ranges):
        if end - start > left_bytes:
            return both(ranges, ((0, start + left_bytes),)), True
        left_bytes -= end - start
    return ranges, False


def _held(fd: int, ranges: Ranges) -> Ranges:
    """Return what of some ranges a file has data in."""
    return both(joined(data_extents(fd, os.fstat(fd).st_size)), ranges)


def _punch_all(fd: int, ranges: Ranges) -> None:
    for start, end in ranges:
        punch(fd, start, end - start)


def _punch_file(path: Path, ranges: Ranges) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        if _held(fd, ranges):
            _punch_all(fd, ranges)
    finally:
        os.close(fd)
