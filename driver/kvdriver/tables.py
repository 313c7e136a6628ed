"""The engine's tables in a file that a card can be given, with the engine of this process on them."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Final, Self

from kvdriver import abi
from kvdriver.device import BLOCK_BYTES
from kvdriver.inprocess import ARENA_BYTES, InProcessDevice
from kvdriver.memory import HUGE_BYTES, FileMemory, round_up

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvdriver.abi import Tier

SESSION_BYTES: Final = abi.SESSION_CONTEXT.size + 8 + 3 * 64
"""A session context, its place in the hash, and the smallest node for each of three slots."""
PAGE_TABLE_BYTES: Final = 24
"""Page tables for a page: half more than what they take at worst on the way, when a node is widened."""
FRAME_BYTES: Final = 1
"""Of a frame, in bitmaps, their summaries and counts of sharers."""
COPIES_MAX: Final = 5
"""How often a copy is begun anew because somebody still writes."""
FIXED_BYTES: Final = 4 << 20
"""Head, journal, and a thousand of the largest nodes: for tables that are nearly empty."""


def tables_bytes(page_bytes: int, capacity_blocks: Mapping[Tier, int], sessions_max: int) -> int:
    """Return how large a file is enough for tables of full tiers: what a card maps, and the kernel's VFIO locks."""
    blocks = sum(capacity_blocks.values())
    pages = blocks * BLOCK_BYTES // page_bytes
    wanted = FIXED_BYTES + sessions_max * SESSION_BYTES + pages * PAGE_TABLE_BYTES + blocks * FRAME_BYTES
    return min(round_up(wanted, HUGE_BYTES), ARENA_BYTES)


def _copy(source: int, count: int) -> int:
    """Return a new file with the same bytes and holes."""
    fd = os.memfd_create("kvd-tables", os.MFD_CLOEXEC)
    try:
        os.ftruncate(fd, count)
        at = 0
        while at < count:
            try:
                at = os.lseek(source, at, os.SEEK_DATA)
            except OSError as error:
                if error.errno == errno.ENXIO:  # nothing but a hole is left
                    break
                raise
            end = os.lseek(source, at, os.SEEK_HOLE)
            while at < end:
                at += os.pwrite(fd, os.pread(source, min(end - at, HUGE_BYTES), at), at)
    except BaseException:
        os.close(fd)
        raise
    return fd


class Tables:
    """Tables that this process's engine and a card work on in turn. Make them with `make`.

    Attributes
    ----------
    local
        The engine of this process; rests while a card has the tables.
    memory
        The file, mapped.
    """

    def __init__(self, local: InProcessDevice, memory: FileMemory) -> None:
        self.local = local
        self.memory = memory

    @classmethod
    def make(cls, *, page_bytes: int, capacity_blocks: Mapping[Tier, int], sessions_max: int) -> Self:
        """Make empty tables; see `InProcessDevice.open`."""
        count = tables_bytes(page_bytes, capacity_blocks, sessions_max)
        fd = os.memfd_create("kvd-tables", os.MFD_CLOEXEC)
        try:
            local = InProcessDevice.open(
                page_bytes=page_bytes,
                capacity_blocks=capacity_blocks,
                sessions_max=sessions_max,
                arena_bytes=count,
                arena_fd=fd,
            )
            return cls(local, FileMemory(fd, count))
        except BaseException:
            os.close(fd)
            raise

    def __repr__(self) -> str:
        return f"<Tables {self.memory!r}>"

    def move(self) -> None:
        """Go on in a copy of the file: somebody who may yet write to this one does not answer.

        The copy is made again while commands are still executed, so that it is not torn.

        Raises
        ------
        OSError
            If there is no memory for the copy, or it can't be attached.
        """
        for _ in range(COPIES_MAX):
            sequence = self.local.sequence()
            fd = _copy(self.memory.fd, self.memory.bytes)
            if self.local.sequence() == sequence:
                break
            os.close(fd)
        else:
            raise OSError(errno.EBUSY, "the card goes on executing commands and does not answer")
        try:
            local = InProcessDevice.attach(self.local, arena_fd=fd)
            memory = FileMemory(fd, self.memory.bytes)
        except BaseException:
            os.close(fd)
            raise
        self.close()
        self.local, self.memory = local, memory

    def close(self) -> None:
        """Let go of the tables; no card has them any more."""
        self.local.close()
        if self.memory.fd >= 0:
            self.memory.close()
            os.close(self.memory.fd)
            self.memory.fd = -1
