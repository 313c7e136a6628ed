"""Which session an inode belongs to, and what was said of it: table `session`.

The indexes of the table are the queue of what ends next. It takes no memory, a start has nothing to load, and a step costs
the same with a million rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvd.catalog.namespaces import REMEMBERED_FOLDERS
from kvd.catalog.records import Pin, Said
from kvd.catalog.schema import ROOT_INO

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvd.catalog.database import Database
    from kvd.catalog.names import Names
    from kvd.catalog.namespaces import Namespaces

_COLUMNS = "ino, state, pin, pin_until_ns, ttl_ns, refresh, expire_ns, priority, window, sink"


class SessionRows:
    """Table `session` of `db`, and the way from an inode up to its session."""

    def __init__(self, db: Database, names: Names, namespaces: Namespaces) -> None:
        self._db = db
        self._names = names
        self._namespaces = namespaces
        self._moves = names.folder_moves
        self._below: dict[int, int] = {}
        self._known_some: bool | None = None

    def __repr__(self) -> str:
        return f"<SessionRows some={self.some}>"

    # -- belonging -----------------------------------------------------------------------------------------------

    def of(self, ino: int) -> int:
        """Return the session that an object, or a directory, belongs to: a directory right below its namespace, or itself."""
        if not self._namespaces.is_grouping:
            return ino
        folder = self._folder_of(ino)
        if folder == ROOT_INO:
            return ino
        namespace = self._namespaces.of(folder)
        if namespace is None or namespace.session != "directory":
            return ino
        if namespace.ino in (ino, folder):
            return ino
        return self._right_below(folder, namespace.ino)

    def is_session(self, ino: int, *, is_dir: bool) -> bool:
        """Whether an inode is a session by itself, not only a part of one."""
        if not is_dir:
            return self.of(ino) == ino
        return self.has_place(self._folder_of(ino), is_dir=True)

    def has_place(self, folder: int, *, is_dir: bool) -> bool:
        """Whether what is right below a directory is a session by itself."""
        namespace = None if folder == ROOT_INO else self._namespaces.of(folder)
        if namespace is None or namespace.session != "directory":
            return not is_dir
        return folder == namespace.ino

    def _folder_of(self, ino: int) -> int:
        row = self._db.execute("SELECT parent FROM dentry WHERE ino=? LIMIT 1", (ino,)).fetchone()
        return ROOT_INO if row is None else int(row[0])

    def _right_below(self, folder: int, top: int) -> int:
        """Return the directory in `top` that `folder` is or is below."""
        if self._moves != self._names.folder_moves or len(self._below) >= REMEMBERED_FOLDERS:
            self._moves = self._names.folder_moves
            self._below.clear()
        passed: list[int] = []
        at = folder
        while (found := self._below.get(at)) is None:
            passed.append(at)
            above = self._folder_of(at)
            if above in (top, ROOT_INO):
                found = at
                break
            at = above
        self._below.update(dict.fromkeys(passed, found))
        return found

    # -- rows ----------------------------------------------------------------------------------------------------

    @property
    def some(self) -> bool:
        """Whether there is a row, or was since the start."""
        if self._known_some is None:
            self._known_some = bool(self._db.scalar("SELECT EXISTS(SELECT 1 FROM session)"))
        return self._known_some

    def get(self, ino: int) -> Said:
        """Return what was said of an inode."""
        if not self.some:
            return Said(ino=ino)
        row = self._db.execute(f"SELECT {_COLUMNS} FROM session WHERE ino=?", (ino,)).fetchone()  # noqa: S608
        return Said(ino=ino) if row is None else _said(row)

    def put(self, said: Said) -> None:
        """Keep what was said of an inode."""
        if said.is_nothing:
            self._db.execute("DELETE FROM session WHERE ino=?", (said.ino,))
            return
        self._known_some = True
        self._db.execute(
            "INSERT OR REPLACE INTO session VALUES(?,?,?,?,?,?,?,?,?,?)",
            (
                said.ino,
                said.state,
                said.pin,
                said.pin_until_ns,
                said.ttl_ns,
                said.refresh,
                said.expire_ns,
                said.priority,
                said.window,
                said.sink,
            ),
        )

    def postpone(self, ino: int, expire_ns: int) -> None:
        """Put an end off; never to an earlier time."""
        self._db.execute(
            "UPDATE session SET expire_ns=? WHERE ino=? AND expire_ns>0 AND expire_ns<?", (expire_ns, ino, expire_ns)
        )

    def pinned(self) -> dict[int, Pin]:
        """Return what is pinned by a row of its own."""
        return {int(ino): Pin(pin) for ino, pin in self._db.execute("SELECT ino, pin FROM session WHERE pin>0")}

    def windows_after(self, ino: int, limit: int) -> list[int]:
        """Return the next sessions that have a window, in the order of their numbers."""
        rows = self._db.execute("SELECT ino FROM session WHERE window>0 AND ino>? ORDER BY ino LIMIT ?", (ino, limit))
        return [int(row[0]) for row in rows]

    # -- what ends next ------------------------------------------------------------------------------------------

    def next_ns(self) -> int:
        """Return when the next TTL or pin ends, in ns since the epoch; 0 when none does."""
        expire = self._db.scalar("SELECT coalesce(min(expire_ns), 0) FROM session WHERE expire_ns>0")
        unpin = self._db.scalar("SELECT coalesce(min(pin_until_ns), 0) FROM session WHERE pin_until_ns>0")
        return min((int(each) for each in (expire, unpin) if each), default=0)

    def expired(self, now_ns: int, limit: int) -> list[Said]:
        """Return up to `limit` whose time is over, those first whose end came first."""
        return self._due("expire_ns", now_ns, limit)

    def unpinned(self, now_ns: int, limit: int) -> list[Said]:
        """Return up to `limit` whose soft pin is over."""
        return self._due("pin_until_ns", now_ns, limit)

    def _due(self, column: str, now_ns: int, limit: int) -> list[Said]:
        rows = self._db.execute(
            f"SELECT {_COLUMNS} FROM session WHERE {column}>0 AND {column}<=? ORDER BY {column} LIMIT ?",  # noqa: S608
            (now_ns, limit),
        )
        return [_said(row) for row in rows.fetchall()]

    def refreshed(self) -> Iterator[tuple[int, int]]:
        """Yield ``(inode, ttl in ns)`` of those whose time begins anew with each use."""
        return iter(self._db.execute("SELECT ino, ttl_ns FROM session WHERE refresh=1 AND expire_ns>0").fetchall())


def _said(row: tuple[Any, ...]) -> Said:
    ino, state, pin, pin_until_ns, ttl_ns, refresh, expire_ns, priority, window, sink = row
    return Said(
        ino=ino,
        state=state,
        pin=Pin(pin),
        pin_until_ns=pin_until_ns,
        ttl_ns=ttl_ns,
        refresh=bool(refresh),
        expire_ns=expire_ns,
        priority=priority,
        window=window,
        sink=sink,
    )
