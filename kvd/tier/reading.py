"""Reading a copy's files to verify it."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from kvd.format.ranges import without as ranges_without
from kvd.tier.mover import SUM_BYTES, ChecksumError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator

    from kvd.catalog.records import Copy
    from kvd.tier.copyfiles import CopyFiles
    from kvd.tier.mover import Mover
    from kvd.tier.nvme import NvmeStore

Runs = tuple[tuple[int, int], ...]


class Reading:
    """The open files of a copy."""

    def __init__(self, copy: Copy, files: CopyFiles) -> None:
        self.copy = copy
        self._files = files

    @classmethod
    async def open(cls, nvme: NvmeStore, copy: Copy) -> Reading:
        """Open them; OSError as `NvmeStore.open`."""
        return cls(copy, await nvme.open(copy))

    def __repr__(self) -> str:
        return f"<Reading of {self._files!r}>"

    async def verify(self, mover: Mover, runs: Runs, sums: bytes) -> None:
        """Read pages and check them; see `Mover` for the errors."""
        await mover.verify(
            parts=self._files.parts,
            stripe_bytes=self._files.stripe_bytes,
            size_bytes=self.copy.size,
            runs=runs,
            sums=sums,
        )

    async def bad_pages(self, mover: Mover, runs: Runs, sums: bytes, count_max: int) -> list[int]:
        """Read pages; return the numbers of those whose checksum differs, of `count_max` at most.

        Raises
        ------
        OSError
            What the device said.
        """
        bad: list[int] = []
        while runs and len(bad) < count_max:
            try:
                await self.verify(mover, runs, sums)
            except ChecksumError as error:
                bad.append(error.page)
                runs, sums = without(runs, sums, error.page)
            else:
                break
        return bad

    def close(self) -> None:
        """Close them."""
        self._files.close()


@asynccontextmanager
async def reading(nvme: NvmeStore, copy: Copy) -> AsyncGenerator[Reading, None]:
    """Have the files of a copy open."""
    opened = await Reading.open(nvme, copy)
    try:
        yield opened
    finally:
        opened.close()


def place(nvme: NvmeStore, copy: Copy, page: int | None, page_bytes: int) -> str:
    """Return where a page of a copy is, for people: the file and the offset in it; without a page the first file."""
    return str(nvme.file(copy.dir_index, copy.ino, copy.gen)) if page is None else nvme.place(copy, page * page_bytes)


def pieces(runs: Runs, sums: bytes, pages_max: int) -> Iterator[tuple[Runs, bytes]]:
    """Cut runs and their sums into pieces of `pages_max` pages, the last one of what is left."""
    piece: list[tuple[int, int]] = []
    pages, at = 0, 0
    for first, count in runs:
        done = 0
        while done < count:
            part = min(count - done, pages_max - pages)
            piece.append((first + done, part))
            done, pages = done + part, pages + part
            if pages == pages_max:
                yield tuple(piece), sums[at : at + SUM_BYTES * pages]
                piece, pages, at = [], 0, at + SUM_BYTES * pages
    if piece:
        yield tuple(piece), sums[at:]


def without(runs: Runs, sums: bytes, page: int) -> tuple[Runs, bytes]:
    """Return runs and their sums without one page of theirs."""
    left: list[tuple[int, int]] = []
    at = 0
    for first, count in runs:
        if first <= page < first + count:
            cut = SUM_BYTES * (at + page - first)
            sums = sums[:cut] + sums[cut + SUM_BYTES :]
            around = ((first, page - first), (page + 1, first + count - page - 1))
            left += [(start, length) for start, length in around if length]
        else:
            left.append((first, count))
        at += count
    return tuple(left), sums


def outside(runs: Runs, sums: bytes, pages: Runs) -> tuple[Runs, bytes]:
    """Return runs and their sums without some pages of theirs, given as ``(first, after the last)``."""
    left: list[tuple[int, int]] = []
    kept: list[bytes] = []
    at = 0
    for first, count in runs:
        for start, end in ranges_without(((first, first + count),), pages):
            left.append((start, end - start))
            kept.append(sums[SUM_BYTES * (at + start - first) : SUM_BYTES * (at + end - first)])
        at += count
    return tuple(left), b"".join(kept)
