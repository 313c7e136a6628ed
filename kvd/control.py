"""The daemon as the API sees it: answers `kvd.api.backend.Control` from the catalogue, the objects and the books."""

from __future__ import annotations

import errno
import os
import stat
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import trio

from kvd.api.backend import Engine, Entry, Fault, FeatureOff, Status, Step, TierUsage
from kvd.errors import KvdError, NotFoundError, UnavailableError
from kvd.version import VERSION
from kvdriver import BLOCK_BYTES, EngineState, ResilientDevice, Tier

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from kvd.catalog.catalog import Catalog
    from kvd.catalog.records import Inode
    from kvd.config import Config
    from kvd.tier.books import Books
    from kvd.tier.objects import Objects
    from kvdriver import Device

FAULTS_SHOWN = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """What this mount has and does without."""

    on: tuple[str, ...]
    off: tuple[FeatureOff, ...]


class DaemonControl:
    """See `kvd.api.backend.Control`."""

    def __init__(
        self,
        config: Config,
        catalog: Catalog,
        objects: Objects,
        books: Books,
        device: Device,
        features: Callable[[], Features],
    ) -> None:
        self._config = config
        self._catalog = catalog
        self._objects = objects
        self._books = books
        self._device = device
        self._features = features
        self._started_s = time.monotonic()
        self._started_at_s = time.time()

    # -- telling -------------------------------------------------------------------------------------------------

    async def status(self) -> Status:
        """Return the daemon's state."""
        features = self._features()
        lives = list(self._objects.lives.by_ino.values())
        faults = self._faults()
        damaged = self._catalog.placements.count_damaged()
        reasons = [f"{damaged} quarantined object{'s' if damaged > 1 else ''}"] if damaged else []
        engine = self._engine()
        reasons += [f"engine: {engine.reason}"] if engine.reason else []
        tiers = (await self._usage(Tier.DDR), await self._usage(Tier.NVME))
        reasons += [
            f"{tier.tier} tier is full"
            for tier in tiers
            if tier.used_bytes + tier.reserved_bytes + self._wanted_bytes(tier) >= tier.capacity_bytes
        ]
        return Status(
            state="degraded" if reasons else "ok",
            reasons=tuple(reasons),
            version=VERSION,
            pid=os.getpid(),
            uptime_s=round(time.monotonic() - self._started_s, 3),
            mount=str(self._config.daemon.mount),
            device=self._device.capabilities.transport,
            engine=engine,
            kernel=os.uname().release,
            features=features.on,
            features_off=features.off,
            tiers=tiers,
            objects=len(self._objects.lives.sessions),
            leased=sum(1 for live in lives if live.opens),
            pinned=self._catalog.placements.count_pinned(),
            dirty=sum(1 for _ in self._objects.dirty()),
            damaged=damaged,
            promoted_bytes=self._objects.moves.counts.promoted_bytes,
            demoted_bytes=self._objects.moves.counts.demoted_bytes,
            faults=faults,
            faults_count=self._catalog.placements.count_faults(),
        )

    def _engine(self) -> Engine:
        if isinstance(self._device, ResilientDevice):
            state = self._device.state
        else:
            transport = self._device.capabilities.transport
            state = EngineState(wanted=transport, transport=transport, degraded=False, since_s=self._started_at_s)
        return Engine(
            wanted=state.wanted,
            transport=state.transport,
            state="degraded" if state.degraded else "ok",
            reason=state.reason,
            since_s=state.since_s,
            faults=state.faults,
            replayed=state.replayed,
            taken_back=state.taken_back,
            losses=state.losses,
            losses_count=state.losses_count,
        )

    async def reset_device(self) -> Engine:
        """Reset the card and give it the engine's tables again; say how that went."""
        if not isinstance(self._device, ResilientDevice):
            raise UnavailableError("the engine runs in process: there is no card to reset")
        await self._device.take_back()
        return self._engine()

    def _wanted_bytes(self, tier: TierUsage) -> int:
        """Return what a full tier would have to hold more: a byte, or the object that NVMe refused."""
        refused_blocks = self._objects.moves.counts.refused_blocks if tier.tier == "nvme" else 0
        return max(0, refused_blocks * BLOCK_BYTES - 1)

    def _faults(self) -> tuple[Fault, ...]:
        return tuple(
            Fault(when_s=row.when_ns / 1e9, path=os.fsdecode(row.path), page=row.page, what=row.what)
            for row in self._catalog.placements.faults(FAULTS_SHOWN)
        )

    async def _usage(self, tier: Tier) -> TierUsage:
        info = await self._books.tier(tier)
        ddr = tier is Tier.DDR
        capacity_bytes = info.capacity_blocks * BLOCK_BYTES
        resident = sum(1 for live in self._objects.lives.by_ino.values() if live.tier is Tier.DDR)
        return TierUsage(
            tier=tier.name.lower(),
            budget_bytes=self._config.ddr.budget_bytes if ddr else capacity_bytes,
            capacity_bytes=capacity_bytes,
            used_bytes=info.used_blocks * BLOCK_BYTES,
            reserved_bytes=info.reserved_blocks * BLOCK_BYTES,
            objects=resident if ddr else len(self._objects.lives.sessions) - resident,
            path=str(self._config.ddr.path) if ddr else ", ".join(map(str, self._config.nvme.dirs)),
        )

    def sessions(self) -> list[dict[str, object]]:
        """Describe the objects in memory, for `.kvd/sessions`."""
        now_s = trio.current_time()
        return [
            {
                "ino": live.ino,
                "path": os.fsdecode(self._catalog.names.path(live.ino) or b"").encode(errors="replace").decode(),
                "tier": live.tier.name.lower(),
                "state": _state(damaged=live.damaged, sealed=live.sealed),
                "opens": live.opens,
                "idle_s": round(now_s - live.last_use_s, 3),
            }
            for live in self._objects.lives.by_ino.values()
        ]

    async def entries(self, path: bytes) -> list[Entry]:
        """List a directory, or the one file that `path` is."""
        inode = self._resolve(path)
        if not inode.is_dir:
            return [self._entry(path, inode)]
        base = path.rstrip(b"/")
        entries: list[Entry] = []
        for batch in self._catalog.names.batches(inode.ino):
            entries += [self._entry(base + b"/" + found.name, found.inode) for found in batch]
            await trio.lowlevel.checkpoint()
        return entries

    async def entry(self, path: bytes) -> Entry:
        """Describe one name."""
        return self._entry(path, self._resolve(path))

    def _resolve(self, path: bytes) -> Inode:
        try:
            return self._catalog.names.resolve(path)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR):
                raise NotFoundError(f"{os.fsdecode(path)}: no such file or directory in the mount") from error
            raise KvdError(f"{os.fsdecode(path)}: {error.strerror}") from error

    def _entry(self, path: bytes, inode: Inode) -> Entry:
        written = self._objects.lives.attributes(inode.ino)
        common = {
            "path": path,
            "kind": _kind(inode.mode),
            "ino": inode.ino,
            "mode": inode.mode,
            "uid": inode.uid,
            "gid": inode.gid,
            "size_bytes": written.st_size if written else inode.size,
            "mtime_s": (written.st_mtime_ns if written else inode.mtime_ns) / 1e9,
        }
        if not inode.is_file:
            return Entry(**common)  # type: ignore[arg-type]
        placement = self._catalog.placements.get(inode.ino)
        copy = self._catalog.placements.copy(inode.ino)
        live = self._objects.lives.peek(inode.ino)
        return Entry(
            **common,  # type: ignore[arg-type]
            tier=Tier(placement.tier).name.lower(),
            state=_state(damaged=placement.damaged, sealed=placement.sealed),
            clean=copy is not None and copy.current,
            pinned=placement.pinned,
            opens=live.opens if live else 0,
            hits=live.hits if live else placement.hits,
            idle_s=round(trio.current_time() - live.last_use_s, 3) if live else None,
            stored_bytes=self._objects.lives.held_blocks(inode.ino) * BLOCK_BYTES,
        )

    # -- moving --------------------------------------------------------------------------------------------------

    def promote(self, paths: Sequence[bytes]) -> AsyncIterator[Step]:
        """Bring objects to DDR."""
        return self._each(paths, self._objects.promote)

    def demote(self, paths: Sequence[bytes]) -> AsyncIterator[Step]:
        """Move objects to NVMe."""
        return self._each(paths, self._objects.demote)

    async def sync(self, paths: Sequence[bytes]) -> AsyncIterator[Step]:
        """Make objects durable on NVMe, and the catalogue."""
        async for step in self._each(paths, self._objects.sync):
            yield step
        await self._catalog.db.sync()

    async def _each(self, paths: Sequence[bytes], operation: Callable[[int], Awaitable[int]]) -> AsyncIterator[Step]:
        inos = list(dict.fromkeys([ino for path in paths for ino in await self._inos(path)]))
        bytes_done = 0
        for done, ino in enumerate(inos, start=1):
            path = self._catalog.names.path(ino) or b""
            error, code = None, None
            try:
                bytes_done += await operation(ino)
            except (KvdError, OSError) as failure:
                error = (failure.strerror if isinstance(failure, OSError) else None) or str(failure)
                code = errno.errorcode.get(failure.errno or errno.EIO, "EIO")
            yield Step(done=done, total=len(inos), bytes_done=bytes_done, path=path, error=error, code=code)

    async def _inos(self, path: bytes) -> list[int]:
        """Return the files at or below `path`, each once for each of its names."""
        inos: list[int] = []
        for batch in self._catalog.names.walk(self._resolve(path).ino):
            inos += [inode.ino for inode in batch]
            await trio.lowlevel.checkpoint()
        return inos

    async def pin(self, path: bytes, *, pinned: bool) -> int:
        """Pin or unpin the objects at or below `path`."""
        changed = 0
        for ino in await self._inos(path):
            changed += await self._objects.pin(ino, pinned=pinned)
        return changed


def _kind(mode: int) -> str:
    if stat.S_ISDIR(mode):
        return "dir"
    if stat.S_ISREG(mode):
        return "file"
    return "symlink" if stat.S_ISLNK(mode) else "other"


def _state(*, damaged: bool, sealed: bool) -> str:
    return "faulted" if damaged else "sealed" if sealed else "filling"
