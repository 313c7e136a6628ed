"""The scrubber: reads every copy on NVMe once in a period and verifies each page and the description, before somebody needs it.

It holds no object's lock while it reads: pages of a copy's files never change, so what differs is damage, also if a newer copy
has come meanwhile; but they may be given back (`kvd.tier.sliding`), and then the row has other runs. A bad page of an object whose good bytes are in DDR is healed by a new copy; a cold one is quarantined.
"""

from __future__ import annotations

import contextlib
import errno
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog
import trio

from kvd.catalog.records import NS
from kvd.errors import DamagedError, KvdError, VanishedError
from kvd.tier.reading import Reading, pieces, place
from kvdriver import Tier

if TYPE_CHECKING:
    from kvd.catalog.catalog import Catalog
    from kvd.catalog.records import Copy
    from kvd.config import ScrubConfig
    from kvd.tier.books import Books
    from kvd.tier.describer import Describer
    from kvd.tier.live import Live
    from kvd.tier.lives import Lives
    from kvd.tier.mover import Mover
    from kvd.tier.moves import Moves
    from kvd.tier.nvme import NvmeStore

log = structlog.get_logger(__name__)

PIECE_BYTES = 4 << 20
"""Read at one go; between two the rate is kept."""
OBJECT_BYTES_MIN = 256 << 10
"""What an object costs at least, by the rate: small ones cost time of the loop, not of the disk."""
BURST_S = 0.25
"""Of the rate; what may be read at once after a rest."""
BAD_PAGES_MAX = 16
"""Of an object; what is beyond is not looked for."""
GONE = "its file on NVMe has vanished"
STORE_S = 5.0
"""How often the place is noted where a restart goes on."""
AT, BEGAN, ENDED = "scrub_ino", "scrub_began_ns", "scrub_ended_ns"
"""Facts of the catalogue: the last object that was read, when this pass began, when the last whole one ended."""


class Pace:
    """A token bucket: `take` waits until so many bytes may be read."""

    def __init__(self, rate_bytes: int) -> None:
        self._rate_bytes = rate_bytes
        self._due_s = 0.0

    async def take(self, count: int) -> None:
        """Wait for `count` bytes' turn."""
        now_s = trio.current_time()
        self._due_s = max(self._due_s, now_s - BURST_S) + count / self._rate_bytes
        await trio.sleep_until(max(now_s, self._due_s))


@dataclass(slots=True)
class ScrubCounts:
    """Since the start: what was read and found; `pass_objects` since this pass began or went on."""

    objects: int = 0
    pass_objects: int = 0
    verified_bytes: int = 0
    bad_pages: int = 0
    healed: int = 0
    quarantined: int = 0
    unreadable: int = 0
    descriptions: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """What reading a copy came to; `trouble` says why it could not be read to the end, '' if it was; `gone`: no file."""

    copy: Copy
    verified_bytes: int
    bad_pages: tuple[int, ...] = ()
    trouble: str = ""
    gone: bool = False

    @property
    def sound(self) -> bool:
        """Whether every page is as it was written."""
        return not self.bad_pages and not self.trouble


