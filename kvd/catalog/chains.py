"""Chains: an object may say which one is before it. What comes later is of no use without what came before.

A parent is an inode number. One that was removed leaves its children with a parent that is gone, and they begin a chain then;
one that was replaced by another object of its name (`replaced`) gives them to that. There are no circles: an object without
children can't close one, and of one with children the way up is walked before it gets a parent.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from kvd.catalog.names import fail
from kvd.catalog.schema import ROOT_INO

if TYPE_CHECKING:
    from kvd.catalog.database import Database
    from kvd.catalog.names import Names
    from kvd.catalog.namespaces import Namespaces

CHAIN_MAX = 16384
"""Objects of a chain that are looked at: blocks of 16 tokens for 262,144 of them; about 10 ms."""
CHILDREN_AT_ONCE = 256


class Chains:
    """Table `chain` of `db`."""

    def __init__(self, db: Database, names: Names, namespaces: Namespaces) -> None:
        self._db = db
        self._names = names
        self._namespaces = namespaces

    def __repr__(self) -> str:
        return f"<Chains of {self._db!r}>"

    # -- telling -------------------------------------------------------------------------------------------------

    def parent(self, ino: int) -> int | None:
        """Return the object that one said is before it, if that is still there."""
        row = self._db.execute(
            "SELECT parent FROM chain WHERE ino=? AND parent IN (SELECT ino FROM object)", (ino,)
        ).fetchone()
        return None if row is None else int(row[0])

    def children(self, ino: int, after: int = 0, limit: int = CHILDREN_AT_ONCE) -> list[int]:
        """Return the next objects that said this one is before them, in the order of their numbers."""
        rows = self._db.execute(
            "SELECT ino FROM chain WHERE parent=? AND ino>? ORDER BY ino LIMIT ?", (ino, after, limit)
        )
        return [int(row[0]) for row in rows]

    def has_children(self, ino: int) -> bool:
        """Whether any object said this one is before it."""
        return bool(self._db.scalar("SELECT EXISTS(SELECT 1 FROM chain WHERE parent=?)", (ino,)))

    def chain(self, ino: int, limit: int = CHAIN_MAX) -> list[int]:
        """Return the objects from the first of a chain to this one; of a longer one the last `limit`."""
        rows = self._db.execute(
            "WITH RECURSIVE up(ino, n) AS (SELECT ?, 1 UNION ALL"
            " SELECT c.parent, n+1 FROM up JOIN chain c ON c.ino=up.ino WHERE n<?)"
            " SELECT ino FROM up WHERE ino IN (SELECT ino FROM object) ORDER BY n DESC",
            (ino, limit),
        )
        return [int(row[0]) for row in rows]

    def count(self) -> int:
        """Return how many objects said what is before them."""
        return int(self._db.scalar("SELECT count(*) FROM chain"))

    def tell(self, ino: int) -> bytes | None:
        """Return the parent's name, if it is in the same directory, else its path within the mount; None without one."""
        parent = self.parent(ino)
        path = None if parent is None else self._names.path(parent)
        if parent is None or path is None:
            return None
        folder, _, name = path.rpartition(b"/")
        own = self._names.path(ino) or b""
        return name if own.rpartition(b"/")[0] == folder else path

    # -- saying --------------------------------------------------------------------------------------------------

    def find(self, ino: int, value: bytes) -> int:
        """Return the object that a client means: a name in the same directory, or a path below the namespace.

        A path that begins with a slash is one within the mount.

        Raises
        ------
        OSError
            ENOENT: there is none. EINVAL: it is no file, or nothing at all.
        """
        if not value or b"\0" in value:
            raise fail(errno.EINVAL, value)
        found: int | None
        if value.startswith(b"/"):
            found = self._names.number(value)
        elif b"/" in value:
            namespace = self._namespaces.of(ino)
            top = b"" if namespace is None else self._names.path(namespace.ino) or b""
            found = self._names.number(top + b"/" + value)
        else:
            inode = self._names.lookup(self._names.parent(ino), value)
            found = None if inode is None else inode.ino
        if found is None:
            raise fail(errno.ENOENT, value)
        if not self._names.inode(found).is_file:
            raise fail(errno.EINVAL, value)
        return found

    def put(self, ino: int, parent: int) -> None:
        """Keep that an object comes after another one.

        Raises
        ------
        OSError
            ELOOP: it would come after itself. EXDEV: they belong to different namespaces. EMLINK: the chain is longer than
            can be looked at.
        """
        if ino == parent:
            raise fail(errno.ELOOP)
        if self._home(ino) != self._home(parent):
            raise fail(errno.EXDEV)
        with self._db.transaction():
            if self.has_children(ino):
                above = self.chain(parent)
                if ino in above:
                    raise fail(errno.ELOOP)
                if len(above) >= CHAIN_MAX:
                    raise fail(errno.EMLINK)
            self._db.execute("INSERT OR REPLACE INTO chain VALUES(?,?)", (ino, parent))

    def _home(self, ino: int) -> int:
        namespace = self._namespaces.of(ino)
        return ROOT_INO if namespace is None else namespace.ino

    def drop(self, ino: int) -> None:
        """Forget what an object comes after."""
        self._db.execute("DELETE FROM chain WHERE ino=?", (ino,))

    def replaced(self, old: int, new: int) -> None:
        """Let an object take the place in a chain of the one whose last name it has got: the same block, stored anew.

        Not where it said itself that its place is another one.
        """
        said = self._db.execute("SELECT parent FROM chain WHERE ino=?", (new,)).fetchone()
        was = self._db.execute("SELECT parent FROM chain WHERE ino=?", (old,)).fetchone()
        if said is not None and said != was:
            return
        if said is None and was is not None and was[0] != new and not self.has_children(new):
            self._db.execute("INSERT INTO chain VALUES(?,?)", (new, was[0]))
        self._db.execute("UPDATE chain SET parent=? WHERE parent=? AND ino<>?", (new, old, new))
