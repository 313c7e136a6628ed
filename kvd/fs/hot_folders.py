"""Which directories the hot table holds: loaded when they are used, forgotten when the table is full.

A directory is *partial* while the table has some of its names, and *complete* when it has all: then the data plane answers
misses and listings as well.
"""

from __future__ import annotations

import collections
import enum
import stat
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog
import trio

from kvd.catalog.schema import ROOT_INO
from kvd.fs.virtual import FOLDER, FOLDER_INO

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvd.catalog.told import Telling, Told
    from kvd.fs.hot import Hot
    from kvd.fs.hot_plane import HotPlane
    from kvd.fs.hot_table import HotAttr

log = structlog.get_logger(__name__)

LOAD_AFTER = 8
"""Look-ups that the table could not answer in a directory before it may be loaded."""
NAMES_A_LOOKUP = 64
"""A directory is loaded when no more names are in it than this for each such look-up: loading one costs a fraction of one."""
LOAD_PAUSE = 1.0
WARM_PAUSE = 3.0
"""The loop is left alone for so many times as long as a batch of names took; at a start, which nobody waits for, longer."""
WARM_SHARE = 2
"""At a start directories are loaded until less than this part of the table is free."""
LOADS_MAX = 256
"""Directories that wait to be loaded; more are loaded when they are asked for again."""
LOADS_EACH_MAX = 4
"""Tries to load one directory for which there is no room; more are not made until it is forgotten."""
FOLDER_SHARE = 2
"""A directory that would need more than this part of the table is not loaded."""
FORGET_SHARE = 8
"""When the table is full, this part of it is made free."""


class FolderState(enum.Enum):
    """How much of a directory the table has."""

    PARTIAL = enum.auto()
    LOADING = enum.auto()
    COMPLETE = enum.auto()


@dataclass(slots=True)
class Folder:
    """A directory of which the table has, or had, names.

    Attributes
    ----------
    asked
        Look-ups that came to the control plane since it was partial.
    loads
        How often it was loaded, or tried to be, since it was complete last.
    """

    state: FolderState = FolderState.PARTIAL
    asked: int = 0
    loads: int = 0


