"""The one interface to a page-table engine, wherever it runs.

In process today; over vfio-user or the kernel's VFIO later. A batch of commands goes in, a batch of completions comes
out, in order. A completion carries a status; a status other than OK is data here, and an exception only where the
caller asks for one (`Device.run`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvdriver.abi import Status, Tier

BLOCK_BYTES = 4096
"""Unit of capacity: what tmpfs and ext4 allocate."""


class EngineError(Exception):
    """A command was refused.

    Attributes
    ----------
    status
        Why.
    command
        The command that was refused.
    """

    def __init__(self, status: Status, command: Command) -> None:
        super().__init__(f"{type(command).__name__} refused: {status.name}")
        self.status = status
        self.command = command


@dataclass(frozen=True, slots=True, kw_only=True)
class MapRun:
    """`count` pages from `first_page`, each charged `blocks` blocks of 4 KiB."""

    first_page: int
    count: int
    blocks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Pages in one tier with contiguous frames and one charge, as TRANSLATE finds them."""

    first_page: int
    count: int
    first_frame: int
    tier: Tier
    blocks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionCreate:
    """Make a session context; `key` is the caller's name for it (an inode number). Value: the session."""

    key: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionDestroy:
    """Free a session's pages and reservations; refused while leased."""

    session: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """Add `delta` to a session's leases; REMAP and SESSION_DESTROY are refused while there are any."""

    session: int
    delta: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reserve:
    """Set a session's reservation in a tier to exactly `blocks`."""

    session: int
    tier: Tier
    blocks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Map:
    """Allocate frames for pages of a slot; all or nothing. `reserved`: charge the reservation first."""

    session: int
    slot: int
    tier: Tier
    runs: tuple[MapRun, ...]
    reserved: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Unmap:
    """Free the pages of a range of a slot; holes are passed over. Value: pages freed."""

    session: int
    slot: int
    first_page: int = 0
    count: int = 1 << 47


@dataclass(frozen=True, slots=True, kw_only=True)
class Translate:
    """Find the runs of a range of a slot. Completion: `runs`."""

    session: int
    slot: int
    first_page: int = 0
    count: int = 1 << 47


@dataclass(frozen=True, slots=True, kw_only=True)
class Remap:
    """Give the mapped pages of a range a frame in another tier; atomic for each page.

    With `keep`, the frames that they leave are mapped into `other_slot`; with `take`, the new frames are those of
    `other_slot` (which must map the same pages in `tier`). Value: pages moved.
    """

    session: int
    slot: int
    tier: Tier
    other_slot: int = 0
    keep: bool = False
    take: bool = False
    reserved: bool = False
    first_page: int = 0
    count: int = 1 << 47


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryTier:
    """Completion: `tier`."""

    tier: Tier


@dataclass(frozen=True, slots=True, kw_only=True)
class QuerySession:
    """Completion: `session`."""

    session: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Resize:
    """Set a tier's capacity; below what is used it only refuses more."""

    tier: Tier
    blocks: int


Command = (
    SessionCreate
    | SessionDestroy
    | Lease
    | Reserve
    | Map
    | Unmap
    | Translate
    | Remap
    | QueryTier
    | QuerySession
    | Resize
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TierInfo:
    """A tier's books, in blocks of 4 KiB and in frames."""

    capacity_blocks: int
    used_blocks: int
    reserved_blocks: int
    used_frames: int
    total_frames: int

    @property
    def free_blocks(self) -> int:
        """What MAP or RESERVE may still take."""
        return max(0, self.capacity_blocks - self.used_blocks - self.reserved_blocks)


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionInfo:
    """A session's books; pages, blocks and reservations by tier."""

    key: int
    leases: int
    mapped_pages: dict[Tier, int]
    mapped_blocks: dict[Tier, int]
    reserved_blocks: dict[Tier, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """How one command ended, and what it found."""

    status: Status
    value: int = 0
    runs: tuple[Run, ...] = field(default=())
    tier: TierInfo | None = None
    session: SessionInfo | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What the device says of itself."""

    page_bytes: int
    tiers: tuple[Tier, ...]
    sessions_max: int
    slots_max: int
    transport: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceStatistics:
    """Counters since open."""

    commands: int
    refused: int
    sessions: int
    table_bytes: int
    mapped_pages: int


class Device(Protocol):
    """A page-table engine.

    `submit` is awaitable because a card answers later; the in-process engine answers before the first checkpoint, but
    callers must not rely on it.
    """

    @property
    def capabilities(self) -> Capabilities:
        """What the device can do."""
        ...

    async def submit(self, commands: Sequence[Command]) -> list[Completion]:
        """Execute a batch in order; a refused command does not stop those after it."""
        ...

    async def run(self, command: Command) -> Completion:
        """Execute one command.

        Raises
        ------
        EngineError
            If it was refused.
        """
        ...

    async def check(self) -> list[str]:
        """Check the tables against each other; one sentence for each fault found."""
        ...

    async def reset(self) -> None:
        """Drop every session and page; capacities stay."""
        ...

    def statistics(self) -> DeviceStatistics:
        """Return the counters."""
        ...

    def close(self) -> None:
        """Release the device; further calls raise `ValueError`."""
        ...
