"""What the control API can ask of the daemon; `kvd.control` answers, tests have a fake twin.

All paths are bytes, absolute within the mount (``b"/model/slot.bin"``).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from kvd.api.formats import FormatUsage, ObjectFormat  # noqa: TC001  as below
from kvd.api.namespaces import AdmissionStatus, NamespaceQuota, NamespaceStatus, Quota, QuotaWish
from kvd.api.sessions import SessionStatus  # noqa: TC001  msgspec reads these annotations when the schema is made

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from kvd.api.sessions import SessionControl


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
    """Something that went wrong with stored data and what was done about it.

    `place` is the file and the offset in it, '' where it is not known.
    """

    when_s: float
    path: str
    page: int | None
    what: str
    place: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scrubbing:
    """The scrubber. Times are since 1970, 0 for never.

    `rate_bytes` a second, 0: it is off; every object is to be read once in `period_s`. This pass, or the last one, began at
    `began_s`, the last whole one ended at `ended_s`. Counts are since the start: `objects` that were read, `pass_objects` of
    them in this pass; `bad_pages` are those whose checksum differs; an object with such is `healed` by a new copy, or
    `quarantined`. `descriptions` of files were written anew.
    """

    rate_bytes: int
    period_s: float
    began_s: float
    ended_s: float
    objects: int
    pass_objects: int
    verified_bytes: int
    bad_pages: int
    healed: int
    quarantined: int
    unreadable: int
    descriptions: int


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
class Directory:
    """One of ``[nvme] dirs``: `state` is ``online``, ``suspect``, ``offline`` or ``probing`` since `since_s`, for `reason`.

    `offline_count` is how often it went offline since the start; `free_bytes` is of its file system, as last seen.
    """

    path: str
    state: str
    reason: str
    since_s: float
    offline_count: int
    direct: bool
    free_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Index:
    """What was on NVMe at the start: `state` is ``checking`` while rows and files are compared, then ``checked``.

    `done` of `total` objects have been looked at; the others are when they are wanted or their turn comes.
    """

    state: str
    done: int
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Namespace:
    """A top directory with a policy.

    `admit` is ``all`` or ``reused``, `durability` ``back`` or ``through``, `on_fault` ``eio`` or ``miss``, `session`, what a
    session is, ``file`` or ``directory``. `format` is the ladder of formats, `layout` what objects hold, '' for nothing known.
    `on_full` is what a full NVMe tier means: ``evict``, ``refuse``, ``block``; '' as the configuration says.
    """

    name: bytes
    fingerprint: dict[str, str]
    admit: str
    durability: str
    on_fault: str
    mode: int
    uid: int
    gid: int
    created_s: float
    session: str = "file"
    format: str = "raw"
    layout: str = ""
    on_full: str = ""
    quota: Quota = field(default_factory=Quota)


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespaceWish:
    """How a namespace shall be made; a policy that is None comes from ``[admission]``."""

    name: bytes
    fingerprint: dict[str, str]
    mode: int
    uid: int
    gid: int
    admit: str | None = None
    durability: str | None = None
    on_fault: str | None = None
    session: str | None = None
    format: str | None = None
    layout: str | None = None
    on_full: str | None = None
    quota: QuotaWish = field(default_factory=QuotaWish)


@dataclass(frozen=True, slots=True, kw_only=True)
class Invalidated:
    """The namespace as it is now; `names` went from the top of it."""

    namespace: Namespace
    names: int


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
    namespaces: NamespaceStatus
    admission: AdmissionStatus
    scrub: Scrubbing
    sessions: SessionStatus
    directories: tuple[Directory, ...] = ()
    index: Index = Index(state="checked", done=0, total=0)
    formats: tuple[FormatUsage, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One name. `kind` is ``file``, ``dir``, ``symlink`` or ``other``; what only files have is None elsewhere.

    `state` is ``filling`` (has a writer), ``sealed`` or ``faulted``; `tier` is ``ddr``, ``nvme`` or ``none`` (no data);
    `clean` means that NVMe holds the same bytes; `tiers` is what each tier is charged, `format` how NVMe's file is kept.
    `parent` is the path of the object before it, `chain` how many there are up to it, of one that has or is a parent.
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
    tiers: dict[str, int] | None = None
    format: ObjectFormat | None = None
    parent: bytes | None = None
    chain: int | None = None


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A line of what a check comes to: its progress, `done` of `total` objects, and a fault where it has found one.

    `what` is a sentence, '' for progress alone. `done_about_it` says what the repair did, '' where nothing was done;
    `mended` whether that ended the fault.
    """

    done: int
    total: int
    kind: str = ""
    what: str = ""
    done_about_it: str = ""
    mended: bool = False


class Control(Protocol):
    """The daemon as the API sees it.

    Operations on a directory mean every object below it. Errors are `kvd.errors.KvdError`.
    """

    sessions: SessionControl

    async def status(self) -> Status:
        """Return the daemon's state."""
        ...

    async def exist(self, paths: Sequence[bytes]) -> list[bool]:
        """Return which of these names there are."""
        ...

    async def match(self, paths: Sequence[bytes]) -> int:
        """Return how many of these names there are, up to the first that is not."""
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

    def scrub(self, paths: Sequence[bytes]) -> AsyncIterator[Step]:
        """Verify the copies of objects on NVMe; what is bad is healed, or quarantined and an error of its step."""
        ...

    def fsck(self, *, data: bool, repair: bool) -> AsyncIterator[Finding]:
        """Check catalogue, page tables and files against each other; `data`: every page on NVMe, too."""
        ...

    async def pin(self, path: bytes, *, pinned: bool) -> int:
        """Pin or unpin the objects at or below `path`; return how many changed."""
        ...

    def namespaces(self) -> list[Namespace]:
        """Return every namespace."""
        ...

    def namespace(self, name: bytes) -> Namespace:
        """Return one namespace."""
        ...

    async def create_namespace(self, wish: NamespaceWish) -> Namespace:
        """Make a namespace."""
        ...

    async def set_namespace(self, name: bytes, policies: Mapping[str, str | int]) -> Namespace:
        """Change policies of a namespace, and what of `Quota` is given; `OverCommittedError` if that can't be."""
        ...

    async def namespace_quota(self, name: bytes) -> NamespaceQuota:
        """Return how a namespace stands in each tier."""
        ...

    def attach_namespace(self, name: bytes, fingerprint: Mapping[str, str]) -> Namespace:
        """Return a namespace to who offers its fingerprint; `MismatchError` for another one."""
        ...

    async def remove_namespace(self, name: bytes, *, force: bool) -> int:
        """Remove a namespace, with `force` also its content; return how many names it had."""
        ...

    async def invalidate(
        self, name: bytes, *, fingerprint: Mapping[str, str] | None, present: Mapping[str, str] | None
    ) -> Invalidated:
        """Make all content of a namespace vanish; None: keep the fingerprint, do not ask for the `present` one."""
        ...
