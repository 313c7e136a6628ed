"""What a trace asks of a cache, before any size is chosen: how much comes again, and what comes in between."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from kvctl.plans.costs import Held

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvctl.plans.costs import Costs
    from kvctl.replays.replayer import Hits
    from kvctl.replays.traces import Request


class Again(NamedTuple):
    """Blocks of a request that were used before, and the blocks of the trace that were used since then."""

    between_blocks: int
    blocks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """A trace in numbers.

    Attributes
    ----------
    requests
        How many.
    span_s
        From the first to the last.
    input_tokens
        Of all prompts.
    unique_blocks
        Different blocks.
    block_bytes
        KV of a full block.
    prefill_s
        Seconds of a GPU for all prompts without a cache.
    seen_tokens
        Tokens that a cache of any size would find.
    seen_saved_s
        Seconds of a GPU that it would save, all of it in the fastest tier.
    lengths
        Tokens of each prompt, by rising number.
    reuse
        Blocks in between, by rising number.
    """

    requests: int
    span_s: float
    input_tokens: int
    unique_blocks: int
    block_bytes: int
    prefill_s: float
    seen_tokens: int
    seen_saved_s: float
    lengths: tuple[int, ...]
    reuse: tuple[Again, ...]

    def shorter(self, tokens: int) -> int:
        """Count the requests with fewer tokens."""
        return bisect_left(self.lengths, tokens)

    def reuse_bytes(self, share: float) -> int | None:
        """Return the KV within which such a share of the reuse lies; None where nothing is used again."""
        left = share * sum(each.blocks for each in self.reuse)
        for each in self.reuse:
            left -= each.blocks
            if left <= 0:
                return each.between_blocks * self.block_bytes
        return None


def held(request: Request, hits: Hits) -> Held:
    """Return the tokens of a request's hits.

    The last block may not be full, and the last token is always computed: it makes the first of the answer.
    """
    most = max(0, request.input_tokens - 1)
    lead = min(hits.lead * request.block_tokens, most)
    ddr = min(hits.ddr * request.block_tokens, most)
    total = min((hits.ddr + hits.nvme) * request.block_tokens, most)
    return Held(lead, ddr, total - ddr)


def measure(requests: Sequence[Request], costs: Costs) -> Load:
    """Measure a trace, as a cache that never loses anything would see it.

    Parameters
    ----------
    requests
        In the order of time, at least one.
    costs
        What a hit saves.
    """
    reuse: list[Again] = []
    seen_tokens, seen_saved_s = 0, 0.0
    last = _Last(len(requests))
    for number, request in enumerate(requests):
        count, again = last.use(number, request.blocks)
        reuse += again
        tokens = min(count * request.block_tokens, max(0, request.input_tokens - 1))
        seen_tokens += tokens
        seen_saved_s += costs.saved_at_most_s(tokens)
    return Load(
        requests=len(requests),
        span_s=requests[-1].now_s - requests[0].now_s,
        input_tokens=sum(request.input_tokens for request in requests),
        unique_blocks=last.different,
        block_bytes=requests[0].block_tokens * costs.token_bytes,
        prefill_s=sum(costs.prefill.seconds(request.input_tokens) for request in requests),
        seen_tokens=seen_tokens,
        seen_saved_s=seen_saved_s,
        lengths=tuple(sorted(request.input_tokens for request in requests)),
        reuse=tuple(sorted(reuse)),
    )


class _Last:
    """The request that used each block last, and how many blocks each used last: a Fenwick tree over the requests.

    What was used since a request, that request's own blocks among it, is what LRU has to hold for its blocks to hit.
    """

    def __init__(self, requests: int) -> None:
        self._tree = [0] * (requests + 1)
        self._last: dict[int, int] = {}

    @property
    def different(self) -> int:
        """Different blocks so far."""
        return len(self._last)

    def use(self, number: int, blocks: Sequence[int]) -> tuple[int, list[Again]]:
        """Use blocks; return how many of the first were known, and what came between."""
        moved: dict[int, int] = {}
        known = 0
        found: dict[int, int] = {}
        for depth, block in enumerate(blocks):
            before = self._last.get(block)
            self._last[block] = number
            if before is None:
                continue
            moved[before] = moved.get(before, 0) + 1
            if known == depth:
                known += 1
                found[before] = found.get(before, 0) + 1
        total = len(self._last) - (len(blocks) - sum(moved.values()))
        again = [Again(total - self._before(request), count) for request, count in found.items()]
        for request, count in moved.items():
            self._add(request, -count)
        self._add(number, len(blocks))
        return known, again

    def _add(self, number: int, count: int) -> None:
        at = number + 1
        while at < len(self._tree):
            self._tree[at] += count
            at += at & -at

    def _before(self, number: int) -> int:
        """Count the blocks that were used last by a request before this one."""
        total, at = 0, number
        while at > 0:
            total += self._tree[at]
            at -= at & -at
        return total
