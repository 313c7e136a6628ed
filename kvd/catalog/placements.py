"""Where each object's bytes are, its durable copy, and the damages that were found."""

from __future__ import annotations

import collections
import time
from typing import TYPE_CHECKING, Any

from kvd.catalog.form import Form
from kvd.catalog.packing import copy_blocks, pack_dirs, pack_runs, unpack_dirs, unpack_runs
from kvd.catalog.records import Copy, FaultRow, Placement

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kvd.catalog.database import Database

FAULTS_MAX = 1000
"""Rows of table `fault`; the oldest go."""
COPY_COLUMNS = "ino, gen, dirs, stripe, size, mtime_ns, current, runs, form"


class Placements:
    """Tables `object`, `copy` and `fault` of `db`."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._page_bytes = int(db.meta("page_bytes"))
        self.top_of: Callable[[int], int] = lambda _ino: 0
        """Tells what a new copy is charged to (`kvd.catalog.namespaces.Namespaces.charged`)."""
        self.filling: Callable[[int], None] = lambda ino: None  # hears of each object that gets a writer

    # -- objects -------------------------------------------------------------------------------------------------

    def add(self, ino: int) -> None:
        """Add the row of a new regular file: no data, not sealed."""
        self._db.execute("INSERT INTO object VALUES(?,0,0,0,0,0)", (ino,))

    def get(self, ino: int) -> Placement:
        """Return where an object is; `LookupError` if `ino` is no object."""
        row = self._db.execute("SELECT * FROM object WHERE ino=?", (ino,)).fetchone()
        if row is None:
            raise LookupError(ino)
        return placement_of(row)

    def all(self) -> Iterator[Placement]:
        """Yield every object."""
        return map(placement_of, self._db.execute("SELECT * FROM object ORDER BY ino").fetchall())

    def batches(self, limit: int) -> Iterator[list[int]]:
        """Yield the objects' numbers, `limit` at a time; nothing is held meanwhile."""
        after = 0
        while rows := self._db.execute(
            "SELECT ino FROM object WHERE ino>? ORDER BY ino LIMIT ?", (after, limit)
        ).fetchall():
            after = rows[-1][0]
            yield [row[0] for row in rows]

    def count_damaged(self) -> int:
        """Return the number of quarantined objects."""
        return int(self._db.scalar("SELECT count(*) FROM object WHERE damaged=1"))

    def damaged(self) -> list[int]:
        """Return the quarantined objects."""
        return [int(row[0]) for row in self._db.execute("SELECT ino FROM object WHERE damaged=1")]

    def count_pinned(self) -> int:
        """Return the number of pinned objects."""
        return int(self._db.scalar("SELECT count(*) FROM object WHERE pinned=1"))

    def fill(self, ino: int) -> None:
        """Note that an object has a writer: after a crash its DDR bytes count for nothing."""
        self.filling(ino)
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

    def leave(self, ino: int, tier: int, used_ns: int) -> None:
        """Note that an object is its copy, in another tier, and when it was last in use."""
        with self._db.transaction():
            self.move(ino, tier)
            self._db.execute("UPDATE copy SET used_ns=? WHERE ino=?", (used_ns, ino))

    def pin(self, ino: int, *, pinned: bool) -> None:
        """Pin or unpin an object."""
        self._db.execute("UPDATE object SET pinned=? WHERE ino=?", (pinned, ino))

    def hit(self, ino: int, hits: int) -> None:
        """Store an object's count of opens for reading."""
        self._db.execute("UPDATE object SET hits=? WHERE ino=?", (hits, ino))

    # -- copies --------------------------------------------------------------------------------------------------

    def copy(self, ino: int) -> Copy | None:
        """Return an object's copy, or None."""
        row = self._db.execute(f"SELECT {COPY_COLUMNS} FROM copy WHERE ino=?", (ino,)).fetchone()  # noqa: S608
        return None if row is None else copy_of(row)

    def copy_blocks(self, ino: int) -> int:
        """Return the 4 KiB blocks that an object's copy is charged; 0 without one."""
        row = self._db.execute("SELECT blocks FROM copy WHERE ino=?", (ino,)).fetchone()
        return 0 if row is None else int(row[0])

    def copies(self) -> Iterator[Copy]:
        """Yield every copy."""
        return map(copy_of, self._db.execute(f"SELECT {COPY_COLUMNS} FROM copy").fetchall())  # noqa: S608

    def copies_after(self, ino: int, limit: int) -> list[Copy]:
        """Return the next copies in the order of their objects' numbers."""
        rows = self._db.execute(
            f"SELECT {COPY_COLUMNS} FROM copy WHERE ino>? ORDER BY ino LIMIT ?",  # noqa: S608
            (ino, limit),
        )
        return [copy_of(row) for row in rows]

    def copies_by_dir(self) -> dict[int, int]:
        """Return how many copies each directory of the NVMe tier has, by its number."""
        counts: collections.Counter[int] = collections.Counter()
        for dirs, count in self._db.execute("SELECT dirs, count(*) FROM copy GROUP BY dirs"):
            for index in unpack_dirs(dirs):
                counts[index] += count
        return dict(counts)

    def formats(self) -> dict[str, tuple[int, int]]:
        """Return how many copies are kept in each format, and what they are charged, in blocks."""
        rows = self._db.execute("SELECT format, copies, blocks FROM format_use WHERE copies>0 ORDER BY format")
        return {str(row[0]): (int(row[1]), int(row[2])) for row in rows}

    def idle_after(self, ino: int, tier: int, limit: int) -> list[tuple[int, int]]:
        """Return the next objects of a tier that are whole and not pinned, and when each was last in use, as far as is known."""
        rows = self._db.execute(
            "SELECT c.ino, CASE c.used_ns WHEN 0 THEN c.mtime_ns ELSE c.used_ns END FROM copy c JOIN object o USING(ino)"
            " WHERE c.ino>? AND o.tier=? AND o.sealed=1 AND o.damaged=0 AND o.pinned=0 ORDER BY c.ino LIMIT ?",
            (ino, tier, limit),
        )
        return [(int(row[0]), int(row[1])) for row in rows]

    def sums(self, ino: int) -> bytes:
        """Return the checksums of a copy's pages: u32 little-endian, in order of its runs."""
        return bytes(self._db.scalar("SELECT sums FROM copy WHERE ino=?", (ino,)))

    def put_copy(self, copy: Copy, sums: bytes) -> None:
        """Store a copy that is durable, in the place of an older one."""
        assert len(sums) == 4 * copy.pages
        row = (
            copy.ino,
            copy.gen,
            pack_dirs(copy.dirs),
            copy.stripe_bytes,
            copy.size,
            copy.mtime_ns,
            copy.current,
            copy_blocks(copy.size, copy.runs, self._page_bytes),
            pack_runs(copy.runs),
            sums,
            copy.format,
            b"" if copy.form is None else copy.form.pack(),
            self.top_of(copy.ino),
        )
        with self._db.transaction():
            self._db.execute("DELETE FROM copy WHERE ino=?", (copy.ino,))  # a REPLACE would not be counted
            self._db.execute("INSERT INTO copy VALUES(?,?,?,?,?,?,?,?,?,?,?,?,0,?)", row)

    def shrink_copy(self, copy: Copy, sums: bytes) -> None:
        """Store that a copy has fewer pages than before; all else of its row stays."""
        used_ns = self._db.scalar("SELECT used_ns FROM copy WHERE ino=?", (copy.ino,))
        with self._db.transaction():
            self.put_copy(copy, sums)
            self._db.execute("UPDATE copy SET used_ns=? WHERE ino=?", (used_ns, copy.ino))

    def drop_copy(self, ino: int) -> None:
        """Forget an object's copy."""
        self._db.execute("DELETE FROM copy WHERE ino=?", (ino,))

    # -- faults --------------------------------------------------------------------------------------------------

    def damage(self, ino: int, path: bytes, page: int | None, what: str, place: str = "") -> None:
        """Quarantine an object and record why."""
        with self._db.transaction():
            self._db.execute("UPDATE object SET damaged=1 WHERE ino=?", (ino,))
            self.note_fault(ino, path, page, what, place)

    def note_fault(self, ino: int, path: bytes, page: int | None, what: str, place: str = "") -> None:
        """Record a damage; `place` is the file and offset where it is."""
        with self._db.transaction():
            self._db.execute(
                "INSERT INTO fault(when_ns, ino, path, page, what, place) VALUES(?,?,?,?,?,?)",
                (time.time_ns(), ino, path, page, what, place),
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
            "SELECT when_ns, ino, path, page, what, place FROM fault ORDER BY id DESC LIMIT ?", (limit,)
        ).fetchall()
        return [FaultRow(when_ns=r[0], ino=r[1], path=r[2], page=r[3], what=r[4], place=r[5]) for r in rows]


def placement_of(row: tuple[Any, ...]) -> Placement:
    """Return the placement that a row of table `object` is."""
    ino, tier, sealed, pinned, hits, damaged = row
    return Placement(ino=ino, tier=tier, sealed=bool(sealed), pinned=bool(pinned), hits=hits, damaged=bool(damaged))


def copy_of(row: tuple[Any, ...]) -> Copy:
    """Return the copy that a row of `COPY_COLUMNS` is."""
    ino, gen, dirs, stripe_bytes, size, mtime_ns, current, runs, form = row
    return Copy(
        ino=ino,
        gen=gen,
        dirs=unpack_dirs(dirs),
        stripe_bytes=stripe_bytes,
        size=size,
        mtime_ns=mtime_ns,
        current=bool(current),
        runs=unpack_runs(runs),
        form=Form.unpack(form) if form else None,
    )
