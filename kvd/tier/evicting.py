"""Room on NVMe: what is worth least there is let go for good when the tier is full, if its policy says so.

Only what is cold goes: sealed, on NVMe alone, neither open nor pinned nor leased. A session that is a directory goes whole or not at
all. The catalogue loses the names first, in one transaction; then whoever remembers them, then the bytes: so a crash in between
leaves files that no row knows, which a start removes, and never a name to bytes that are gone.

Whoever needs room may hold an object's lock, be answering a request, or both; so the work is done by a task of its own, which waits
for no lock (`Lives.hold_free`).
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import structlog
import trio

from kvd.catalog.evictable import Evictable
from kvd.catalog.schema import ROOT_INO
from kvd.policy.ageing import Place
from kvd.tier.quotas import Picking
from kvdriver import Tier

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from kvd.catalog.catalog import Catalog
    from kvd.config import Config
    from kvd.policy.ageing import Victim
    from kvd.tier.admission import Admission
    from kvd.tier.books import Books
    from kvd.tier.live import Live
    from kvd.tier.lives import Lives
    from kvd.tier.reaping import Reaper
    from kvd.tier.room import Room

log = structlog.get_logger(__name__)

AHEAD_SHARE = 128
"""Where something has to go, this part of the tier is made free beyond the need: choosing and removing cost less for many."""
UNFIT_MAX = 1024
"""A round ends when so many that were chosen can't go."""
SERVE_S_MAX = 30.0
"""Who asks for room waits no longer for its being made."""
REAP_S = 5.0
"""Objects of a directory that went are deleted in the background; so long it is waited for that."""


@dataclass(slots=True)
class _Asked:
    ino: int
    blocks: int
    done: trio.Event = field(default_factory=trio.Event)
    made: bool = False


