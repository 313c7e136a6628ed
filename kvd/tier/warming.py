"""Touching the DDR budget's memory once, before anybody waits for it (`[ddr] warm`).

Memory that a virtual machine never used is slow at its first touch, because the host has to find it. A file of the tmpfs takes
the budget step by step and is removed; the kernel hands the same memory out again later, and then it is there.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import structlog
import trio

from kvd.tier.ddr import WARM_NAME
from kvd.tier.hostmemory import AVAILABLE_SHARE, MEMINFO, memory_bytes
from kvdriver import BLOCK_BYTES, Tier

if TYPE_CHECKING:
    from pathlib import Path

    from kvd.tier.books import Books
    from kvd.tier.room import Room

log = structlog.get_logger(__name__)

STEP_BYTES = 16 << 20
PAUSE_SHARE = 1.0
"""After a step it rests as long as the step took: half of one core at most, and of the memory's bandwidth."""


class Warming:
    """Takes the budget's memory once.

    Parameters
    ----------
    folder
        The DDR tmpfs.
    budget_bytes
        What is touched at most; objects and spares that are there count.
    """

    def __init__(self, folder: Path, books: Books, room: Room, *, budget_bytes: int, meminfo: Path = MEMINFO) -> None:
        self._path = folder / WARM_NAME
        self._books = books
        self._room = room
        self._budget_bytes = budget_bytes
        self._meminfo = meminfo
        self.warm_bytes = 0

    def __repr__(self) -> str:
        return f"<Warming {self.warm_bytes} of {self._budget_bytes} bytes>"

    async def run(self) -> None:
        """Touch, and return; room that is wanted goes before."""
        self.forget()
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        started_s = trio.current_time()
        try:
            while await self._may():
                step_s = trio.current_time()
                await trio.to_thread.run_sync(os.posix_fallocate, fd, self.warm_bytes, STEP_BYTES)
                self.warm_bytes += STEP_BYTES
                await trio.sleep((trio.current_time() - step_s) * PAUSE_SHARE)
        except OSError as error:
            log.info("no more memory to warm", errno=error.errno, error=str(error))
        finally:
            self.forget()
            os.close(fd)
            self._room.changed()
        log.info("memory is warm", bytes=self.warm_bytes, seconds=round(trio.current_time() - started_s, 1))

    def forget(self) -> None:
        """Remove the file."""
        self._path.unlink(missing_ok=True)

    async def _may(self) -> bool:
        info = await self._books.tier(Tier.DDR)
        spare_blocks = self._books.spares.blocks if self._books.spares is not None else 0
        held_bytes = (info.held_blocks + spare_blocks) * BLOCK_BYTES
        total, available = memory_bytes(self._meminfo.read_text())
        return (
            self.warm_bytes + held_bytes + STEP_BYTES <= self._budget_bytes
            and available - STEP_BYTES > total // AVAILABLE_SHARE
            and not self._room.pressed
        )
