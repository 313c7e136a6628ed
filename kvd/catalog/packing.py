"""How the catalogue's binary columns are packed: little-endian numbers, and what follows from them."""

from __future__ import annotations

import array
import itertools
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

BLOCK_BYTES = 4096
"""The unit that copies are charged in."""


def _little(numbers: array.array[int]) -> array.array[int]:
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers


def pack_runs(runs: Iterable[tuple[int, int]]) -> bytes:
    """Pack ``(first page, count)`` pairs as u64."""
    return _little(array.array("Q", itertools.chain.from_iterable(runs))).tobytes()


def unpack_runs(packed: bytes) -> tuple[tuple[int, int], ...]:
    """Undo `pack_runs`."""
    flat = _little(array.array("Q", packed))
    return tuple(zip(flat[::2], flat[1::2], strict=True))


def pack_dirs(dirs: Iterable[int]) -> bytes:
    """Pack directory numbers as u16."""
    return _little(array.array("H", dirs)).tobytes()


def unpack_dirs(packed: bytes) -> tuple[int, ...]:
    """Undo `pack_dirs`."""
    return tuple(_little(array.array("H", packed)))


def copy_blocks(size: int, runs: Iterable[tuple[int, int]], page_bytes: int) -> int:
    """Return the 4 KiB blocks of a copy's pages: whole pages, but the last one of the object only up to its end."""
    total = 0
    for first, count in runs:
        end = min((first + count) * page_bytes, size)
        total += max(0, -(-(end - first * page_bytes) // BLOCK_BYTES))
    return total


def part_of(offset: int, stripe_bytes: int, parts: int) -> int:
    """Return which of a copy's `parts` has the byte at `offset`; `stripe_bytes` is 0 where there is one."""
    return offset // stripe_bytes % parts if stripe_bytes else 0
