"""An object in memory: what the daemon knows of it while it is in DDR, open, or being moved."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import trio

from kvd.tier.extents import held_bytes
from kvdriver import BLOCK_BYTES, Tier

if TYPE_CHECKING:
    from kvd.catalog.records import Copy
    from kvd.tier.census import Census
    from kvd.tier.copyfiles import CopyFiles
    from kvd.tier.plane import Mode
    from kvd.tier.streaming import Run

LIVE_SLOT = 0
"""Engine slot of the pages that make up the object now."""
COPY_SLOTS = (1, 2)
"""Engine slots of the durable copy: one holds the present copy, the other is where the next is made."""

WATCHED = frozenset({"mapped_blocks", "damaged", "sealed", "tier", "writers"})
"""What others tell of, or rely on, while the object's lock is free or not theirs."""

COUNTED = frozenset(
    {"mode", "ddr_fd", "streaming", "copy", "readers", "writers", "pinned", "held", "tier", "sealed", "damaged"}
    | {"mapped_blocks", "reserved_blocks", "top"}
)
"""What `kvd.tier.census` sorts objects by, and what it adds up."""

FACTS = frozenset({"readers", "writers", "sealed", "tier", "damaged", "streaming"})
"""What a session's state follows from (`SessionWatch`)."""


class LiveWatch(Protocol):
    """Hears of changes of what is `WATCHED`."""

    def live_changing(self, live: Live, what: str) -> None:
        """Hear that an attribute is about to be set."""
        ...

    def live_changed(self) -> None:
        """Hear that it is set."""
        ...


class SessionWatch(Protocol):
    """Hears what becomes of objects, for their sessions (`kvd.session`). Waits for nothing, and never raises."""

    def came(self, live: Live) -> None:
        """Hear that an object has come into memory."""
        ...

    def went(self, live: Live) -> None:
        """Hear that it has left it."""
        ...

    def note(self, live: Live) -> None:
        """Hear that one of `FACTS` has been set."""
        ...

    def used(self, live: Live) -> None:
        """Hear that the data plane has opened it since the last time."""
        ...


@dataclass(slots=True)
class Live:
    """State of one object; owned by `Objects`, changed only under `lock`.

    Attributes
    ----------
    session
        Its session context in the engine.
    copy_slot
        Engine slot of the present copy's pages while the live pages are in DDR.
    mapped_blocks
        4 KiB blocks that the live slot is charged.
    reserved_blocks
        Blocks reserved in DDR for its growth.
    readers
        Opens for reading whose release comes to the control plane; while it is shared the data plane counts more.
    mode
        How the kernel reaches it, None while the data plane does not know it; fixed from first open to last release.
    shared
        The data plane answers opens for reading by itself (`kvd.tier.sharing`).
    ddr_fd, nvme_fd
        Open tier files; -1 when closed. Of a striped copy the first part; `nvme_files` has all.
    streaming
        A promotion that readers do not wait for (`kvd.tier.streaming`).
    from_nvme
        It was fetched ahead and nobody has opened it since.
    stored_hits
        What the catalogue knows of `hits`.
    held
        Somebody holds a lease of it, or of its session, through the API.
    top
        The top directory below which it is, whose namespace its blocks count for; 0 for none.
    counted
        The top directory and the blocks in DDR with which `kvd.tier.census` has it in its sums.
    laid_blocks
        Storage that its DDR file got before its writer came to it (`Spares.lay`); 0 again when it is sealed.
    """

    ino: int
    session: int
    tier: Tier
    size: int
    sealed: bool
    pinned: bool
    damaged: bool
    hits: int
    copy: Copy | None
    mapped_blocks: int
    last_use_s: float
    copy_slot: int = COPY_SLOTS[0]
    gen: int = 0
    reserved_blocks: int = 0
    readers: int = 0
    writers: int = 0
    mode: Mode | None = None
    shared: bool = False
    backing_id: int = 0
    ddr_fd: int = -1
    nvme_fd: int = -1
    nvme_files: CopyFiles | None = None
    streaming: Run | None = None
    from_nvme: bool = False
    stored_hits: int = 0
    held: bool = False
    usual_key: int = 0
    top: int = 0
    counted: tuple[int, int] = (0, 0)
    laid_blocks: int = 0
    made_lock: trio.Lock | None = None
    watch: LiveWatch | None = None
    census: Census | None = None
    sessions: SessionWatch | None = None

    def __setattr__(self, name: str, value: object) -> None:
        watch: LiveWatch | None = getattr(self, "watch", None) if name in WATCHED else None
        if watch is not None:
            watch.live_changing(self, name)
        object.__setattr__(self, name, value)
        if watch is not None:
            watch.live_changed()
        census: Census | None = getattr(self, "census", None) if name in COUNTED else None
        if census is not None:
            census.note(self, name)
        sessions: SessionWatch | None = getattr(self, "sessions", None) if name in FACTS else None
        if sessions is not None:
            sessions.note(self)

    @property
    def lock(self) -> trio.Lock:
        """Its lock; made when it is wanted: most of many objects are idle."""
        if self.made_lock is None:
            self.made_lock = trio.Lock()
        return self.made_lock

    @property
    def locked(self) -> bool:
        """Whether somebody holds its lock."""
        return self.made_lock is not None and self.made_lock.locked()

    def drop_lock(self) -> None:
        """Give the lock's memory back, where nobody holds it or waits for it."""
        if not self.locked:
            self.made_lock = None

    @property
    def promoted_blocks(self) -> int:
        """4 KiB blocks that a cold object takes in DDR: more than on NVMe, if it is kept in a format."""
        form = self.copy.form if self.copy is not None else None
        return self.mapped_blocks if form is None else form.object_blocks

    @property
    def ddr_blocks(self) -> int:
        """4 KiB blocks that it has in DDR, or reserved there."""
        return self.reserved_blocks + (self.mapped_blocks if self.tier is Tier.DDR else 0)

    @property
    def opens(self) -> int:
        """Open descriptors and mappings that the control plane counts; see `Sharing.opens` for all."""
        return self.readers + self.writers

    @property
    def written_blocks(self) -> int:
        """What its DDR file, which is open here, holds without what was laid there ahead of its writer.

        Where a writer left holes in what was laid, those before the file's end count, too; less than what is there never does.
        """
        info = os.fstat(self.ddr_fd)
        held = held_bytes(info) // BLOCK_BYTES
        return held if held > self.laid_blocks else min(held, -(-info.st_size // BLOCK_BYTES))

    @property
    def attached(self) -> bool:
        """Whether the data plane serves it; the engine has one lease as long."""
        return self.mode is not None

    @property
    def movable(self) -> bool:
        """Whether policy may take it out of DDR, once the data plane has given it back."""
        kept = self.opens or self.pinned or self.held or self.damaged
        return self.tier is Tier.DDR and self.sealed and not kept

    @property
    def clean(self) -> bool:
        """Whether NVMe holds the same bytes."""
        return self.copy is not None and self.copy.current

    @property
    def next_slot(self) -> int:
        """The copy slot that is free."""
        return COPY_SLOTS[1] if self.copy_slot == COPY_SLOTS[0] else COPY_SLOTS[0]
