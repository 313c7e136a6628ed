"""Replays of a trace at many sizes of the tiers: what each saves, and what it costs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kvctl.exits import UsageError
from kvctl.plans.costs import GIB
from kvctl.plans.load import held
from kvctl.replays.belady import Belady
from kvctl.replays.replayer import Replay, Speeds, Tiers
from kvd.policy.policies import DEFAULT, POLICIES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvctl.plans.costs import Costs
    from kvctl.plans.load import Load
    from kvctl.replays.replayer import Rules
    from kvctl.replays.traces import Request

DDR_SIZES: Final = 8
NVME_SIZES: Final = 5
"""Sizes that are tried where nobody says which; NVMe besides none at all."""
SIZES_MAX: Final = 16
"""Of a tier, where somebody does."""
PROGRESS_REQUESTS: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """Sizes of the tiers, and what they come to.

    Attributes
    ----------
    ddr_bytes, nvme_bytes
        The sizes.
    hit_tokens
        Tokens of prompts that were found, over the whole trace.
    saved_s
        Seconds of a GPU that were saved, over the whole trace.
    saved_month, price_month
        What that is worth a month, and what the tiers cost.
    ddr_read_bytes, nvme_read_bytes, nvme_written_bytes
        Moved, over the whole trace.
    nvme_busy
        What NVMe would need to read and write that, over the time of the trace; a point above 1 can't be had.
    """

    ddr_bytes: int
    nvme_bytes: int
    hit_tokens: int
    saved_s: float
    saved_month: float
    price_month: float
    ddr_read_bytes: int
    nvme_read_bytes: int
    nvme_written_bytes: int
    nvme_busy: float

    @property
    def net_month(self) -> float:
        """What is left a month."""
        return self.saved_month - self.price_month


def best_of(points: Sequence[Point]) -> Point | None:
    """Return the point that leaves most, the cheapest of equals; None if none that NVMe is fast enough for leaves anything."""
    can = [point for point in points if point.nvme_busy <= 1]
    found = max(can, key=lambda point: (point.net_month, -point.price_month), default=None)
    return found if found is not None and found.net_month > 0 else None


def doublings(low_bytes: int, high_bytes: int, option: str) -> list[int]:
    """Return the sizes from one to another, each twice the one before.

    Raises
    ------
    UsageError
        If there is none, or more than `SIZES_MAX`; it begins with `option`.
    """
    count = (high_bytes // low_bytes).bit_length() if 0 < low_bytes <= high_bytes else 0
    if not 0 < count <= SIZES_MAX:
        raise UsageError(f"{option}: from a size to one that is no smaller, at most {SIZES_MAX} doublings")
    return [low_bytes << number for number in range(count)]


def sizes(load: Load, gib_month: float, saved_month: float, count: int) -> list[int]:
    """Return sizes worth a try: doublings up to the first that holds all blocks or costs more than can be saved.

    Parameters
    ----------
    load
        The trace.
    gib_month
        Price of a GiB.
    saved_month
        What a cache of any size would save.
    count
        How many at most; they are powers of two, in bytes.
    """
    useful_bytes = min(load.unique_blocks * load.block_bytes, int(saved_month / gib_month * GIB))
    top = max(1, math.ceil(math.log2(max(2, useful_bytes))))
    found = [1 << power for power in range(max(0, top - count + 1), top + 1)]
    return [each for each in found if each >= load.block_bytes]


class Sweep:
    """One trace, replayed at sizes.

    Parameters
    ----------
    requests, load
        The trace.
    costs
        What a hit saves.
    tell
        Is told now and then how far it is.
    """

    def __init__(self, requests: Sequence[Request], load: Load, costs: Costs, tell: Callable[[str], None]) -> None:
        self._requests = requests
        self._load = load
        self._costs = costs
        self._tell = tell
        self._speeds = Speeds(
            token_bytes=costs.token_bytes,
            ddr_bytes_s=costs.ddr.bytes_s,
            nvme_bytes_s=costs.nvme.bytes_s if costs.nvme is not None else costs.ddr.bytes_s,
            prefill_tokens_s=costs.prefill.points[0][1],
        )

    def __repr__(self) -> str:
        return f"<Sweep of {len(self._requests)} requests>"

    def all(self, ddr_sizes: Sequence[int], nvme_sizes: Sequence[int]) -> list[Point]:
        """Replay kvd's policy at each size of DDR with each of NVMe.

        What can't be best is left out, but for the sizes beside the best: the cheapest are first, and where all that
        could be saved leaves less than the best so far a replay tells nothing.
        """
        pairs = [(ddr, nvme) for nvme in nvme_sizes for ddr in ddr_sizes]
        found: dict[tuple[int, int], Point] = {}
        at_most = self._costs.gpu_month(self._load.seen_saved_s, self._load.span_s)
        best_month = 0.0
        for pair in sorted(pairs, key=lambda pair: self._costs.price_month(*pair)):
            if found and at_most - self._costs.price_month(*pair) <= best_month:
                break
            point = found[pair] = self._point(pair, len(found), len(pairs))
            if point.nvme_busy <= 1:
                best_month = max(best_month, point.net_month)
        beside = best_of(list(found.values())) or max(found.values(), key=lambda each: each.net_month, default=None)
        for pair in pairs:
            if (
                beside is not None
                and pair not in found
                and (beside.ddr_bytes == pair[0] or beside.nvme_bytes == pair[1])
            ):
                found[pair] = self._point(pair, len(found), len(pairs))
        return [found[pair] for pair in pairs if pair in found]

    def _point(self, pair: tuple[int, int], done: int, most: int) -> Point:
        return self._replay(POLICIES[DEFAULT](), *pair, f"size {done + 1} of at most {most}")

    def bound(self, ddr_bytes: int, nvme_bytes: int) -> Point:
        """Replay Belady's policy with bypass: no policy finds more."""
        return self._replay(Belady(self._requests), ddr_bytes, nvme_bytes, "the bound")

    def _replay(self, policy: Rules, ddr_bytes: int, nvme_bytes: int, what: str) -> Point:
        block_bytes = self._load.block_bytes
        tiers = Tiers(ddr_blocks=ddr_bytes // block_bytes, nvme_blocks=nvme_bytes // block_bytes)
        replay = Replay(policy, tiers, self._speeds)
        hit_tokens, saved_s = 0, 0.0
        for number, request in enumerate(self._requests):
            if number % PROGRESS_REQUESTS == 0:
                self._tell(f"{what}: {number} of {len(self._requests)} requests")
            tokens = held(request, replay.step(request))
            hit_tokens += tokens.ddr + tokens.nvme
            saved_s += self._costs.saved_s(tokens)
        counts = replay.counts
        # Writes are taken to be as fast as reads.
        nvme_s = (counts.nvme_hits + counts.nvme_written) * block_bytes / self._speeds.nvme_bytes_s
        return Point(
            ddr_bytes=ddr_bytes,
            nvme_bytes=nvme_bytes,
            hit_tokens=hit_tokens,
            saved_s=saved_s,
            saved_month=self._costs.gpu_month(saved_s, self._load.span_s),
            price_month=self._costs.price_month(ddr_bytes, nvme_bytes),
            ddr_read_bytes=counts.ddr_hits * block_bytes,
            nvme_read_bytes=counts.nvme_hits * block_bytes,
            nvme_written_bytes=counts.nvme_written * block_bytes,
            nvme_busy=nvme_s / self._load.span_s,
        )
