"""The commands that a page-table engine executes (docs/device.md), and what goes in with them."""

from __future__ import annotations

from dataclasses import dataclass

from kvdriver.abi import Event, Format, Scaling, Tier


@dataclass(frozen=True, slots=True, kw_only=True)
class MapRun:
    """`count` pages from `first_page`, each charged `blocks` blocks of 4 KiB."""

    first_page: int
    count: int
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


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionTransition:
    """Let an event happen to a session (`kvdriver.abi.NEXT_STATE`). Value: the state now, or that it refused in."""

    session: int
    event: Event


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """Give an empty range the frames that another slot or session has there; all or nothing. Value: pages shared."""

    session: int
    slot: int
    source: int
    source_slot: int
    first_page: int = 0
    count: int = 1 << 47


@dataclass(frozen=True, slots=True, kw_only=True)
class Unshare:
    """Give the shared pages of a range frames of their own; all or nothing.

    Completion: `copies`, what has to be copied; with status BUFFER_SMALL, `value` is how many there are. Second: pages.
    """

    session: int
    slot: int
    first_page: int = 0
    count: int = 1 << 47
    copies_max: int = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowAdvance:
    """Free the pages of a slot that slid out of its window.

    The slot holds `planes` planes of tokens, `plane_bytes` apart, the first at byte `base`. Of each, the first
    `sink_tokens` and the last `window_tokens` stay. Completion: `runs`, what was freed; second: pages. With status
    BUFFER_SMALL nothing was freed, and `value` is how many runs there would be.
    """

    session: int
    slot: int
    token_bytes: int
    tokens: int
    window_tokens: int
    sink_tokens: int = 0
    base: int = 0
    planes: int = 1
    plane_bytes: int = 0
    runs_max: int = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Touch:
    """Mark the pages of a range as used, with `dirty` as written. Value: pages."""

    session: int
    slot: int
    first_page: int = 0
    count: int = 1 << 47
    dirty: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AgeCursor:
    """Where a scan stands; one that was just made is at the beginning."""

    session: int = 0
    page: int = 0
    slot: int = 0
    done: bool = False
    generation: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class AgeScan:
    """Look at `count` entries from a cursor on, and report who was not used for `least_age` generations (to 127).

    `advance` begins a new generation first, at the beginning of a scan only. Completion: `cold`, and `cursor` for the
    next call; second: entries looked at.
    """

    count: int
    least_age: int
    tier: Tier = Tier.NONE
    advance: bool = False
    cursor: AgeCursor = AgeCursor()
    runs_max: int = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """What `Gather` and `Scatter` move: an array [tokens][channels], or `host_bytes` bytes where both are raw.

    Addresses are those of the device. Scales are written where the narrow side is made, read where it is given.
    """

    host: int
    host_bytes: int
    page_offset: int = 0
    host_format: Format = Format.RAW
    page_format: Format = Format.RAW
    tokens: int = 0
    channels: int = 0
    scaling: Scaling = Scaling.NONE
    scales: int = 0
    scales_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Gather:
    """Move bytes from the pages of a range to the host. Value: bytes written there."""

    session: int
    slot: int
    transfer: Transfer
    first_page: int = 0
    count: int = 1 << 47


@dataclass(frozen=True, slots=True, kw_only=True)
class Scatter:
    """Move bytes from the host into the pages of a range. Value: bytes read there."""

    session: int
    slot: int
    transfer: Transfer
    first_page: int = 0
    count: int = 1 << 47


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixInsert:
    """Note that a session holds blocks of a chain, from block `first` on. Value: those that were absent."""

    session: int
    namespace: int
    hashes: tuple[bytes, ...]
    first: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixMatch:
    """Find how far a chain is there, from block `first` on. Value: blocks; second: the session with the last one."""

    namespace: int
    hashes: tuple[bytes, ...]
    first: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixRemove:
    """Forget blocks of a chain, from block `first` on; with `session` only those that it holds. Value: those removed."""

    namespace: int
    hashes: tuple[bytes, ...]
    first: int = 0
    session: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Flush:
    """Let every change before it be visible to all who walk the tables. Value: commands executed since they were made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TranslateList:
    """Find single pages of a slot, far faster than one `Translate` each. Completion: `entries`, PTEs, 0 for none."""

    session: int
    slot: int
    pages: tuple[int, ...]


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
    | SessionTransition
    | Share
    | Unshare
    | WindowAdvance
    | Touch
    | AgeScan
    | Gather
    | Scatter
    | PrefixInsert
    | PrefixMatch
    | PrefixRemove
    | Flush
    | TranslateList
)