class HotFolders:
    """The directories of the table, the one used longest ago first."""

    def __init__(self, table: HotPlane, telling: Telling, hot: Hot) -> None:
        self._table = table
        self._telling = telling
        self._hot = hot
        self._folders: collections.OrderedDict[int, Folder] = collections.OrderedDict()
        self._send, self._receive = trio.open_memory_channel[int](LOADS_MAX)
        self._full = trio.Event()

    def __repr__(self) -> str:
        complete = sum(folder.state is FolderState.COMPLETE for folder in self._folders.values())
        return f"<HotFolders {len(self._folders)}, {complete} complete>"

    def __contains__(self, ino: int) -> bool:
        return ino in self._folders

    def is_complete(self, ino: int) -> bool:
        """Whether the table has every name of a directory."""
        folder = self._folders.get(ino)
        return folder is not None and folder.state is FolderState.COMPLETE

    # -- what happens to directories -----------------------------------------------------------------------------

    def asked(self, ino: int) -> None:
        """Take note of a look-up that the table did not answer."""
        folder = self._folders.get(ino)
        if folder is None:
            folder = self._folders[ino] = Folder()
        else:
            self._folders.move_to_end(ino)
        folder.asked += 1
        due = folder.asked >= LOAD_AFTER and folder.asked.bit_count() == 1  # so that counting names is seldom
        if (
            due
            and folder.state is FolderState.PARTIAL
            and self._telling.has_at_most(ino, folder.asked * NAMES_A_LOOKUP)
        ):
            folder.asked = 0
            self.want(ino)

    def want(self, ino: int) -> None:
        """Have a directory loaded soon, unless too many wait."""
        folder = self._folders.get(ino)
        if folder is None or (folder.state is FolderState.PARTIAL and folder.loads < LOADS_EACH_MAX):
            try:
                self._send.send_nowait(ino)
            except trio.WouldBlock:
                return

    def born(self, ino: int, parent: int) -> None:
        """Publish a directory that was just made, as complete."""
        self._folders[ino] = Folder()
        self._complete(ino, parent)

    def moved(self, ino: int, parent: int) -> None:
        """Tell the table which directory ``..`` is, if it knows this one."""
        if self.is_complete(ino):
            self._table.folder_parent(ino, parent)

    def removed(self, ino: int) -> None:
        """Forget a directory that is gone; there was nothing in it."""
        if self._folders.pop(ino, None) is not None:
            self._table.forget_folder(ino)

    def name(self, parent: int, name: bytes, cookie: int, node: int) -> None:
        """Publish a name, or (`node` 0) that it is not there."""
        if not self._table.name(parent, name, cookie, node):
            self.lost(parent)

    def lost(self, parent: int) -> None:
        """Take note that the table had no room for a name of a directory, and made it partial."""
        folder = self._folders.get(parent)
        if folder is not None:
            folder.state = FolderState.PARTIAL
            folder.asked = 0
        self.full()

    def full(self) -> None:
        """Have room made in the table."""
        self._full.set()

    def _complete(self, ino: int, parent: int) -> None:
        folder = self._folders[ino]
        if ino == ROOT_INO:  # found there, but not listed
            self.name(ROOT_INO, FOLDER, 0, FOLDER_INO)
        if self._table.complete(ino, parent):
            folder.state, folder.loads = FolderState.COMPLETE, 0
            self._folders.move_to_end(ino)
        else:
            self.lost(ino)

    # -- loading -------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Load what is wanted and make room, for ever."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._load_wanted)
            nursery.start_soon(self._make_room)
            nursery.start_soon(self._warm)

    async def _warm(self) -> None:
        """After a start: load what there is, as far as it leaves room for what will be asked for."""
        last = 0
        while (ino := self._telling.directory_after(last)) and not self._table.is_crowded(WARM_SHARE):
            last = ino
            if not self._hot.is_dead(ino):
                await self._load_or_warn(ino, WARM_PAUSE)

    async def _load_wanted(self) -> None:
        async for ino in self._receive:
            await self._load_or_warn(ino, LOAD_PAUSE)

    async def _load_or_warn(self, ino: int, pause: float) -> None:
        try:
            await self.load(ino, pause)
        except OSError as error:
            log.warning("directory can't be loaded", ino=ino, errno=error.errno, error=str(error))
            self._give_up(ino)

    def _give_up(self, ino: int) -> None:
        folder = self._folders.get(ino)
        if folder is not None and folder.state is FolderState.LOADING:
            folder.state = FolderState.PARTIAL

    async def load(self, ino: int, pause: float = 0.0) -> None:
        """Bring all names of a directory into the table, with their inodes; changes meanwhile go in by themselves.

        Parameters
        ----------
        pause
            How long the loop is left alone after each batch of names, in times that it took.
        """
        folder = self._folders.setdefault(ino, Folder())
        if folder.state is not FolderState.PARTIAL or folder.loads == LOADS_EACH_MAX:
            return
        folder.state = FolderState.LOADING
        folder.loads += 1
        names = 0
        began_s = time.perf_counter()
        for batch in self._telling.batches(ino):
            names += len(batch)
            if names > self._table.names_max // FOLDER_SHARE:
                folder.loads = LOADS_EACH_MAX
            if folder.loads == LOADS_EACH_MAX or not self._fill(ino, batch):
                self._give_up(ino)
                await self.forget_some(keep=ino)
                self.want(ino)
                return
            await trio.sleep(pause * (time.perf_counter() - began_s))
            if self._folders.get(ino) is not folder or folder.state is not FolderState.LOADING:
                return
            began_s = time.perf_counter()
        told = self._telling.inode(ino)
        if told is None or told.nlink == 0 or not stat.S_ISDIR(told.mode) or self._hot.is_dead(ino):
            self.removed(ino)
            return
        parents = self._telling.parents(ino)
        self._complete(ino, parents[0] if parents else ROOT_INO)

    def _fill(self, ino: int, batch: list[tuple[int, bytes, Told]]) -> bool:
        ready: list[tuple[int, bytes, HotAttr]] = []
        for cookie, name, told in batch:
            attr = self._hot.attr(told)
            if attr is not None:
                ready.append((cookie, name, attr))
                continue
            self._hot.expect(told.ino)
            if not self._table.name(ino, name, cookie, told.ino):
                return False
        return self._table.fill(ino, ready)

    # -- forgetting ----------------------------------------------------------------------------------------------

    async def _make_room(self) -> None:
        while True:
            await self._full.wait()
            self._full = trio.Event()
            await self.forget_some()

    async def forget_some(self, keep: int = 0) -> None:
        """Forget the directories used longest ago until a part of the table is free."""
        for used_too in (False, True):
            for ino in list(self._folders):
                if not self._table.is_crowded(FORGET_SHARE):
                    return
                folder = self._folders.get(ino)
                if folder is None or ino == keep or folder.state is FolderState.LOADING:
                    continue
                if self._table.folder_uses(ino) and not used_too:
                    self._folders.move_to_end(ino)
                else:
                    await self._forget(ino)

    def forget_where(self, is_gone: Callable[[int], bool]) -> None:
        """Forget the names in directories at once of which the catalogue still has what nobody may see any more."""
        for ino in [ino for ino in self._folders if is_gone(ino)]:
            self.removed(ino)

    async def _forget(self, ino: int) -> None:
        del self._folders[ino]
        self._table.forget_folder(ino)
        for batch in self._telling.batches(ino):
            for _, _, told in batch:
                # What is open by the data plane stays: those are few. A directory that the table has goes after its own.
                if told.ino not in self._folders and not self._hot.is_shared(told.ino):
                    self._hot.drop(told.ino)
            await trio.lowlevel.checkpoint()
        if ino != ROOT_INO and not any(parent in self._folders for parent in self._telling.parents(ino)):
            self._hot.drop(ino)
