"""The catalogue as one thing: the database and its sides."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from kvd.catalog.database import Database
from kvd.catalog.given import Given
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
    given: Given

    @classmethod
    def open(cls, directory: Path, *, page_bytes: int) -> Self:
        """Open or make the catalogue in `directory`; see `Database` for the errors."""
        db = Database(directory, page_bytes=page_bytes)
        names = Names(db)
        namespaces = Namespaces(db, names)
        return cls(db, names, Placements(db), namespaces, SessionRows(db, names, namespaces), Given(db, names))

    def close(self) -> None:
        """Close it; harmless when closed."""
        self.db.close()
