"""The catalogue as one thing: the database and its two sides."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from kvd.catalog.database import Database
from kvd.catalog.names import Names
from kvd.catalog.placements import Placements

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class Catalog:
    """What survives a crash."""

    db: Database
    names: Names
    placements: Placements

    @classmethod
    def open(cls, directory: Path, *, page_bytes: int) -> Self:
        """Open or make the catalogue in `directory`; see `Database` for the errors."""
        db = Database(directory, page_bytes=page_bytes)
        return cls(db, Names(db), Placements(db))

    def close(self) -> None:
        """Close it; harmless when closed."""
        self.db.close()
