"""What a start asks of the catalogue: whole tables by few statements, objects by batches."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NamedTuple

from kvd.catalog.placements import COPY_COLUMNS, copy_of, placement_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvd.catalog.database import Database
    from kvd.catalog.records import Copy, Placement

_COLD = "(o.tier=? AND o.sealed=1)"
_ROW = (
    "o.ino, o.damaged, c.gen, coalesce(c.dirs, x''), coalesce(c.size, 0), coalesce(c.blocks, 0), coalesce(c.runs, x'')"
)


class ColdRow(NamedTuple):
    """An object that is cold, and its copy; `gen` is None where it has none, `runs` and `dirs` as they are packed."""

    ino: int
    damaged: int
    gen: int | None
    dirs: bytes
    size: int
    blocks: int
    runs: bytes


class Totals(NamedTuple):
    """Objects, and the 4 KiB blocks that all copies are charged."""

    objects: int
    copy_blocks: int


class Cold:
    """Reads tables `object` and `copy` of `db`; `tier` is the `kvdriver.Tier` number of what is cold."""

    def __init__(self, db: Database, *, tier: int) -> None:
        self._db = db
        self._tier = tier

    def totals(self) -> Totals:
        """Return how much there is."""
        return Totals(
            objects=int(self._db.scalar("SELECT count(*) FROM object")),
            copy_blocks=int(self._db.scalar("SELECT coalesce(sum(blocks), 0) FROM copy")),
        )

    def unsettled(self) -> list[tuple[Placement, int]]:
        """Return the objects that are not cold, with their lengths in bytes: those in DDR and those with a writer."""
        rows = self._db.execute(
            f"SELECT o.*, i.size FROM object o JOIN inode i USING(ino) WHERE NOT {_COLD} ORDER BY ino",  # noqa: S608
            (self._tier,),
        )
        return [(placement_of(row[:-1]), row[-1]) for row in rows]

    def copies(self, inos: Sequence[int]) -> list[Copy]:
        """Return the copies of objects, of those that have one."""
        rows = self._db.execute(
            f"SELECT {COPY_COLUMNS} FROM copy WHERE ino IN (SELECT value FROM json_each(?))",  # noqa: S608
            (json.dumps(inos),),
        )
        return [copy_of(row) for row in rows]

    def generations(self, inos: Sequence[int]) -> dict[int, tuple[int, bytes]]:
        """Return the generations and packed directories of the copies of objects, cold or not, by their numbers."""
        rows = self._db.execute(
            "SELECT ino, gen, dirs FROM copy WHERE ino IN (SELECT value FROM json_each(?))", (json.dumps(inos),)
        )
        return {ino: (gen, dirs) for ino, gen, dirs in rows}

    def rows(self, inos: Sequence[int]) -> list[ColdRow]:
        """Return those of some objects that are cold."""
        rows = self._db.execute(
            f"SELECT {_ROW} FROM object o LEFT JOIN copy c USING(ino)"  # noqa: S608
            f" WHERE o.ino IN (SELECT value FROM json_each(?)) AND {_COLD}",
            (json.dumps(inos), self._tier),
        )
        return [ColdRow._make(row) for row in rows]

    def after(self, ino: int, limit: int) -> list[int]:
        """Return the next cold objects, in the order of their numbers."""
        rows = self._db.execute(
            f"SELECT ino FROM object o WHERE o.ino>? AND {_COLD} ORDER BY o.ino LIMIT ?",  # noqa: S608
            (ino, self._tier, limit),
        )
        return [row[0] for row in rows]
