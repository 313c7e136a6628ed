"""Memory of objects that have left DDR, kept for those that come next (`[ddr] spare`, docs/decisions/022).

A *spare* is a file of the tmpfs whose removal is put off: it is renamed, and nobody reads or writes it any more. In the
meantime the kernel can't give its memory to anybody, not even back to the host of a virtual machine, from which it would come
back thirty times slower than it is written. When a file is made whose length is known, it gets as much as it needs: the spare is
cut and the file extended in turn, in one thread, since what one processor frees it hands out again first.

Nobody can see the bytes of another's object in it: the kernel hands out what it gets back from a cut as it does from a removal,
to be read as zeroes until it is written. And nobody loses what he can still see: a file that anybody has open or mapped does
not become a spare, and what a device or a pipe holds of one stays as it is, because whole huge pages are cut.

Spares and what objects hold and have reserved come to no more than the budget. What is being exchanged counts as spare to the end.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog
import trio

from kvd.tier.extents import held_blocks
from kvd.tier.hostmemory import AVAILABLE_SHARE, MEMINFO, host_takes_free_memory, memory_bytes
from kvd.tier.storage import allocate
from kvdriver import BLOCK_BYTES, Tier

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from kvd.config import DdrConfig
    from kvd.tier.books import Books

log = structlog.get_logger(__name__)

PREFIX = "kvd-spare-"
"""Of the files' names; a killed daemon may leave some."""
HUGE_BYTES = 2 << 20
"""A huge page. A cut through the middle of one that is pinned would write zeroes to the part that is cut off."""
HUGE_BLOCKS = HUGE_BYTES // BLOCK_BYTES
FILE_BYTES_MIN = HUGE_BYTES
"""Smaller files are of small pages, which no host takes one by one."""
FILES_MAX = 1 << 16
STEP_BYTES = 16 << 20
"""What is freed and taken at a time: less than a processor keeps to itself."""
LAY_BYTES = 64 << 20
"""What one file gets before others have their turn (some 5 ms)."""
IDLE_S = 300.0
"""Spares of which none was used for so long are given back."""
LOOK_S = 1.0
"""Between two looks at the machine's memory."""
SLOW_BYTES = 64 << 20
"""Freeing more than this takes long enough to leave the trio thread for it (some 10 GB/s)."""
SLOW_LAY_BYTES = 16 << 20
"""Freeing and allocating again take twice as long, and come with many an open."""

_Cuts = list[tuple["Path", int]]
"""Files, and the length that each is cut to."""


@dataclass(slots=True)
class _Spare:
    path: Path
    blocks: int


