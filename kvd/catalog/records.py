"""The catalogue's rows as values."""

from __future__ import annotations

import stat
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Inode:
    """Names' side of a file: attributes, times in ns since the epoch, size in bytes."""

    ino: int
    mode: int
    uid: int
    gid: int
    nlink: int
    size: int
    atime_ns: int
    mtime_ns: int
    ctime_ns: int
    rdev: int
    target: bytes | None

    @property
    def is_dir(self) -> bool:
        """Whether it is a directory."""
        return stat.S_ISDIR(self.mode)

    @property
    def is_file(self) -> bool:
        """Whether it is a regular file, that is, an object."""
        return stat.S_ISREG(self.mode)


@dataclass(frozen=True, slots=True, kw_only=True)
class DirEntry:
    """One name of a directory; `cookie` continues the listing after it."""

    cookie: int
    name: bytes
    inode: Inode


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Objects' side of a regular file; `tier` is a `kvdriver.Tier` number."""

    ino: int
    tier: int
    sealed: bool
    pinned: bool
    hits: int
    damaged: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """An object's durable copy on NVMe.

    Attributes
    ----------
    gen
        Grows with every copy of the object; part of the file's name.
    dir_index
        Which of ``nvme.dirs``.
    size
        Bytes of the object, and of the file.
    current
        The copy holds the object's present bytes.
    runs
        ``(first page, count)`` of what holds data; the rest is a hole.
    """

    ino: int
    gen: int
    dir_index: int
    size: int
    mtime_ns: int
    current: bool
    runs: tuple[tuple[int, int], ...]

    @property
    def pages(self) -> int:
        """Pages that hold data."""
        return sum(count for _, count in self.runs)


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultRow:
    """A damage that was found."""

    when_ns: int
    ino: int
    path: bytes
    page: int | None
    what: str
