"""Objects whose opens for reading the data plane answers by itself: which they are, and how they are taken back.

A shared object stays attached (file, backing id, engine's lease) when nobody has it open, so that the next open costs the
control plane nothing. Whoever needs it otherwise takes it back first, under its lock; what the data plane counts until then
becomes the object's readers, and their releases come here. Attributes of a `Live` that a lease relies on can't be set
without that: see `Sharing.live_changing`.
"""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING

import structlog
import trio

from kvd.tier.plane import Gone, Mode
from kvdriver import BLOCK_BYTES, Tier

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from kvd.catalog.catalog import Catalog
    from kvd.tier.live import Live
    from kvd.tier.lives import Lives
    from kvd.tier.plane import Leases
    from kvd.tier.worth import Worth

log = structlog.get_logger(__name__)

SHARED_MAX = 16384
FILES_SHARE = 4
"""At most this part of the process's descriptors is held by shared objects that nobody may be using."""
TRIM_SHARE = 8
"""When there are as many as may be, this part of them is taken back at once."""


def shared_max(descriptors_max: int) -> int:
    """Return how many objects may be shared in a process that may have `descriptors_max` descriptors."""
    return min(SHARED_MAX, descriptors_max // FILES_SHARE)


class Sharing:
    """Shares objects and takes them back.

    Parameters
    ----------
    leases
        The data plane's part.
    objects_max
        So many are shared at once; those used longest ago are taken back first.

    Attributes
    ----------
    leave
        Ends what keeps an object attached that nobody has open (`Opening.leave`); called under its lock.
    """

    def __init__(self, lives: Lives, catalog: Catalog, leases: Leases, worth: Worth, *, objects_max: int) -> None:
        self._lives = lives
        self._worth = worth
        self._db = catalog.db
        self._leases = leases
        self._objects_max = objects_max
        self._order: collections.OrderedDict[int, None] = collections.OrderedDict()
        self._strays: set[int] = set()
        self.leave: Callable[[Live], Awaitable[None]]

    def __repr__(self) -> str:
        return f"<Sharing shared={len(self._order)} of {self._objects_max}>"

    def __len__(self) -> int:
        return len(self._order)

    # -- giving and taking ---------------------------------------------------------------------------------------

    def share(self, live: Live) -> bool:
        """Let the data plane open an object that is attached, if it may; whether it does.

        Not one with holes: what a reader's mapping gives them is charged after each last release (`Opening.leave`).
        """
        if live.shared:
            return True
        fit = live.tier is Tier.DDR and live.sealed and not live.writers and not live.damaged
        whole = live.mapped_blocks * BLOCK_BYTES >= live.size
        if (
            not fit
            or not whole
            or live.mode not in (Mode.PASSTHROUGH, Mode.DIRECT)
            or len(self._order) >= self._objects_max
        ):
            return False
        live.shared = self._leases.share(live.ino)
        if live.shared:
            self._order[live.ino] = None
        return live.shared

    async def take_back(self, live: Live, *, only_idle: bool = False) -> bool:
        """Make an object the control plane's alone; False, and no change, with `only_idle` while somebody has it open.

        Without users it is attached no longer. The caller holds the object's lock.
        """
        if only_idle and live.opens:
            return False
        if live.shared:
            gone = self._leases.shut(live.ino, only_idle=only_idle)
            if gone is None:
                live.last_use_s = trio.current_time()
                return False
            self._adopt(live, gone)
        if live.attached and not live.opens:
            await self.leave(live)
        return True

    def _adopt(self, live: Live, gone: Gone) -> None:
        live.shared = False
        self._order.pop(live.ino, None)
        live.readers += gone.leases
        live.hits += gone.opens
        if gone.opens:
            live.last_use_s = trio.current_time()
            self._worth.used([live])
        self._strays.add(live.ino)

    def dropped(self, ino: int, gone: Gone) -> None:
        """Take note that the data plane has given back an object because it has no name any more."""
        live = self._lives.by_ino.get(ino)
        if live is not None and live.shared:
            self._adopt(live, gone)

    def live_changing(self, live: Live, what: str) -> None:
        """See `LiveWatch`: nothing that a lease relies on changes under one that this side does not count."""
        if live.shared and what != "mapped_blocks":
            gone = self._leases.shut(live.ino)
            self._adopt(live, gone or Gone())
        if what == "mapped_blocks":
            self._db.inode_changing(live.ino)

    def live_changed(self) -> None:
        """See `LiveWatch`."""
        self._db.settle()

    # -- telling -------------------------------------------------------------------------------------------------

    def opens(self, live: Live) -> int:
        """Return an object's open descriptors and mappings, as the kernel counts them."""
        return live.opens + (self._leases.leases(live.ino) if live.shared else 0)

    def is_leased(self, live: Live) -> bool:
        """Whether the data plane has given leases of an object that are not released."""
        return live.shared and self._leases.leases(live.ino) > 0

    def watch(self) -> None:
        """See `Leases.watch`."""
        if self._order:
            self._leases.watch()

    def drain(self) -> None:
        """Take note of what was opened without the control plane."""
        now_s = trio.current_time()
        used: list[Live] = []
        for use in self._leases.used():
            live = self._lives.by_ino.get(use.node)
            if live is None:
                continue
            used.append(live)
            live.hits += use.opens
            live.last_use_s = now_s
            if live.sessions is not None:
                live.sessions.used(live)
            if live.shared:
                self._order.move_to_end(use.node)
        if used:
            self._worth.used(used)

    # -- keeping -------------------------------------------------------------------------------------------------

    async def tend(self) -> None:
        """Count opens, end what became nobody's, and make place for others to be shared."""
        self.drain()
        for ino in list(self._strays):
            self._strays.discard(ino)
            live = self._lives.by_ino.get(ino)
            if live is not None and not live.locked:
                async with live.lock:
                    await self._leave_if_unused(live)
            elif live is not None:
                self._strays.add(ino)
        if len(self._order) >= self._objects_max:
            await self._trim(max(1, self._objects_max // TRIM_SHARE))

    async def _leave_if_unused(self, live: Live) -> None:
        if live.attached and not live.opens and not live.shared:
            await self.leave(live)

    async def _trim(self, count: int) -> None:
        """Take back the `count` objects that were used longest ago, as far as nobody has them open."""
        for ino in list(self._order)[: 2 * count]:
            live = self._lives.by_ino.get(ino)
            if count == 0 or live is None or live.locked:
                continue
            async with live.lock:
                if live.shared and await self.take_back(live, only_idle=True):
                    count -= 1
                elif live.shared:
                    self._order.move_to_end(ino)
