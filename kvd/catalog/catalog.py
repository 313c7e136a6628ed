"""The catalogue as one thing: the database and its sides."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from kvd.catalog.chains import Chains
from kvd.catalog.charges import Charges
from kvd.catalog.database import Database
from kvd.catalog.forks import Forks
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
    chains: Chains
    charges: Charges
    forks: Forks
    given: Given

    @classmethod
    def open(cls, directory: Path, *, page_bytes: int) -> Self:
        """Open or make the catalogue in `directory`; see `Database` for the errors."""
        return cls.of(Database(directory, page_bytes=page_bytes))

    @classmethod
    def of(cls, db: Database) -> Self:
        """Return all sides of a database."""
        names = Names(db)
        namespaces = Namespaces(db, names)
        placements = Placements(db)
        placements.top_of = namespaces.charged
        sessions = SessionRows(db, names, namespaces)
        chains = Chains(db, names, namespaces)
        charges = Charges(db, names, namespaces, chains)
        forks = Forks(db, names, namespaces)
        return cls(db, names, placements, namespaces, sessions, chains, charges, forks, Given(db, names))

    def close(self) -> None:
        """Close it; harmless when closed."""
        self.db.close()
