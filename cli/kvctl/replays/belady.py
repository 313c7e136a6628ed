"""Belady's policy with bypass: what is used again last goes first, what is never used again at once.

It knows the future, so it is the bound that a policy can be measured against, not one that a daemon could have.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

from kvd.policy.ageing import Place, Victim

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvctl.replays.traces import Request
    from kvd.policy.ageing import Access, Below


class Belady:
    """Told the whole trace first, then its requests in order.

    Of the blocks that one request uses next the deepest goes first: it is of no use without the others.
    """

    def __init__(self, requests: Sequence[Request]) -> None:
        self._never = len(requests)
        self._next = self._future(requests)
        self._at = 0
        self._place: dict[int, tuple[Place, int, int]] = {}
        """Place, next use and depth of each block."""
        self._heaps: dict[Place, list[tuple[int, int, int]]] = {Place.DDR: [], Place.NVME: []}

    def __repr__(self) -> str:
        return f"<Belady {len(self._place)} blocks, request {self._at} of {self._never}>"

    def _future(self, requests: Sequence[Request]) -> list[list[int]]:
        """Return for each block of each request the request that uses it next."""
        uses: dict[int, int] = {}
        found: list[list[int]] = []
        for number in range(len(requests) - 1, -1, -1):
            blocks = requests[number].blocks
            found.append([uses.get(block, self._never) for block in blocks])
            uses.update(dict.fromkeys(blocks, number))
        return found[::-1]

    def access(self, access: Access, /) -> None:
        """Note when each block is used next."""
        for depth, (key, after) in enumerate(zip(access.keys, self._next[self._at], strict=True)):
            self._put(key, Place.DDR, after, depth)
        self._at += 1

    def _put(self, key: int, place: Place, after: int, depth: int) -> None:
        self._place[key] = (place, after, depth)
        heapq.heappush(self._heaps[place], (-after, -depth, key))

    def victims(self, place: Place, need_units: int, below: Below | None = None, /) -> list[Victim]:
        """Take those that are used last; what is used again goes to the tier below."""
        chosen: list[Victim] = []
        heap = self._heaps[place]
        while len(chosen) < need_units and heap:
            after, depth, key = heapq.heappop(heap)
            if self._place.get(key) != (place, -after, -depth):
                continue  # used since, or gone
            if below is not None and place is Place.DDR and -after < self._never:
                self._put(key, Place.NVME, -after, -depth)
            else:
                del self._place[key]
            chosen.append(Victim(key, 1, self._place[key][0] if key in self._place else Place.GONE))
        return chosen

    def tick(self, now_s: float, steps_max: int, /) -> bool:
        """Change nothing."""
        return False