class Evicting:
    """Makes room on NVMe.

    Attributes
    ----------
    on_full
        Returns what is done when there is no room for an object: ``evict``, ``refuse`` or ``block``.
    is_held
        Whether somebody has an API lease of an object or a session; set by `kvd.session`.
    """

    def __init__(
        self,
        catalog: Catalog,
        lives: Lives,
        books: Books,
        room: Room,
        admission: Admission,
        reaper: Reaper,
        config: Config,
    ) -> None:
        self._catalog = catalog
        self._evictable = Evictable(catalog.db, tier=Tier.NVME)
        self._lives = lives
        self._books = books
        self._room = room
        self._worth = room.worth
        self._admission = admission
        self._reaper = reaper
        self._quotas = room.quotas
        self.on_full: Callable[[int], str] = room.quotas.on_full
        self._wait_s = config.fuse.write_wait_s
        self._asked: list[_Asked] = []
        self._wanted = trio.Event()
        self._running = False
        self.is_held: Callable[[int], bool] = lambda _ino: False

    def __repr__(self) -> str:
        return f"<Evicting for {len(self._asked)}>"

    # -- asking --------------------------------------------------------------------------------------------------

    async def make_room(self, ino: int, blocks: int, *, leaves: bool) -> bool:
        """Make room on NVMe for an object; whether it may have come to be.

        `leaves`: the object leaves DDR, which whoever waits for room there tries again by itself.
        """
        match self.on_full(ino):
            case "evict":
                return await self._ask(ino, blocks)
            case "block" if not leaves:
                return await self._wait(ino, blocks)
            case _:
                return False

    async def _ask(self, ino: int, blocks: int) -> bool:
        if not self._running:
            return False
        asked = _Asked(ino, blocks)
        self._asked.append(asked)
        self._wanted.set()
        try:
            with trio.move_on_after(SERVE_S_MAX):
                await asked.done.wait()
        finally:
            if asked in self._asked:
                self._asked.remove(asked)
        return asked.made

    async def _wait(self, ino: int, blocks: int) -> bool:
        """Wait until something else has made room."""
        deadline = trio.current_time() + self._wait_s
        while self._running and (left_s := deadline - trio.current_time()) > 0:
            allowed = self._catalog.charges.room_blocks(ino)
            fits = allowed is None or allowed >= blocks
            if fits and (await self._books.tier(Tier.NVME)).free_blocks >= blocks:
                return True
            await self._room.wait_changed(left_s)
        return False

    def stop(self) -> None:
        """Have nobody wait any more: the daemon ends, and what does not fit does not fit."""
        self._wait_s = 0.0
        self._catalog.charges.limited = False  # what is only in DDR is made durable, whatever its namespace may have
        self._room.changed()

    # -- making --------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Make room for those who ask, for ever."""
        self._running = True
        try:
            async with trio.open_nursery() as nursery:
                while True:
                    await self._wanted.wait()
                    self._wanted = trio.Event()
                    await self._serve(nursery)
        finally:
            self._running = False

    async def _serve(self, nursery: trio.Nursery) -> None:
        if self._quotas.some:
            for asked in tuple(self._asked):
                asked.made = await self._make_for(asked, nursery)
                asked.done.set()
            self._asked = [asked for asked in self._asked if not asked.done.is_set()]
            if self._asked:  # who came meanwhile
                self._wanted.set()
            self._room.changed()
            return
        made = True
        served = list(self._asked)  # who comes meanwhile has another turn
        while made and (short := await self._short()) > 0:
            made = await self._evict(short, nursery)
        for asked in self._asked:
            if asked in served:
                asked.made = made
                asked.done.set()
        self._asked = [asked for asked in self._asked if not asked.done.is_set()]
        self._room.changed()

    async def _make_for(self, asked: _Asked, nursery: trio.Nursery) -> bool:
        """Make room for one that asks, of those who are to give it by their quotas; whether there may be some."""
        while True:
            picking = await self._quotas.nvme_picking(asked.ino, asked.blocks, AHEAD_SHARE)
            need = sum(picking.due.values())
            if picking.short or not need:
                return not picking.short
            freed = 0
            for place in (Place.NVME, Place.DDR):
                again = Picking(dict(picking.due), dict(picking.spare))
                for space, blocks in again.rounds():
                    if freed < need and blocks > 0:
                        homes = self._quotas.homes(space, self._worth.homes)
                        most = min(need - freed, blocks)
                        freed += await self._evict_from(place, most, nursery, only=homes, space=space, picking=again)
                if freed:
                    break
            if not freed:
                return False

    async def _short(self) -> int:
        """Return how many blocks must go for those who ask; 0 for one that could never have room."""
        info = await self._books.tier(Tier.NVME)
        possible = [asked for asked in self._asked if asked.blocks <= info.capacity_blocks]
        for asked in self._asked:
            if asked not in possible:
                asked.done.set()
        self._asked = possible
        need = sum(asked.blocks for asked in possible) - info.free_blocks
        return 0 if need <= 0 else need + info.capacity_blocks // AHEAD_SHARE

    async def _evict(self, need_blocks: int, nursery: trio.Nursery) -> bool:
        """Let objects go that hold so much; whether any did.

        Where nothing cold may go, NVMe is full of copies of what DDR has: then some of those objects go with their copies.
        """
        freed = await self._evict_from(Place.NVME, need_blocks, nursery)
        if freed == 0:
            freed = await self._evict_from(Place.DDR, need_blocks, nursery)
        return freed > 0

    async def _evict_from(
        self,
        place: Place,
        need_blocks: int,
        nursery: trio.Nursery,
        *,
        only: Collection[int] | None = None,
        space: int = 0,
        picking: Picking | None = None,
    ) -> int:
        """Return how many blocks of NVMe objects held that went; with `picking` of the namespace `space`, not below its guarantee."""
        freed = 0
        unfit: list[Victim] = []
        while freed < need_blocks and len(unfit) < UNFIT_MAX:
            some = self._worth.victims(place, need_blocks - freed, only=only)
            if not some:
                break
            for victim in some:
                most = None if picking is None else picking.spare.get(space, 0)
                blocks = await self._try(victim, nursery, most) if freed < need_blocks else None
                if blocks is None:
                    unfit.append(victim)
                    continue
                freed += blocks
                if picking is not None:
                    picking.take(space, blocks)
        for victim in unfit:
            self._stays(victim)
        return freed

    def _stays(self, victim: Victim) -> None:
        try:
            placement = self._catalog.placements.get(victim.key)
        except LookupError:
            self._worth.forget(victim.key)
            return
        place = Place.DDR if placement.tier == Tier.DDR else Place.NVME
        self._worth.stays(victim.key, place, victim.units)

    async def _try(self, victim: Victim, nursery: trio.Nursery, most: int | None) -> int | None:
        """As `_let_go`; what fails stays."""
        try:
            return await self._let_go(victim, nursery, most)
        except OSError as error:
            log.info("object can't leave nvme now", ino=victim.key, errno=error.errno, error=str(error))
            return None

    async def _let_go(self, victim: Victim, nursery: trio.Nursery, most: int | None) -> int | None:
        """Let an object go, or the whole session that it is of; return the blocks that this frees, None if it can't.

        `most`: nothing goes that holds more, for its namespace would have less than its guarantee.
        """
        session = self._catalog.sessions.of(victim.key)
        if session not in (victim.key, ROOT_INO):
            return await self._let_folder_go(session, nursery, most)
        if victim.key not in self._lives.sessions:
            if self._lives.finder is None:
                return None
            await self._lives.finder.find(victim.key)
        with self._lives.hold_free(victim.key) as live:
            if live is None or self._evictable.has_names_elsewhere(live.ino):
                return None
            blocks = self._catalog.placements.copy_blocks(live.ino)
            if most is not None and blocks > most:
                return None
            if not self._may_go(live) and not await self._may_go_from_ddr(live):
                return None
            await self._admission.evict(live)
        return blocks

    def _may_go(self, live: Live) -> bool:
        """Whether an object is cold, and nobody uses it."""
        used = live.opens or live.pinned or live.held or live.damaged or live.attached or live.streaming is not None
        return live.tier is Tier.NVME and live.sealed and not used and not self.is_held(live.ino)

    async def _may_go_from_ddr(self, live: Live) -> bool:
        """Whether an object is in DDR and on NVMe, and nobody uses it: then the data plane has given it back."""
        if not live.movable or not live.clean or self.is_held(live.ino):
            return False
        return await self._room.sharing.take_back(live, only_idle=True)

    async def _let_folder_go(self, folder: int, nursery: trio.Nursery, most: int | None) -> int | None:
        """Let a directory go with all that is in it, if nothing of it is in use."""
        found = self._evictable.folder(folder)
        if found is None or self.is_held(folder) or (most is not None and found.blocks > most):
            return None
        for ino in found.inos:
            live = self._lives.by_ino.get(ino)
            if self.is_held(ino) or (live is not None and (live.locked or not self._may_go(live))):
                return None
        # From here on to the end of the transaction nobody else has a turn.
        self._catalog.namespaces.retire(found.parent, found.name, folder, time.time_ns())
        self._admission.counts.evicted += len(found.inos)
        self._admission.counts.evicted_bytes += found.size_bytes
        for ino in found.inos:
            self._worth.forget(ino)
        self._reaper.wake()
        nursery.start_soon(self._forget_tree, found.parent, found.name)
        with trio.move_on_after(REAP_S):
            await self._reaper.idle()
        return found.blocks

    async def _forget_tree(self, parent: int, name: bytes) -> None:
        with trio.CancelScope(shield=True):
            await self._reaper.keeper.forget_tree(parent, name)
