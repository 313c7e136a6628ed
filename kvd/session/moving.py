"""Moves whole sessions between tiers in the background: what was released goes to NVMe, what is to be resumed comes to DDR."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import structlog
import trio

from kvd.errors import KvdError
from kvd.policy.ageing import Hint

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from kvd.catalog.catalog import Catalog
    from kvd.session.sessions import Sessions
    from kvd.tier.objects import Objects

log = structlog.get_logger(__name__)

WORKERS = 2
QUEUE_SESSIONS = 4096
"""Sessions that wait to be moved; more are refused, which costs their clients nothing but time."""


@dataclass(slots=True)
class MovingCounts:
    """Objects that were moved since the start, and that could not be."""

    moved: int = 0
    failed: int = 0


class _Job(NamedTuple):
    ino: int
    bring: bool


class Moving:
    """Works through the queue; what is asked last of a session counts."""

    def __init__(self, catalog: Catalog, objects: Objects, sessions: Sessions) -> None:
        self._names = catalog.names
        self._objects = objects
        self._sessions = sessions
        self._send, self._receive = trio.open_memory_channel[_Job](QUEUE_SESSIONS)
        self._wish: dict[int, bool] = {}
        self._working: set[int] = set()
        self._idle = trio.Event()
        self.counts = MovingCounts()

    def __repr__(self) -> str:
        return f"<Moving {len(self._wish)} sessions {self.counts}>"

    def want(self, ino: int, *, bring: bool) -> bool:
        """Move a session soon, to DDR (`bring`) or to NVMe; False if too many wait already."""
        try:
            self._send.send_nowait(_Job(ino, bring))
        except trio.WouldBlock:
            return False
        if bring:
            self._sessions.expect(ino)
        self._wish[ino] = bring
        self._idle = trio.Event()
        return True

    async def idle(self) -> None:
        """Wait until nothing is left to do."""
        while self._wish or self._working:
            await self._idle.wait()

    async def run(self) -> None:
        """Move, for ever."""
        async with trio.open_nursery() as nursery:
            for _ in range(WORKERS):
                nursery.start_soon(self._work, self._receive.clone())

    async def _work(self, jobs: trio.MemoryReceiveChannel[_Job]) -> None:
        async for job in jobs:
            try:
                await self._do(job)
            finally:
                if job.bring:
                    self._sessions.arrived(job.ino)
                if not self._wish and not self._working:
                    self._idle.set()

    async def _do(self, job: _Job) -> None:
        if self._wish.get(job.ino) is not job.bring:
            return  # done already, or the opposite was asked since
        del self._wish[job.ino]
        self._working.add(job.ino)
        try:
            await self._move(job.ino, bring=job.bring)
        finally:
            self._working.discard(job.ino)

    async def _move(self, ino: int, *, bring: bool) -> None:
        move = self._objects.promote if bring else self._objects.demote
        hint = Hint.RESUME if bring else Hint.RELEASE
        try:
            for batch in self._names.walk(ino):
                for inode in batch:
                    if self._wish.get(ino, bring) is not bring:
                        return
                    self._objects.worth.hint(inode.ino, hint)
                    for above in self._objects.worth.prefetch(inode.ino) if bring else ():
                        await self._move_one(move, above)
                    await self._move_one(move, inode.ino)
        except OSError as error:  # its names have gone meanwhile
            log.info("session is not moved", ino=ino, errno=error.errno)

    async def _move_one(self, move: Callable[[int], Awaitable[int]], ino: int) -> None:
        try:
            self.counts.moved += bool(await move(ino))
        except (KvdError, OSError) as error:
            self.counts.failed += 1
            log.info("object of a session is not moved", ino=ino, errno=error.errno, error=str(error))
        await trio.lowlevel.checkpoint()
