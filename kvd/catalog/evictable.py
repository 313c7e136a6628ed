"""What the catalogue knows of what may leave NVMe for good, and of when objects were used last."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, NamedTuple

import trio

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

    from kvd.catalog.database import Database

NAMES_MAX = 65536
"""A directory with more names below it does not leave: it can't be looked at in one step."""
_USED = "CASE coalesce(c.used_ns, 0) WHEN 0 THEN i.mtime_ns ELSE c.used_ns END"
_BELOW = (
    "WITH RECURSIVE folder(ino) AS (VALUES(?) UNION ALL SELECT d.ino FROM folder f JOIN dentry d ON d.parent=f.ino"
    " JOIN inode i ON i.ino=d.ino AND (i.mode & 61440)=16384 LIMIT ?)"
)


class Folder(NamedTuple):
    """A directory whose files are all cold: its name, they, and what they hold on NVMe."""

    parent: int
    name: bytes
    inos: list[int]
    blocks: int
    size_bytes: int


class Evictable:
    """Reads tables `dentry`, `object` and `copy` of `db`; `tier` is the `kvdriver.Tier` number of what is cold."""

    def __init__(self, db: Database, *, tier: int) -> None:
        self._db = db
        self._tier = tier

    def folder(self, ino: int) -> Folder | None:
        """Return a directory if each file below it is whole, on NVMe alone, not pinned, and has no name elsewhere; else None."""
        where = self._db.execute("SELECT parent, name FROM dentry WHERE ino=?", (ino,)).fetchone()
        if where is None:
            return None
        rows = self._db.execute(
            f"{_BELOW} SELECT d.ino, o.tier=? AND o.sealed=1 AND o.pinned=0 AND o.damaged=0 AND i.nlink=1, c.blocks, c.size"  # noqa: S608
            " FROM folder f JOIN dentry d ON d.parent=f.ino JOIN inode i ON i.ino=d.ino"
            " LEFT JOIN object o ON o.ino=d.ino LEFT JOIN copy c ON c.ino=d.ino"
            " WHERE (i.mode & 61440)<>16384 LIMIT ?",
            (ino, NAMES_MAX + 1, self._tier, NAMES_MAX + 1),
        ).fetchall()
        if not rows or len(rows) > NAMES_MAX or not all(row[1] in (1, None) for row in rows):
            return None
        files = [row for row in rows if row[1] is not None]
        blocks, size_bytes = (sum(row[column] or 0 for row in files) for column in (2, 3))
        return Folder(int(where[0]), bytes(where[1]), [row[0] for row in files], blocks, size_bytes)

    def has_names_elsewhere(self, ino: int) -> bool:
        """Whether a file has names in several directories: who removes one of them says nothing of the others."""
        return bool(self._db.scalar("SELECT count(DISTINCT parent) > 1 FROM dentry WHERE ino=?", (ino,)))


class LastUse(NamedTuple):
    """When an object was used last, as far as is known; `folder` is a directory that it is in, 0 without a name."""

    ino: int
    tier: int
    used_ns: int
    blocks: int
    folder: int


async def last_uses(path: Path, limit: int) -> AsyncGenerator[list[LastUse], None]:
    """Yield the sealed objects of a catalogue, those used longest ago first, so many at a time.

    Sorted and read in threads, through a connection of its own: the daemon goes on meanwhile.
    """

    def begin() -> sqlite3.Cursor:
        connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True, isolation_level=None, check_same_thread=False)
        return connection.execute(
            f"SELECT o.ino, o.tier, {_USED}, coalesce(c.blocks, (i.size + 4095) / 4096),"  # noqa: S608
            " coalesce((SELECT parent FROM dentry d WHERE d.ino=o.ino LIMIT 1), 0)"
            " FROM object o JOIN inode i USING(ino) LEFT JOIN copy c USING(ino) WHERE o.sealed=1 ORDER BY 3"
        )

    cursor = await trio.to_thread.run_sync(begin)
    with closing(cursor.connection):
        while rows := await trio.to_thread.run_sync(cursor.fetchmany, limit):
            yield [LastUse._make(row) for row in rows]
