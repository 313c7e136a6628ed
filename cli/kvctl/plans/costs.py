"""What it takes to have KV: made anew by the GPU, or restored from a tier. Seconds, bytes, money; nothing is read or asked.

Money is in whatever currency the prices are in.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

MONTH_H: Final = 730.0
"""Hours of a month: a twelfth of 365 days."""
HOUR_S: Final = 3600.0
GIB: Final = 1 << 30
LENGTH_TOKENS_MAX: Final = 1 << 30
"""A break-even beyond this is none: no context is as long."""
ROUNDING: Final = 1e-9
"""Of a length: a root this close above a whole number of tokens is that number."""


class Piece(NamedTuple):
    """From a length on, a prompt takes ``fixed_s + token_s * length + square_s * length ** 2``."""

    start_tokens: int
    fixed_s: float
    token_s: float
    square_s: float


class Prefill:
    """How long a GPU takes to make the KV of a prompt.

    Parameters
    ----------
    points
        Length in tokens and tokens a second there, by rising length. Where a token takes longer at the second of two points the
        seconds a token takes are a line between them, so that the whole has the square that attention has; that line
        goes on above the last point. Where it takes less the whole is a line: a fixed part is shared by more tokens.
        Below the first point, and above a last one where it took less, the seconds a token takes stay.

    Raises
    ------
    ValueError
        If a longer prompt would take less time than a shorter one.
    """

    def __init__(self, points: Sequence[tuple[int, float]]) -> None:
        self.points = tuple(points)
        square_s = 0.0
        pieces = [Piece(0, 0.0, 1 / points[0][1], square_s)]
        for (start, rate), (end, rate_then) in pairwise(points):
            square_s = max(0.0, (1 / rate_then - 1 / rate) / (end - start))
            if square_s:
                pieces.append(Piece(start, 0.0, 1 / rate - square_s * start, square_s))
                continue
            token_s = (end / rate_then - start / rate) / (end - start)
            if token_s < 0:
                raise ValueError(f"{end} tokens at {rate_then:g} a second take less time than {start} at {rate:g}")
            pieces.append(Piece(start, start / rate - token_s * start, token_s, 0.0))
        end, rate_then = points[-1]
        pieces.append(Piece(end, 0.0, 1 / rate_then - square_s * end, square_s))
        self.pieces = tuple(pieces)
        self._starts = [piece.start_tokens for piece in pieces]

    def __repr__(self) -> str:
        return f"<Prefill {', '.join(f'{rate:g}@{length}' for length, rate in self.points)}>"

    def seconds(self, tokens: int) -> float:
        """Return how long a prompt of such a length takes."""
        piece = self.pieces[bisect_right(self._starts, tokens) - 1]
        return piece.fixed_s + tokens * (piece.token_s + piece.square_s * tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """How fast a tier gives KV back.

    Attributes
    ----------
    name
        As in the options.
    bytes_s
        Bytes a second.
    first_s
        From asking to the first byte.
    """

    name: str
    bytes_s: float
    first_s: float

    def restore_s(self, size_bytes: int) -> float:
        """Return how long so much takes; nothing takes no time."""
        return self.first_s + size_bytes / self.bytes_s if size_bytes else 0.0


def break_even_tokens(prefill: Prefill, tier: Tier, token_bytes: int) -> int | None:
    """Return the length from which on restoring is no slower than making anew; None: never.

    Where prefill becomes quicker with length it may be slower again beyond; the first length counts.
    """
    each_s = token_bytes / tier.bytes_s
    ends = [piece.start_tokens for piece in prefill.pieces[1:]]
    for piece, end in zip(prefill.pieces, [*ends, LENGTH_TOKENS_MAX], strict=True):
        # Where a parabola of the length, prefill less restoring, becomes positive.
        for root in _roots(piece.square_s, piece.token_s - each_s, piece.fixed_s - tier.first_s):
            found = max(1, math.ceil(root * (1 - ROUNDING)))
            if piece.start_tokens <= root <= end and found <= LENGTH_TOKENS_MAX:
                return found
    return None


def _roots(a: float, b: float, c: float) -> list[float]:
    """Return where ``a x^2 + b x + c`` is 0 and rises, lowest first."""
    if a == 0:
        return [-c / b] if b > 0 else []
    square = b * b - 4 * a * c
    # A parabola that opens upwards rises at its larger root.
    return [(-b + math.sqrt(square)) / (2 * a)] if square > 0 else []


class Held(NamedTuple):
    """Tokens of a prompt that a cache has: those before the first that is only in NVMe, all in DDR, all in NVMe."""

    lead: int
    ddr: int
    nvme: int


@dataclass(frozen=True, kw_only=True)
class Costs:
    """All that a second or a byte costs.

    Attributes
    ----------
    token_bytes
        KV of one token.
    prefill
        The GPU.
    ddr, nvme
        The tiers; no NVMe where its price is not known.
    ddr_gib_month, nvme_gib_month, gpu_hour
        Prices.
    """

    token_bytes: int
    prefill: Prefill
    ddr: Tier
    nvme: Tier | None
    ddr_gib_month: float
    nvme_gib_month: float
    gpu_hour: float

    @cached_property
    def tiers(self) -> tuple[Tier, ...]:
        """Those there are."""
        return (self.ddr,) if self.nvme is None else (self.ddr, self.nvme)

    @cached_property
    def break_even(self) -> dict[str, int | None]:
        """Tokens from which on a tier is no slower than the GPU, by its name; None: never."""
        return {tier.name: break_even_tokens(self.prefill, tier, self.token_bytes) for tier in self.tiers}

    def saved_at_most_s(self, tokens: int) -> float:
        """Return what a hit of so many tokens can save, wherever they are."""
        fastest = Tier(
            name="", bytes_s=max(each.bytes_s for each in self.tiers), first_s=min(each.first_s for each in self.tiers)
        )
        return max(0.0, self.prefill.seconds(tokens) - fastest.restore_s(tokens * self.token_bytes))

    def saved_s(self, held: Held) -> float:
        """Return the GPU's seconds that such a hit saves.

        The GPU waits while KV is restored, so that is taken off; what does not save time is made anew: all, or what is in NVMe.
        """
        found_s = 0.0
        if held.lead:
            found_s = self.prefill.seconds(held.lead) - self.ddr.restore_s(held.lead * self.token_bytes)
        if self.nvme is not None and held.nvme:
            restore_s = self.ddr.restore_s(held.ddr * self.token_bytes)
            restore_s += self.nvme.restore_s(held.nvme * self.token_bytes)
            found_s = max(found_s, self.prefill.seconds(held.ddr + held.nvme) - restore_s)
        return max(0.0, found_s)

    def gpu_month(self, gpu_s: float, span_s: float) -> float:
        """Return what a month costs in which each span has so many seconds of a GPU."""
        return gpu_s / span_s * MONTH_H * self.gpu_hour

    def price_month(self, ddr_bytes: int, nvme_bytes: int) -> float:
        """Return what so much of the tiers costs a month."""
        return (ddr_bytes * self.ddr_gib_month + nvme_bytes * self.nvme_gib_month) / GIB
