"""What is on NVMe after a start: looked at while the daemon serves, and taken into the engine's books.

The catalogue is the truth, and a start takes it at its word (`kvd.tier.recovery`). Until an object was looked at, it has no
session in the engine, and what it holds counts in `Books.unadopted_blocks`. It is looked at when somebody wants it
(`Index.find`, from `Lives.hold`), or in its turn: folder by folder of each directory, files against rows, then the rows whose
files were in no folder. Either way it ends as one of these:

- its file is there with the right length: the object has a session, its pages are mapped;
- the length is wrong: the same, and quarantined;
- the file is missing: the object is lost, its names go.

A file that no row knows is removed, but for those that are being made. A directory that does not answer is taken to be right.
"""

from __future__ import annotations

import time
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog
import trio

from kvd.catalog.cold import Cold
from kvd.catalog.packing import pack_dirs, unpack_dirs, unpack_runs
from kvd.tier.extents import charged
from kvd.tier.found import Found, Recovered
from kvd.tier.listing import lengths_of, listing
from kvdriver import EngineError, Tier

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvd.catalog.catalog import Catalog
    from kvd.catalog.cold import ColdRow
    from kvd.catalog.records import Copy
    from kvd.tier.books import Books
    from kvd.tier.directory import Directory
    from kvd.tier.lives import Lives
    from kvd.tier.nvme import NvmeStore

log = structlog.get_logger(__name__)

ROWS_AT_ONCE = 256
"""Rows that are looked at in one step: 2 ms of the loop's thread."""

WANTED_S = 1.0
IDLE_PAUSE = 0.25
BUSY_PAUSE = 4.0
"""A step is followed by a pause of so many times its length; the second within `WANTED_S` of a client's wish."""
PAUSE_S_MAX = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexState:
    """How far the index is: `done` of `total` objects that were on NVMe at the start; `checked` when there is no more to do."""

    checked: bool
    done: int
    total: int


