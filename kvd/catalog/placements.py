"""Where each object's bytes are, its durable copy, and the damages that were found."""

from __future__ import annotations

import array
import itertools
import sys
import time
from typing import TYPE_CHECKING, Any

from kvd.catalog.records import Copy, FaultRow, Placement

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from kvd.catalog.database import Database

FAULTS_MAX = 1000
"""Rows of table `fault`; the oldest go."""
_COPY = "ino, gen, dir, size, mtime_ns, current, runs"


class Placements:
    """Tables `object`, `copy` and `fault` of `db`."""

    def __init__(self, db: Database) -> None:
        self._db = db

    # -- objects -------------------------------------------------------------------------------------------------

    def add(self, ino: int) -> None:
        """Add the row of a new regular file: no data, not sealed."""
        self._db.execute("INSERT INTO object VALUES(?,0,0,0,0,0)", (ino,))

    def get(self, ino: int) -> Placement:
        """Return where an object is; `LookupError` if `ino` is no object."""
        row = self._db.execute("SELECT * FROM object WHERE ino=?", (ino,)).fetchone()
        if row is None:
            raise LookupError(ino)
        return _placement(row)

    def all(self) -> Iterator[Placement]:
        """Yield every object."""
        return map(_placement, self._db.execute("SELECT * FROM object ORDER BY ino").fetchall())

    def count_damaged(self) -> int:
        """Return the number of quarantined objects."""
        return int(self._db.scalar("SELECT count(*) FROM object WHERE damaged=1"))

    def count_pinned(self) -> int:
        """Return the number of pinned objects."""
        return int(self._db.scalar("SELECT count(*) FROM object WHERE pinned=1"))

    def fill(self, ino: int) -> None:
        """Note that an object has a writer: after a crash its DDR bytes count for nothing."""
        with self._db.transaction():
            self._db.execute("UPDATE object SET sealed=0 WHERE ino=?", (ino,))
            self._db.execute("UPDATE copy SET current=0 WHERE ino=?", (ino,))

    def seal(self, ino: int, tier: int, *, changed: bool) -> None:
        """Note that an object's bytes are final; `changed`: a copy made before the seal is of other bytes."""
        with self._db.transaction():
            self._db.execute("UPDATE object SET sealed=1, tier=? WHERE ino=?", (tier, ino))
            if changed:
                self._db.execute("UPDATE copy SET current=0 WHERE ino=?", (ino,))

    def revert(self, ino: int, tier: int) -> None:
        """Note that an object is its copy again."""
        with self._db.transaction():
            self._db.execute("UPDATE object SET sealed=1, tier=? WHERE ino=?", (tier, ino))
            self._db.execute("UPDATE copy SET current=1 WHERE ino=?", (ino,))

    def move(self, ino: int, tier: int) -> None:
        """Note that an object's bytes are in another tier now."""
        self._db.execute("UPDATE object SET tier=? WHERE ino=?", (tier, ino))

    def pin(self, ino: int, *, pinned: bool) -> None:
        """Pin or unpin an object."""
        self._db.execute("UPDATE object SET pinned=? WHERE ino=?", (pinned, ino))

    def hit(self, ino: int, hits: int) -> None:
        """Store an object's count of opens for reading."""
        self._db.execute("UPDATE object SET hits=? WHERE ino=?", (hits, ino))

    # -- copies --------------------------------------------------------------------------------------------------

    def copy(self, ino: int) -> Copy | None:
        """Return an object's copy, or None."""
        row = self._db.execute(f"SELECT {_COPY} FROM copy WHERE ino=?", (ino,)).fetchone()  # noqa: S608
        return None if row is None else _copy(row)

    def copies(self) -> Iterator[Copy]:
        """Yield every copy."""
        return map(_copy, self._db.execute(f"SELECT {_COPY} FROM copy").fetchall())  # noqa: S608

    def copies_by_dir(self) -> dict[int, int]:
        """Return how many copies each directory of the NVMe tier has, by its number."""
        return dict(self._db.execute("SELECT dir, count(*) FROM copy GROUP BY dir"))

    def sums(self, ino: int) -> bytes:
        """Return the checksums of a copy's pages: u32 little-endian, in order of its runs."""
        return bytes(self._db.scalar("SELECT sums FROM copy WHERE ino=?", (ino,)))

    def put_copy(self, copy: Copy, sums: bytes) -> None:
        """Store a copy that is durable, in the place of an older one."""
        assert len(sums) == 4 * copy.pages
        self._db.execute(
            "INSERT OR REPLACE INTO copy VALUES(?,?,?,?,?,?,?,?)",
            (
                copy.ino,
                copy.gen,
                copy.dir_index,
                copy.size,
                copy.mtime_ns,
                copy.current,
                _pack_runs(copy.runs),
                sums,
            ),
        )

    def drop_copy(self, ino: int) -> None:
        """Forget an object's copy."""
        self._db.execute("DELETE FROM copy WHERE ino=?", (ino,))

    # -- faults --------------------------------------------------------------------------------------------------

    def damage(self, ino: int, path: bytes, page: int | None, what: str) -> None:
        """Quarantine an object and record why."""
        with self._db.transaction():
            self._db.execute("UPDATE object SET damaged=1 WHERE ino=?", (ino,))
            self.note_fault(ino, path, page, what)

    def note_fault(self, ino: int, path: bytes, page: int | None, what: str) -> None:
        """Record a damage."""
        with self._db.transaction():
            self._db.execute(
                "INSERT INTO fault(when_ns, ino, path, page, what) VALUES(?,?,?,?,?)",
                (time.time_ns(), ino, path, page, what),
            )
            self._db.execute("DELETE FROM fault WHERE id <= (SELECT max(id) FROM fault) - ?", (FAULTS_MAX,))

    def heal(self, ino: int) -> None:
        """End an object's quarantine: its bytes were replaced."""
        self._db.execute("UPDATE object SET damaged=0 WHERE ino=?", (ino,))

    def count_faults(self) -> int:
        """Return how many faults were ever recorded."""
        return int(self._db.scalar("SELECT coalesce(max(id), 0) FROM fault"))

    def faults(self, limit: int) -> list[FaultRow]:
        """Return the newest faults, newest first."""
        rows = self._db.execute(
            "SELECT when_ns, ino, path, page, what FROM fault ORDER BY id DESC LIMIT ?", (limit,)
        ).fetchall()
        return [FaultRow(when_ns=r[0], ino=r[1], path=r[2], page=r[3], what=r[4]) for r in rows]


def _placement(row: tuple[Any, ...]) -> Placement:
    ino, tier, sealed, pinned, hits, damaged = row
    return Placement(ino=ino, tier=tier, sealed=bool(sealed), pinned=bool(pinned), hits=hits, damaged=bool(damaged))


def _copy(row: tuple[Any, ...]) -> Copy:
    ino, gen, dir_index, size, mtime_ns, current, runs = row
    return Copy(
        ino=ino,
        gen=gen,
        dir_index=dir_index,
        size=size,
        mtime_ns=mtime_ns,
        current=bool(current),
        runs=_unpack_runs(runs),
    )


def _pack_runs(runs: Iterable[tuple[int, int]]) -> bytes:
    return _little(array.array("Q", itertools.chain.from_iterable(runs))).tobytes()


def _unpack_runs(packed: bytes) -> tuple[tuple[int, int], ...]:
    flat = _little(array.array("Q", packed))
    return tuple(zip(flat[::2], flat[1::2], strict=True))


def _little(numbers: array.array[int]) -> array.array[int]:
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers
