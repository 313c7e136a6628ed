"""The catalogue's rows as values."""

from __future__ import annotations

import enum
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvd.format.model import RAW

if TYPE_CHECKING:
    from kvd.catalog.form import Form

NS = 1_000_000_000
"""Nanoseconds in a second: times of records are in nanoseconds since the epoch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inode:
    """Names' side of a file: attributes, times in ns since the epoch, size in bytes."""

    ino: int
    mode: int
    uid: int
    gid: int
    nlink: int
    size: int
    atime_ns: int
    mtime_ns: int
    ctime_ns: int
    rdev: int
    target: bytes | None

    @property
    def is_dir(self) -> bool:
        """Whether it is a directory."""
        return stat.S_ISDIR(self.mode)

    @property
    def is_file(self) -> bool:
        """Whether it is a regular file, that is, an object."""
        return stat.S_ISREG(self.mode)


@dataclass(frozen=True, slots=True, kw_only=True)
class DirEntry:
    """One name of a directory; `cookie` continues the listing after it."""

    cookie: int
    name: bytes
    inode: Inode


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Objects' side of a regular file; `tier` is a `kvdriver.Tier` number."""

    ino: int
    tier: int
    sealed: bool
    pinned: bool
    hits: int
    damaged: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """An object's durable copy on NVMe.

    Attributes
    ----------
    gen
        Grows with every copy of the object; part of the file's name.
    dirs
        Which of ``nvme.dirs`` has each part.
    stripe_bytes
        Bytes that go to one part before the next one's turn; 0 with one part.
    size
        Bytes of the file: of the object, unless it is kept in a format.
    current
        The copy holds the object's present bytes.
    runs
        ``(first page, count)`` of what holds data in the file; the rest is a hole.
    form
        What there is to know of a stored file; None: the file is the object's bytes.
    """

    ino: int
    gen: int
    dirs: tuple[int, ...]
    size: int
    mtime_ns: int
    current: bool
    runs: tuple[tuple[int, int], ...]
    stripe_bytes: int = 0
    form: Form | None = None

    @property
    def format(self) -> str:
        """How the object's bytes are kept."""
        return RAW if self.form is None else self.form.format

    @property
    def object_bytes(self) -> int:
        """The object's length."""
        return self.size if self.form is None else self.form.object_bytes

    @property
    def dir_index(self) -> int:
        """The directory of the first part."""
        return self.dirs[0]

    @property
    def pages(self) -> int:
        """Pages that hold data."""
        return sum(count for _, count in self.runs)


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultRow:
    """A damage that was found."""

    when_ns: int
    ino: int
    path: bytes
    page: int | None
    what: str
    place: str = ""


@dataclass(frozen=True, slots=True)
class Namespace:
    """A top directory with a policy.

    Attributes
    ----------
    ino
        The directory.
    fingerprint
        `kvd.policy.fingerprint.canonical`; ``""`` for none.
    admit
        ``all``, or ``reused``: what was never used again is dropped instead of written to NVMe.
    durability
        ``back``: written to NVMe when it has to be; ``through``: right after the seal.
    on_fault
        What a quarantined object is: ``eio``, or ``miss``.
    created_ns
        When the namespace got its policy.
    session
        What a session is: ``file``, or ``directory``: one right below the namespace, with all that is in it.
    format
        The ladder of formats (`kvd.policy.formats`); ``raw``: bytes are kept as they are.
    layout
        What objects hold that do not say so themselves (`kvd.format.layout`); ``""``: nobody knows.
    ddr_guaranteed_bytes, nvme_guaranteed_bytes
        What nobody else takes from it in a tier.
    ddr_limit_bytes, nvme_limit_bytes
        What it has at most; 0: as much as there is.
    priority
        0 to 255: of those who have borrowed the lowest gives back first (`kvd.policy.quotas`).
    on_full
        What a full NVMe tier means for its writers: ``evict``, ``refuse`` or ``block``; ``""`` as the configuration says.
    """

    ino: int
    fingerprint: str
    admit: str
    durability: str
    on_fault: str
    created_ns: int
    session: str = "file"
    format: str = "raw"
    layout: str = ""
    ddr_guaranteed_bytes: int = 0
    ddr_limit_bytes: int = 0
    nvme_guaranteed_bytes: int = 0
    nvme_limit_bytes: int = 0
    priority: int = 0
    on_full: str = ""

    @property
    def has_quota(self) -> bool:
        """Whether it has a guarantee or a limit in any tier."""
        return bool(
            self.ddr_guaranteed_bytes or self.ddr_limit_bytes or self.nvme_guaranteed_bytes or self.nvme_limit_bytes
        )


class Pin(enum.IntEnum):
    """How firmly something is pinned."""

    NONE = 0
    SOFT = 1
    HARD = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What was said of a session, or of one object of it; `NOTHING` of most.

    Attributes
    ----------
    state
        7, `kvdriver.abi.State.RELEASED`, or 0: what the objects tell.
    pin
        A soft one ends by itself; a hard one only when it is taken back, and until then nothing expires.
    pin_until_ns
        When a soft pin ends; 0 without one.
    ttl_ns
        Time to live, 0 for ever.
    refresh
        A use begins the time anew.
    expire_ns
        When it ends, as far as is known: uses since may have put that off; 0 without a TTL, or while a pin holds it off.
    priority
        0 to 255, for policies; kept and told.
    window, sink
        Of a session with a sliding window: the trailing and the first tokens that it needs (`kvd.session.windows`); a window of 0 for all.
    """

    ino: int
    state: int = 0
    pin: Pin = Pin.NONE
    pin_until_ns: int = 0
    ttl_ns: int = 0
    refresh: bool = False
    expire_ns: int = 0
    priority: int = 0
    window: int = 0
    sink: int = 0

    @property
    def is_nothing(self) -> bool:
        """Whether there is nothing to keep."""
        return not (self.state or self.pin or self.ttl_ns or self.priority or self.window or self.sink)
