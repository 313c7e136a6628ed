"""One plan: the trace is measured and replayed at every size, and the best size chosen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvctl.exits import UsageError
from kvctl.plans import load as loads
from kvctl.plans import sweep as sweeps
from kvctl.replays.run import load as read
from kvctl.replays.traces import TraceError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from kvctl.plans.costs import Costs
    from kvctl.plans.load import Load
    from kvctl.plans.shape import Shape
    from kvctl.plans.sweep import Point, Sweep


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a plan is asked for.

    Attributes
    ----------
    shape, costs
        Of the model; of GPU, tiers and bytes.
    ddr_sizes, nvme_sizes
        Bytes to try; None: what the trace suggests.
    """

    shape: Shape
    costs: Costs
    ddr_sizes: list[int] | None
    nvme_sizes: list[int] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What came out.

    Attributes
    ----------
    trace, asked
        What it is about.
    load
        The trace in numbers.
    points
        A point for each pair of sizes that may be best, or is beside the best.
    best
        The one that leaves most; None where none leaves anything.
    bound
        Belady's policy at the best sizes; without those, at the size of DDR at which it leaves most. None where no size
        is worth a try.
    """

    trace: str
    asked: Asked
    load: Load
    points: tuple[Point, ...]
    best: Point | None
    bound: Point | None

    def find(self, ddr_bytes: int, nvme_bytes: int) -> Point | None:
        """Return the point of such sizes."""
        pairs = ((each.ddr_bytes, each.nvme_bytes) for each in self.points)
        return next(
            (point for point, pair in zip(self.points, pairs, strict=True) if pair == (ddr_bytes, nvme_bytes)), None
        )

    @property
    def shown(self) -> Point | None:
        """The point beside which others are shown: the best, or the one that loses least."""
        return self.best or max(self.points, key=lambda point: point.net_month, default=None)

    @property
    def too_fast(self) -> Point | None:
        """The point that would leave more than the best, if NVMe were fast enough for it."""
        found = max(self.points, key=lambda point: point.net_month, default=None)
        if found is None or found.net_month <= 0 or found.nvme_busy <= 1:
            return None
        return found


def run(path: Path, asked: Asked, tell: Callable[[str], None]) -> Plan:
    """Make a plan for a trace.

    Parameters
    ----------
    path
        A trace that `kvctl.replays.traces.read` knows.
    asked
        What is asked for.
    tell
        Is told now and then how far it is.

    Raises
    ------
    TraceError
        If the trace can't be read, breaks its format, has no request, or takes no time.
    UsageError
        If a size that was asked for holds no block.
    """
    requests = read(path)
    tell("measuring the trace")
    load = loads.measure(requests, asked.costs)
    if load.span_s <= 0:
        raise TraceError(f"{path}: all requests come at one moment; what an hour of them costs can't be told")
    ddr_sizes, nvme_sizes = _sizes(load, asked)
    sweep = sweeps.Sweep(requests, load, asked.costs, tell)
    points = sweep.all(ddr_sizes, [0, *nvme_sizes])
    best = sweeps.best_of(points)
    return Plan(
        trace=str(path),
        asked=asked,
        load=load,
        points=tuple(points),
        best=best,
        bound=_bound(sweep, best, ddr_sizes),
    )


def _sizes(load: Load, asked: Asked) -> tuple[list[int], list[int]]:
    costs = asked.costs
    saved_month = costs.gpu_month(load.seen_saved_s, load.span_s)
    ddr, nvme = asked.ddr_sizes, asked.nvme_sizes
    if ddr is None:
        ddr = sweeps.sizes(load, costs.ddr_gib_month, saved_month, sweeps.DDR_SIZES)
    if costs.nvme is None:
        nvme = []
    elif nvme is None:
        nvme = sweeps.sizes(load, costs.nvme_gib_month, saved_month, sweeps.NVME_SIZES)
    for option, tried in (("--ddr-sizes", ddr), ("--nvme-sizes", nvme)):
        if tried and tried[0] < load.block_bytes:
            raise UsageError(f"{option}: the smallest is less than a block of {load.block_bytes} bytes")
    return ddr, nvme


def _bound(sweep: Sweep, best: Point | None, ddr_sizes: list[int]) -> Point | None:
    if best is not None:
        return sweep.bound(best.ddr_bytes, best.nvme_bytes)
    return max((sweep.bound(each, 0) for each in ddr_sizes), key=lambda point: point.net_month, default=None)