class Spares:
    """The spares in one folder; none are kept before `begin`.

    Attributes
    ----------
    blocks
        What they hold and is not promised to a file yet.
    """

    def __init__(self, folder: Path, *, meminfo: Path = MEMINFO) -> None:
        self._folder = folder
        self._meminfo = meminfo
        self._books: Books | None = None
        self._budget_blocks = 0
        self._files: list[_Spare] = []
        self._numbers = itertools.count()
        self._used_s = 0.0
        self._lock = trio.Lock()  # files are cut; taken by who has the books' lock, so never the other way round
        self._going_blocks = 0
        self.blocks = 0

    def __repr__(self) -> str:
        return f"<Spares {len(self._files)} files, {self.blocks} blocks>"

    def begin(self, config: DdrConfig, books: Books) -> None:
        """Keep spares from now on, if that is wanted."""
        if config.spare == "on" or (config.spare == "auto" and host_takes_free_memory()):
            self._books = books
            self._budget_blocks = config.budget_bytes // BLOCK_BYTES

    @property
    def kept(self) -> bool:
        """Whether there is anything that has to give way."""
        return self.blocks + self._going_blocks > 0

    def left(self) -> list[Path]:
        """Return the files that are there, also what a killed daemon has left."""
        return sorted(self._folder.glob(f"{PREFIX}*"))

    def clear(self) -> None:
        """Remove what there is, also what a killed daemon has left."""
        self._files.clear()
        self.blocks = 0
        for path in self.left():
            path.unlink(missing_ok=True)

    async def keep(self, path: Path) -> bool:
        """Make a file that nobody has open a spare instead of removing it; False if it is to be removed."""
        if self._books is None or len(self._files) >= FILES_MAX:
            return False
        spare = self._folder / f"{PREFIX}{next(self._numbers)}"
        blocks = _rename(path, spare)
        if not blocks:
            return False
        self._files.append(_Spare(path=spare, blocks=blocks))
        self.blocks += blocks
        self._used_s = trio.current_time()
        await self.fit((await self._books.tier(Tier.DDR)).held_blocks)
        return True

    def excess_blocks(self, held_blocks: int) -> int:
        """Return what is beyond the budget together with what objects hold and have reserved; 0 or less if nothing is."""
        return held_blocks + self.blocks + self._going_blocks - self._budget_blocks

    async def fit(self, held_blocks: int) -> None:
        """Give back what the budget does not leave beside what objects hold and have reserved."""
        if self.excess_blocks(held_blocks) > 0:
            async with self._lock:
                await self._free(self.excess_blocks(held_blocks))

    async def give_back(self, blocks: int) -> bool:
        """Free the memory of spares, as much as that; whether there was any."""
        async with self._lock:
            return await self._free(blocks)

    async def _free(self, blocks: int) -> bool:
        cuts, gone = self._take(blocks)
        await self._out_of_the_way(lambda: _cut(cuts), gone, inline_bytes_max=SLOW_BYTES)
        return bool(cuts)

    async def lay(self, fd: int, extents: Iterable[tuple[int, int]]) -> int:
        """Let a file that is new have the memory of spares for its first bytes; return how many.

        Parameters
        ----------
        fd
            The file; its length stays. It is kept open until this returns, cancelled or not.
        extents
            ``(start, end)`` in bytes, whole blocks: where it will hold data. The caller has reserved as much.
        """
        laid_bytes = 0
        for batch in _batches(extents):
            if not self.blocks:
                break
            async with self._lock:
                laid_bytes += await self._exchange(fd, batch)
        return laid_bytes

    async def _exchange(self, fd: int, batch: list[tuple[int, int]]) -> int:
        steps: list[tuple[_Cuts, int, int]] = []
        taken_blocks = left_blocks = laid_bytes = 0
        for at, step_bytes in batch:
            blocks = min(step_bytes // BLOCK_BYTES, left_blocks + self.blocks)
            if blocks:
                cuts, gone = self._take(blocks - left_blocks)
                steps.append((cuts, at, blocks * BLOCK_BYTES))
                taken_blocks += gone
                left_blocks += gone - blocks

        def exchange() -> None:
            nonlocal laid_bytes
            for cuts, at, length in steps:
                _cut(cuts)
                with contextlib.suppress(OSError):  # who writes there will find out
                    allocate(fd, at, length)
                    laid_bytes += length

        await self._out_of_the_way(exchange, taken_blocks, inline_bytes_max=SLOW_LAY_BYTES)
        return laid_bytes

    def _take(self, blocks: int) -> tuple[_Cuts, int]:
        """Take at least so much out, where there is as much; return the cuts that free it, and what they free, in blocks."""
        cuts: _Cuts = []
        taken = 0
        while taken < blocks and self._files:
            spare = self._files[-1]
            stays = max(0, spare.blocks - (blocks - taken)) // HUGE_BLOCKS * HUGE_BLOCKS
            taken += spare.blocks - stays
            spare.blocks = stays
            cuts.append((spare.path, stays * BLOCK_BYTES))
            if not stays:
                self._files.pop()
        self.blocks -= taken
        if cuts:
            self._used_s = trio.current_time()
        return cuts, taken

    async def _out_of_the_way(self, action: Callable[[], None], blocks: int, *, inline_bytes_max: int) -> None:
        """Do something that takes the longer the more blocks it is about; in a thread where that is worth it."""
        if blocks * BLOCK_BYTES <= inline_bytes_max:
            action()
            return
        self._going_blocks += blocks
        try:
            with trio.CancelScope(shield=True):  # nobody else knows of it any more
                await trio.to_thread.run_sync(action)
        finally:
            self._going_blocks -= blocks

    async def run(self) -> None:
        """Look after them, for ever."""
        while True:
            await trio.sleep(LOOK_S)
            await self.tend()

    async def tend(self) -> None:
        """Give all back when memory is short, or when nobody has use for it."""
        if not self._files:
            return
        total, available = memory_bytes(self._meminfo.read_text())
        if available < total // AVAILABLE_SHARE or trio.current_time() - self._used_s >= IDLE_S:
            log.info("spare memory is given back", bytes=self.blocks * BLOCK_BYTES, available=available)
            await self.give_back(self.blocks)


def _rename(path: Path, spare: Path) -> int:
    """Make a file a spare, if it is fit for that; return the blocks that it holds, or 0."""
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        size, blocks = os.fstat(fd).st_size, held_blocks(fd)
        # Without holes, and with nothing behind its end: then a cut frees what is cut off.
        if size < FILE_BYTES_MIN or -(-size // BLOCK_BYTES) != blocks or not _is_alone(fd):
            return 0
        path.rename(spare)
    finally:
        os.close(fd)
    return blocks


def _is_alone(fd: int) -> bool:
    """Tell whether nobody else has a file open or mapped: the kernel grants a write lease on no other."""
    try:
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    except OSError:
        return False
    return True


def _batches(extents: Iterable[tuple[int, int]]) -> Iterator[list[tuple[int, int]]]:
    """Divide extents into steps ``(start, length)``, and these into lists of at most `LAY_BYTES`."""
    batch: list[tuple[int, int]] = []
    batch_bytes = 0
    for start, end in extents:
        for at in range(start, end, STEP_BYTES):
            length = min(STEP_BYTES, end - at)
            if batch_bytes + length > LAY_BYTES:
                yield batch
                batch, batch_bytes = [], 0
            batch.append((at, length))
            batch_bytes += length
    if batch:
        yield batch


def _cut(cuts: _Cuts) -> None:
    for path, size in cuts:
        with contextlib.suppress(FileNotFoundError):  # an operator has removed it
            if size:
                os.truncate(path, size)
            else:
                path.unlink()
