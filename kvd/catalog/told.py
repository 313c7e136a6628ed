"""What a client is told of names and inodes, read in as few queries as there can be: the source of `kvd.fs.hot`."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kvd.catalog.names import BATCH

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvd.catalog.database import Database


class Told(NamedTuple):
    """An inode as the catalogue has it.

    Attributes
    ----------
    sealed
        Of a regular file; None of others.
    copy_blocks
        4 KiB blocks that its copy on NVMe is charged; 0 without one.
    """

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
    sealed: int | None
    copy_blocks: int


_COLUMNS = (
    "i.ino, i.mode, i.uid, i.gid, i.nlink, i.size, i.atime_ns, i.mtime_ns, i.ctime_ns, i.rdev,"
    " o.sealed, coalesce(c.blocks, 0)"
)
_BESIDE = " LEFT JOIN object o ON o.ino=i.ino LEFT JOIN copy c ON c.ino=i.ino"


class Telling:
    """Reads `db`."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def inode(self, ino: int) -> Told | None:
        """Return an inode, or None."""
        row = self._db.execute(f"SELECT {_COLUMNS} FROM inode i{_BESIDE} WHERE i.ino=?", (ino,)).fetchone()  # noqa: S608
        return None if row is None else Told._make(row)

    def name(self, parent: int, name: bytes) -> tuple[int, int] | None:
        """Return the cookie and the inode number of a name, or None."""
        row: tuple[int, int] | None = self._db.execute(
            "SELECT id, ino FROM dentry WHERE parent=? AND name=?", (parent, name)
        ).fetchone()
        return row

    def parents(self, ino: int) -> list[int]:
        """Return the directories in which an inode has names."""
        return [row[0] for row in self._db.execute("SELECT DISTINCT parent FROM dentry WHERE ino=?", (ino,))]

    def has_at_most(self, parent: int, names: int) -> bool:
        """Whether a directory has no more names than that."""
        few = "SELECT count(*) FROM (SELECT 1 FROM dentry WHERE parent=? LIMIT ?)"
        return int(self._db.scalar(few, (parent, names + 1))) <= names

    def directory_after(self, ino: int) -> int:
        """Return the directory with the next inode number that has names, 0 after the last one."""
        return int(self._db.scalar("SELECT coalesce(min(parent), 0) FROM dentry WHERE parent>?", (ino,)))

    def batches(self, parent: int) -> Iterator[list[tuple[int, bytes, Told]]]:
        """Yield ``(cookie, name, inode)`` of a directory; see `Names.batches`."""
        after, last = 0, int(self._db.scalar("SELECT coalesce(max(id), 0) FROM dentry"))
        while rows := self._db.execute(
            f"SELECT d.id, d.name, {_COLUMNS} FROM dentry d JOIN inode i ON i.ino=d.ino{_BESIDE}"  # noqa: S608
            " WHERE d.parent=? AND d.id>? AND d.id<=? ORDER BY d.id LIMIT ?",
            (parent, after, last, BATCH),
        ).fetchall():
            yield [(row[0], row[1], Told._make(row[2:])) for row in rows]
            after = rows[-1][0]
