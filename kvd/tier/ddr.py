"""The DDR tier's files: one a object on a private tmpfs, with exactly the object's bytes."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

import trio

from kvd.errors import ConfigError
from kvd.tier import marker
from kvd.tier.extents import data_extents, ddr_charges, total_blocks
from kvd.tier.mover import punch
from kvdriver import BLOCK_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kvdriver import MapRun

KEY = "[ddr] path"
MARKER = "kvd-ddr.json"
MAGIC = "kvd-ddr"
STAT_BLOCK_BYTES = 512
_NAME = re.compile(r"^[0-9a-f]+$")
SLOW_REMOVE_BYTES = 64 << 20
"""Freeing more than this takes long enough to leave the trio thread for it (some 10 GB/s)."""


def held_blocks(fd: int) -> int:
    """Return the 4 KiB blocks that a tmpfs file holds, data or not."""
    return os.fstat(fd).st_blocks * STAT_BLOCK_BYTES // BLOCK_BYTES


class DdrStore:
    """Files named by inode number, in hex, in `path`.

    Parameters
    ----------
    claim
        Whether to take a directory that is nobody's.

    Raises
    ------
    ConfigError
        If `path` holds the files of another catalogue.
    """

    def __init__(self, path: Path, *, uuid: str, claim: bool = True) -> None:
        self.path = path
        if not self.belongs(path, uuid=uuid) and claim:
            marker.write(path / MARKER, KEY, marker.make(MAGIC, uuid=uuid))

    @staticmethod
    def belongs(path: Path, *, uuid: str) -> bool:
        """Tell whether `path` is this catalogue's, False for nobody's; `ConfigError` if it is another's."""
        found = marker.read(path / MARKER, KEY, MAGIC)
        if found is not None and found.get("uuid") != uuid:
            raise ConfigError(
                f"{KEY}: {path} belongs to catalogue {found.get('uuid')}, not {uuid};"
                " set another directory or unmount it"
            )
        return found is not None

    def __repr__(self) -> str:
        return f"<DdrStore {self.path}>"

    def file(self, ino: int) -> Path:
        """Return the path of an object's file."""
        return self.path / f"{ino:x}"

    def create(self, ino: int) -> int:
        """Make an object's file, empty; return a descriptor."""
        return os.open(self.file(ino), os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)

    def open(self, ino: int) -> int:
        """Open an object's file for reading and writing."""
        return os.open(self.file(ino), os.O_RDWR | os.O_CLOEXEC)

    async def remove(self, ino: int) -> None:
        """Remove an object's file if it is there."""
        path = self.file(ino)
        try:
            held_bytes = path.stat().st_blocks * STAT_BLOCK_BYTES
        except FileNotFoundError:
            return
        if held_bytes > SLOW_REMOVE_BYTES:
            await trio.to_thread.run_sync(path.unlink)
        else:
            path.unlink()

    @staticmethod
    def settle(fd: int, page_bytes: int) -> tuple[MapRun, ...]:
        """Return what a file's pages are to be charged, after giving back what it holds beside its data.

        `fallocate` can put storage beyond a file's end and into its holes; sealed objects hold only their bytes.
        """
        size = os.fstat(fd).st_size
        os.ftruncate(fd, size)
        extents = data_extents(fd, size)
        charges = ddr_charges(extents, page_bytes)
        if held_blocks(fd) > total_blocks(charges):
            at = 0
            for start, end in [*extents, (size, size)]:
                if start > at:
                    punch(fd, at, start - at)
                at = end
        return charges

    def inos(self) -> Iterator[int]:
        """Yield the inode numbers of the files that are there; other names are left alone."""
        if not self.path.exists():
            return
        with os.scandir(self.path) as entries:
            for entry in entries:
                if _NAME.match(entry.name):
                    yield int(entry.name, 16)
