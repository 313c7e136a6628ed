"""`.kvd/` at the root: read-only files that `cat` can read. Not listed, so that nothing walks into it by accident."""

from __future__ import annotations

import errno
import json
import os
import stat
import time
from dataclasses import asdict
from typing import TYPE_CHECKING

from kvd.catalog.names import fail
from kvd.catalog.records import Inode
from kvd.catalog.schema import ROOT_INO

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from kvd.api.backend import Status
    from kvd.fs.split import SplitStatistics

FOLDER = b".kvd"
FOLDER_INO = 1 << 62
"""Inode numbers from here on are virtual; the catalogue counts up from 1."""
FILES = (b"stats", b"sessions", b"version")


def is_virtual(ino: int) -> bool:
    """Whether an inode belongs to `.kvd/`."""
    return ino >= FOLDER_INO


def refuse_virtual(ino: int, name: bytes | None) -> None:
    """Raise EPERM for what nobody can change: an inode of the folder, the folder's name at the root."""
    if is_virtual(ino) or (ino == ROOT_INO and name == FOLDER):
        raise fail(errno.EPERM, name)


class Virtual:
    """The virtual files.

    Parameters
    ----------
    status
        Makes the daemon's status.
    sessions
        Makes the lines of `sessions`.
    data_plane
        Counts what the split has served; `stats` has it beside the status.
    """

    def __init__(
        self,
        status: Callable[[], Awaitable[Status]],
        sessions: Callable[[], list[dict[str, object]]],
        data_plane: Callable[[], SplitStatistics],
    ) -> None:
        self._status = status
        self._sessions = sessions
        self._data_plane = data_plane
        self._made_ns = time.time_ns()

    def inode(self, ino: int) -> Inode | None:
        """Return a virtual inode, or None."""
        index = ino - FOLDER_INO - 1
        if ino != FOLDER_INO and not 0 <= index < len(FILES):
            return None
        folder = ino == FOLDER_INO
        return Inode(
            ino=ino,
            mode=(stat.S_IFDIR | 0o555) if folder else (stat.S_IFREG | 0o444),
            uid=os.geteuid(),
            gid=os.getegid(),
            nlink=2 if folder else 1,
            size=0,
            atime_ns=self._made_ns,
            mtime_ns=self._made_ns,
            ctime_ns=self._made_ns,
            rdev=0,
            target=None,
        )

    def known(self, ino: int) -> Inode:
        """Return a virtual inode; ENOENT if there is none of that number."""
        inode = self.inode(ino)
        if inode is None:
            raise fail(errno.ENOENT, ino)
        return inode

    def lookup(self, parent: int, name: bytes) -> Inode | None:
        """Return what `name` is, if it is virtual."""
        if parent == ROOT_INO and name == FOLDER:
            return self.inode(FOLDER_INO)
        if parent == FOLDER_INO and name in FILES:
            return self.inode(FOLDER_INO + 1 + FILES.index(name))
        return None

    def listing(self) -> list[tuple[int, bytes, Inode]]:
        """Return ``(cookie, name, inode)`` of the folder's files."""
        found = []
        for cookie, name in enumerate(FILES, start=1):
            inode = self.inode(FOLDER_INO + cookie)
            assert inode is not None
            found.append((cookie, name, inode))
        return found

    async def content(self, ino: int) -> bytes:
        """Return a file's bytes, made at open so that a reader sees one moment."""
        status = await self._status()
        match FILES[ino - FOLDER_INO - 1]:
            case b"version":
                return f"kvd {status.version}\n".encode()
            case b"sessions":
                return "".join(json.dumps(line) + "\n" for line in self._sessions()).encode()
            case _:
                told = {**asdict(status), "data_plane": asdict(self._data_plane())}
                return (json.dumps(told, indent=2) + "\n").encode()
