"""Check a stopped kvd's state: the catalogue against itself, and against the files of both tiers.

Each fault is one sentence. Nothing is changed; the next start of the daemon mends what a crash can leave (files without
a row, objects that had a writer), so right after a crash such faults are expected, after a clean stop none is.
"""

from __future__ import annotations

import os
import stat
import sys
from typing import TYPE_CHECKING

import trio

from kvd.catalog.catalog import Catalog
from kvd.catalog.database import FILE_NAME
from kvd.catalog.schema import ROOT_INO
from kvd.errors import DamagedError, ExitCode
from kvd.lock import locked
from kvd.tier.ddr import DdrStore
from kvd.tier.mover import Mover
from kvd.tier.nvme import NvmeStore
from kvd.tier.page import PAGE_BYTES
from kvdriver import Tier

if TYPE_CHECKING:
    from collections.abc import Iterator

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
    """Return the faults of the state that `config` names.

    Parameters
    ----------
    data
        Also read every file on NVMe and verify its checksums.
    """
    path = config.daemon.state / FILE_NAME
    if not path.exists():
        return [f"{path}: there is no catalogue"]
    catalog = Catalog.open(config.daemon.state, page_bytes=page_bytes)
    try:
        faults = [*_database(catalog), *_names(catalog), *_objects(catalog)]
        nvme = NvmeStore(
            config.nvme.dirs,
            uuid=catalog.db.uuid,
            reserve_bytes=0,
            direct=False,
            copies=catalog.placements.copies_by_dir(),
            claim=False,
        )
        faults += _nvme_files(catalog, nvme)
        faults += _ddr_files(catalog, DdrStore(config.ddr.path, uuid=catalog.db.uuid, claim=False))
        if data:
            faults += await _data(catalog, nvme, page_bytes)
    finally:
        catalog.close()
    return faults


def _database(catalog: Catalog) -> Iterator[str]:
    for (line,) in catalog.db.execute("PRAGMA integrity_check"):
        if line != "ok":
            yield f"catalogue: {line}"


def _names(catalog: Catalog) -> Iterator[str]:
    for ino, parent in catalog.db.execute(
        "SELECT d.ino, d.parent FROM dentry d LEFT JOIN inode i ON i.ino=d.ino LEFT JOIN inode p ON p.ino=d.parent"
        " WHERE i.ino IS NULL OR p.ino IS NULL OR (p.mode & ?) != ?",
        (0o170000, stat.S_IFDIR),
    ):
        yield f"name of inode {ino} in {parent}: one of them is missing or the latter is no directory"
    query = (
        "SELECT i.ino, i.mode, i.nlink, (SELECT count(*) FROM dentry d WHERE d.ino=i.ino),"
        " (SELECT count(*) FROM dentry d JOIN inode c ON c.ino=d.ino WHERE d.parent=i.ino AND (c.mode & ?)=?)"
        " FROM inode i"
    )
    for ino, mode, nlink, names, folders in catalog.db.execute(query, (0o170000, stat.S_IFDIR)):
        expected = 2 + folders if stat.S_ISDIR(mode) else names
        if nlink != expected and (names or ino == ROOT_INO):
            yield f"inode {ino}: link count {nlink} instead of {expected}"
        if not names and ino != ROOT_INO:
            yield f"inode {ino}: has no name"
        if stat.S_ISDIR(mode) and names > 1:
            yield f"directory {ino}: has {names} names"


def _objects(catalog: Catalog) -> Iterator[str]:
    for (ino,) in catalog.db.execute(
        "SELECT ino FROM inode WHERE (mode & ?)=? AND ino NOT IN (SELECT ino FROM object)", (0o170000, stat.S_IFREG)
    ):
        yield f"file {ino}: has no object"
    for table in ("object", "copy", "xattr"):
        for (ino,) in catalog.db.execute(
            f"SELECT DISTINCT ino FROM {table} WHERE ino NOT IN (SELECT ino FROM inode)"  # noqa: S608
        ):
            yield f"{table} {ino}: has no inode"
    for placement in catalog.placements.all():
        copy = catalog.placements.copy(placement.ino)
        if not placement.sealed:
            yield f"object {placement.ino}: has a writer"
        if placement.tier == Tier.NVME and (copy is None or not copy.current):
            yield f"object {placement.ino}: is on NVMe without a current copy"
        if placement.tier == Tier.NVME and copy and copy.size != catalog.names.inode(placement.ino).size:
            yield f"object {placement.ino}: its copy has another size"
        if copy and len(catalog.placements.sums(placement.ino)) != 4 * copy.pages:
            yield f"object {placement.ino}: has not one checksum a page"


def _nvme_files(catalog: Catalog, nvme: NvmeStore) -> Iterator[str]:
    files = {(index, ino, gen): size for index, ino, gen, size in nvme.files()}
    for copy in catalog.placements.copies():
        size = files.pop((copy.dir_index, copy.ino, copy.gen), None)
        if size is None:
            yield f"object {copy.ino}: its file on NVMe is missing"
        elif size != copy.size:
            yield f"object {copy.ino}: its file on NVMe has {size} bytes instead of {copy.size}"
    for index, ino, gen in files:
        yield f"{nvme.file(index, ino, gen)}: belongs to no object"


def _ddr_files(catalog: Catalog, ddr: DdrStore) -> Iterator[str]:
    there = set(ddr.inos())
    for placement in catalog.placements.all():
        if placement.tier != Tier.DDR or not placement.sealed:
            continue
        if placement.ino not in there:
            yield f"object {placement.ino}: its file in DDR is missing"
            continue
        there.discard(placement.ino)
        size = ddr.file(placement.ino).stat().st_size
        if size != catalog.names.inode(placement.ino).size:
            yield f"object {placement.ino}: its file in DDR has {size} bytes"
    for ino in there:
        yield f"{ddr.file(ino)}: belongs to no object in DDR"


async def _data(catalog: Catalog, nvme: NvmeStore, page_bytes: int) -> list[str]:
    faults = []
    async with Mover.open(page_bytes=page_bytes) as mover:
        for copy in list(catalog.placements.copies()):
            fault = await _verify(catalog, nvme, mover, copy)
            if fault:
                faults.append(fault)
    return faults


async def _verify(catalog: Catalog, nvme: NvmeStore, mover: Mover, copy: Copy) -> str | None:
    try:
        fd = nvme.open(copy)
    except FileNotFoundError:
        return None  # _nvme_files says so
    try:
        await mover.verify(
            src_fd=fd,
            size_bytes=copy.size,
            runs=copy.runs,
            sums=catalog.placements.sums(copy.ino),
            direct=nvme.direct[copy.dir_index],
        )
    except (DamagedError, OSError) as error:
        return f"object {copy.ino}: {error}"
    finally:
        os.close(fd)
    return None