class Scrub:
    """Verifies copies: one at a time by itself, or those that somebody names."""

    def __init__(
        self,
        config: ScrubConfig,
        catalog: Catalog,
        lives: Lives,
        books: Books,
        nvme: NvmeStore,
        mover: Mover,
        moves: Moves,
        describer: Describer,
    ) -> None:
        self.config = config
        self._catalog = catalog
        self._lives = lives
        self._books = books
        self._nvme = nvme
        self._mover = mover
        self._moves = moves
        self._describer = describer
        self.counts = ScrubCounts()

    def __repr__(self) -> str:
        return f"<Scrub {self.counts}>"

    @property
    def began_s(self) -> float:
        """When this pass, or the last one, began, since 1970; 0 where there was none."""
        return self._catalog.db.number(BEGAN) / NS

    @property
    def ended_s(self) -> float:
        """When the last whole pass ended, since 1970; 0 where there was none."""
        return self._catalog.db.number(ENDED) / NS

    # -- by itself -----------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Read every copy once in each period, for ever."""
        if not self.config.rate_bytes:
            return
        pace = Pace(self.config.rate_bytes)
        while True:
            now_ns = time.time_ns()
            began_ns = min(self._catalog.db.number(BEGAN), now_ns)  # a clock that was set back
            under_way = self._catalog.db.number(ENDED) < began_ns
            wait_s = 0.0 if under_way or not began_ns else began_ns / NS + self.config.period_s - now_ns / NS
            if wait_s > 0:
                await trio.sleep(wait_s)
                continue
            if not under_way:
                self._store({BEGAN: now_ns, AT: 0})
                self.counts.pass_objects = 0
            await self._pass(pace)
            self._store({ENDED: max(time.time_ns(), began_ns + 1), AT: 0})
            log.info("every copy was read", objects=self.counts.pass_objects, bad_pages=self.counts.bad_pages)

    async def _pass(self, pace: Pace) -> None:
        at = self._catalog.db.number(AT)
        stored_s = trio.current_time()
        while copies := self._catalog.placements.copies_after(at, 1):
            at = copies[0].ino
            try:
                await self.scrub(at, pace)
            except (KvdError, OSError) as error:
                log.info("copy can't be scrubbed", ino=at, error=str(error))
            self.counts.pass_objects += 1
            if trio.current_time() >= stored_s + STORE_S:
                self._store({AT: at})
                stored_s = trio.current_time()

    def _store(self, facts: dict[str, int]) -> None:
        with contextlib.suppress(OSError):  # a full disk: a restart reads some again
            for key, value in facts.items():
                self._catalog.db.keep_number(key, value)

    # -- one object ----------------------------------------------------------------------------------------------

    async def scrub(self, ino: int, pace: Pace | None = None) -> int:
        """Verify an object's copy, and heal or quarantine it; return the bytes that were read.

        Raises
        ------
        DamagedError
            It is quarantined now, or was, or can't be read.
        VanishedError
            Its file has vanished; so has the object now.
        """
        verified = await self.verify(ino, pace)
        if verified is None:
            return 0
        if not verified.sound:
            await self.settle(ino, verified)
        elif wrong := await self._describer.wrong([verified.copy]):
            self.counts.descriptions += await self._describer.mend(wrong)
        return verified.verified_bytes

    async def verify(self, ino: int, pace: Pace | None = None) -> Verified | None:
        """Read an object's copy; None if it has none, or in a directory that does not answer."""
        async with self._lives.hold(ino) as live:
            copy = live.copy
            if live.damaged:
                raise DamagedError(f"object {ino} is quarantined")
            if copy is None or not self._nvme.usable(copy):
                return None
            sums = self._catalog.placements.sums(ino)
            try:
                reading = await Reading.open(self._nvme, copy)
            except OSError as error:
                return self._unopened(copy, error)
        try:
            verified = await self._read(reading, sums, pace)
        finally:
            reading.close()
        if not verified.sound and not self._is_as_it_was(copy):
            return None
        self.counts.objects += 1
        self.counts.verified_bytes += verified.verified_bytes
        self.counts.bad_pages += len(verified.bad_pages)
        self.counts.unreadable += bool(verified.trouble)
        return verified

    def _is_as_it_was(self, copy: Copy) -> bool:
        """Whether a copy that was read has the pages still that it had, or has gone."""
        now = self._catalog.placements.copy(copy.ino)
        return now is None or now.gen != copy.gen or now.runs == copy.runs

    def _unopened(self, copy: Copy, error: OSError) -> Verified | None:
        """Return what a copy is whose files can't be opened; None if that is its directory's trouble."""
        if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
            raise error
        if not self._nvme.usable(copy):
            return None
        self.counts.unreadable += 1
        gone = isinstance(error, FileNotFoundError)
        trouble = GONE if gone else f"can't be read: {error.strerror}"
        return Verified(copy=copy, verified_bytes=0, trouble=trouble, gone=gone)

    def _where(self, copy: Copy, page: int | None) -> str:
        return place(self._nvme, copy, page, self._books.page_bytes)

    async def _read(self, reading: Reading, sums: bytes, pace: Pace | None) -> Verified:
        copy = reading.copy
        page_bytes = self._books.page_bytes
        bad: list[int] = []
        verified_bytes, trouble = 0, ""
        paid = 0
        for runs, piece_sums in pieces(copy.runs, sums, PIECE_BYTES // page_bytes):
            count = sum(length for _, length in runs) * page_bytes
            if pace is not None:
                await pace.take(count)
                paid += count
            try:
                bad += await reading.bad_pages(self._mover, runs, piece_sums, BAD_PAGES_MAX - len(bad))
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
                    raise
                trouble = f"can't be read: {error.strerror}"
                break
            verified_bytes += count
            if len(bad) >= BAD_PAGES_MAX:
                break
        if pace is not None and paid < OBJECT_BYTES_MIN:
            await pace.take(OBJECT_BYTES_MIN - paid)
        return Verified(copy=copy, verified_bytes=min(verified_bytes, copy.size), bad_pages=tuple(bad), trouble=trouble)

    async def settle(self, ino: int, verified: Verified) -> None:
        """Heal or quarantine an object whose copy is bad; nothing if it has another copy by now.

        Raises
        ------
        DamagedError
            It is quarantined now, or can't be read.
        VanishedError
            Its file has vanished; so has the object now.
        """
        copy = verified.copy
        async with self._lives.hold(ino) as live:
            if live.damaged or live.copy is None or (live.copy.gen, live.copy.runs) != (copy.gen, copy.runs):
                return
            page = verified.bad_pages[0] if verified.bad_pages else None
            what = "checksum differs" if verified.bad_pages else verified.trouble
            where = self._where(copy, page)
            if live.tier is Tier.DDR:
                await self._renew(live, page, what, where)
                return
            if verified.gone:
                self._moves.lose(live, what)
                with trio.CancelScope(shield=True):
                    await self._books.destroy(self._lives.sessions.pop(ino))
                raise VanishedError(f"object {ino}: {what}")
            if page is None:
                self._moves.note(live, None, what, where)
                raise DamagedError(f"object {ino} {what}")
            self.counts.quarantined += 1
            self._moves.damage(live, page, what, where)
        for more in verified.bad_pages[1:]:
            path = self._catalog.names.path(ino) or b""
            self._catalog.placements.note_fault(ino, path, more, what, self._where(copy, more))
        raise DamagedError(f"object {ino}: page {page} failed its checksum; quarantined")

    async def _renew(self, live: Live, page: int | None, what: str, where: str) -> None:
        """Make a bad copy anew from DDR; while it has a writer, its bytes are not those to keep."""
        if not live.sealed:
            self._moves.note(live, page, f"{what}, in the copy that a crash would fall back to", where)
            return
        try:
            await self._moves.copy_out(live)
        except OSError as error:
            self._moves.note(live, page, f"{what}; a new copy can't be made: {error.strerror}", where)
            return
        self.counts.healed += 1
        path = self._catalog.names.path(live.ino) or b""
        with contextlib.suppress(OSError):
            self._catalog.placements.note_fault(live.ino, path, page, f"{what}; healed by a new copy", where)
        log.warning("bad copy healed", path=path, ino=live.ino, page=page, what=what, place=where)
