"""Write a cpio archive in the "newc" format, the one from which Linux unpacks its first root file system."""

from __future__ import annotations

import os
import stat
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from types import TracebackType

MAGIC = b"070701"
TRAILER = "TRAILER!!!"
ALIGN_BYTES = 4
LINKS_MAX = 40
"""So many symbolic links in the name of one file, and it is a loop."""


class Archive:
    """An archive that is being written: each name once, parents made as they are needed.

    Parameters
    ----------
    path
        Gets its name when the archive is whole (`close`); a broken one leaves nothing.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._work = path.with_suffix(".new")
        self._out = self._work.open("wb")
        self._names: set[str] = {"/"}
        self.content_bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        if kind is None:
            self._member(TRAILER, mode=0, mtime_s=0, data=b"")
            self._out.close()
            self._work.rename(self._path)
        else:
            self._out.close()
            self._work.unlink()

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def directory(self, name: str, mode: int = 0o755) -> None:
        """Add a directory."""
        if self._new(name):
            self._member(name, mode=stat.S_IFDIR | mode, mtime_s=0, data=b"")

    def link(self, name: str, target: str) -> None:
        """Add a symbolic link."""
        if self._new(name):
            self._member(name, mode=stat.S_IFLNK | 0o777, mtime_s=0, data=os.fsencode(target))

    def file(self, name: str, data: bytes, *, mode: int = 0o644, mtime_s: int = 0) -> None:
        """Add a file."""
        if self._new(name):
            self._member(name, mode=stat.S_IFREG | mode, mtime_s=mtime_s, data=data)

    def host_file(self, path: Path, name: Path | None = None) -> None:
        """Add a file of this machine, with every symbolic link on the way to it if it keeps its name.

        Times are kept, as Python trusts a compiled module only if its source has the time it remembers.

        Parameters
        ----------
        path
            The file.
        name
            Its name in the archive; None: its own.
        """
        if name is not None and name != path:
            self._host_plain(path, str(name))
            return
        for _ in range(LINKS_MAX):
            at = next((here for here in reversed([path, *path.parents]) if here.is_symlink()), None)
            if at is None:
                self._host_plain(path, str(path))
                return
            target = at.readlink()
            self.link(str(at), str(target))
            path = Path(os.path.normpath(at.parent / target)) / path.relative_to(at)
        raise OSError(f"too many symbolic links: {path}")

    def _host_plain(self, path: Path, name: str) -> None:
        if name not in self._names:
            status = path.stat()
            self.file(name, path.read_bytes(), mode=stat.S_IMODE(status.st_mode), mtime_s=int(status.st_mtime))

    def _new(self, name: str) -> bool:
        """Take the name, after its parents; False if the archive has it."""
        assert name.startswith("/"), name
        if name in self._names:
            return False
        self._names.add(name)
        parent = str(PurePosixPath(name).parent)
        if parent not in self._names:
            self.directory(parent)
        return True

    def _member(self, name: str, *, mode: int, mtime_s: int, data: bytes) -> None:
        encoded = os.fsencode(name.lstrip("/")) + b"\0"
        # inode, mode, uid, gid, links, time, size, device and special device (major, minor), length of name, checksum
        numbers = (len(self._names), mode, 0, 0, 1, mtime_s, len(data), 0, 0, 0, 0, len(encoded), 0)
        head = MAGIC + b"".join(b"%08X" % number for number in numbers) + encoded
        self._out.write(head + _padding(len(head)) + data + _padding(len(data)))
        self.content_bytes += len(data)


def _padding(length: int) -> bytes:
    return bytes(-length % ALIGN_BYTES)
