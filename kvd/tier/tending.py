"""Looks after the NVMe directories: measures their room, tries out those that are in doubt, and clears up where one is back."""

from __future__ import annotations

import time
from contextlib import aclosing
from typing import TYPE_CHECKING, assert_never

import structlog
import trio

from kvd.tier.health import ProbeBegan, ProbeFailed, ProbePassed, Slow, State, TimedOut
from kvd.tier.listing import listing

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvd.catalog.records import Copy
    from kvd.tier.directory import Directory
    from kvd.tier.mover import DeviceStatistics
    from kvd.tier.nvme import NvmeStore

log = structlog.get_logger(__name__)

MEASURE_S = 5.0
"""How often a directory that is online is looked at."""
AGES_S = 0.5
"""How often the mover is asked for its oldest requests; they are looked at more often where the deadline is short."""
SLOW_SHARE = 0.25
"""A request older than this part of the deadline makes its directory suspect."""


class Tending:
    """Looks after the directories of a store.

    Parameters
    ----------
    ages
        Returns the requests of each directory, in the order of the list.
    row
        Returns the catalogue's copy of an object.
    changed
        Called when there may be more room, or less.
    """

    def __init__(
        self,
        nvme: NvmeStore,
        *,
        deadline_s: float,
        probe_s: float,
        ages: Callable[[], Sequence[DeviceStatistics]],
        row: Callable[[int], Copy | None],
        changed: Callable[[], object],
    ) -> None:
        self._nvme = nvme
        self._deadline_s = deadline_s
        self._probe_s = probe_s
        self._ages = ages
        self._row = row
        self._changed = changed

    def __repr__(self) -> str:
        return f"<Tending of {self._nvme!r}>"

    async def run(self) -> None:
        """Look after all of them, for ever. One that hangs holds up none of the others."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch_ages)
            for directory in self._nvme.directories:
                nursery.start_soon(self._tend, directory)

    async def _watch_ages(self) -> None:
        """Turn a directory offline whose drive does not answer, before the moves that wait for it end by themselves."""
        while True:
            for directory, device in zip(self._nvme.directories, self._ages(), strict=True):
                if device.oldest_s > time.time() - directory.health.since_s:
                    continue  # from before the directory came back: it has been held against it already
                why = f"a request of the mover is {device.oldest_s:.1f} s old"
                if device.oldest_s >= self._deadline_s:
                    directory.meet(TimedOut(why=why))
                elif device.oldest_s >= self._deadline_s * SLOW_SHARE and directory.health.state is State.ONLINE:
                    directory.meet(Slow(why=why))
            await trio.sleep(min(AGES_S, self._deadline_s * SLOW_SHARE))

    async def _tend(self, directory: Directory) -> None:
        while True:
            before = directory.health.usable
            match directory.health.state:
                case State.ONLINE:
                    await self._look(directory)
                case State.SUSPECT:
                    await self._probe(directory)
                case State.OFFLINE | State.PROBING:
                    await trio.sleep(self._probe_s)
                    if directory.health.state is State.OFFLINE:
                        directory.meet(ProbeBegan())
                    await self._probe(directory)
                case _:
                    assert_never(directory.health.state)
            if directory.health.usable is not before:
                directory.unswept = True
                self._changed()

    async def _look(self, directory: Directory) -> None:
        changed = directory.changed
        try:
            if directory.unswept:
                directory.unswept = False
                await self._sweep(directory)
            await directory.run(lambda: _measure(directory), doing="measure it", write=False)
        except OSError as error:
            if directory.health.state is State.ONLINE:
                log.info("nvme directory can't be looked at", path=str(directory.path), error=str(error))
        with trio.move_on_after(MEASURE_S):
            await changed.wait()

    async def _probe(self, directory: Directory) -> None:
        passed = await directory.probe()
        directory.meet(ProbePassed() if passed else ProbeFailed(why=directory.probe_why))

    async def _sweep(self, directory: Directory) -> None:
        """Remove what is owed: files that no row knows and nobody is making."""
        swept = 0
        try:
            async with aclosing(listing(directory)) as batches:
                async for batch in batches:
                    for ino, gen, _ in batch:
                        copy = self._row(ino)
                        known = copy is not None and copy.gen == gen and directory.index in copy.dirs
                        if not known and (directory.index, ino, gen) not in self._nvme.making:
                            await self._nvme.remove_file(directory.index, ino, gen, stray=True)
                            swept += 1
        except OSError:
            directory.unswept = True
            raise
        if swept:
            log.info("nvme directory swept", path=str(directory.path), files=swept)


def _measure(directory: Directory) -> None:
    directory.check_marker()
    directory.measure()
