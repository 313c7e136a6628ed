"""Keeps the descriptions of copies and the file of the tree what the catalogue says, in the background.

A new copy is described before its row is committed. What changes later, a name, a mode, comes here through `touched`: the
descriptions of those objects are written anew, and the file of the tree, both a moment later and many at once. What the
bounded queue can't take, and what a crash made it forget, is found by a sweep that compares every description.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections import defaultdict
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import structlog
import trio

from kvd.tier import describe, treefile
from kvd.tier.directory import FAN_OUT, OBJECTS, DirectoryOfflineError
from kvd.tier.health import event_of
from kvd.tier.mover import SUM_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from kvd.catalog.catalog import Catalog
    from kvd.catalog.records import Copy
    from kvd.tier.directory import Directory
    from kvd.tier.nvme import NvmeStore

log = structlog.get_logger(__name__)

QUEUE_MAX = 1 << 16
"""Inodes that wait for their description; beyond it a sweep finds them."""
BATCH = 32
"""Objects that are read from the catalogue at one go: about a millisecond."""
GATHER_S = 1.0
"""Changes of so long are written together."""
SWEEP_PAUSE = 1.0
TREE_S = 5.0
"""The file of the tree is written at most so often ..."""
TREE_SHARE = 20
"""... and at most this part of the time is spent on it."""
FLUSH_S = 20.0
"""What a stop gives to what is not described yet."""
META = "described"
"""Fact of the catalogue: `ALL` after a stop at which everything was described, `SOME` while kvd runs; 0: never was."""
SOME, ALL = 1, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Writing:
    """What is to be written to, or beside, a file of a copy."""

    path: Path
    content: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class _Look:
    """What a file of a copy is to say; `beside` it, if that is to be looked at."""

    copy: Copy
    path: Path
    value: bytes
    beside: bytes | None


@dataclass(slots=True)
class DescribeCounts:
    """What was written since the start, and what could not be."""

    described: int = 0
    trees: int = 0
    failed: int = 0
    sweeps: int = 0


class Describer:
    """Writes descriptions; one for the catalogue and its directories."""

    def __init__(self, catalog: Catalog, nvme: NvmeStore, *, page_bytes: int) -> None:
        self._catalog = catalog
        self._nvme = nvme
        self._page_bytes = page_bytes
        self._uuid = catalog.db.uuid
        self._queue: dict[int, None] = {}
        self._tree_due = True
        self.unclean = self._sweep_due = catalog.db.number(META) != ALL
        """The kvd before this one has not come to its end."""
        self._wake = trio.Event()
        self._known: set[int] = set()
        self.off: dict[int, str] = {}
        """Why a directory's files can't describe themselves, by its number."""
        self.counts = DescribeCounts()
        catalog.db.keep_number(META, SOME)
        catalog.names.changed = self.touched

    def __repr__(self) -> str:
        return f"<Describer {len(self._queue)} waiting, {self.counts}>"

    async def start(self) -> None:
        """Find out what the directories can do."""
        for directory in self._nvme.directories:
            await self._can(directory)

    async def _can(self, directory: Directory) -> bool:
        """Whether files in a directory can describe themselves now."""
        if directory.index not in self._known and directory.health.usable:
            try:
                why = await directory.run(lambda: describe.probe(directory.path), doing="try attributes", write=True)
            except OSError:
                return False
            self._known.add(directory.index)
            if why:
                self.off[directory.index] = why
        return directory.health.usable and directory.index not in self.off

    async def _all_can(self, copy: Copy) -> bool:
        return all([await self._can(self._nvme.directories[index]) for index in copy.dirs])

    @property
    def reason_off(self) -> str:
        """Why copies do not describe themselves; '' if they do."""
        return "; ".join(self.off.values())

    def touched(self, ino: int) -> None:
        """Note that an inode's names or attributes change; from within the change."""
        self._tree_due = True
        if ino not in self._queue:
            if len(self._queue) < QUEUE_MAX:
                self._queue[ino] = None
            else:
                self._sweep_due = True
        self._wake.set()

    # -- copies --------------------------------------------------------------------------------------------------

    async def describe_new(self, copy: Copy, sums: bytes) -> None:
        """Describe a copy whose row is not committed yet, durably; what can't be is left to a later sweep."""
        await self._write([(copy, sums, True)], durable=True)

    def settled(self, copy: Copy, ctime_ns: int) -> None:
        """Look, once a new copy's row is committed, whether its object was changed since the time of the description."""
        with contextlib.suppress(OSError):
            if self._catalog.names.inode(copy.ino).ctime_ns != ctime_ns:
                self.touched(copy.ino)

    async def _write(self, todo: list[tuple[Copy, bytes, bool]], *, durable: bool) -> None:
        """Write descriptions of copies; with their sums where asked for: these come first, and are durable."""
        beside: dict[int, list[Writing]] = defaultdict(list)
        attributes: dict[int, list[Writing]] = defaultdict(list)
        for copy, sums, with_sums in todo:
            if not await self._all_can(copy):
                continue
            told = self._told(copy, sums)
            if told is None:
                continue
            values, aside = told
            for index, value in zip(copy.dirs, values, strict=True):
                attributes[index].append(Writing(path=self._nvme.file(index, copy.ino, copy.gen), content=value))
            if aside is not None and with_sums:
                path = self._nvme.file(copy.dir_index, copy.ino, copy.gen)
                beside[copy.dir_index].append(Writing(path=path, content=aside))
        for index, writings in beside.items():
            await self._in_directory(index, partial(_write_beside, writings))
        for index, writings in attributes.items():
            await self._in_directory(index, partial(_write_attributes, writings, durable))
            self.counts.described += len(writings)

    async def _in_directory(self, index: int, action: Callable[[], int]) -> None:
        try:
            failed = await self._nvme.directories[index].run(action, doing="describe copies", write=True)
        except OSError:
            failed = 1  # the directory's trouble, which it has told
        self.counts.failed += failed

    def _told(self, copy: Copy, sums: bytes) -> tuple[list[bytes], bytes | None] | None:
        """Return the descriptions of a copy and what is beside it; None if it has gone, or contradicts itself."""
        if len(sums) != SUM_BYTES * copy.pages:
            return None
        execute = self._catalog.db.execute
        try:
            values = describe.describe(execute, copy, sums, uuid=self._uuid, page_bytes=self._page_bytes)
        except LookupError:
            return None
        return values, describe.sums_beside(copy, sums, uuid=self._uuid) if describe.is_aside(copy) else None

    # -- in the background ---------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Follow the catalogue, for ever."""
        rest_until_s = 0.0
        while True:
            if not (self._queue or self._sweep_due or self._tree_due):
                self._wake = trio.Event()
                await self._wake.wait()
            await trio.sleep(GATHER_S)
            if self._sweep_due:
                await self._sweep(pause=SWEEP_PAUSE)
            await self._redescribe()
            if self._tree_due and trio.current_time() >= rest_until_s:
                began_s = trio.current_time()
                await self._write_tree()
                took_s = trio.current_time() - began_s
                rest_until_s = trio.current_time() + max(TREE_S, TREE_SHARE * took_s)

    async def flush(self, *, limit_s: float = FLUSH_S) -> None:
        """Describe all that is not, for the end, within a limit; then the next start need not sweep."""
        with trio.move_on_after(limit_s) as scope:
            while self._sweep_due or self._queue:
                if self._sweep_due:
                    await self._sweep(pause=0)
                await self._redescribe()
        if await self._write_tree() and not (scope.cancelled_caught or self.counts.failed):
            self._catalog.db.keep_number(META, ALL)

    async def catch_up(self) -> None:
        """Describe what is waiting for it now."""
        await self._redescribe()

    async def _redescribe(self) -> None:
        for _ in range(-(-len(self._queue) // BATCH)):
            inos = list(itertools.islice(self._queue, BATCH))
            copies = [copy for ino in inos if (copy := self._catalog.placements.copy(ino)) is not None]
            for ino in inos:
                del self._queue[ino]
            try:
                await trio.lowlevel.checkpoint()
                await self._write([(copy, self._sums(copy), False) for copy in copies], durable=False)
            except trio.Cancelled:
                self._queue.update(dict.fromkeys(inos))
                raise

    def _sums(self, copy: Copy) -> bytes:
        """Return a copy's sums; b'' where it has gone meanwhile."""
        try:
            return self._catalog.placements.sums(copy.ino)
        except LookupError:
            return b""

    async def _write_tree(self) -> bool:
        """Write the file of the tree; whether every directory has it."""
        self._tree_due = False
        catalogue = self._catalog.db.path
        made = catalogue.with_name(treefile.MADE)
        written = 0
        try:
            await trio.to_thread.run_sync(treefile.make, catalogue, made, time.time_ns())
            for directory in self._nvme.directories:
                with contextlib.suppress(DirectoryOfflineError):
                    await directory.run(partial(treefile.put, made, directory.path), doing="write the tree", write=True)
                    written += 1
        except OSError as error:
            self._tree_due = True
            log.info("the file of the tree can't be written", errno=error.errno, error=str(error))
        finally:
            with contextlib.suppress(OSError):
                made.unlink(missing_ok=True)
        self.counts.trees += written > 0
        return written == len(self._nvme.directories)

    async def _sweep(self, *, pause: float) -> None:
        """Compare all descriptions with the catalogue; remove sums that belong to no file.

        After each step clients have the loop for `pause` times its length.
        """
        self._sweep_due = False
        whole = False
        try:
            for directory in self._nvme.directories:
                with contextlib.suppress(OSError):
                    for number in range(FAN_OUT):  # a step has the deadline of a request, and there may be millions
                        step = partial(_remove_lone_sums, directory.path, f"{number:02x}")
                        await directory.run(step, doing="look for sums of nothing", write=True)
            after = 0
            began_s = trio.current_time()
            while copies := self._catalog.placements.copies_after(after, BATCH):
                after = copies[-1].ino
                await self.mend(await self.wrong(copies))
                await trio.sleep(pause * (trio.current_time() - began_s))
                began_s = trio.current_time()
            whole = True
            self.counts.sweeps += 1
        finally:
            self._sweep_due |= not whole

    async def wrong(self, copies: Iterable[Copy]) -> list[Copy]:
        """Return those whose description is not what the catalogue says, where it can be read."""
        looks: dict[int, list[_Look]] = defaultdict(list)
        for copy in copies:
            told = self._told(copy, self._sums(copy)) if await self._all_can(copy) else None
            if told is None:
                continue
            values, beside = told
            for index, value in zip(copy.dirs, values, strict=True):
                path = self._nvme.file(index, copy.ino, copy.gen)
                aside = beside if index == copy.dir_index else None
                looks[index].append(_Look(copy=copy, path=path, value=value, beside=aside))
        wrong: dict[int, Copy] = {}
        for index, there in looks.items():
            with contextlib.suppress(OSError):  # the directory's trouble
                differ = await self._nvme.directories[index].run(
                    partial(_differing, there), doing="read descriptions", write=False
                )
                wrong.update({copy.ino: copy for copy in differ})
        return list(wrong.values())

    async def mend(self, copies: Iterable[Copy]) -> int:
        """Write the descriptions of copies anew, sums and all; return how many."""
        todo = [(copy, self._sums(copy), True) for copy in copies]
        await self._write(todo, durable=True)
        return len(todo)


def _write_beside(writings: list[Writing]) -> int:
    return sum(_written(partial(describe.write_beside, each.path, each.content), each.path) for each in writings)


def _write_attributes(writings: list[Writing], durable: bool) -> int:
    return sum(
        _written(partial(describe.write, each.path, each.content, durable=durable), each.path) for each in writings
    )


def _written(write: Callable[[], None], path: Path) -> bool:
    """Write; whether that failed for this file alone. What ails the directory is raised."""
    try:
        write()
    except FileNotFoundError:
        return False  # removed meanwhile: nothing is left to be described
    except OSError as error:
        if event_of(error, write=True, doing="describe copies") is not None:
            raise
        log.info("copy can't be described", path=str(path), errno=error.errno, error=str(error))
        return True
    return False


def _differing(looks: list[_Look]) -> list[Copy]:
    return [look.copy for look in looks if _differs(look)]


def _differs(look: _Look) -> bool:
    """Tell whether a copy's file, if it is there, has another description, or other sums beside it."""
    try:
        if describe.read(look.path) != look.value:
            return True
        return look.beside is not None and describe.read_beside(look.path) != look.beside
    except FileNotFoundError:
        return False


def lone_sums(directory: Path, below: str = "") -> Iterable[Path]:
    """Yield the files with sums whose copy is gone; those `below` a folder alone."""
    for folder, _, names in os.walk(directory / OBJECTS / below):
        there = set(names)
        for name in names:
            if name.endswith(describe.SUMS_SUFFIX) and name.removesuffix(describe.SUMS_SUFFIX) not in there:
                yield type(directory)(folder, name)


def _remove_lone_sums(directory: Path, below: str) -> None:
    for path in lone_sums(directory, below):
        with contextlib.suppress(OSError):
            path.unlink()
