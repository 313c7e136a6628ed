"""What the tiers ask of the data plane: which file stands behind an open inode, and how much it may grow.

`kvd.fs.split.Split` is the real one; tests of the tiers have a fake twin.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Protocol


class Mode(enum.IntEnum):
    """How the kernel reaches an open inode's bytes; the numbers are `enum kvd_split_mode`."""

    PASSTHROUGH = 1
    DIRECT = 2
    CACHED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Sums:
    """Checksums of a file that is read page by page.

    Attributes
    ----------
    runs
        ``(first page, count)`` of what holds data.
    crc
        u32 little-endian for each page of the runs, in order.
    """

    page_bytes: int
    runs: tuple[tuple[int, int], ...]
    crc: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaneObject:
    """The file behind an open inode; `limit_bytes` bounds its storage, `size_max_bytes` its length."""

    node: int
    mode: Mode
    fd: int
    writable: bool = False
    backing_id: int = 0
    limit_bytes: int = 0
    size_max_bytes: int = (1 << 63) - 1
    sums: Sums | None = None


class DataPlane(Protocol):
    """The objects of the data plane. Failures are `OSError`."""

    @property
    def passthrough(self) -> bool:
        """Whether the kernel can be given backing files."""
        ...

    @property
    def direct_mmap(self) -> bool:
        """Whether a direct-I/O file can be mapped shared."""
        ...

    def backing_open(self, fd: int) -> int:
        """Register a backing file; return its id."""
        ...

    def backing_close(self, backing_id: int) -> None:
        """Forget a backing file; after the last release."""
        ...

    def object_add(self, spec: PlaneObject) -> None:
        """Serve an inode's bytes."""
        ...

    async def object_switch(self, spec: PlaneObject) -> None:
        """Exchange the file behind a direct or cached object."""
        ...

    def object_limit(self, node: int, limit_bytes: int) -> None:
        """Raise or lower what an object may hold."""
        ...

    async def object_remove(self, node: int) -> None:
        """Stop serving an inode's bytes; after the last release."""
        ...