class Index:
    """Looks at what is on NVMe, once."""

    def __init__(self, lives: Lives, catalog: Catalog, books: Books, nvme: NvmeStore) -> None:
        self._lives = lives
        self._catalog = catalog
        self._cold = Cold(catalog.db, tier=Tier.NVME)
        self._books = books
        self._nvme = nvme
        self._found = Recovered()
        self._lock = trio.Lock()
        self._checked = False
        self._wanted_s = -WANTED_S
        self._lost: list[Copy] = []

    def __repr__(self) -> str:
        return f"<Index {self.state}>"

    @property
    def state(self) -> IndexState:
        """How far it is."""
        total = self._found.cold
        return IndexState(checked=self._checked, done=total - self._lives.unadopted, total=total)

    def begin(self, found: Recovered) -> None:
        """Take over what a start has left to do; `found` is counted on."""
        self._found = found
        self._checked = False
        self._lives.unadopted = found.cold
        self._lives.finder = self

    async def run(self) -> None:
        """Look at everything."""
        began_s = time.monotonic()
        async with trio.open_nursery() as nursery:
            for directory in self._nvme.directories:
                nursery.start_soon(self._directory, directory)
        try:
            await self._rest()
        except (OSError, EngineError):  # the rest is looked at when it is wanted
            log.exception("index can't be checked to its end")
            return
        self._checked = True
        self._lives.finder = None
        self._lives.unadopted = self._books.unadopted_blocks = 0
        found = self._found
        log.info(
            "index checked",
            on_nvme=found.on_nvme,
            dropped=found.dropped,
            damaged=found.damaged,
            swept=found.swept,
            took_s=round(time.monotonic() - began_s, 3),
        )

    # -- on demand -----------------------------------------------------------------------------------------------

    async def find(self, ino: int) -> None:
        """Look at an object now, if it was not yet: then it is in `Lives.sessions`, or gone.

        Raises
        ------
        OSError
            ENOSPC if the engine's tables have no room for it.
        """
        self._wanted_s = trio.current_time()
        await self._look([ino])

    # -- in turn -------------------------------------------------------------------------------------------------

    async def _directory(self, directory: Directory) -> None:
        try:
            began_s = trio.current_time()
            async with aclosing(listing(directory)) as batches:
                async for files in batches:
                    for at in range(0, len(files), ROWS_AT_ONCE):
                        for ino, gen in await self._files(directory.index, files[at : at + ROWS_AT_ONCE]):
                            await self._sweep(directory.index, ino, gen)
                        await self._give_way(trio.current_time() - began_s)
                        began_s = trio.current_time()
        except (OSError, EngineError) as error:
            directory.unswept = True
            log.info("nvme directory is not checked now", path=str(directory.path), error=str(error))

    async def _files(self, index: int, files: Sequence[tuple[int, int, int]]) -> list[tuple[int, int]]:
        """Adopt the objects whose only part is among some files of a directory; return the files that no row knows."""
        inos = [ino for ino, _, _ in files]
        only = pack_dirs([index])
        async with self._lock:
            rows = {row.ino: row for row in self._cold.rows(inos) if row.ino not in self._lives.sessions}
            await self._settle(
                [
                    (row, size)
                    for ino, gen, size in files
                    if (row := rows.get(ino)) and (row.gen, row.dirs) == (gen, only)
                ]
            )
            known = self._cold.generations(inos)
        await self._clear()
        return [(ino, gen) for ino, gen, _ in files if not _is_part(known.get(ino), gen, index)]

    async def _sweep(self, index: int, ino: int, gen: int) -> None:
        """Remove a file, unless a row has come to know it or it is being made."""
        copy = self._catalog.placements.copy(ino)
        if (copy is None or copy.gen != gen or index not in copy.dirs) and (index, ino, gen) not in self._nvme.making:
            await self._nvme.remove_file(index, ino, gen, stray=True)
            self._found.swept += 1

    async def _rest(self) -> None:
        """Look at the objects that were met in no directory: striped, missing, or where nobody answers."""
        after = 0
        began_s = trio.current_time()
        while inos := self._cold.after(after, ROWS_AT_ONCE):
            after = inos[-1]
            left = [ino for ino in inos if ino not in self._lives.sessions]
            if left:
                await self._look(left)
            await self._give_way(trio.current_time() - began_s)
            began_s = trio.current_time()

    async def _give_way(self, took_s: float) -> None:
        """Let clients have the loop, the interpreter and the drives, for longer where somebody waits for cold objects."""
        wanted = trio.current_time() - self._wanted_s < WANTED_S
        await trio.sleep(min(took_s * (BUSY_PAUSE if wanted else IDLE_PAUSE), PAUSE_S_MAX))

    async def _look(self, inos: list[int]) -> None:
        copies = self._cold.copies(inos)
        sizes = await lengths_of(self._nvme.directories, copies)
        lengths = {(copy.ino, copy.gen): size for copy, size in zip(copies, sizes, strict=True)}
        async with self._lock:
            rows = [row for row in self._cold.rows(inos) if row.ino not in self._lives.sessions]
            await self._settle([(row, lengths.get((row.ino, row.gen or 0))) for row in rows])
        await self._clear()

    async def _clear(self) -> None:
        """Remove what is left of striped objects that were lost; their directories may have been swept before."""
        while self._lost:
            await self._nvme.remove(self._lost.pop())

    # -- what comes of it ----------------------------------------------------------------------------------------

    async def _settle(self, looked: list[tuple[ColdRow, int | None]]) -> None:
        """Adopt objects whose files have these lengths; None: one is missing. Called under the lock."""
        there: list[ColdRow] = []
        for row, length in looked:
            if length is None:
                self._lose(row)
                continue
            if length != row.size and not row.damaged:
                self._quarantine(row, length)
            there.append(row)
        if not there:
            return
        page_bytes = self._books.page_bytes
        founds = [Found(row.ino, Tier.NVME, charged(unpack_runs(row.runs), row.size, page_bytes)) for row in there]
        sessions = await self._books.adopt(founds, of_unadopted=True)
        self._lives.sessions.update(zip([row.ino for row in there], sessions, strict=True))
        self._lives.unadopted -= len(there)
        self._found.on_nvme += len(there)

    def _quarantine(self, row: ColdRow, length: int) -> None:
        path = self._catalog.names.path(row.ino) or b""
        what = f"its file on NVMe has {length} bytes instead of {row.size}"
        self._catalog.placements.damage(row.ino, path, None, what)
        log.error("object quarantined", path=path, ino=row.ino, what=what)
        self._found.damaged += 1

    def _lose(self, row: ColdRow) -> None:
        if row.gen is not None:
            path = self._catalog.names.path(row.ino) or b""
            what = "its file on NVMe has vanished"
            self._catalog.placements.note_fault(row.ino, path, None, what)
            log.error("object lost", path=path, ino=row.ino, what=what)
            self._lost += self._cold.copies([row.ino])
        self._catalog.names.vanish(row.ino, time.time_ns())
        self._books.unadopted_blocks -= row.blocks
        self._lives.unadopted -= 1
        self._found.dropped += 1


def _is_part(copy: tuple[int, bytes] | None, gen: int, index: int) -> bool:
    """Whether a copy, given as its generation and packed directories, has a part in a directory."""
    return copy is not None and copy[0] == gen and index in unpack_dirs(copy[1])
