"""Handles of open files: what the kernel gives back with FSYNC and RELEASE."""

from __future__ import annotations

import errno
import itertools

from kvd.catalog.names import fail
from kvd.fs.hot_table import HOT_FH


class Handles:
    """Handles of the opens that the control plane answered, and those of the data plane's.

    Attributes
    ----------
    contents
        Of open virtual files.
    """

    def __init__(self) -> None:
        self._opens: dict[int, tuple[int, bool]] = {}
        self._numbers = itertools.count(1)
        self.contents: dict[int, bytes] = {}

    def __repr__(self) -> str:
        return f"<Handles open={len(self._opens)}>"

    def add(self, ino: int, *, write: bool) -> int:
        """Return a new handle."""
        fh = next(self._numbers)
        self._opens[fh] = (ino, write)
        return fh

    def ino(self, fh: int) -> int:
        """Return the inode of a handle."""
        return fh ^ HOT_FH if fh & HOT_FH else self._opens[fh][0]

    def pop(self, fh: int) -> tuple[int, bool]:
        """Return the inode of a handle and whether it may write; the handle is used no more.

        What the data plane opened is for reading; its releases come here once the object is not shared any more.
        """
        self.contents.pop(fh, None)
        if fh & HOT_FH:
            return fh ^ HOT_FH, False
        try:
            return self._opens.pop(fh)
        except KeyError:
            raise fail(errno.EBADF, fh) from None
