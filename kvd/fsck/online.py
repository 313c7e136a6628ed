"""The check while kvd runs: the catalogue in a snapshot, the engine's tables, and object by object what all of them say.

An object is looked at under its lock, so that nothing is under way; what is found before it has the lock is looked at again
with it. What the daemon can mend in one object it mends; a catalogue whose names contradict each other is mended with kvd
stopped, since the kernel knows those names, too.
"""

from __future__ import annotations

import os
import sqlite3
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import trio

from kvd.api.backend import Finding
from kvd.catalog.snapshot import snapshot
from kvd.errors import KvdError, VanishedError
from kvd.fsck import catalogue
from kvd.tier import describe
from kvd.tier.extents import copy_charges, data_extents, ddr_charges, held_blocks
from kvd.tier.live import LIVE_SLOT
from kvdriver import EngineError, InProcessDevice, Lost, QuerySession, Tier, Translate

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from kvd.catalog.catalog import Catalog
    from kvd.catalog.records import Copy
    from kvd.tier.books import Books
    from kvd.tier.live import Live
    from kvd.tier.objects import Objects
    from kvdriver import Command, Device, MapRun, Run

OFFLINE = "not repaired while kvd runs: stop it and run kvctl fsck --repair"
BATCH = 64
"""Objects between two words of progress."""


@dataclass(slots=True, kw_only=True)
class _Found:
    """A fault of one object, and which repair it takes."""

    kind: str
    what: str
    repair: str = ""


