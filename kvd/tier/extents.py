"""From the holes of a file to pages and blocks."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

from kvdriver import BLOCK_BYTES, MapRun

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvdriver.bulk import Charge


STAT_BLOCK_BYTES = 512
"""The unit of `st_blocks`, whatever the file system."""


def held_bytes(info: os.stat_result) -> int:
    """Return the storage that a file holds, data or not."""
    return info.st_blocks * STAT_BLOCK_BYTES


def held_blocks(fd: int) -> int:
    """Return the same in 4 KiB blocks."""
    return held_bytes(os.fstat(fd)) // BLOCK_BYTES


def data_extents(fd: int, size: int) -> list[tuple[int, int]]:
    """Return ``(start, end)`` byte ranges of a file that hold data, up to `size`, as SEEK_DATA and SEEK_HOLE tell."""
    extents: list[tuple[int, int]] = []
    at = 0
    while at < size:
        try:
            start = os.lseek(fd, at, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                break
            raise
        if start >= size:
            break
        at = min(os.lseek(fd, start, os.SEEK_HOLE), size)
        extents.append((start, at))
    return extents


def page_runs(extents: list[tuple[int, int]], page_bytes: int) -> tuple[tuple[int, int], ...]:
    """Return ``(first page, count)`` runs of the pages that extents touch."""
    runs: list[tuple[int, int]] = []
    for start, end in extents:
        first, beyond = start // page_bytes, -(-end // page_bytes)
        if runs and first <= sum(runs[-1]):
            first = runs[-1][0]
            runs.pop()
        runs.append((first, beyond - first))
    return tuple(runs)


def ddr_charges(extents: list[tuple[int, int]], page_bytes: int) -> tuple[MapRun, ...]:
    """Return the charge of each page for what tmpfs holds of it: its 4 KiB blocks with data."""
    charges: list[list[int]] = []  # first page, count, blocks a page

    def charge(page: int, count: int, blocks: int) -> None:
        last = charges[-1] if charges else None
        if last and last[0] + last[1] - 1 == page:  # the page where the extent before ended
            if last[1] == 1:
                last[2] += blocks
            else:
                last[1] -= 1
                charges.append([page, 1, last[2] + blocks])
            return
        if last and last[0] + last[1] == page and last[2] == blocks:
            last[1] += count
            return
        charges.append([page, count, blocks])

    page_blocks = page_bytes // BLOCK_BYTES
    for start, end in extents:
        at, beyond = start // BLOCK_BYTES, -(-end // BLOCK_BYTES)
        while at < beyond:
            page, within = divmod(at, page_blocks)
            if within == 0 and beyond - at >= page_blocks:
                count = (beyond - at) // page_blocks
                charge(page, count, page_blocks)
                at += count * page_blocks
            else:
                blocks = min(page_blocks - within, beyond - at)
                charge(page, 1, blocks)
                at += blocks
    return tuple(MapRun(first_page=first, count=count, blocks=blocks) for first, count, blocks in charges)


def copy_charges(runs: tuple[tuple[int, int], ...], size: int, page_bytes: int) -> tuple[MapRun, ...]:
    """Return the charge of a copy on NVMe: whole pages, the object's last page as far as it goes."""
    return tuple(
        MapRun(first_page=first, count=count, blocks=blocks) for first, count, blocks in charged(runs, size, page_bytes)
    )


def charged(runs: Iterable[tuple[int, int]], size: int, page_bytes: int) -> list[Charge]:
    """Return what `copy_charges` does, as `kvdriver.Maps` takes it."""
    page_blocks = page_bytes // BLOCK_BYTES
    last_page, tail_bytes = divmod(size, page_bytes)
    charges: list[Charge] = []
    for first, count in runs:
        short = tail_bytes > 0 and first + count == last_page + 1
        if count - short:
            charges.append((first, count - short, page_blocks))
        if short:
            charges.append((last_page, 1, -(-tail_bytes // BLOCK_BYTES)))
    return charges


def total_blocks(charges: tuple[MapRun, ...]) -> int:
    """Return what charges come to, in blocks."""
    return sum(charge.count * charge.blocks for charge in charges)
