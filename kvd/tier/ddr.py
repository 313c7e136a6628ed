"""The DDR tier's files: one a object on a private tmpfs, with exactly the object's bytes."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

import trio

from kvd.errors import ConfigError
from kvd.tier import marker
from kvd.tier.extents import data_extents, ddr_charges, held_blocks, held_bytes, total_blocks
from kvd.tier.spares import SLOW_BYTES, Spares
from kvd.tier.storage import punch

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kvdriver import MapRun

KEY = "[ddr] path"
MARKER = "kvd-ddr.json"
MAGIC = "kvd-ddr"
WARM_NAME = "kvd-warm"
"""A file that takes memory to touch it (`kvd.tier.warming`); a killed daemon may leave it."""
_NAME = re.compile(r"^[0-9a-f]+$")


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
        self.spares = Spares(path)
        if claim:
            (path / WARM_NAME).unlink(missing_ok=True)
            self.spares.clear()
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

    def free_bytes(self) -> int:
        """Return what its file system has left."""
        found = os.statvfs(self.path)
        return found.f_bavail * found.f_frsize

    def file(self, ino: int) -> Path:
        """Return the path of an object's file."""
        return self.path / f"{ino:x}"

    def create(self, ino: int) -> int:
        """Make an object's file, empty; return a descriptor."""
        return os.open(self.file(ino), os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)

    def open(self, ino: int) -> int:
        """Open an object's file for reading and writing."""
        return os.open(self.file(ino), os.O_RDWR | os.O_CLOEXEC)

    async def remove(self, ino: int, *, used: bool = True) -> None:
        """Remove an object's file if it is there.

        Parameters
        ----------
        used
            It may be open yet, or not be sealed; otherwise its memory may be kept for others (`spares`).
        """
        path = self.file(ino)
        try:
            held = held_bytes(path.stat())
        except FileNotFoundError:
            return
        if not used and await self.spares.keep(path):
            return
        if held > SLOW_BYTES:
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