class Online:
    """One check of a running kvd."""

    def __init__(self, catalog: Catalog, objects: Objects, books: Books, device: Device) -> None:
        self._catalog = catalog
        self._objects = objects
        self._books = books
        self._device = device
        self._nvme = objects.nvme
        self._ddr = objects.ddr
        self._total = objects.lives.count
        self._taken: set[int] = set()
        """Sessions that objects had in place of others."""

    def __repr__(self) -> str:
        return f"<Online of {self._total} objects>"

    def _say(self, found: _Found, done: int = 0, *, about_it: str = "", mended: bool = False) -> Finding:
        return Finding(
            done=done, total=self._total, kind=found.kind, what=found.what, done_about_it=about_it, mended=mended
        )

    async def run(self, *, data: bool, repair: bool) -> AsyncIterator[Finding]:
        """Check; one finding a fault, and one for each step of progress."""
        damaged, faults = await trio.to_thread.run_sync(_catalogue, self._catalog.db.path)
        for fault in faults:
            yield self._say(fault, about_it=OFFLINE if repair and not damaged else "")
        if damaged:
            return
        async for finding in self._tables(repair=repair):
            yield finding
        done = 0
        for inos in self._catalog.placements.batches(BATCH):
            for ino in inos:
                done += 1
                async for finding in self._object(ino, done, data=data, repair=repair):
                    yield finding
            async for finding in self._descriptions(inos, done, repair=repair):
                yield finding
            yield Finding(done=done, total=max(self._total, done))
        async for finding in self._strays(done, repair=repair):
            yield finding

    # -- the engine ----------------------------------------------------------------------------------------------

    async def _tables(self, *, repair: bool) -> AsyncIterator[Finding]:
        """Let the engine check its tables against each other; mended are they by its own repair and anew from the files."""
        async with self._books.lock:
            faults = await self._device.check()
        if not faults:
            return
        about_it = ""
        if repair and isinstance(self._device, InProcessDevice):
            try:
                async with self._books.lock:
                    self._device.repair()
                await self._objects.mending.mend(Lost(sessions=frozenset(), every=True))
                about_it = "the tables were repaired, and made anew from the catalogue and the files"
            except (OSError, EngineError) as error:
                about_it = f"not repaired: {error}; the next start makes the tables anew"
        elif repair:
            about_it = "not repaired: a card has the tables; kvctl device reset, or a start, makes them anew"
        async with self._books.lock:
            left = set(await self._device.check())
        for what in faults:
            found = _Found(kind="engine", what=f"engine: {what}")
            yield self._say(found, about_it=about_it, mended=repair and what not in left)

    # -- objects -------------------------------------------------------------------------------------------------

    async def _object(self, ino: int, done: int, *, data: bool, repair: bool) -> AsyncIterator[Finding]:
        try:
            async with self._objects.lives.hold(ino) as live:
                faults = await self._look(live)
                about = [await self._mend(live, fault) if repair else "" for fault in faults]
                left: set[str] = set()
                if faults and repair and ino in self._objects.lives.sessions:
                    left = {fault.what for fault in await self._look(live)}
        except VanishedError:
            return
        if self._taken:
            await self._objects.mending.mend(Lost(sessions=frozenset(self._taken)))
            self._taken.clear()
        for fault, about_it in zip(faults, about, strict=True):
            yield self._say(fault, done, about_it=about_it, mended=repair and fault.what not in left)
        if data:
            finding = await self._data(ino, done, repair=repair)
            if finding is not None:
                yield finding

    async def _look(self, live: Live) -> list[_Found]:
        """Return what is wrong with an object; under its lock."""
        faults: list[_Found] = []
        name = f"object {live.ino}"
        copy, placement = live.copy, self._catalog.placements.get(live.ino)
        if live.tier is Tier.DDR and live.sealed:
            try:
                size = self._ddr.file(live.ino).stat().st_size
            except FileNotFoundError:
                faults.append(_Found(kind="ddr", what=f"{name}: its file in DDR is missing", repair="revert"))
            else:
                if size != live.size and not live.writers:
                    faults.append(_Found(kind="ddr", what=f"{name}: its file in DDR has {size} bytes", repair="revert"))
        if copy is not None and self._nvme.usable(copy):
            what = await self._length_fault(copy)
            if what and not live.damaged:
                faults.append(_Found(kind="nvme", what=f"{name}: its file on NVMe {what}", repair="copy"))
        if placement.tier != live.tier or (copy is None and live.tier is Tier.NVME):
            faults.append(_Found(kind="objects", what=f"{name}: the catalogue has it elsewhere", repair="row"))
        if not faults:
            faults += await self._booked(live)
        return faults

    async def _length_fault(self, copy: Copy) -> str:
        for index in copy.dirs:
            path = self._nvme.file(index, copy.ino, copy.gen)
            try:
                size = await self._nvme.directories[index].run(
                    partial(_size, path), doing="look at a file", write=False
                )
            except FileNotFoundError:
                return "is missing"
            except OSError:
                return ""  # the directory's trouble, which the status tells
            if size != copy.size:
                return f"has {size} bytes instead of {copy.size}"
        return ""

    async def _booked(self, live: Live) -> list[_Found]:
        """Compare the engine's pages of an object with what its files hold."""
        expected = self._expected(live)
        if expected is None:
            return []
        async with self._books.lock:
            batch: list[Command] = [QuerySession(session=live.session), Translate(session=live.session, slot=LIVE_SLOT)]
            query, pages = await self._device.submit(batch)
        if query.session is None or query.session.key != live.ino:
            what = f"object {live.ino}: the engine does not know it"
        elif query.session.leases != int(live.attached):
            what = f"object {live.ino}: the engine counts {query.session.leases} leases of it"
        elif _flat(pages.runs) != _flat_charges(expected, live.tier):
            what = f"object {live.ino}: the engine has other pages than its files"
        else:
            return []
        return [_Found(kind="engine", what=what, repair="books")]

    def _expected(self, live: Live) -> tuple[MapRun, ...] | None:
        """Return what the engine is to have of an object; None where the kernel may be changing it now."""
        page_bytes = self._books.page_bytes
        if live.streaming is not None:
            return None
        if live.tier is Tier.NVME and live.copy is not None:
            return copy_charges(live.copy.runs, live.copy.size, page_bytes)
        if live.tier is not Tier.DDR or live.attached or not live.sealed:
            return None
        fd = self._ddr.open(live.ino)
        try:
            if held_blocks(fd) != live.mapped_blocks:
                return None  # a mapping was closed a moment ago, and is charged at its release
            return ddr_charges(data_extents(fd, os.fstat(fd).st_size), page_bytes)
        finally:
            os.close(fd)

    async def _mend(self, live: Live, fault: _Found) -> str:
        """Mend a fault of an object; return what was done."""
        done = ""
        with trio.CancelScope(shield=True):
            try:
                done = await self._repair(live, fault)
            except (OSError, KvdError, EngineError) as error:
                done = f"not mended: {error}"
        return done

    async def _repair(self, live: Live, fault: _Found) -> str:
        match fault.repair:
            case "books":
                taken = await self._objects.mending.remake(live)
                if taken is not None:
                    self._taken.add(taken)
                return "the engine's books of it were made anew"
            case "copy":
                return await self._mend_copy(live, fault)
            case "row":
                self._catalog.placements.move(live.ino, live.tier)
                return "the row was put right"
            case _:
                return "not mended while it is open" if live.attached else await self._revert(live)

    async def _mend_copy(self, live: Live, fault: _Found) -> str:
        if live.tier is Tier.DDR and live.sealed:
            await self._objects.moves.copy_out(live)
            return "a new copy was made from DDR"
        if live.tier is Tier.DDR:
            return "not mended while it has a writer"
        if fault.what.endswith("is missing"):
            self._objects.moves.lose(live, "its file on NVMe has vanished")
            await self._books.destroy(self._objects.lives.sessions.pop(live.ino))
            return "given up: its bytes are nowhere, so its names are removed"
        where = self._nvme.place(live.copy, 0) if live.copy else ""
        self._objects.moves.damage(live, None, "its file on NVMe has another length", where)
        return "quarantined: write it anew or remove it"

    async def _revert(self, live: Live) -> str:
        """Make an object its copy: what was in DDR is gone."""
        if live.copy is None or not live.copy.current:
            self._objects.moves.damage(live, None, "its file in DDR is gone", str(self._ddr.file(live.ino)))
            return "quarantined: write it anew or remove it"
        self._catalog.placements.move(live.ino, Tier.NVME)
        self._catalog.given.fall_back(live.ino)
        charges = copy_charges(live.copy.runs, live.copy.size, self._books.page_bytes)
        await self._books.to_nvme(live, charges)
        await self._ddr.remove(live.ino)
        return "it is its copy now"

    async def _data(self, ino: int, done: int, *, repair: bool) -> Finding | None:
        scrub = self._objects.scrub
        try:
            verified = await scrub.verify(ino)
        except VanishedError:
            return None
        except KvdError as error:
            return self._say(_Found(kind="data", what=str(error)), done)
        if verified is None or verified.sound or verified.gone:  # a file that is gone has been told
            return None
        what = f"page {verified.bad_pages[0]} failed its checksum" if verified.bad_pages else verified.trouble
        found = _Found(kind="data", what=f"object {ino}: {what}")
        if not repair:
            return self._say(found, done)
        try:
            await scrub.settle(ino, verified)
        except KvdError as error:
            return self._say(found, done, about_it=str(error))
        return self._say(found, done, about_it="a new copy was made from DDR", mended=True)

    # -- the rest ------------------------------------------------------------------------------------------------

    async def _descriptions(self, inos: list[int], done: int, *, repair: bool) -> AsyncIterator[Finding]:
        describer = self._objects.describer
        wrong = await describer.wrong(self._copies(inos))
        if wrong:  # what was changed a moment ago is described by and by
            await describer.catch_up()
            wrong = await describer.wrong(self._copies([copy.ino for copy in wrong]))
        if not wrong:
            return
        if repair:
            await describer.mend(wrong)
        left = {copy.ino for copy in await describer.wrong(self._copies([copy.ino for copy in wrong]))}
        for copy in wrong:
            found = _Found(kind="descriptions", what=f"object {copy.ino}: the description of its copy is wrong")
            mended = copy.ino not in left
            yield self._say(found, done, about_it="described anew" if repair else "", mended=mended)

    def _copies(self, inos: list[int]) -> list[Copy]:
        return [copy for ino in inos if (copy := self._catalog.placements.copy(ino)) is not None]

    async def _strays(self, done: int, *, repair: bool) -> AsyncIterator[Finding]:
        """Find files that are nobody's; one that an object has just made or left is not."""
        listed, _ = await self._nvme.files()
        known = {(index, copy.ino, copy.gen) for copy in self._catalog.placements.copies() for index in copy.dirs}
        for index, ino, gen in listed:
            if (index, ino, gen) in known:
                continue
            path = self._nvme.file(index, ino, gen)
            if (index, ino, gen) in self._nvme.making or await self._is_used(ino, gen) or not path.exists():
                continue
            if describe.owner_of(path, other_than=self._catalog.db.uuid):
                continue
            if repair:
                await self._nvme.remove_file(index, ino, gen)
            found = _Found(kind="nvme", what=f"{path}: belongs to no object")
            yield self._say(found, done, about_it="removed" if repair else "", mended=repair and not path.exists())

    async def _is_used(self, ino: int, gen: int) -> bool:
        try:
            async with self._objects.lives.hold(ino) as live:
                return live.copy is not None and live.copy.gen == gen
        except VanishedError:
            return False


