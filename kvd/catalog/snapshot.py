"""One state of a catalogue to read, through a connection of its own: for a thread, while the daemon goes on writing."""

from __future__ import annotations

import sqlite3
from contextlib import contextmanager
from typing import TYPE_CHECKING

from kvd.catalog.catalog import Catalog
from kvd.catalog.database import Database
from kvd.catalog.given import Given
from kvd.catalog.names import Names
from kvd.catalog.namespaces import Namespaces
from kvd.catalog.placements import Placements
from kvd.catalog.sessions import SessionRows

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class _Snapshot(Database):
    def __init__(self, path: Path) -> None:  # not as `Database`: nothing is made or changed
        self.path = path
        self._watcher = None
        self._unsettled = False
        self._connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True, isolation_level=None)
        self._connection.execute("BEGIN")


@contextmanager
def snapshot(path: Path) -> Iterator[Catalog]:
    """Open the catalogue at `path`; every write to it raises."""
    db = _Snapshot(path)
    try:
        names = Names(db)
        namespaces = Namespaces(db, names)
        yield Catalog(db, names, Placements(db), namespaces, SessionRows(db, names, namespaces), Given(db, names))
    finally:
        db.close()
