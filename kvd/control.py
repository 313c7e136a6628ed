"""The daemon as the API sees it: answers `kvd.api.backend.Control` from the catalogue, the objects and the books."""

from __future__ import annotations

import errno
import itertools
import os
import stat
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import trio

from kvd import status
from kvd.api.backend import (
    Engine,
    Entry,
    Fault,
    FeatureOff,
    Finding,
    Invalidated,
    Namespace,
    NamespaceWish,
    Status,
    Step,
    TierUsage,
)
from kvd.api.namespaces import AdmissionStatus
from kvd.errors import KvdError, NotFoundError, UnavailableError
from kvd.fsck.online import Online
from kvd.policy.fingerprint import decode
from kvd.tier.namespacing import POLICIES
from kvd.version import VERSION
from kvdriver import BLOCK_BYTES, ResilientDevice, Tier

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence

    from kvd.api.namespaces import NamespaceQuota
    from kvd.catalog import records
    from kvd.catalog.catalog import Catalog
    from kvd.catalog.records import Inode
    from kvd.config import Config
    from kvd.session.verbs import SessionVerbs
    from kvd.tier.books import Books
    from kvd.tier.objects import Objects
    from kvdriver import Device

FAULTS_SHOWN = 20
NAMES_AT_ONCE = 64
"""Names that are looked up before others have their turn: about a millisecond."""
SESSIONS_SHOWN = 1000
"""Lines of `.kvd/sessions`: one costs some 30 us."""


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
        sessions: SessionVerbs,
        books: Books,
        device: Device,
        features: Callable[[], Features],
    ) -> None:
        self._config = config
        self._catalog = catalog
        self._objects = objects
        self._spaces = objects.namespacing
        self.sessions = sessions
        self._books = books
        self._device = device
        self._features = features
        self._started_s = time.monotonic()
        self._started_at_s = time.time()

    # -- telling -------------------------------------------------------------------------------------------------

    async def status(self) -> Status:
        """Return the daemon's state."""
        features = self._features()
        faults = self._faults()
        damaged = self._catalog.placements.count_damaged()
        reasons = [f"{damaged} quarantined object{'s' if damaged > 1 else ''}"] if damaged else []
        engine = status.engine(self._device, self._started_at_s)
        reasons += [f"engine: {engine.reason}"] if engine.reason else []
        directories = status.directories(self._objects.nvme)
        reasons += [f"nvme directory {each.path} is {each.state}: {each.reason}" for each in directories if each.reason]
        tiers = (await self._usage(Tier.DDR), await self._usage(Tier.NVME))
        reasons += [f"{tier.tier} tier is full" for tier in tiers if self._is_full(tier)]
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
            objects=self._objects.lives.count,
            leased=sum(1 for live in self._objects.lives.census.attached.values() if self._objects.sharing.opens(live)),
            pinned=self._catalog.placements.count_pinned(),
            dirty=self._objects.count_dirty(),
            damaged=damaged,
            promoted_bytes=self._objects.moves.counts.promoted_bytes,
            demoted_bytes=self._objects.moves.counts.demoted_bytes,
            faults=faults,
            faults_count=self._catalog.placements.count_faults(),
            namespaces=status.namespaces(self._spaces, self._objects.reaper),
            admission=AdmissionStatus(**asdict(self._objects.admission.counts)),
            scrub=status.scrubbing(self._objects.scrub),
            sessions=self.sessions.status(),
            directories=directories,
            index=status.index(self._objects.index),
            formats=status.formats(self._catalog.placements),
        )

    async def exist(self, paths: Sequence[bytes]) -> list[bool]:
        """Return which of these names there are."""
        there: list[bool] = []
        for number, path in enumerate(paths):
            there.append(self._catalog.names.number(path) is not None)
            if number % NAMES_AT_ONCE == NAMES_AT_ONCE - 1:
                await trio.lowlevel.checkpoint()
        return there

    async def match(self, paths: Sequence[bytes]) -> int:
        """Return how many of these names there are, up to the first that is not."""
        for number, path in enumerate(paths):
            if self._catalog.names.number(path) is None:
                return number
            if number % NAMES_AT_ONCE == NAMES_AT_ONCE - 1:
                await trio.lowlevel.checkpoint()
        return len(paths)

    async def reset_device(self) -> Engine:
        """Reset the card and give it the engine's tables again; say how that went."""
        if not isinstance(self._device, ResilientDevice):
            raise UnavailableError("the engine runs in process: there is no card to reset")
        await self._device.take_back()
        return status.engine(self._device, self._started_at_s)

    def _is_full(self, tier: TierUsage) -> bool:
        """Whether a tier has no room, and that is trouble: an NVMe tier that evicts is full for good, and refuses nothing."""
        wanted_bytes = self._wanted_bytes(tier)
        if tier.tier == "nvme" and self._config.nvme.on_full == "evict" and not wanted_bytes:
            return False
        return tier.used_bytes + tier.reserved_bytes + wanted_bytes >= tier.capacity_bytes

    def _wanted_bytes(self, tier: TierUsage) -> int:
        """Return what a full tier would have to hold more: a byte, or the object that NVMe refused."""
        refused_blocks = self._objects.moves.counts.refused_blocks if tier.tier == "nvme" else 0
        return max(0, refused_blocks * BLOCK_BYTES - 1)

    def _faults(self) -> tuple[Fault, ...]:
        return tuple(
            Fault(when_s=row.when_ns / 1e9, path=os.fsdecode(row.path), page=row.page, what=row.what, place=row.place)
            for row in self._catalog.placements.faults(FAULTS_SHOWN)
        )

    async def _usage(self, tier: Tier) -> TierUsage:
        info = await self._books.tier(tier)
        ddr = tier is Tier.DDR
        capacity_bytes = info.capacity_blocks * BLOCK_BYTES
        resident = len(self._objects.lives.census.resident)
        return TierUsage(
            tier=tier.name.lower(),
            budget_bytes=self._config.ddr.budget_bytes if ddr else capacity_bytes,
            capacity_bytes=capacity_bytes,
            used_bytes=info.used_blocks * BLOCK_BYTES,
            reserved_bytes=info.reserved_blocks * BLOCK_BYTES,
            objects=resident if ddr else self._objects.lives.count - resident,
            path=str(self._config.ddr.path) if ddr else ", ".join(map(str, self._config.nvme.dirs)),
        )

    def in_memory(self) -> list[dict[str, object]]:
        """Describe objects in memory, for `.kvd/sessions`: those in use first, and not all of very many."""
        self._objects.sharing.drain()
        lives = self._objects.lives
        others = (live for live in lives.by_ino.values() if not live.attached)
        shown = itertools.islice(itertools.chain(lives.census.attached.values(), others), SESSIONS_SHOWN)
        now_s = trio.current_time()
        return [
            {
                "ino": live.ino,
                "path": os.fsdecode(self._catalog.names.path(live.ino) or b"").encode(errors="replace").decode(),
                "tier": live.tier.name.lower(),
                "state": _state(damaged=live.damaged, sealed=live.sealed),
                "opens": self._objects.sharing.opens(live),
                "idle_s": round(now_s - live.last_use_s, 3),
                "session": (session := self.sessions.parts.of(live.ino)),
                "session_state": self.sessions.parts.state(session).name.lower(),
            }
            for live in shown
        ]

    async def entries(self, path: bytes) -> list[Entry]:
        """List a directory, or the one file that `path` is."""
        inode = self._resolve(path)
        self._objects.sharing.drain()
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
        self._objects.sharing.drain()
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
            "kind": status.kind(inode.mode),
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
        held_bytes = self._objects.lives.held_blocks(inode.ino) * BLOCK_BYTES
        return Entry(
            **common,  # type: ignore[arg-type]
            tier=Tier(placement.tier).name.lower(),
            state=_state(damaged=placement.damaged, sealed=placement.sealed),
            clean=copy is not None and copy.current,
            pinned=placement.pinned,
            opens=self._objects.sharing.opens(live) if live else 0,
            hits=live.hits if live else placement.hits,
            idle_s=round(trio.current_time() - live.last_use_s, 3) if live else None,
            stored_bytes=held_bytes,
            tiers=status.held(self._catalog.placements, placement, held_bytes),
            format=None if copy is None else status.object_format(copy),
            **status.chain(self._catalog, inode.ino),
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

    def scrub(self, paths: Sequence[bytes]) -> AsyncIterator[Step]:
        """Verify objects' copies on NVMe."""
        return self._each(paths, self._objects.scrub.scrub)

    def fsck(self, *, data: bool, repair: bool) -> AsyncIterator[Finding]:
        """Check everything against everything else."""
        return Online(self._catalog, self._objects, self._books, self._device).run(data=data, repair=repair)

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

    # -- namespaces ----------------------------------------------------------------------------------------------

    def namespaces(self) -> list[Namespace]:
        """Return every namespace."""
        return [_namespace(name, self._catalog.names.inode(row.ino), row) for name, row in self._spaces.all()]

    def namespace(self, name: bytes) -> Namespace:
        """Return one namespace."""
        inode, row = self._spaces.find(name)
        return _namespace(name, inode, row)

    async def create_namespace(self, wish: NamespaceWish) -> Namespace:
        """Make a namespace."""
        given: dict[str, str | int | None] = {policy: getattr(wish, policy) for policy in POLICIES}
        await self._spaces.create(
            wish.name,
            fingerprint=wish.fingerprint,
            policies={policy: word for policy, word in given.items() if word is not None} | wish.quota.given(),
            mode=wish.mode,
            uid=wish.uid,
            gid=wish.gid,
        )
        return self.namespace(wish.name)

    async def set_namespace(self, name: bytes, policies: Mapping[str, str | int]) -> Namespace:
        """Change policies of a namespace."""
        await self._spaces.set(name, policies)
        self.sessions.parts.regroup()
        return self.namespace(name)

    async def namespace_quota(self, name: bytes) -> NamespaceQuota:
        """Return how a namespace stands in each tier."""
        _, row = self._spaces.find(name)
        return status.quota(name, row, await self._objects.quotas.quota(row))

    def attach_namespace(self, name: bytes, fingerprint: Mapping[str, str]) -> Namespace:
        """Return a namespace to who offers its fingerprint."""
        self._spaces.attach(name, fingerprint)
        return self.namespace(name)

    async def remove_namespace(self, name: bytes, *, force: bool) -> int:
        """Remove a namespace."""
        return await self._spaces.remove(name, force=force)

    async def invalidate(
        self, name: bytes, *, fingerprint: Mapping[str, str] | None, present: Mapping[str, str] | None
    ) -> Invalidated:
        """Make all content of a namespace vanish."""
        names = await self._spaces.invalidate(name, fingerprint=fingerprint, present=present)
        return Invalidated(namespace=self.namespace(name), names=names)


def _namespace(name: bytes, inode: Inode, row: records.Namespace) -> Namespace:
    return Namespace(
        name=name.strip(b"/"),
        fingerprint=decode(row.fingerprint),
        admit=row.admit,
        durability=row.durability,
        on_fault=row.on_fault,
        session=row.session,
        format=row.format,
        layout=row.layout,
        on_full=row.on_full,
        quota=status.quota_of(row),
        mode=stat.S_IMODE(inode.mode),
        uid=inode.uid,
        gid=inode.gid,
        created_s=row.created_ns / 1e9,
    )


def _state(*, damaged: bool, sealed: bool) -> str:
    return "faulted" if damaged else "sealed" if sealed else "filling"
