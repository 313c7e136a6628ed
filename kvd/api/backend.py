"""What the control API can ask of the daemon; `kvd.control` answers, tests have a fake twin.

All paths are bytes, absolute within the mount (``b"/model/slot.bin"``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureOff:
    """A feature that this mount does without, and why."""

    feature: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TierUsage:
    """The books of one tier; `budget_bytes` is what policy keeps to, `capacity_bytes` the engine's hard limit."""

    tier: str
    budget_bytes: int
    capacity_bytes: int
    used_bytes: int
    reserved_bytes: int
    objects: int
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Something that went wrong with stored data and what was done about it."""

    when_s: float
    path: str
    page: int | None
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """Where the page-table engine runs: `wanted` says where it should, `transport` where it does.

    `state` is ``ok``, or ``degraded`` for `reason` since `since_s`. `faults` counts what went wrong with the card, by kind;
    `replayed` the commands that a failed card had been given and others executed; `taken_back` how often it got the tables
    again. `losses` is what the repair of the tables had to give up, the last ones of `losses_count`.
    """

    wanted: str
    transport: str
    state: str
    reason: str
    since_s: float
    faults: dict[str, int]
    replayed: int
    taken_back: int
    losses: tuple[str, ...]
    losses_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """The daemon at a glance. `state` is ``ok`` or ``degraded``; `reasons` says why it is degraded.

    `damaged` counts the objects in quarantine. `faults` are the newest of `faults_count`, which were ever recorded.
    """

    state: str
    reasons: tuple[str, ...]
    version: str
    pid: int
    uptime_s: float
    mount: str
    device: str
    engine: Engine
    kernel: str
    features: tuple[str, ...]
    features_off: tuple[FeatureOff, ...]
    tiers: tuple[TierUsage, ...]
    objects: int
    leased: int
    pinned: int
    dirty: int
    damaged: int
    promoted_bytes: int
    demoted_bytes: int
    faults: tuple[Fault, ...]
    faults_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One name. `kind` is ``file``, ``dir``, ``symlink`` or ``other``; what only files have is None elsewhere.

    `state` is ``filling`` (has a writer), ``sealed`` or ``faulted``; `tier` is ``ddr``, ``nvme`` or ``none`` (no data);
    `clean` means that NVMe holds the same bytes.
    """

    path: bytes
    kind: str
    ino: int
    mode: int
    uid: int
    gid: int
    size_bytes: int
    mtime_s: float
    tier: str | None = None
    state: str | None = None
    clean: bool | None = None
    pinned: bool | None = None
    opens: int | None = None
    hits: int | None = None
    idle_s: float | None = None
    stored_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Progress of a long operation: object `done` of `total`.

    `bytes_done` is of all objects so far.
    `error` says why this one could not be done, and `code` the same for programs: an errno name such as ``EBUSY``.
    """

    done: int
    total: int
    bytes_done: int
    path: bytes
    error: str | None = None
    code: str | None = None


class Control(Protocol):
    """The daemon as the API sees it.

    Operations on a directory mean every object below it. Errors are `kvd.errors.KvdError`.
    """

    async def status(self) -> Status:
        """Return the daemon's state."""
        ...

    async def reset_device(self) -> Engine:
        """Reset the card and give it the engine's tables again; say how that went."""
        ...

    async def entries(self, path: bytes) -> list[Entry]:
        """List a directory (without ``.`` and ``..``), or the one file that `path` is."""
        ...

    async def entry(self, path: bytes) -> Entry:
        """Describe one name."""
        ...

    def promote(self, paths: Sequence[bytes]) -> AsyncIterator[Step]:
        """Bring objects to DDR; one step an object."""
        ...

    def demote(self, paths: Sequence[bytes]) -> AsyncIterator[Step]:
        """Move objects to NVMe; a leased object is an error of its step, not of the whole."""
        ...

    def sync(self, paths: Sequence[bytes]) -> AsyncIterator[Step]:
        """Make objects durable on NVMe, those in use too; they stay where they are."""
        ...

    async def pin(self, path: bytes, *, pinned: bool) -> int:
        """Pin or unpin the objects at or below `path`; return how many changed."""
        ...
