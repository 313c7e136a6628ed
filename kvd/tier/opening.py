"""Opening and releasing objects: residency, the kernel's way to the bytes, leases, sealing.

An inode has one I/O mode from its first open to its last release, because the kernel refuses mixtures.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

import structlog
import trio

from kvd.errors import DamagedError, NotFoundError
from kvd.tier.bringing import Bringing, close_files, close_nvme
from kvd.tier.extents import held_blocks
from kvd.tier.moves import stale
from kvd.tier.plane import Mode, PlaneObject, Sums
from kvdriver import BLOCK_BYTES, Tier

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvd.catalog.catalog import Catalog
    from kvd.catalog.records import Copy
    from kvd.tier.books import Books
    from kvd.tier.ddr import DdrStore
    from kvd.tier.live import Live
    from kvd.tier.lives import Lives
    from kvd.tier.moves import Moves
    from kvd.tier.plane import DataPlane
    from kvd.tier.room import Room
    from kvd.tier.writing import Writing

log = structlog.get_logger(__name__)

OBJECT_BYTES_MAX = (16 << 40) - BLOCK_BYTES
"""As ext4 with 4 KiB blocks has it; beyond it EFBIG."""


class Opening:
    """What happens between an open and its release."""

    def __init__(
        self,
        lives: Lives,
        catalog: Catalog,
        books: Books,
        ddr: DdrStore,
        moves: Moves,
        room: Room,
        plane: DataPlane,
        writing: Writing,
    ) -> None:
        self._lives = lives
        self._catalog = catalog
        self._books = books
        self._ddr = ddr
        self._moves = moves
        self._room = room
        self._sharing = room.sharing
        self._plane = plane
        self.bringing = Bringing(lives, books, ddr, moves, room, plane, self._spec, stored_wait_s=writing.wait_s)
        self.streaming = self.bringing.streaming
        self._writing = writing
        self._ended = False
        self.on_seal: Callable[[Live], None] = lambda _live: None
        """Hears of each object that was sealed; under its lock."""

    def __repr__(self) -> str:
        return f"<Opening of {self._lives!r}>"

    async def create(self, ino: int, usual_key: int) -> None:
        """Open a new object for writing; its catalogue row is there and not sealed."""
        self._lives.sessions[ino] = await self._books.session(ino)
        async with self._lives.hold(ino) as live:
            live.usual_key = usual_key
            live.top = self._catalog.namespaces.charged(ino, usual_key)
            live.ddr_fd = self._ddr.create(ino)
            live.tier = Tier.DDR
            try:
                self._catalog.placements.move(ino, Tier.DDR)
                await self._attach(live, write=True)
            except BaseException:
                close_files(live)
                self._writing.ended(live)
                raise
            live.writers = 1

    async def open(self, ino: int, *, write: bool, truncate: bool = False) -> None:
        """Open an object.

        Raises
        ------
        DamagedError
            It is quarantined, or a page failed on the way to DDR.
        NoSpaceError
            It must be in DDR to be written, and there is no room.
        """
        holding = self.streaming.hold(ino, cancel=truncate) if write else self._lives.hold(ino)
        async with holding as live:
            if live.damaged and not (write and truncate):
                raise DamagedError(f"object {ino} is quarantined")
            try:
                if write:
                    await self._sharing.take_back(live)
                if truncate:
                    await self._empty(live)
                elif live.ddr_fd < 0 and (write or not live.shared):
                    await self.bringing.bring(live, write=write)
                if not live.attached:
                    await self._attach(live, write=write)
                elif write and live.mode is Mode.PASSTHROUGH:
                    await self._writing.admit(live)  # or not: the gate holds it up
                if write and live.sealed:
                    await self._keep_sealed(live)
                    self._fill(live)
                    # While it has a writer its times are those of the DDR file (`Lives.attributes`).
                    inode = self._catalog.names.inode(ino)
                    os.utime(live.ddr_fd, ns=(inode.atime_ns, inode.mtime_ns))
            except BaseException:
                with trio.CancelScope(shield=True):
                    await self._undo_open(live)
                raise
            if write:
                live.writers += 1
            else:
                live.readers += 1
                live.hits += 1
                self._share(live)

    def _share(self, live: Live) -> None:
        if self._plane.passthrough and live.mode is not Mode.PASSTHROUGH:
            return  # it was streamed: shared it would keep its mode, and no later open would pass through
        if self._sharing.share(live) and live.ddr_fd >= 0:  # the data plane has its own
            os.close(live.ddr_fd)
            live.ddr_fd = -1

    async def _keep_sealed(self, live: Live) -> None:
        """Make sure that NVMe has the bytes as they were sealed, before a writer may change them in place.

        From here on a crash or a stop falls back to them, also if the writer never writes. Nobody can see a store
        through a mapping, so this can't wait for the first change.
        """
        if live.clean:
            return
        try:
            await self._moves.copy_out(live)
        except OSError as error:
            log.info("nothing to fall back to while it is written", ino=live.ino, errno=error.errno, error=str(error))

    async def _undo_open(self, live: Live) -> None:
        """Leave no half-open object behind."""
        if not live.writers and live.ddr_fd >= 0:
            await self._seal_or_later(live)
            self._writing.ended(live)
        if not live.opens:
            if not live.attached:
                close_files(live)
            elif not live.shared:
                await self._detach(live)

    def _fill(self, live: Live) -> None:
        self._catalog.placements.fill(live.ino)
        live.sealed = False
        live.copy = stale(live.copy)

    async def _empty(self, live: Live) -> None:
        """Give an object's bytes up, for a DDR file of no length. The catalogue is told before anything is lost."""
        if live.tier is Tier.DDR:
            if live.ddr_fd < 0:
                live.ddr_fd = self._ddr.open(live.ino)
            self._fill(live)
            self._catalog.given.cut(live.ino, 0)
            os.ftruncate(live.ddr_fd, 0)
            return
        fd = self._ddr.create(live.ino)
        with trio.CancelScope(shield=True):
            try:
                with self._catalog.db.transaction():
                    self._catalog.placements.fill(live.ino)
                    self._catalog.placements.heal(live.ino)
                    self._catalog.placements.drop_copy(live.ino)
                    self._catalog.given.forget(live.ino)
                    self._catalog.placements.move(live.ino, Tier.DDR)
            except BaseException:
                os.close(fd)
                await self._ddr.remove(live.ino)
                raise
            live.sealed, live.damaged, live.ddr_fd = False, False, fd
            await self._books.drop(live)
            live.tier = Tier.DDR
            await self._moves.forget_copy(live)
            if live.opens:  # read from NVMe until now; those readers see the new bytes
                await self._plane.object_switch(self._spec(live, live.mode or Mode.DIRECT))
                close_nvme(live)
                await self.streaming.leave(live)

    async def _attach(self, live: Live, *, write: bool) -> None:
        """Choose how the kernel reaches the object until its last release, and tell the data plane."""
        through = self._plane.passthrough and live.ddr_fd >= 0
        if write and through:
            through = await self._writing.admit(live)
        if through:
            live.backing_id = self._plane.backing_open(live.ddr_fd)
            live.mode = Mode.PASSTHROUGH
        else:
            live.mode = Mode.DIRECT if self._plane.direct_mmap else Mode.CACHED
        try:
            self._plane.object_add(self._spec(live, live.mode))
        except BaseException:
            if live.backing_id:
                self._plane.backing_close(live.backing_id)
            live.mode, live.backing_id = None, 0
            raise
        await self._books.lease(live, 1)

    def _spec(self, live: Live, mode: Mode) -> PlaneObject:
        if live.ddr_fd >= 0:
            return PlaneObject(
                node=live.ino,
                mode=mode,
                fd=live.ddr_fd,
                writable=True,
                backing_id=live.backing_id,
                limit_bytes=(live.mapped_blocks + live.reserved_blocks) * BLOCK_BYTES,
                size_max_bytes=OBJECT_BYTES_MAX,
                gate_free_bytes=self._writing.floor_bytes if mode is Mode.PASSTHROUGH else 0,
            )
        assert live.copy is not None
        run = live.streaming
        if run is not None and run.runs:
            sums = Sums(page_bytes=self._books.page_bytes, runs=self._object_runs(live.copy), crc=b"")
            return PlaneObject(node=live.ino, mode=mode, fd=run.fd, sums=sums, stream_address=run.stream.address)
        assert live.copy.form is None, "stored files are read by promotion alone"
        sums = Sums(page_bytes=self._books.page_bytes, runs=live.copy.runs, crc=self._catalog.placements.sums(live.ino))
        assert live.nvme_files is not None
        return PlaneObject(
            node=live.ino,
            mode=mode,
            fd=live.nvme_fd,
            sums=sums,
            part_fds=tuple(part.fd for part in live.nvme_files.parts) if live.nvme_files.stripe_bytes else (),
            stripe_bytes=live.nvme_files.stripe_bytes,
            devices=live.nvme_files.dirs,
        )

    def _object_runs(self, copy: Copy) -> tuple[tuple[int, int], ...]:
        """Return the pages of an object that a promotion may bring something for: of a stored file any."""
        if copy.form is None:
            return copy.runs
        pages = -(-copy.object_bytes // self._books.page_bytes)
        return ((0, pages),) if pages else ()

    # -- releasing -----------------------------------------------------------------------------------------------

    async def release(self, ino: int, *, write: bool) -> None:
        """Close an object: the last writer seals it, the last user ends its lease; nothing more after `close_all`."""
        with trio.CancelScope(shield=True):
            async with self._lives.hold(ino) as live:
                if not self._ended:
                    await self._release(live, write=write)
        self._room.changed()

    async def _release(self, live: Live, *, write: bool) -> None:
        assert (live.writers if write else live.readers) > 0, f"object {live.ino} was released more often than opened"
        if write:
            live.writers -= 1
            if not live.writers:
                await self._seal_or_later(live)
                self._writing.ended(live)
                self._share(live)  # what was written is read next: that open shall cost nothing here
        else:
            live.readers -= 1
        if not live.opens and not live.shared:
            await self.leave(live)
        live.last_use_s = trio.current_time()

    async def close_all(self) -> None:
        """Release whatever counts as open: the kernel's side has ended, and with it every descriptor and mapping.

        Releases that are on their way, behind the lock of an object, find it closed.
        """
        self._ended = True
        for ino in list(self._lives.by_ino):
            with trio.CancelScope(shield=True), contextlib.suppress(NotFoundError):
                async with self._lives.hold(ino) as live:
                    if live.shared:
                        await self._sharing.take_back(live)
                    while live.opens:
                        await self._release(live, write=not live.readers)
        self._room.changed()

    async def leave(self, live: Live) -> None:
        """End what keeps an object attached that nobody has open."""
        await self._refit(live)
        await self._detach(live)

    async def _seal_or_later(self, live: Live) -> None:
        """Seal an object whose last writer is gone; if the catalogue can't take it, `seal_late` tries again."""
        if live.sealed:
            await self._books.reserve(live, 0)
            return
        try:
            await self._seal(live)
        except OSError as error:
            log.warning(
                "object can't be sealed, will be tried again", ino=live.ino, errno=error.errno, error=str(error)
            )

    async def seal_late(self, live: Live) -> None:
        """Seal what `release` could not seal; raise nothing, the next call may do better."""
        async with live.lock:
            if live.sealed or live.writers or live.tier is not Tier.DDR:
                return
            opened = live.ddr_fd < 0
            try:
                if opened:
                    live.ddr_fd = self._ddr.open(live.ino)
                with trio.CancelScope(shield=True):
                    await self._seal(live)
                log.info("object sealed late", ino=live.ino)
            except OSError:
                return
            finally:
                if opened and live.ddr_fd >= 0:
                    os.close(live.ddr_fd)
                    live.ddr_fd = -1

    async def _seal(self, live: Live) -> None:
        info = os.fstat(live.ddr_fd)
        size = min(info.st_size, OBJECT_BYTES_MAX)
        if size < info.st_size:
            self._moves.cut(live, size, info.st_size)
            os.ftruncate(live.ddr_fd, size)
        charges = self._ddr.settle(live.ddr_fd, self._books.page_bytes)
        os.utime(live.ddr_fd, ns=(info.st_atime_ns, info.st_mtime_ns))
        await self._books.settle(live, charges)
        mtime_ns = os.fstat(live.ddr_fd).st_mtime_ns  # it may have been set meanwhile (`Objects.touch`)
        live.sealed = True  # so that whoever is told of the commit finds it so
        try:
            with self._catalog.db.transaction():
                self._catalog.names.setattr(
                    live.ino,
                    size=size,
                    mtime_ns=mtime_ns,
                    ctime_ns=max(info.st_ctime_ns, self._catalog.names.inode(live.ino).ctime_ns),
                )
                self._catalog.placements.seal(live.ino, Tier.DDR, changed=True)
        except BaseException:
            live.sealed = False
            raise
        live.size, live.copy = size, stale(live.copy)
        self._writing.learn(live)
        self._lives.store_hits(live)
        self.on_seal(live)

    async def _refit(self, live: Live) -> None:
        """Charge what the file holds: reading a hole through a shared mapping gives it memory (tmpfs does that)."""
        if live.ddr_fd < 0 or not live.sealed:
            return
        if held_blocks(live.ddr_fd) != live.mapped_blocks:
            await self._books.settle(live, self._ddr.settle(live.ddr_fd, self._books.page_bytes))

    async def _detach(self, live: Live) -> None:
        await self._plane.object_remove(live.ino)
        if live.backing_id:
            self._plane.backing_close(live.backing_id)
        live.mode, live.backing_id = None, 0
        close_files(live)
        await self.streaming.leave(live)
        await self._books.lease(live, -1)
