"""Objects: who has them open, where their bytes are, and what the kernel was promised about them.

The owner of every `Live`. An operation holds the object's lock from start to end, so within one object everything is in
sequence; between objects nothing is, except room in DDR (`kvd.tier.room`), which never waits for a lock.
"""

from __future__ import annotations

import contextlib
import errno
import os
from typing import TYPE_CHECKING

import structlog
import trio
from kvdriver import BLOCK_BYTES, Tier

from kvd.errors import BusyError, DamagedError, NoSpaceError, NotFoundError
from kvd.policy.reservation import UsualSize
from kvd.tier.extents import copy_charges, data_extents, ddr_charges, total_blocks
from kvd.tier.live import Live
from kvd.tier.moves import Moves, stale
from kvd.tier.plane import Mode, PlaneObject, Sums
from kvd.tier.room import Room

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from kvd.catalog.catalog import Catalog
    from kvd.config import Config
    from kvd.tier.books import Books
    from kvd.tier.ddr import DdrStore
    from kvd.tier.mover import Mover
    from kvd.tier.nvme import NvmeStore
    from kvd.tier.plane import DataPlane

log = structlog.get_logger(__name__)

OBJECT_BYTES_MAX = 16 << 40
"""As ext4 with 4 KiB blocks has it; beyond it EFBIG."""
FIRST_GUESS_BYTES_MAX = 64 << 20
GROW_BYTES = 16 << 20
"""What a writer that asks is given at once, where there is room."""
SAMPLE_S = 0.1
"""How often writers in passthrough are looked at; at 3 GB/s they write 300 MB meanwhile: the burst reserve's work."""


