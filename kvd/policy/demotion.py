"""How much must leave DDR; what leaves is chosen by `kvd.tier.worth`."""

from __future__ import annotations


def excess_blocks(*, held: int, budget: int, high: float, low: float, draining: bool) -> int:
    """Return how much must go: what is above the low watermark, once the high one was passed (`draining`)."""
    over = held > budget * (low if draining else high)
    return max(0, held - int(budget * low)) if over else 0
