"""The one interface to a page-table engine, wherever it runs.

In process, over vfio-user or on the kernel's VFIO. A batch of commands goes in, a batch of completions comes
out, in order. A completion carries a status; a status other than OK is data here, and an exception only where the
caller asks for one (`Device.run`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from kvdriver.abi import Status

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvdriver.abi import State, Tier
    from kvdriver.commands import AgeCursor, Command

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
class Run:
    """Pages in one tier with contiguous frames and one charge, as TRANSLATE finds them."""

    first_page: int
    count: int
    first_frame: int
    tier: Tier
    blocks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyRun:
    """Pages that got frames of their own: the bytes of the old frames belong into the new ones."""

    first_page: int
    count: int
    old_frame: int
    new_frame: int
    tier: Tier
    blocks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ColdRun:
    """Pages of one tier and one age with contiguous frames, as AGE_SCAN finds them; age 127 is that or more."""

    session: int
    slot: int
    first_page: int
    count: int
    first_frame: int
    tier: Tier
    age: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TierInfo:
    """A tier's books, in blocks of 4 KiB and in frames."""

    capacity_blocks: int
    used_blocks: int
    reserved_blocks: int
    used_frames: int
    total_frames: int

    @property
    def held_blocks(self) -> int:
        """What is mapped or reserved."""
        return self.used_blocks + self.reserved_blocks

    @property
    def free_blocks(self) -> int:
        """What MAP or RESERVE may still take."""
        return max(0, self.capacity_blocks - self.held_blocks)


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionInfo:
    """A session's books; pages, blocks and reservations by tier."""

    key: int
    leases: int
    mapped_pages: dict[Tier, int]
    mapped_blocks: dict[Tier, int]
    reserved_blocks: dict[Tier, int]
    state: State
    window_start: tuple[int, ...]
    """By slot: tokens that the window has left behind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """How one command ended, and what it found; `value` and `second` are the results of docs/device.md."""

    status: Status
    value: int = 0
    second: int = 0
    runs: tuple[Run, ...] = ()
    copies: tuple[CopyRun, ...] = ()
    cold: tuple[ColdRun, ...] = ()
    entries: tuple[int, ...] = ()
    cursor: AgeCursor | None = None
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
    refused_transitions: int
    """Of them."""
    sessions: int
    table_bytes: int
    mapped_pages: int


class Mappable(Protocol):
    """Memory of this process with a file behind it, from the file's beginning (`kvdriver.memory`)."""

    @property
    def fd(self) -> int:
        """The file."""
        ...

    @property
    def bytes(self) -> int:
        """Length."""
        ...

    @property
    def address(self) -> int:
        """Where it is mapped in this process."""
        ...


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
        [completion] = await self.submit([command])
        if completion.status is not Status.OK:
            raise EngineError(completion.status, command)
        return completion

    async def map_memory(self, memory: Mappable) -> None:
        """Let the device reach a memory, which `Transfer` names by its addresses in this process.

        Raises
        ------
        OSError
            ENOSPC: no more mappings, or no addresses; ENOMEM: the locked-memory limit.
        """
        ...

    async def unmap_memory(self, memory: Mappable) -> None:
        """Take a memory back; when this returns the device no longer reaches it."""
        ...

    async def tier_memory(self, tier: Tier, memory: Mappable) -> None:
        """Say where `Gather` and `Scatter` find a tier's frames: frame n at n pages of a memory that is mapped.

        Raises
        ------
        OSError
            If there is no such tier.
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
