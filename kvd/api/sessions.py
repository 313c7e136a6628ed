"""What the control API can ask of sessions, and what it is told of them; the part of `kvd.api.backend` that is theirs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class Socket(Protocol):
    """A client's connection, as far as it is asked whose it is."""

    def getsockopt(self, level: int, option: int, buflen: int, /) -> bytes:
        """Return an option as bytes."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionEntry:
    """A session: a file or a directory of objects that live and end together.

    Attributes
    ----------
    kind
        ``file`` or ``dir``.
    state
        See docs/sessions.md; `since_s` ago it came to it, None where nothing of it is in memory.
    open_objects, leases
        How many of its objects are open or mapped; leases through the API.
    pin
        ``none``, ``soft`` or ``hard``; `pin_until_s` is when a soft one ends, since 1970, 0 for never.
    ttl_s
        Time to live, 0 for ever; with `refresh` each use begins it anew. `expires_s`: when it is over as far as is known, since
        1970; 0 without one.
    """

    path: bytes
    ino: int
    kind: str
    state: str
    since_s: float | None
    open_objects: int
    leases: int
    pin: str
    pin_until_s: float
    ttl_s: float
    refresh: bool
    expires_s: float
    priority: int
    window: int
    sink: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionDetail:
    """A session and what it holds.

    `tiers` is bytes of length by the tier that they are read from, `formats` bytes of the files on NVMe by how they are kept,
    `given_bytes` those of its length that a window has left behind and that were given back.
    `chained` of its objects said which one is before them.
    """

    session: SessionEntry
    objects: int
    tiers: dict[str, int]
    hits: int
    formats: dict[str, int] = field(default_factory=dict)
    chained: int = 0
    given_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionChange:
    """A session has come from one state to another; `lost` changes before it were not told, since nobody took them in time."""

    path: bytes
    ino: int
    before: str
    after: str
    lost: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionStatus:
    """All sessions together: those in memory by `states`; since the start, events that were refused, and what ended.

    `expired` had a TTL, `unpinned` a soft pin. `leases` are given now, `leases_lost` went with their process. Bytes that windows left
    behind were given back in each tier.
    """

    states: dict[str, int]
    refused: int
    expired: int
    unpinned: int
    leases: int
    leases_lost: int
    given_ddr_bytes: int = 0
    given_nvme_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseGrant:
    """A lease that was given or renewed: its number, and how long it lasts from now, in seconds."""

    lease: int
    for_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkPoint:
    """How far a fork has what the session has; nothing said: all of it.

    Attributes
    ----------
    until
        The last block's name within a session that is a directory.
    count
        How many blocks, in the order in which they got their names; of a session that is a file how many bytes.
    tokens
        How many tokens of a file: of `bytes_per_token` each, or where that is 0 as the namespace's layout says.
    """

    until: str = ""
    count: int | None = None
    tokens: int | None = None
    bytes_per_token: int = 0


class SessionControl(Protocol):
    """What the control API can ask of sessions. Errors are `kvd.errors.KvdError`.

    A path names a session, or an object of one: pins and times to live can be an object's own, the rest is its session's.
    """

    def sessions(self, path: bytes) -> AsyncIterator[SessionEntry]:
        """Tell of the sessions at or below `path`."""
        ...

    def session(self, path: bytes) -> SessionEntry:
        """Describe one session."""
        ...

    async def session_detail(self, path: bytes) -> SessionDetail:
        """Describe one session and what it holds."""
        ...

    def release_session(self, path: bytes) -> SessionEntry:
        """Say that it is not needed soon: it goes to NVMe in the background."""
        ...

    def resume_session(self, path: bytes, *, prefetch: bool = False) -> SessionEntry:
        """Say that it is needed soon: it comes to DDR in the background. `prefetch`: by a guess, not by its client."""
        ...

    def ask(self, path: bytes, what: str) -> str:
        """Ask ``release``, ``resume`` or ``prefetch`` of it; return its state then, and nothing else, which is quick."""
        ...

    def give_time(self, path: bytes, ttl_s: float, *, refresh: bool) -> float:
        """As `live_session`; return when it ends, in seconds since 1970."""
        ...

    async def close_session(self, path: bytes) -> None:
        """End it: its names go, and with them its content. `BusyError` while somebody has it open or leased."""
        ...

    async def fork_session(self, path: bytes, new_path: bytes, at: ForkPoint) -> SessionEntry:
        """Make a session that has what it has up to a point; describe the new one.

        `BusyError` while an object that the fork would have has a writer, `ExistsError` if `new_path` is there.
        """
        ...

    async def pin_session(self, path: bytes, pin: str, *, for_s: float = 0.0) -> int:
        """Pin it ``hard``, or ``soft`` for so many seconds (0: for ever), or unpin it (``none``); return how many objects changed."""
        ...

    def live_session(self, path: bytes, ttl_s: float, *, refresh: bool) -> SessionEntry:
        """Give it a time to live from now on; 0 takes that away."""
        ...

    def lease(self, path: bytes, for_s: float, sock: Socket) -> LeaseGrant:
        """Keep it where it is for so long, or until the process that connected `sock` ends."""
        ...

    def renew_lease(self, number: int, for_s: float, sock: Socket) -> LeaseGrant:
        """Keep a lease for so long from now on."""
        ...

    def end_lease(self, number: int, sock: Socket) -> None:
        """Give a lease back."""
        ...

    def watch_sessions(self, path: bytes) -> AsyncIterator[SessionChange]:
        """Tell of each change of state at or below `path`, for ever."""
        ...