class Objects:
    """Every regular file of the mount.

    Parameters
    ----------
    sessions
        Engine session of every object, by inode number; as recovery made them.
    """

    def __init__(
        self,
        config: Config,
        catalog: Catalog,
        books: Books,
        ddr: DdrStore,
        nvme: NvmeStore,
        mover: Mover,
        plane: DataPlane,
    ) -> None:
        self._config = config
        self._catalog = catalog
        self._books = books
        self._ddr = ddr
        self._nvme = nvme
        self._plane = plane
        self.lives: dict[int, Live] = {}
        self.sessions: dict[int, int] = {}
        self.moves = Moves(catalog, books, ddr, nvme, mover)
        self.room = Room(
            self.lives, books, self.moves, nvme, ddr_config=config.ddr, nvme_config=config.nvme
        )
        budget_blocks = config.ddr.budget_bytes // BLOCK_BYTES
        self._usual = UsualSize(first_blocks=min(FIRST_GUESS_BYTES_MAX // BLOCK_BYTES, budget_blocks // 16))

    def __repr__(self) -> str:
        return f"<Objects {len(self.sessions)} known, {len(self.lives)} in memory>"

    def adopt(self, sessions: dict[int, int], resident: dict[int, int]) -> None:
        """Take over what recovery found: engine sessions, and the blocks of the objects in DDR."""
        self.sessions.update(sessions)
        for ino, blocks in resident.items():
            self._live(ino).mapped_blocks = blocks

    # -- finding -------------------------------------------------------------------------------------------------

    def _live(self, ino: int) -> Live:
        live = self.lives.get(ino)
        if live is None:
            placement = self._catalog.placements.get(ino)
            inode = self._catalog.names.inode(ino)
            copy = self._catalog.placements.copy(ino)
            charges = copy_charges(copy.runs, copy.size, self._books.page_bytes) if copy else ()
            live = self.lives[ino] = Live(
                ino=ino,
                session=self.sessions[ino],
                tier=Tier(placement.tier),
                size=inode.size,
                sealed=placement.sealed,
                pinned=placement.pinned,
                damaged=placement.damaged,
                hits=placement.hits,
                stored_hits=placement.hits,
                copy=copy,
                gen=copy.gen if copy else 0,
                mapped_blocks=total_blocks(charges) if placement.tier == Tier.NVME else 0,
                last_use_s=trio.current_time(),
            )
        return live

    @contextlib.asynccontextmanager
    async def _hold(self, ino: int) -> AsyncIterator[Live]:
        try:
            live = self._live(ino)
        except (LookupError, OSError) as error:
            raise NotFoundError(f"no object {ino}") from error
        async with live.lock:
            try:
                yield live
            finally:
                cold = live.tier is not Tier.DDR and not live.opens
                if cold and not live.lock.statistics().tasks_waiting and self.lives.get(ino) is live:
                    self._store_hits(live)
                    del self.lives[ino]

    def _store_hits(self, live: Live) -> None:
        if live.hits != live.stored_hits:
            self._catalog.placements.hit(live.ino, live.hits)
            live.stored_hits = live.hits

    def peek(self, ino: int) -> Live | None:
        """Return the object if it is in memory; to read only, and only until the next await."""
        return self.lives.get(ino)

    def attributes(self, ino: int) -> os.stat_result | None:
        """Return what the DDR file says of an object that has a writer; the catalogue knows only at the seal."""
        live = self.lives.get(ino)
        return os.fstat(live.ddr_fd) if live is not None and live.writers and live.ddr_fd >= 0 else None

    def held_blocks(self, ino: int) -> int:
        """Return the 4 KiB blocks that an object's present bytes are charged."""
        live = self.lives.get(ino)
        if live is not None:
            return live.mapped_blocks
        copy = self._catalog.placements.copy(ino)
        return total_blocks(copy_charges(copy.runs, copy.size, self._books.page_bytes)) if copy else 0

    # -- opening -------------------------------------------------------------------------------------------------

    async def create(self, ino: int, usual_key: int) -> None:
        """Open a new object for writing; its catalogue row is there and not sealed."""
        self.sessions[ino] = await self._books.session(ino)
        async with self._hold(ino) as live:
            live.usual_key = usual_key
            live.ddr_fd = self._ddr.create(ino)
            live.tier = Tier.DDR
            self._catalog.placements.move(ino, Tier.DDR)
            try:
                await self._attach(live, write=True)
            except BaseException:
                self._close_files(live)
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
        async with self._hold(ino) as live:
            if live.damaged and not (write and truncate):
                raise DamagedError(f"object {ino} is quarantined")
            try:
                if truncate:
                    self._fill(live, truncate=True)
                    await self._empty(live)
                elif live.ddr_fd < 0:
                    await self._bring(live, write=write)
                if not live.opens:
                    await self._attach(live, write=write)
                elif write and live.mode is Mode.PASSTHROUGH:
                    await self._reserve_usual(live)
                if write and live.sealed:
                    self._fill(live, truncate=False)
            except BaseException:
                with trio.CancelScope(shield=True):
                    await self._undo_open(live)
                raise
            if write:
                live.writers += 1
            else:
                live.readers += 1
                live.hits += 1

    async def _undo_open(self, live: Live) -> None:
        """Leave no half-open object behind."""
        if not live.writers and not live.sealed and live.ddr_fd >= 0:
            await self._seal(live)
        if not live.opens:
            if live.mode is None:
                self._close_files(live)
            else:
                await self._detach(live)

    def _fill(self, live: Live, *, truncate: bool) -> None:
        with self._catalog.db.transaction():
            self._catalog.placements.fill(live.ino)
            if truncate and live.damaged:
                self._catalog.placements.heal(live.ino)
        live.sealed = False
        live.copy = stale(live.copy)
        if truncate:
            live.damaged = False

    async def _empty(self, live: Live) -> None:
        """Give an object's bytes up, for a DDR file of no length."""
        if live.ddr_fd >= 0:
            os.ftruncate(live.ddr_fd, 0)
            return
        live.ddr_fd = self._ddr.create(live.ino)
        with trio.CancelScope(shield=True):
            if live.opens:  # read from NVMe until now; those readers see the new bytes
                await self._plane.object_switch(self._spec(live, live.mode or Mode.DIRECT))
                self._close_nvme(live)
            if live.tier is not Tier.DDR:
                with self._catalog.db.transaction():
                    self._catalog.placements.drop_copy(live.ino)
                    self._catalog.placements.move(live.ino, Tier.DDR)
                await self._books.drop(live)
                live.tier = Tier.DDR
                await self.moves.forget_copy(live)

    async def _bring(self, live: Live, *, write: bool) -> None:
        """Open the object's DDR file, promoting it; a reader whom DDR has no room for reads from NVMe."""
        if live.tier is Tier.DDR:
            live.ddr_fd = self._ddr.open(live.ino)
            return
        if live.nvme_fd >= 0 and not write:
            return
        if await self._promote(live):
            if live.nvme_fd >= 0:
                await self._plane.object_switch(self._spec(live, live.mode or Mode.DIRECT))
                self._close_nvme(live)
            return
        if write:
            raise NoSpaceError(f"no room in DDR for object {live.ino}")
        assert live.copy is not None
        live.nvme_fd = self._nvme.open(live.copy)

    async def _promote(self, live: Live) -> bool:
        """Bring a cold object to DDR and open it there; False if there is no room."""
        if not await self.room.reserve(live, live.mapped_blocks, wait_s=0):
            return False
        try:
            live.ddr_fd = await self.moves.promote(live)
        except NotFoundError:
            with trio.CancelScope(shield=True):
                await self._books.destroy(self.sessions.pop(live.ino))
            raise
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            return False
        finally:
            with trio.CancelScope(shield=True):
                if live.ino in self.sessions:
                    await self._books.reserve(live, 0)
        return True

    async def _attach(self, live: Live, *, write: bool) -> None:
        """Choose how the kernel reaches the object until its last release, and tell the data plane."""
        through = self._plane.passthrough and live.ddr_fd >= 0
        if write and through:
            through = await self._reserve_usual(live)
        if through:
            live.mode = Mode.PASSTHROUGH
            live.backing_id = self._plane.backing_open(live.ddr_fd)
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

    async def _reserve_usual(self, live: Live) -> bool:
        """Reserve what objects of this kind usually come to need, which is what makes passthrough writing safe."""
        guess = self._usual.guess(live.usual_key) if live.usual_key else live.mapped_blocks
        wanted = max(live.reserved_blocks, guess - live.mapped_blocks)
        return await self.room.reserve(live, wanted, wait_s=0)

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
            )
        assert live.copy is not None
        sums = Sums(
            page_bytes=self._books.page_bytes, runs=live.copy.runs, crc=self._catalog.placements.sums(live.ino)
        )
        return PlaneObject(node=live.ino, mode=mode, fd=live.nvme_fd, writable=False, sums=sums)

    # -- releasing -----------------------------------------------------------------------------------------------

    async def release(self, ino: int, *, write: bool) -> None:
        """Close an object: the last writer seals it, the last user ends its lease."""
        with trio.CancelScope(shield=True):
            async with self._hold(ino) as live:
                if write:
                    live.writers -= 1
                    if not live.writers:
                        await self._seal(live)
                else:
                    live.readers -= 1
                if not live.opens:
                    await self._detach(live)
                live.last_use_s = trio.current_time()
        self.room.changed()

    async def _seal(self, live: Live) -> None:
        info = os.fstat(live.ddr_fd)
        os.ftruncate(live.ddr_fd, info.st_size)  # frees what fallocate put beyond the end
        await self._books.settle(
            live, ddr_charges(data_extents(live.ddr_fd, info.st_size), self._books.page_bytes)
        )
        with self._catalog.db.transaction():
            self._catalog.names.setattr(
                live.ino, size=info.st_size, mtime_ns=info.st_mtime_ns, ctime_ns=max(
                    info.st_ctime_ns, self._catalog.names.inode(live.ino).ctime_ns
                )
            )
            self._catalog.placements.seal(live.ino, Tier.DDR, changed=True)
        live.size, live.sealed, live.copy = info.st_size, True, stale(live.copy)
        if live.usual_key:
            self._usual.learn(live.usual_key, live.mapped_blocks)
        self._store_hits(live)

    async def _detach(self, live: Live) -> None:
        await self._plane.object_remove(live.ino)
        if live.backing_id:
            self._plane.backing_close(live.backing_id)
        live.mode, live.backing_id = None, 0
        self._close_files(live)
        await self._books.lease(live, -1)

    def _close_files(self, live: Live) -> None:
        if live.ddr_fd >= 0:
            os.close(live.ddr_fd)
            live.ddr_fd = -1
        self._close_nvme(live)

    def _close_nvme(self, live: Live) -> None:
        if live.nvme_fd >= 0:
            os.close(live.nvme_fd)
            live.nvme_fd = -1

    async def abandon(self, ino: int) -> None:
        """Undo `create` of an object that is gone from the catalogue already."""
        self.lives.pop(ino, None)
        session = self.sessions.pop(ino, None)
        if session is not None:
            await self._books.destroy(session)
        await self._ddr.remove(ino)

    async def discard(self, ino: int) -> None:
        """Delete an object that has no name and no user left."""
        if ino not in self.sessions:
            return
        with trio.CancelScope(shield=True):
            async with self._hold(ino) as live:
                if live.opens:
                    return
                self._catalog.names.remove(ino)
                live.tier = Tier.NONE
                await self._books.destroy(self.sessions.pop(ino))
                await self._ddr.remove(ino)
                await self.moves.forget_copy(live)
        self.room.changed()

    # -- changing ------------------------------------------------------------------------------------------------

    async def truncate(self, ino: int, size: int) -> None:
        """Set an object's length; growth is a hole."""
        if size > OBJECT_BYTES_MAX:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
        await self.open(ino, write=True, truncate=size == 0)
        try:
            live = self.lives[ino]
            os.ftruncate(live.ddr_fd, size)
        finally:
            await self.release(ino, write=True)

    def touch(self, ino: int, mtime_ns: int) -> None:
        """Set the modification time of an object that has a writer, where `attributes` reads it."""
        live = self.lives.get(ino)
        if live is not None and live.ddr_fd >= 0:
            os.utime(live.ddr_fd, ns=(mtime_ns, mtime_ns))

    async def grow(self, ino: int, need_bytes: int) -> None:
        """Let an object hold `need_bytes` of storage, waiting for room; ENOSPC past the deadline."""
        need = -(-need_bytes // BLOCK_BYTES)
        async with self._hold(ino) as live:
            extra = need - live.mapped_blocks
            plenty = extra + GROW_BYTES // BLOCK_BYTES
            if extra > live.reserved_blocks and not await self.room.reserve(live, plenty, wait_s=0):
                wait_s = self._config.fuse.write_wait_s
                if not await self.room.reserve(live, extra, wait_s=wait_s):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self._plane.object_limit(ino, (live.mapped_blocks + live.reserved_blocks) * BLOCK_BYTES)

    async def sample_writers(self) -> None:
        """Top up the reservations of writers in passthrough, for ever."""
        while True:
            for live in [live for live in self.lives.values() if live.writers and live.mode is Mode.PASSTHROUGH]:
                await self._sample(live)
            await trio.sleep(SAMPLE_S)

    async def _sample(self, live: Live) -> None:
        if live.lock.locked():
            return
        async with live.lock:
            if not live.writers or live.ddr_fd < 0:
                return
            extra = os.fstat(live.ddr_fd).st_blocks * 512 // BLOCK_BYTES - live.mapped_blocks
            if extra > live.reserved_blocks * 3 // 4:
                slack = max(GROW_BYTES // BLOCK_BYTES, extra // 2)
                if not await self.room.reserve(live, extra + slack, wait_s=0):
                    await self.room.reserve(live, max(extra, live.reserved_blocks), wait_s=0)

    # -- durability and movement ---------------------------------------------------------------------------------

    async def fsync(self, ino: int) -> None:
        """Make an object's bytes and the catalogue durable on NVMe."""
        async with self._hold(ino) as live:
            await self._copy_if_dirty(live)
        await self._catalog.db.sync()

    async def _copy_if_dirty(self, live: Live) -> int:
        if live.damaged:
            raise DamagedError(f"object {live.ino} is quarantined")
        if live.tier is not Tier.DDR or (live.sealed and live.clean):
            return 0
        await self.moves.copy_out(live)
        return live.size

    async def sync(self, ino: int) -> int:
        """As `fsync`, without the catalogue's part; return the bytes that were copied."""
        async with self._hold(ino) as live:
            return await self._copy_if_dirty(live)

    async def demote(self, ino: int) -> int:
        """Move an object to NVMe; return its bytes, 0 if it was there.

        Raises
        ------
        BusyError
            It is open, mapped or pinned.
        """
        async with self._hold(ino) as live:
            if live.tier is not Tier.DDR:
                return 0
            if live.damaged:
                raise DamagedError("quarantined")
            if live.opens or not live.sealed:
                raise BusyError("in use: open or mapped")
            if live.pinned:
                raise BusyError("pinned")
            await self.moves.demote(live)
        self.room.changed()
        return live.size

    async def promote(self, ino: int) -> int:
        """Bring an object to DDR; return its bytes, 0 if it was there."""
        async with self._hold(ino) as live:
            if live.damaged:
                raise DamagedError("quarantined")
            if live.tier is Tier.DDR:
                return 0
            if live.opens:
                raise BusyError("in use: read from NVMe, since there was no room in DDR")
            if not await self._promote(live):
                raise NoSpaceError("no room in DDR")
            os.close(live.ddr_fd)
            live.ddr_fd = -1
            live.last_use_s = trio.current_time()
            return live.size

    async def pin(self, ino: int, *, pinned: bool) -> bool:
        """Pin or unpin an object; whether that changed anything."""
        async with self._hold(ino) as live:
            changed = live.pinned != pinned
            self._catalog.placements.pin(ino, pinned=pinned)
            live.pinned = pinned
        if changed and not pinned:
            self.room.changed()
        return changed

    def bad_page(self, ino: int, page: int) -> None:
        """Quarantine an object: the data plane met a page whose checksum differs."""
        live = self.lives.get(ino)
        if live is not None and not live.damaged:
            self.moves.damage(live, page, "checksum differs")

    def failed_io(self, ino: int, code: int) -> None:
        """Record an I/O error that the data plane met and answered."""
        live = self.lives.get(ino)
        if live is not None:
            self.moves.note(live, None, f"I/O error: {os.strerror(code)}")

    def dirty(self) -> Iterator[int]:
        """Yield the sealed objects whose bytes are only in DDR."""
        return (
            ino for ino, live in list(self.lives.items())
            if live.tier is Tier.DDR and live.sealed and not live.clean and not live.damaged
        )
