"""Runs each policy that was asked for over one trace."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Final

from kvctl.exits import UsageError
from kvctl.replays import traces
from kvctl.replays.belady import Belady
from kvctl.replays.replayer import Counts, Replay, Speeds, Tiers, hints_of
from kvctl.replays.traces import Request, TraceError
from kvd.policy.ageing import Hint
from kvd.policy.policies import POLICIES

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

REQUESTS_MAX: Final = 1 << 24
PROGRESS_REQUESTS: Final = 1000


def _silent(_: str) -> None:
    """Tell nobody."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What was asked for; sizes of tiers in bytes, by name."""

    policies: tuple[str, ...]
    hints: float | None
    ddr_blocks: int | None
    tier_bytes: dict[str, int]
    token_bytes: int
    ddr_bytes_s: float
    nvme_bytes_s: float
    prefill_tokens_s: float

    def tiers(self, block_bytes: int) -> Tiers:
        """Return the capacities in blocks of such a size.

        Raises
        ------
        UsageError
            If a tier does not hold a single block.
        """
        blocks = {name: size // block_bytes for name, size in self.tier_bytes.items()}
        for name, count in blocks.items():
            if count == 0:
                raise UsageError(f"--tiers {name}: less than a block of {block_bytes} bytes")
        return Tiers(ddr_blocks=self.ddr_blocks or blocks["ddr"], nvme_blocks=blocks.get("nvme", 0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What came out, by policy; and the mean time to first token without a cache."""

    trace: str
    options: Options
    tiers: Tiers
    block_bytes: int
    unique_blocks: int
    uncached_ttft_s: float
    counts: dict[str, Counts]


def load(path: Path) -> list[Request]:
    """Return all requests of a trace.

    Raises
    ------
    TraceError
        If it can't be read, breaks its format, has no request or too many.
    """
    requests: list[Request] = []
    for request in traces.read(path):
        requests.append(request)
        if len(requests) > REQUESTS_MAX:
            raise TraceError(f"{path}: more than {REQUESTS_MAX} requests")
    if not requests:
        raise TraceError(f"{path}: no requests")
    return requests


def run(path: Path, options: Options, tell: Callable[[str], None] = _silent) -> Found:
    """Replay a trace.

    Parameters
    ----------
    path
        A trace that `kvctl.replays.traces.read` knows.
    options
        What was asked for.
    tell
        Is told now and then how far it is.

    Raises
    ------
    TraceError
        If the trace can't be read, breaks its format, or has no request.
    UsageError
        If a tier is too small.
    """
    requests = load(path)
    block_bytes = requests[0].block_tokens * options.token_bytes
    tiers = options.tiers(block_bytes)
    speeds = Speeds(
        token_bytes=options.token_bytes,
        ddr_bytes_s=options.ddr_bytes_s,
        nvme_bytes_s=options.nvme_bytes_s,
        prefill_tokens_s=options.prefill_tokens_s,
    )
    hints = [Hint.NONE] * len(requests) if options.hints is None else hints_of(requests, options.hints)
    counts: dict[str, Counts] = {}
    for name in options.policies:
        one = Replay(POLICIES[name]() if name in POLICIES else Belady(requests), tiers, speeds)
        for number, (request, hint) in enumerate(zip(requests, hints, strict=True)):
            if number % PROGRESS_REQUESTS == 0:
                tell(f"{name}: {number} of {len(requests)} requests")
            one.step(request, hint)
        counts[name] = one.counts
    return Found(
        trace=str(path),
        options=options,
        tiers=tiers,
        block_bytes=block_bytes,
        unique_blocks=len({block for request in requests for block in request.blocks}),
        uncached_ttft_s=fmean([max(1, each.input_tokens) for each in requests if each.blocks] or [0])
        / options.prefill_tokens_s,
        counts=counts,
    )
