"""Which objects leave DDR."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """An object that may be demoted, and what that would free."""

    ino: int
    idle_s: float
    blocks: int


def victims(candidates: Iterable[Candidate], *, need_blocks: int, idle_s_min: float = 0.0) -> list[int]:
    """Return the objects to demote: least recently used first, until they free `need_blocks`.

    Objects that were in use less than `idle_s_min` ago are left alone. The result may free less than asked for.
    """
    chosen: list[int] = []
    freed = 0
    for candidate in sorted(candidates, key=lambda c: -c.idle_s):
        if freed >= need_blocks or candidate.idle_s < idle_s_min:
            break
        chosen.append(candidate.ino)
        freed += candidate.blocks
    return chosen


def excess_blocks(*, held: int, budget: int, high: float, low: float, draining: bool) -> int:
    """Return how much must go: what is above the low watermark, once the high one was passed (`draining`)."""
    over = held > budget * (low if draining else high)
    return max(0, held - int(budget * low)) if over else 0
