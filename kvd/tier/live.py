"""An object in memory: what the daemon knows of it while it is in DDR, open, or being moved."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import trio

from kvdriver import Tier

if TYPE_CHECKING:
    from kvd.catalog.records import Copy
    from kvd.tier.plane import Mode

LIVE_SLOT = 0
"""Engine slot of the pages that make up the object now."""
COPY_SLOTS = (1, 2)
"""Engine slots of the durable copy: one holds the present copy, the other is where the next is made."""


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
    mode
        How the kernel reaches it; fixed from first open to last release.
    ddr_fd, nvme_fd
        Open tier files; -1 when closed.
    from_nvme
        It was fetched ahead and nobody has opened it since.
    stored_hits
        What the catalogue knows of `hits`.
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
    backing_id: int = 0
    ddr_fd: int = -1
    nvme_fd: int = -1
    from_nvme: bool = False
    stored_hits: int = 0
    usual_key: int = 0
    lock: trio.Lock = field(default_factory=trio.Lock)

    @property
    def opens(self) -> int:
        """Open descriptors and mappings, as the kernel counts them."""
        return self.readers + self.writers

    @property
    def movable(self) -> bool:
        """Whether policy may take it out of DDR."""
        return self.tier is Tier.DDR and self.sealed and not self.opens and not self.pinned and not self.damaged

    @property
    def clean(self) -> bool:
        """Whether NVMe holds the same bytes."""
        return self.copy is not None and self.copy.current

    @property
    def next_slot(self) -> int:
        """The copy slot that is free."""
        return COPY_SLOTS[1] if self.copy_slot == COPY_SLOTS[0] else COPY_SLOTS[0]
