"""Forks while they are made: rows that no path leads to, until one transaction gives all of them their name.

A fork is made within a *grave* of its own (`kvd.catalog.namespaces`), a directory without a name that is noted in `meta`. What is
in it goes like any invalidated content if the fork comes to nothing: by the reaper, after a crash by the reaper of the next start.
"""

from __future__ import annotations

import errno
import stat
from typing import TYPE_CHECKING, NamedTuple

from kvd.catalog.names import RENAME_NOREPLACE, fail
from kvd.catalog.namespaces import GRAVE
from kvd.catalog.schema import ROOT_INO

if TYPE_CHECKING:
    from kvd.catalog.database import Database
    from kvd.catalog.names import Names
    from kvd.catalog.namespaces import Namespaces

_IFMT = 0o170000


class Member(NamedTuple):
    """A name in a session that is a directory; `cookie` grows in the order in which names were made."""

    cookie: int
    parent: int
    name: bytes
    ino: int
    mode: int
    sealed: bool

    @property
    def is_dir(self) -> bool:
        """Whether it is a directory."""
        return stat.S_ISDIR(self.mode)

    @property
    def is_file(self) -> bool:
        """Whether it is an object."""
        return stat.S_ISREG(self.mode)


class Forks:
    """Makes them in `db`."""

    def __init__(self, db: Database, names: Names, namespaces: Namespaces) -> None:
        self._db = db
        self._names = names
        self._namespaces = namespaces

    def __repr__(self) -> str:
        return f"<Forks of {self._namespaces!r}>"

    def members(self, folder: int, limit: int) -> list[Member]:
        """Return all that is below a directory, in the order in which it got its names; E2BIG beyond `limit`.

        At one go: what is told is there at one moment. A thousand names take some 5 ms.
        """
        found: list[Member] = []
        pending = [folder]
        while pending:
            rows = self._db.execute(
                "SELECT d.id, d.parent, d.name, d.ino, i.mode, coalesce(o.sealed, 1) FROM dentry d JOIN inode i USING(ino)"
                " LEFT JOIN object o USING(ino) WHERE d.parent=? LIMIT ?",
                (pending.pop(), limit + 1 - len(found)),
            ).fetchall()
            some = [Member(row[0], row[1], bytes(row[2]), row[3], row[4], bool(row[5])) for row in rows]
            found += some
            pending += [each.ino for each in some if each.is_dir]
            if len(found) > limit:
                raise fail(errno.E2BIG)
        return sorted(found)

    def begin(self, parent: int, now_ns: int) -> int:
        """Make a grave for a fork that will be in a directory; return it."""
        with self._db.transaction():
            grave = self._db.execute(
                "INSERT INTO inode(mode, uid, gid, nlink, size, atime_ns, mtime_ns, ctime_ns, rdev, target)"
                " VALUES(?,0,0,0,0,?,?,?,0,NULL)",
                (stat.S_IFDIR, now_ns, now_ns, now_ns),
            ).lastrowid
            assert grave is not None
            self._db.execute("INSERT INTO meta VALUES(?,?)", (f"{GRAVE}{grave}", grave))
        if parent != ROOT_INO:
            self._namespaces.rising[grave] = self._namespaces.top(parent)
        return grave

    def make(self, like: int, parent: int, name: bytes, now_ns: int, *, sealed: bool = True) -> int:
        """Make an inode in a fork with the attributes and extended attributes of another; return its number.

        A file is an object whose bytes are nowhere yet; not `sealed` it is one that is about to be written.
        """
        with self._db.transaction():
            made = self._db.execute(
                "INSERT INTO inode(mode, uid, gid, nlink, size, atime_ns, mtime_ns, ctime_ns, rdev, target)"
                " SELECT mode, uid, gid, CASE WHEN (mode & ?)=? THEN 2 ELSE 1 END, size, atime_ns, mtime_ns, ?, rdev, target"
                " FROM inode WHERE ino=?",
                (_IFMT, stat.S_IFDIR, now_ns, like),
            )
            ino = made.lastrowid
            if made.rowcount != 1 or ino is None:
                raise fail(errno.ESTALE, name)
            inode = self._names.inode(ino)
            self._db.execute("INSERT INTO dentry(parent, name, ino) VALUES(?,?,?)", (parent, name, ino))
            self._db.execute("INSERT INTO xattr SELECT ?, name, value FROM xattr WHERE ino=?", (ino, like))
            if inode.is_dir:
                self._db.execute("UPDATE inode SET nlink=nlink+1 WHERE ino=? AND nlink>0", (parent,))
            if inode.is_file:
                self._db.execute(
                    "INSERT INTO object(ino, tier, sealed, pinned, hits, damaged) VALUES(?,0,?,0,0,0)", (ino, sealed)
                )
            self._names.changed(ino)
        return ino

    def unmake(self, inos: list[int], now_ns: int) -> None:
        """Take back objects that the engine does not know yet."""
        with self._db.transaction():
            for ino in inos:
                self._names.vanish(ino, now_ns)

    def rise(self, grave: int, name: bytes, parent: int, new_name: bytes, now_ns: int) -> None:
        """Give a fork its name, and with it all that is in it: one transaction of some ten rows. EEXIST if it is taken."""
        with self._db.transaction():
            self._namespaces.refuse_dead(parent)
            self._names.rename(grave, name, parent, new_name, RENAME_NOREPLACE, now_ns)
            self._db.execute("DELETE FROM meta WHERE key=?", (f"{GRAVE}{grave}",))
            self._names.remove(grave)
        self._risen(grave)

    def give_up(self, grave: int) -> None:
        """Leave what was made of a fork to the reaper."""
        self._risen(grave)
        self._namespaces.add_grave(grave)

    def _risen(self, grave: int) -> None:
        self._namespaces.rising.pop(grave, None)
        self._names.folder_moves += 1  # who remembers ways up remembers that they ended in the grave
