"""A mover whose streamed promotions wait for the test's word."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import trio

if TYPE_CHECKING:
    from kvd.tier.movement import MoveResult
    from kvd.tier.mover import Mover


class GatedMover:
    """See `kvd.tier.mover.Mover`; with the gate open it is one.

    Attributes
    ----------
    promotions
        The arguments of each, in order.
    failure
        What the next streamed promotion raises in place of moving anything, once the gate is open.
    """

    def __init__(self, mover: Mover) -> None:
        self._mover = mover
        self.gate = trio.Event()
        self.promotions: list[dict[str, Any]] = []
        self.failure: Exception | None = None

    async def promote(self, **job: Any) -> MoveResult:
        self.promotions.append(job)
        if job["stream_address"]:
            await self.gate.wait()
            failure, self.failure = self.failure, None
            if failure is not None:
                raise failure
        return await self._mover.promote(**job)

    def shut(self) -> None:
        self.gate = trio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._mover, name)
