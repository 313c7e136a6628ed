"""Files of copies made of others in the same directories: sharing their storage where the file system can, else copied.

The bytes go from file to file within the kernel (FICLONE, sendfile). Nothing is verified on the way: the checksums of the one are
the other's, so what is wrong with it is found when it is read.
"""

from __future__ import annotations

import errno
import fcntl
import os
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from kvd.tier.extents import data_extents

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kvd.catalog.records import Copy
    from kvd.tier.copyfiles import CopyFiles
    from kvd.tier.nvme import NvmeStore

FICLONE = 0x40049409
"""``ioctl_ficlone(2)``."""
PIECE_BYTES = 64 << 20
"""What is copied at one go: a slow drive has the deadline of a request for it."""
_CANT_SHARE = frozenset((errno.EOPNOTSUPP, errno.ENOTTY, errno.ENOSYS, errno.EXDEV, errno.EINVAL))


class Cloning:
    """Fills the files of new copies."""

    def __init__(self, nvme: NvmeStore) -> None:
        self._nvme = nvme
        self._cannot: set[int] = set()
        """Directories in which files can't share storage."""

    def __repr__(self) -> str:
        return f"<Cloning cannot={sorted(self._cannot)}>"

    def may_share(self, copy: Copy) -> bool:
        """Whether the files of a copy may share their storage with others, as far as is known."""
        return self._cannot.isdisjoint(copy.dirs)

    async def fill(self, files: CopyFiles, origin: Copy, *, share_only: bool) -> int | None:
        """Fill new files with what those of another's copy hold, durably; return how many bytes were copied.

        None, and they are not filled, with `share_only` where they can't share storage.

        Raises
        ------
        OSError
            What a directory said, or DirectoryOfflineError.
        """
        moved_bytes = 0
        for part, index in zip(files.parts, origin.dirs, strict=True):
            directory = self._nvme.directories[index]
            source = self._nvme.file(index, origin.ino, origin.gen)
            if index not in self._cannot:
                if await directory.run(partial(_share, source, part.path), doing="clone a file", write=True):
                    continue
                self._cannot.add(index)
            if share_only:
                return None
            extents = await directory.run(partial(_extents, source, origin.size), doing="look at a file", write=False)
            todo = pieces(extents, PIECE_BYTES) or [[]]
            for piece in todo:
                whole = origin.size if piece is todo[-1] else None
                await directory.run(partial(_copy, source, part.path, piece, whole), doing="copy a file", write=True)
                moved_bytes += sum(end - start for start, end in piece)
        return moved_bytes


def pieces(extents: list[tuple[int, int]], bytes_max: int) -> list[list[tuple[int, int]]]:
    """Return byte ranges in groups of no more than `bytes_max` together."""
    groups: list[list[tuple[int, int]]] = []
    left = 0
    for start, end in extents:
        at = start
        while at < end:
            if not left:
                groups.append([])
                left = bytes_max
            to = min(end, at + left)
            groups[-1].append((at, to))
            left -= to - at
            at = to
    return groups


def copy_ranges(source_fd: int, to_fd: int, ranges: list[tuple[int, int]]) -> None:
    """Copy byte ranges from file to file within the kernel; ENODATA if the first is shorter."""
    for start, end in ranges:
        os.lseek(to_fd, start, os.SEEK_SET)
        at = start
        while at < end:
            done = os.sendfile(to_fd, source_fd, at, end - at)
            if not done:
                raise OSError(errno.ENODATA, os.strerror(errno.ENODATA))
            at += done


def _share(source: Path, to: Path) -> bool:
    """Let a file share the storage of another, durably; False if they can't."""
    with _opened(source, to) as (source_fd, to_fd):
        try:
            fcntl.ioctl(to_fd, FICLONE, source_fd)
        except OSError as error:
            if error.errno in _CANT_SHARE:
                return False
            raise
        _end(to, to_fd)
    return True


def _extents(source: Path, size: int) -> list[tuple[int, int]]:
    fd = os.open(source, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        return data_extents(fd, min(size, os.fstat(fd).st_size))
    finally:
        os.close(fd)


def _copy(source: Path, to: Path, ranges: list[tuple[int, int]], size: int | None) -> None:
    """Copy byte ranges; with `size` they are the last ones, and the file gets that length."""
    with _opened(source, to) as (source_fd, to_fd):
        copy_ranges(source_fd, to_fd, ranges)
        if size is not None:
            os.ftruncate(to_fd, size)
            _end(to, to_fd)
            for fd in (source_fd, to_fd):  # copies are read past the page cache
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)


def _end(path: Path, fd: int) -> None:
    """Make a file durable, with its name."""
    os.fsync(fd)
    folder_fd = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder_fd)
    finally:
        os.close(folder_fd)


@contextmanager
def _opened(source: Path, to: Path) -> Iterator[tuple[int, int]]:
    """Open a file to read and another to write, as they are on the drive or in the page cache."""
    source_fd = os.open(source, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        to_fd = os.open(to, os.O_WRONLY | os.O_CLOEXEC)
        try:
            yield source_fd, to_fd
        finally:
            os.close(to_fd)
    finally:
        os.close(source_fd)