def _size(path: Path) -> int:
    return path.stat().st_size


def _flat(runs: tuple[Run, ...]) -> list[tuple[int, int, int]]:
    return _joined([(run.first_page, run.count, run.tier * 256 + run.blocks) for run in runs])


def _flat_charges(charges: tuple[MapRun, ...], tier: Tier) -> list[tuple[int, int, int]]:
    return _joined([(charge.first_page, charge.count, tier * 256 + charge.blocks) for charge in charges])


def _joined(runs: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    joined: list[tuple[int, int, int]] = []
    for first, count, what in sorted(runs):
        if joined and joined[-1][0] + joined[-1][1] == first and joined[-1][2] == what:
            joined[-1] = (joined[-1][0], joined[-1][1] + count, what)
        else:
            joined.append((first, count, what))
    return joined


def _catalogue(path: Path) -> tuple[bool, list[_Found]]:
    """Check the catalogue in a snapshot; whether its file is damaged, and the faults."""
    try:
        with snapshot(path) as catalog:
            if damage := list(catalogue.database(catalog)):
                return True, [_Found(kind=fault.kind, what=fault.what) for fault in damage]
            faults = [
                *catalogue.entries(catalog),
                *catalogue.folders(catalog),
                *catalogue.links(catalog, running=True),
                *catalogue.rows(catalog),
                *catalogue.objects(catalog, running=True),
            ]
            return False, [_Found(kind=fault.kind, what=fault.what) for fault in faults]
    except (sqlite3.DatabaseError, KvdError) as error:
        return True, [_Found(kind="catalogue", what=f"catalogue: {error}; {catalogue.REBUILD}")]
