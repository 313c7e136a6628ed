"""What lies beside a file in its directory: in the order of the names' making, and in the order of the names themselves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvd.catalog.database import Database


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a file is in its directory.

    Attributes
    ----------
    before
        The cookie of the name that was made before it, 0 if it is the first.
    name_before
        The greatest name less than its own, empty if there is none.
    """

    folder: int
    cookie: int
    before: int
    name: bytes
    name_before: bytes


class Neighbours:
    """Reads table `dentry` of `db`."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def place(self, ino: int) -> Place | None:
        """Return where a file is; None without a name."""
        row = self._db.execute("SELECT parent, id, name FROM dentry WHERE ino=? LIMIT 1", (ino,)).fetchone()
        if row is None:
            return None
        folder, cookie, name = row
        before = self._db.scalar("SELECT coalesce(max(id), 0) FROM dentry WHERE parent=? AND id<?", (folder, cookie))
        less = self._db.scalar("SELECT coalesce(max(name), x'') FROM dentry WHERE parent=? AND name<?", (folder, name))
        return Place(folder=folder, cookie=cookie, before=int(before), name=name, name_before=bytes(less))

    def after(self, place: Place, limit: int) -> list[int]:
        """Return the files whose names were made next."""
        rows = self._db.execute(
            "SELECT o.ino FROM dentry d JOIN object o USING(ino) WHERE d.parent=? AND d.id>? ORDER BY d.id LIMIT ?",
            (place.folder, place.cookie, limit),
        )
        return [row[0] for row in rows]

    def after_by_name(self, place: Place, limit: int) -> list[int]:
        """Return the files with the next names."""
        rows = self._db.execute(
            "SELECT o.ino FROM dentry d JOIN object o USING(ino) WHERE d.parent=? AND d.name>? ORDER BY d.name LIMIT ?",
            (place.folder, place.name, limit),
        )
        return [row[0] for row in rows]

    def is_small(self, folder: int, *, names_max: int, bytes_max: int) -> bool:
        """Whether a directory has no more names than that, and its files not more bytes."""
        names = "SELECT ino FROM dentry WHERE parent=? LIMIT ?"
        count, size = self._db.execute(
            f"SELECT count(*), coalesce(sum(i.size), 0) FROM ({names}) d JOIN inode i USING(ino)",  # noqa: S608
            (folder, names_max + 1),
        ).fetchone()
        return bool(count <= names_max and size <= bytes_max)
