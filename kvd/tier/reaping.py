"""Deletes in the background what is out of everybody's reach: invalidated namespaces, objects that lost their names.

In batches, each one transaction; what a crash interrupts the next start goes on with. An object that is open stays
readable, and goes with its last release.
"""

from __future__ import annotations

import errno
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog
import trio

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from kvd.catalog.catalog import Catalog
    from kvd.catalog.names import Names
    from kvd.tier.plane import NameKeeper

log = structlog.get_logger(__name__)

BATCH_NAMES = 128
RETRY_S = 1.0
COMPLAIN_S = 60.0
"""A catalogue that takes no changes is reported once in this time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReapStatistics:
    """`graves` are invalidated contents on their way out with `names_left` at their top; `names_gone` since start."""

    graves: int
    names_left: int
    names_gone: int


class NobodyRemembers:
    """The `NameKeeper` of objects without a mount: what has no name is deleted at once."""

    def __init__(self, names: Names, discard_object: Callable[[int], Awaitable[None]]) -> None:
        self._names = names
        self._discard_object = discard_object

    def forget_name(self, parent: int, name: bytes) -> None:
        """Nobody has it."""

    async def forget_names(self, names: Sequence[tuple[int, bytes]]) -> None:
        """Nobody has them."""

    async def forget_tree(self, parent: int, name: bytes) -> None:
        """Nobody has it."""

    async def discard(self, ino: int) -> None:
        """Delete what has no name."""
        try:
            inode = self._names.inode(ino)
        except OSError as error:
            if error.errno != errno.ESTALE:
                raise
            return
        if inode.nlink:
            return
        if inode.is_file:
            await self._discard_object(ino)
        else:
            self._names.remove(ino)


class Reaper:
    """The one who deletes.

    Attributes
    ----------
    keeper
        Who deletes an inode without a name, unless it is held.
    """

    def __init__(self, catalog: Catalog, keeper: NameKeeper) -> None:
        self._namespaces = catalog.namespaces
        self.keeper = keeper
        self._unnamed: deque[int] = deque()
        self._wake = trio.Event()
        self._idle = trio.Event()
        self._gone = 0
        self._complained_s = -COMPLAIN_S

    def __repr__(self) -> str:
        return f"<Reaper {self.statistics()}>"

    def statistics(self) -> ReapStatistics:
        """Return the counts."""
        graves = self._namespaces.graves
        return ReapStatistics(
            graves=len(graves),
            names_left=sum(self._namespaces.count_in(grave) for grave in graves) + len(self._unnamed),
            names_gone=self._gone,
        )

    def unnamed(self, ino: int) -> None:
        """Delete an object, soon, that has lost its names. As many wait as objects are in memory at most."""
        self._unnamed.append(ino)
        self.wake()

    def wake(self) -> None:
        """Tell that there is a new grave."""
        self._idle = trio.Event()
        self._wake.set()

    async def idle(self) -> None:
        """Wait until nothing is left to delete."""
        while self._unnamed or self._namespaces.graves:
            await self._idle.wait()

    async def run(self) -> None:
        """Delete, for ever."""
        while True:
            self._wake = trio.Event()
            try:
                while await self._step():
                    await trio.lowlevel.checkpoint()
            except OSError as error:
                self._complain(error)
                await trio.sleep(RETRY_S)
                continue
            self._idle.set()
            await self._wake.wait()

    async def _step(self) -> bool:
        """Do a bounded part of the work; whether there was any."""
        if self._unnamed:
            await self.keeper.discard(self._unnamed[0])
            self._unnamed.popleft()
            self._gone += 1
            return True
        if not self._namespaces.graves:
            return False
        grave = self._namespaces.graves[0]
        gone = self._namespaces.exhume(grave, BATCH_NAMES)
        if not gone:
            self._namespaces.close_grave(grave)
            await self.keeper.discard(grave)
            log.info("invalidated content is deleted", grave=grave)
            return True
        self._unnamed.extend(each.ino for each in gone)
        # Whoever remembers a name without ever asking for it again would hold on to the object for ever.
        await self.keeper.forget_names([(each.parent, each.name) for each in gone])
        return True

    def _complain(self, error: OSError) -> None:
        now_s = trio.current_time()
        if now_s - self._complained_s >= COMPLAIN_S:
            self._complained_s = now_s
            log.warning("invalidated content can't be deleted yet", errno=error.errno, error=str(error))
