"""What objects say of themselves: their length, and the header at their beginning, wherever they are."""

from __future__ import annotations

import os
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvd.format.plan import HEAD_FIRST_BYTES, head_bytes
from kvd.tier.extents import data_extents
from kvd.tier.reading import outside
from kvdriver import Tier

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvd.catalog.catalog import Catalog
    from kvd.catalog.records import Copy
    from kvd.tier.ddr import DdrStore
    from kvd.tier.live import Live
    from kvd.tier.lives import Lives
    from kvd.tier.mover import Mover
    from kvd.tier.nvme import NvmeStore


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """An object.

    Attributes
    ----------
    size
        Its length in bytes; while it has a writer, up to where its last data end.
    head
        Its header, or the first bytes of one that has none.
    """

    ino: int
    sealed: bool
    size: int
    head: bytes


class Heads:
    """Reads them; `lives` finds the objects."""

    def __init__(
        self, lives: Lives, catalog: Catalog, ddr: DdrStore, nvme: NvmeStore, mover: Mover, *, page_bytes: int
    ) -> None:
        self.lives = lives
        self._catalog = catalog
        self._ddr = ddr
        self._nvme = nvme
        self._mover = mover
        self._page_bytes = page_bytes

    def __repr__(self) -> str:
        return f"<Heads of {self.lives!r}>"

    async def see(self, ino: int) -> Seen | None:
        """Look at an object; None if it is stored in a format, or quarantined.

        Raises
        ------
        VanishedError, DamagedError, OSError
            There is no such object, or it can't be read.
        """
        async with self.lives.hold(ino) as live:
            if live.damaged:
                return None
            if live.tier is Tier.DDR:
                with self.opened(live) as fd:
                    return self.see_file(live, fd)
            return await self.see_copy(live)

    @contextmanager
    def opened(self, live: Live) -> Iterator[int]:
        """Have the file of an object open that is in DDR; the caller holds its lock."""
        if live.ddr_fd >= 0:
            yield live.ddr_fd
            return
        fd = self._ddr.open(live.ino)
        try:
            yield fd
        finally:
            os.close(fd)

    @staticmethod
    def see_file(live: Live, fd: int) -> Seen:
        """Look at an object's file in DDR; without an await."""
        size = os.fstat(fd).st_size
        head = os.pread(fd, head_bytes(os.pread(fd, HEAD_FIRST_BYTES, 0), size), 0)
        if not live.sealed:
            size = max((end for _, end in data_extents(fd, size)), default=0)
        return Seen(ino=live.ino, sealed=live.sealed, size=size, head=head)

    async def see_copy(self, live: Live) -> Seen | None:
        """Look at a cold object, whose lock the caller holds; its pages are verified. None if it is stored in a format."""
        copy = live.copy
        if copy is None or copy.form is not None:
            return None
        fd = os.memfd_create("kvd-head")
        try:
            first = await self._bring(copy, fd, HEAD_FIRST_BYTES)
            head = await self._bring(copy, fd, head_bytes(first, copy.size))
        finally:
            os.close(fd)
        return Seen(ino=live.ino, sealed=live.sealed, size=copy.size, head=head)

    async def _bring(self, copy: Copy, fd: int, length: int) -> bytes:
        """Return the first bytes of a copy."""
        page_bytes = self._page_bytes
        after = -(-length // page_bytes), -(-copy.size // page_bytes)
        runs, sums = outside(
            copy.runs, self._catalog.placements.sums(copy.ino), (after,) if after[0] < after[1] else ()
        )
        files = await self._nvme.open(copy)
        try:
            with self._nvme.using(copy.dirs):
                await self._mover.promote(
                    parts=files.parts,
                    stripe_bytes=files.stripe_bytes,
                    ddr_fd=fd,
                    size_bytes=copy.size,
                    runs=runs,
                    sums=sums,
                    ahead=True,
                    stream_address=0,
                )
        finally:
            files.close()
        return os.pread(fd, length, 0)
