"""State directories with very many cold objects, made in seconds: for ``kvctl bench scale`` and the tests.

Rows are made by a few statements for all. Files are sparse, with the checksums of what they read as; those of a sample hold
data.
"""

from __future__ import annotations

import os
import random
import stat
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kvd.catalog.catalog import Catalog
from kvd.catalog.packing import copy_blocks, pack_dirs, pack_runs
from kvd.catalog.schema import ROOT_INO
from kvd.tier import describer, directory, marker
from kvd.tier.mover import crc32c
from kvd.tier.page import PAGE_BYTES
from kvdriver import Tier

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

SIZES_BYTES: Final = tuple(range(4096, PAGE_BYTES + 1, 4096))
"""Of the objects, by turns: 4 KiB to 64 KiB, one page each."""
SAMPLE: Final = 64
"""Objects that hold data."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Many:
    """What `fill` has made: objects with the numbers from `first_ino` on.

    Attributes
    ----------
    folders
        How many folders they are in, as many in each as in the next; 1: all in one.
    """

    first_ino: int
    objects: int
    folders: int

    def name(self, number: int) -> str:
        """Return the path below the mount of an object, by its number from 0 on."""
        return f"many{number % self.folders:05d}/{number:08d}"

    def names(self, count: int, seed: int) -> list[str]:
        """Return the paths of some of them, at random, no two alike."""
        return [self.name(number) for number in random.Random(seed).sample(range(self.objects), count)]  # noqa: S311

    def content(self, number: int) -> bytes:
        """Return what is in an object."""
        size_bytes = SIZES_BYTES[number % len(SIZES_BYTES)]
        return _sample(number, size_bytes) if number < SAMPLE else bytes(size_bytes)


def _sample(number: int, size_bytes: int) -> bytes:
    return random.Random(number).randbytes(size_bytes)  # noqa: S311


def fill(
    state: Path,
    nvme_dirs: Sequence[Path],
    *,
    objects: int,
    folders: int = 1,
    files: bool = True,
    described: bool = True,
) -> Many:
    """Make a catalogue and the files of its objects, all cold, in folders that are there and empty.

    Parameters
    ----------
    files
        False: the rows alone.
    described
        The files do not describe themselves, but kvd is told that they do: writing that is not what is measured.

    Raises
    ------
    OSError
        If the disk is full.
    """
    catalog = Catalog.open(state, page_bytes=PAGE_BYTES)
    try:
        uuid = catalog.db.uuid
        for index, path in enumerate(nvme_dirs):
            (path / directory.OBJECTS).mkdir()
            marker.write(path / directory.MARKER, directory.KEY, marker.make(directory.MAGIC, uuid=uuid, index=index))
        many = _rows(catalog, objects, folders, len(nvme_dirs))
        if described:
            catalog.db.keep_number(describer.META, describer.ALL)
    finally:
        catalog.close()
    if files:
        _files(many, nvme_dirs)
    return many


def _rows(catalog: Catalog, objects: int, folders: int, dirs: int) -> Many:
    db, now_ns = catalog.db, time.time_ns()
    with db.transaction():
        parents = [
            catalog.names.make(
                ROOT_INO, b"many%05d" % number, mode=stat.S_IFDIR | 0o755, uid=0, gid=0, now_ns=now_ns
            ).ino
            for number in range(folders)
        ]
        many = Many(first_ino=parents[-1] + 1, objects=objects, folders=folders)
        number = "WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i+1 FROM n WHERE i<?-1)"
        size = f"{SIZES_BYTES[0]} * (1 + i % {len(SIZES_BYTES)})"
        db.execute(
            f"INSERT INTO inode {number} SELECT ?+i, ?, ?, ?, 1, {size}, ?, ?, ?, 0, NULL FROM n",  # noqa: S608
            (objects, many.first_ino, stat.S_IFREG | 0o644, os.geteuid(), os.getegid(), now_ns, now_ns, now_ns),
        )
        db.execute(
            f"INSERT INTO dentry(parent, name, ino) {number}"  # noqa: S608
            " SELECT ?+i%?, CAST(printf('%08d', i) AS BLOB), ?+i FROM n",
            (objects, parents[0], folders, many.first_ino),
        )
        db.execute(
            f"INSERT INTO object {number} SELECT ?+i, ?, 1, 0, 0, 0 FROM n",  # noqa: S608
            (objects, many.first_ino, Tier.NVME.value),
        )
        runs = ((0, 1),)
        zeros = [(size, copy_blocks(size, runs, PAGE_BYTES), _little(crc32c(bytes(size)))) for size in SIZES_BYTES]
        db.execute("CREATE TEMP TABLE zeros(size INTEGER PRIMARY KEY, blocks INTEGER, sums BLOB)")
        for row in zeros:
            db.execute("INSERT INTO zeros VALUES(?,?,?)", row)
        db.execute("CREATE TEMP TABLE dirs(number INTEGER PRIMARY KEY, packed BLOB)")
        for index in range(dirs):
            db.execute("INSERT INTO dirs VALUES(?,?)", (index, pack_dirs([index])))
        db.execute(
            f"INSERT INTO copy {number} SELECT ?+i, 1, packed, 0, {size}, ?, 1, blocks, ?, sums, 'raw', x'', 0, ?+i%?"  # noqa: S608
            f" FROM n CROSS JOIN zeros ON zeros.size={size} CROSS JOIN dirs ON dirs.number=i%?",
            (objects, many.first_ino, now_ns, pack_runs(runs), parents[0], folders, dirs),
        )
        for sampled in range(min(SAMPLE, objects)):
            sums = _little(crc32c(many.content(sampled)))
            db.execute("UPDATE copy SET sums=? WHERE ino=?", (sums, many.first_ino + sampled))
    return many


def _little(number: int) -> bytes:
    return number.to_bytes(4, "little")


def _files(many: Many, nvme_dirs: Sequence[Path]) -> None:
    """Make the files, folder by folder: so each folder is in the disk's cache while it is filled."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    fan_out = directory.FAN_OUT
    last = many.first_ino + many.objects
    for low in range(fan_out):
        for high in range(fan_out):
            place = high * fan_out + low
            first = many.first_ino + (place - many.first_ino) % (fan_out * fan_out)
            for ino in range(first, last, fan_out * fan_out):
                number = ino - many.first_ino
                folder = f"{nvme_dirs[number % len(nvme_dirs)]}/{directory.OBJECTS}/{ino % fan_out:02x}/{high:02x}"
                if ino - first < len(nvme_dirs) * fan_out * fan_out:
                    os.makedirs(folder, exist_ok=True)  # noqa: PTH103 (a million times)
                fd = os.open(f"{folder}/{ino:x}.1", flags, 0o600)
                try:
                    if number < SAMPLE:
                        os.write(fd, many.content(number))
                    else:
                        os.ftruncate(fd, SIZES_BYTES[number % len(SIZES_BYTES)])
                finally:
                    os.close(fd)


def missing(many: Many, count: int) -> Iterator[str]:
    """Yield paths in the folders that are not there."""
    return (f"{many.name(number)}.absent" for number in range(count))
