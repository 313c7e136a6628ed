"""Fetching the next objects of a directory that is read in order, while the client reads the present one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from kvd.errors import KvdError
from kvd.policy.readahead import Readahead

if TYPE_CHECKING:
    from kvd.catalog.catalog import Catalog
    from kvd.tier.opening import Opening

WORKERS = 4
QUEUE_OBJECTS = 64
"""More than that is forgotten: fetching ahead is never owed."""


class Prefetch:
    """Promotes ahead of readers, only into room that is free already."""

    def __init__(self, catalog: Catalog, opening: Opening) -> None:
        self._names = catalog.names
        self._opening = opening
        self._readahead = Readahead()
        self._send, self._receive = trio.open_memory_channel[int](QUEUE_OBJECTS)
        self._queued: set[int] = set()

    def __repr__(self) -> str:
        return f"<Prefetch queued={len(self._queued)}>"

    def opened(self, ino: int) -> None:
        """Take note that an object is opened that is, or was until lately, on NVMe."""
        place = self._names.place(ino)
        if place is None:
            return
        folder, cookie, before = place
        for follower in self._names.objects_after(folder, cookie, self._readahead.step(folder, cookie, before)):
            if follower in self._queued:
                continue
            try:
                self._send.send_nowait(follower)
            except trio.WouldBlock:
                return
            self._queued.add(follower)

    async def run(self) -> None:
        """Fetch, for ever."""
        async with trio.open_nursery() as nursery:
            for _ in range(WORKERS):
                nursery.start_soon(self._work, self._receive.clone())

    async def _work(self, inos: trio.MemoryReceiveChannel[int]) -> None:
        async for ino in inos:
            try:
                await self._opening.fetch(ino)
            except (KvdError, OSError):
                pass  # whoever opens it will meet the same, and is told
            finally:
                self._queued.discard(ino)
