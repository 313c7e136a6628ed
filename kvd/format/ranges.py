"""Sets of numbers as half-open ranges: bytes of a file, tokens of a session. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

Ranges = tuple[tuple[int, int], ...]
"""``(start, end)`` in order; none is empty, and none begins where, or before, the one before it ends."""


def joined(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """Return the numbers that are in any of some ranges, which may be in any order, overlap and be empty."""
    found: list[tuple[int, int]] = []
    for start, end in sorted(ranges):
        if end <= start:
            continue
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((start, end))
    return tuple(found)


def both(one: Ranges, other: Ranges) -> Ranges:
    """Return the numbers that are in both."""
    found: list[tuple[int, int]] = []
    at, there = 0, 0
    while at < len(one) and there < len(other):
        start, end = max(one[at][0], other[there][0]), min(one[at][1], other[there][1])
        if start < end:
            found.append((start, end))
        if one[at][1] < other[there][1]:
            at += 1
        else:
            there += 1
    return tuple(found)


def without(one: Ranges, other: Ranges) -> Ranges:
    """Return the numbers of `one` that are not in `other`."""
    end = max((ranges[-1][1] for ranges in (one, other) if ranges), default=0)
    starts = [0, *(stop for _, stop in other)]
    stops = [*(start for start, _ in other), end]
    return both(one, tuple((start, stop) for start, stop in zip(starts, stops, strict=True) if start < stop))


def total(ranges: Ranges) -> int:
    """Return how many numbers there are."""
    return sum(end - start for start, end in ranges)


def whole(ranges: Ranges, unit: int) -> Ranges:
    """Return the whole units, from multiples of `unit` to multiples of it, that lie within ranges."""
    return joined((-(-start // unit) * unit, end // unit * unit) for start, end in ranges)
