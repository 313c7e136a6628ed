"""Fetching the next objects of a directory that is read in order, while the client reads the present one.

A small directory (a prompt's layers, one file each) is one thing: who opens a file of it wants those after it too. In a long
one the window grows with every step that goes on in order, be it that of the names' making or that of the names.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

import trio

from kvd.catalog.neighbours import Neighbours
from kvd.errors import KvdError
from kvd.policy.readahead import REMEMBERED_FOLDERS, Readahead

if TYPE_CHECKING:
    from kvd.catalog.catalog import Catalog
    from kvd.catalog.neighbours import Place
    from kvd.tier.bringing import Bringing

WORKERS = 4
QUEUE_OBJECTS = 256
"""More than that is forgotten: fetching ahead is never owed."""
SMALL_NAMES_MAX = 128
SMALL_BYTES_MAX = 1 << 30
"""A directory with no more names and bytes than these is fetched as one."""


class Prefetch:
    """Promotes ahead of readers, only into room that is free already."""

    def __init__(self, catalog: Catalog, bringing: Bringing) -> None:
        self._neighbours = Neighbours(catalog.db)
        self._bringing = bringing
        self._made = Readahead[int]()
        self._named = Readahead[bytes]()
        self._send, self._receive = trio.open_memory_channel[int](QUEUE_OBJECTS)
        self._queued: set[int] = set()
        self._whole: OrderedDict[int, None] = OrderedDict()  # folders fetched as one

    def __repr__(self) -> str:
        return f"<Prefetch queued={len(self._queued)}>"

    def opened(self, ino: int, *, fetched: bool) -> None:
        """Take note that an object is opened that is on NVMe, or was until it was `fetched` ahead."""
        place = self._neighbours.place(ino)
        if place is None or (fetched and place.folder in self._whole):
            return
        for follower in self._followers(place):
            if follower in self._queued:
                continue
            try:
                self._send.send_nowait(follower)
            except trio.WouldBlock:
                return
            self._queued.add(follower)

    def _followers(self, place: Place) -> list[int]:
        made = self._made.step(place.folder, place.cookie, place.before)
        named = self._named.step(place.folder, place.name, place.name_before)
        if self._neighbours.is_small(place.folder, names_max=SMALL_NAMES_MAX, bytes_max=SMALL_BYTES_MAX):
            self._whole[place.folder] = None
            self._whole.move_to_end(place.folder)
            if len(self._whole) > REMEMBERED_FOLDERS:
                self._whole.popitem(last=False)
            return self._neighbours.after(place, SMALL_NAMES_MAX)
        if named > made:
            return self._neighbours.after_by_name(place, named)
        return self._neighbours.after(place, made)

    async def run(self) -> None:
        """Fetch, for ever."""
        async with trio.open_nursery() as nursery:
            for _ in range(WORKERS):
                nursery.start_soon(self._work, self._receive.clone())

    async def _work(self, inos: trio.MemoryReceiveChannel[int]) -> None:
        async for ino in inos:
            try:
                await self._bringing.fetch(ino)
            except (KvdError, OSError):
                pass  # whoever opens it will meet the same, and is told
            finally:
                self._queued.discard(ino)
