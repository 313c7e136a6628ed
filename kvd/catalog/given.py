"""What was given back of objects, because their session's window has left it behind: bytes that read as zeroes and are none.

The holes alone do not tell: a reader's mapping fills those that it touches, and a client may have holes of its own. So it is
kept, before anything is given back, as an attribute of the inode that clients do not see; it goes with the inode, into the
description of its copy, and comes back with it.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from kvd.catalog.packing import pack_runs, unpack_runs
from kvd.format.ranges import both, joined

if TYPE_CHECKING:
    from kvd.catalog.database import Database
    from kvd.catalog.names import Names
    from kvd.format.ranges import Ranges

NAME = b"kvd.given"
"""In table `xattr`; without a namespace that clients may set."""
RANGES_MAX = 4096
"""Of an object."""
_HEAD = struct.Struct("<I")


class Given:
    """Keeps it in `db`: of each object, and of its copy on NVMe, which may have bytes that the object has not any more."""

    def __init__(self, db: Database, names: Names) -> None:
        self._db = db
        self._names = names

    def of(self, ino: int) -> Ranges:
        """Return the bytes of an object that were given back."""
        return self._row(ino)[0]

    def is_ahead(self, ino: int) -> bool:
        """Whether an object's copy has bytes that were given back of the object."""
        mine, copied = self._row(ino)
        return mine != copied

    def add(self, ino: int, ranges: Ranges, *, copied: bool) -> bool:
        """Note that bytes are about to be given back, of the object's copy too if it is `copied`; False: they are too many runs."""
        before = mine, of_copy = self._row(ino)
        mine = joined((*mine, *ranges))
        if len(mine) > RANGES_MAX:
            return False
        if copied:
            of_copy = joined((*of_copy, *ranges))
        if (mine, of_copy) != before:
            self._put(ino, mine, of_copy)
        return True

    def cut(self, ino: int, size: int) -> None:
        """Note that an object ends after `size` bytes: what is written there later was never given back."""
        mine, copied = self._row(ino)
        if mine:
            self._put(ino, both(mine, ((0, size),)) if size else (), copied)

    def copied(self, ino: int) -> None:
        """Note that an object's copy is made anew from what it has now."""
        mine, copied = self._row(ino)
        if mine != copied:
            self._put(ino, mine, mine)

    def fall_back(self, ino: int) -> None:
        """Note that an object is its copy again."""
        mine, copied = self._row(ino)
        if mine != copied:
            self._put(ino, copied, copied)

    def rebuilt(self, ino: int) -> None:
        """Note that an object is made anew from a copy's description, which may be older than the copy's last change, or newer."""
        mine, copied = self._row(ino)
        if mine or copied:
            mine = joined((*mine, *copied))
            self._put(ino, mine, mine)

    def forget(self, ino: int) -> None:
        """Note that an object and its copy are given up for new bytes."""
        if self._row(ino) != ((), ()):
            self._put(ino, (), ())

    def _row(self, ino: int) -> tuple[Ranges, Ranges]:
        row = self._db.execute("SELECT value FROM xattr WHERE ino=? AND name=?", (ino, NAME)).fetchone()
        if row is None:
            return (), ()
        value = bytes(row[0])
        cut = _HEAD.size + _HEAD.unpack_from(value)[0]
        return unpack_runs(value[_HEAD.size : cut]), unpack_runs(value[cut:])

    def _put(self, ino: int, mine: Ranges, copied: Ranges) -> None:
        with self._db.transaction():
            if mine or copied:
                first = pack_runs(mine)
                value = _HEAD.pack(len(first)) + first + pack_runs(copied)
                self._db.execute("INSERT OR REPLACE INTO xattr VALUES(?,?,?)", (ino, NAME, value))
            else:
                self._db.execute("DELETE FROM xattr WHERE ino=? AND name=?", (ino, NAME))
            self._names.changed(ino)
