"""Runs one policy over a trace, as the daemon would, and counts.

There is no time but the trace's: a request finds what the ones before it left, uses all its blocks, and then tiers that are
over their capacity lose what the policy says. A block hits only if all blocks before it in the request hit. A block that came
back from NVMe leaves a clean copy there as long as nothing else wants the room, so that it goes down again for free.
"""

from __future__ import annotations

import random
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from kvd.policy.ageing import Access, Below, Hint, Place

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvctl.replays.traces import Request
    from kvd.policy.ageing import Victim

TICK_STEPS: Final = 10_000
HINTS_SEED: Final = 1
NVME: Final = int(Place.NVME)
"""To compare with what a policy says, for every block."""
MISSING: Final = object()
REUSE_MIN: Final = 0.02
"""Probability of another use from which on a block is written to NVMe."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiers:
    """Capacities in blocks; NVMe may be none."""

    ddr_blocks: int
    nvme_blocks: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Speeds:
    """What a time to first token is estimated from.

    Attributes
    ----------
    token_bytes
        KV of one token.
    ddr_bytes_s, nvme_bytes_s
        How fast a tier is read.
    prefill_tokens_s
        How fast the engine makes KV anew.
    """

    token_bytes: int
    ddr_bytes_s: float
    nvme_bytes_s: float
    prefill_tokens_s: float


class Hits(NamedTuple):
    """Blocks of one request that hit: those before the first that is only in NVMe, all in DDR, all in NVMe."""

    lead: int
    ddr: int
    nvme: int


NO_HITS: Final = Hits(0, 0, 0)


@dataclass(slots=True)
class Counts:
    """What a replay counted, in blocks."""

    requests: int = 0
    blocks: int = 0
    ddr_hits: int = 0
    nvme_hits: int = 0
    ddr_written: int = 0
    """Blocks that stayed in DDR after their request; what loses at once is not written."""
    nvme_written: int = 0
    ttft_s: list[float] = field(default_factory=list)

    @property
    def hit_rate(self) -> float:
        """Hits of any tier for each block asked for."""
        return (self.ddr_hits + self.nvme_hits) / self.blocks if self.blocks else 0.0


def hints_of(requests: Sequence[Request], right: float) -> list[Hint]:
    """Return what a client says that is right with such a probability: RELEASE or KEEP for each request.

    A request is kept rightly if a later one goes on from its last full block.
    """
    rng = random.Random(HINTS_SEED)  # noqa: S311  a repeatable replay, no secret
    used: set[int] = set()
    kept: list[bool] = []
    for request in reversed(requests):
        full = request.blocks[:-1] if request.partial and len(request.blocks) > 1 else request.blocks
        kept.append(bool(full) and full[-1] in used)
        used.update(request.blocks)
    return [Hint.KEEP if keep == (rng.random() < right) else Hint.RELEASE for keep in reversed(kept)]


class Rules(Protocol):
    """What a replay asks of a policy: a part of `kvd.policy.ageing.Policy`."""

    def access(self, access: Access, /) -> None:
        """See there."""

    def tick(self, now_s: float, steps_max: int, /) -> bool:
        """See there."""

    def victims(self, place: Place, need_units: int, below: Below | None = None, /) -> list[Victim]:
        """See there."""


class Replay:
    """One policy and the tiers that it rules."""

    def __init__(self, policy: Rules, tiers: Tiers, speeds: Speeds) -> None:
        self.counts = Counts()
        self._policy = policy
        self._tiers = tiers
        self._speeds = speeds
        self._ddr: set[int] = set()
        self._nvme: set[int] = set()
        self._copies: OrderedDict[int, None] = OrderedDict()
        """Clean copies on NVMe of what is in DDR."""

    def __repr__(self) -> str:
        return f"<Replay {len(self._ddr)} blocks in DDR, {len(self._nvme)} in NVMe, {self.counts.requests} requests>"

    def step(self, request: Request, hint: Hint = Hint.NONE) -> Hits:
        """Replay one request; return what it found."""
        if not request.blocks:
            return NO_HITS
        while self._policy.tick(request.now_s, TICK_STEPS):
            pass
        hits = self._find(request.blocks)
        self._count(request, hits)
        self._policy.access(
            Access(
                now_s=request.now_s,
                keys=request.blocks,
                output_tokens=request.output_tokens,
                partial=request.partial,
                hint=hint,
            )
        )
        new = [block for block in request.blocks if block not in self._ddr]
        for block in new:
            if block in self._nvme:
                self._nvme.discard(block)
                self._copies[block] = None
        self._ddr.update(new)
        self._fit()
        self.counts.ddr_written += len(self._ddr.intersection(new))
        return hits

    def _find(self, blocks: Sequence[int]) -> Hits:
        lead = ddr = nvme = 0
        for block in blocks:
            if block in self._ddr:
                ddr += 1
            elif block in self._nvme:
                if nvme == 0:
                    lead = ddr
                nvme += 1
            else:
                break
        return Hits(lead if nvme else ddr, ddr, nvme)

    def _count(self, request: Request, hits: Hits) -> None:
        _, ddr, nvme = hits
        self.counts.requests += 1
        self.counts.blocks += len(request.blocks)
        self.counts.ddr_hits += ddr
        self.counts.nvme_hits += nvme
        block_bytes = request.block_tokens * self._speeds.token_bytes
        # The last token is always computed: it makes the first of the answer.
        missed = max(1, request.input_tokens - (ddr + nvme) * request.block_tokens)
        self.counts.ttft_s.append(
            ddr * block_bytes / self._speeds.ddr_bytes_s
            + nvme * block_bytes / self._speeds.nvme_bytes_s
            + missed / self._speeds.prefill_tokens_s
        )

    def _fit(self) -> None:
        over = len(self._ddr) - self._tiers.ddr_blocks
        if over > 0:
            below = None
            if self._tiers.nvme_blocks:
                below = Below(room_units=self._tiers.nvme_blocks - len(self._nvme), reuse_min=REUSE_MIN)
            for block, _, to in self._policy.victims(Place.DDR, over, below):
                self._leave_ddr(block, to)
        over = len(self._nvme) - self._tiers.nvme_blocks
        if over > 0:
            self._nvme.difference_update([victim.key for victim in self._policy.victims(Place.NVME, over)])
        while self._copies and len(self._nvme) + len(self._copies) > self._tiers.nvme_blocks:
            self._copies.popitem(last=False)

    def _leave_ddr(self, block: int, to: int) -> None:
        self._ddr.discard(block)
        clean = self._copies.pop(block, MISSING) is None
        if to == NVME:
            self._nvme.add(block)
            self.counts.nvme_written += not clean
