"""Check a stopped kvd's state: the catalogue against itself, and against the files of both tiers; repair it.

Each fault is one sentence. Without a repair nothing is changed; the next start of the daemon mends what a crash can leave
(files without a row, objects that had a writer, descriptions), so right after a crash such faults are expected, after a clean
stop none is. A repair goes through the same checks in their order, mends each fault as it is found, and checks all again.
"""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING

import trio

from kvd.catalog.catalog import Catalog
from kvd.catalog.database import FILE_NAME
from kvd.errors import CatalogDamagedError, ExitCode
from kvd.fsck import catalogue, files
from kvd.fsck.fault import Fault
from kvd.lock import locked
from kvd.tier.ddr import DdrStore
from kvd.tier.directory import OBJECTS, DirectoryOfflineError
from kvd.tier.mover import SUM_BYTES, Mover
from kvd.tier.nvme import NvmeStore
from kvd.tier.page import PAGE_BYTES
from kvd.tier.reading import place, reading
from kvd.tier.scrub import BAD_PAGES_MAX
from kvdriver import Tier

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kvd.catalog.records import Copy
    from kvd.config import Config


def run(config: Config) -> int:
    """Check the state of a daemon that is stopped, print the faults; return the exit status.

    Raises
    ------
    UnavailableError
        If the daemon runs.
    """
    with locked(config.daemon.state):
        faults = trio.run(lambda: check(config, page_bytes=PAGE_BYTES, data=True))
    for fault in faults:
        sys.stdout.write(f"{fault}\n")
    sys.stdout.write(f"{len(faults)} fault{'' if len(faults) == 1 else 's'}\n" if faults else "clean\n")
    return ExitCode.FAILURE if faults else ExitCode.OK


async def check(config: Config, *, page_bytes: int, data: bool) -> list[str]:
    """Return the faults of the state that `config` names, a sentence each.

    Parameters
    ----------
    data
        Also read every file on NVMe and verify its checksums.
    """
    return [fault.what for fault in await examine(config, page_bytes=page_bytes, data=data)]


async def examine(config: Config, *, page_bytes: int, data: bool, repair: bool = False) -> list[Fault]:
    """Return the faults of the state that `config` names; with `repair`, mended where that is possible.

    The caller holds the lock of the state. A fault that is there after the repair is not `mended`, also if it is a new one.
    """
    path = config.daemon.state / FILE_NAME
    if not path.exists():
        what = f"{path}: there is no catalogue"
        return [Fault(kind="catalogue", what=f"{what}; {catalogue.REBUILD}" if _has_objects(config) else what)]
    try:
        catalog = Catalog.open(config.daemon.state, page_bytes=page_bytes)
    except CatalogDamagedError as error:
        return [Fault(kind="catalogue", what=str(error))]
    with contextlib.closing(catalog):
        if damage := list(catalogue.database(catalog)):
            return damage
        stores = _Stores(config, catalog, page_bytes=page_bytes)
        await stores.start()
        faults = await _all(stores, data=data, repair=repair)
        if not repair or not faults:
            return faults
        left = {fault.what: fault for fault in await _all(stores, data=data, repair=False)}
    for fault in faults:
        fault.mended = left.pop(fault.what, None) is None
    return [*faults, *left.values()]


def _has_objects(config: Config) -> bool:
    return any((directory / OBJECTS).exists() for directory in config.nvme.dirs)


class _Stores:
    """What is checked."""

    def __init__(self, config: Config, catalog: Catalog, *, page_bytes: int) -> None:
        self.catalog = catalog
        self.page_bytes = page_bytes
        self.nvme = NvmeStore(
            config.nvme.dirs,
            uuid=catalog.db.uuid,
            reserve_bytes=0,
            direct=False,
            copies=catalog.placements.copies_by_dir(),
        )
        self.there: dict[tuple[int, int, int], int] = {}
        self.unseen: set[int] = set()
        self.ddr = DdrStore(config.ddr.path, uuid=catalog.db.uuid, claim=False)

    async def start(self) -> None:
        """Look at the directories."""
        await self.nvme.start(claim=False)

    async def look(self) -> None:
        """List their files."""
        self.there, self.unseen = await self.nvme.files()

    def checks(self) -> list[Callable[[], Iterator[Fault]]]:
        """Return the checks in an order in which none breaks what one before it has mended."""
        catalog, nvme = self.catalog, self.nvme
        return [
            lambda: catalogue.entries(catalog),
            lambda: catalogue.folders(catalog),
            lambda: catalogue.links(catalog),
            lambda: catalogue.rows(catalog),
            lambda: catalogue.objects(catalog),
            lambda: files.sums(catalog, nvme),
            lambda: files.on_nvme(catalog, nvme, self.there, self.unseen),
            lambda: files.in_ddr(catalog, self.ddr),
        ]

    def described(self) -> list[Callable[[], Iterator[Fault]]]:
        """Return the checks that come at last: of what says the same as the catalogue."""
        return [
            lambda: files.descriptions(self.catalog, self.nvme, page_bytes=self.page_bytes),
            lambda: files.tree(self.catalog, self.nvme),
        ]


async def _all(stores: _Stores, *, data: bool, repair: bool) -> list[Fault]:
    faults: list[Fault] = []
    await stores.look()
    for check_one in stores.checks():
        faults += _found(check_one, repair=repair)
    if data:
        faults += _mend(await _data(stores), repair=repair)
    for check_one in stores.described():
        faults += _found(check_one, repair=repair)
    return faults


def _found(check_one: Callable[[], Iterator[Fault]], *, repair: bool) -> list[Fault]:
    return _mend(list(check_one()), repair=repair)


def _mend(faults: list[Fault], *, repair: bool) -> list[Fault]:
    for fault in faults:
        if repair and fault.mend is not None:
            try:
                fault.done = fault.mend()
            except OSError as error:
                fault.done = f"not mended: {error.strerror or error}"
            except LookupError:
                fault.done = "gone by what was mended before"
    return faults


async def _data(stores: _Stores) -> list[Fault]:
    faults = []
    async with Mover.open(page_bytes=stores.page_bytes, devices=len(stores.nvme.directories)) as mover:
        for copy in list(stores.catalog.placements.copies()):
            faults += await _verify(stores, mover, copy)
    return faults


async def _verify(stores: _Stores, mover: Mover, copy: Copy) -> list[Fault]:
    """Return the faults of a copy's pages."""
    nvme, sums, runs = stores.nvme, stores.catalog.placements.sums(copy.ino), copy.runs
    if len(sums) != SUM_BYTES * copy.pages:
        return []  # `files.sums` says so
    try:
        async with reading(nvme, copy) as opened:
            bad = await opened.bad_pages(mover, runs, sums, BAD_PAGES_MAX)
    except (FileNotFoundError, DirectoryOfflineError):
        return []  # `files.on_nvme` says so
    except OSError as error:
        return [_bad(stores, copy, None, f"object {copy.ino}: {error.strerror or error}")]
    return [_bad(stores, copy, page, f"object {copy.ino}: page {page} failed its checksum") for page in bad]


def _bad(stores: _Stores, copy: Copy, page: int | None, what: str) -> Fault:
    where = place(stores.nvme, copy, page, stores.page_bytes)

    def mend() -> str:
        placement = stores.catalog.placements.get(copy.ino)
        if placement.tier == Tier.DDR and placement.sealed:
            return files.forget_copy(stores.catalog, stores.nvme, copy)
        if page is None:
            return "nothing: the device says no, which is no proof of damage"
        return files.quarantine(stores.catalog, copy.ino, page, "checksum differs", where)

    return Fault(kind="data", what=what, place=where, mend=mend)
