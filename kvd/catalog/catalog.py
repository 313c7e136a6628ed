"""The catalogue as one thing: the database and its sides."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from kvd.catalog.database import Database
from kvd.catalog.forks import Forks
from kvd.catalog.names import Names
from kvd.catalog.namespaces import Namespaces
from kvd.catalog.placements import Placements
from kvd.catalog.sessions import SessionRows

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class Catalog:
    """What survives a crash."""

    db: Database
    names: Names
    placements: Placements
    namespaces: Namespaces
    sessions: SessionRows
    forks: Forks

    @classmethod
    def open(cls, directory: Path, *, page_bytes: int) -> Self:
        """Open or make the catalogue in `directory`; see `Database` for the errors."""
        return cls.on(Database(directory, page_bytes=page_bytes))

    @classmethod
    def on(cls, db: Database) -> Self:
        """Return the sides of a database."""
        names = Names(db)
        namespaces = Namespaces(db, names)
        sessions = SessionRows(db, names, namespaces)
        return cls(db, names, Placements(db), namespaces, sessions, Forks(db, names, namespaces))

    def close(self) -> None:
        """Close it; harmless when closed."""
        self.db.close()
