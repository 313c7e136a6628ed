"""Room in DDR: reservations, and the demotions that make space for them."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING

import structlog
import trio

from kvd.policy.ageing import Below, Place
from kvd.policy.demotion import excess_blocks
from kvdriver import BLOCK_BYTES, Tier

if TYPE_CHECKING:
    from collections.abc import Collection

    from kvd.config import Config
    from kvd.policy.ageing import Victim
    from kvd.tier.admission import Admission
    from kvd.tier.books import Books
    from kvd.tier.live import Live
    from kvd.tier.lives import Lives
    from kvd.tier.nvme import NvmeStore
    from kvd.tier.quotas import Picking, Quotas
    from kvd.tier.sharing import Sharing
    from kvd.tier.worth import Worth

    _Choice = tuple[Live, bool]
    """An object that is to leave DDR, and whether it is worth no writing."""

log = structlog.get_logger(__name__)

DEMOTIONS_AT_ONCE = 8
"""Of 16 MiB each, half of them copy while the others are opened, described or recorded: enough to keep one drive busy."""
TICK_S_MAX = 1.0
TICK_S_MIN = 0.05
NVME_RESIZE_S = 5.0
RETRY_S = 0.1
PRESSED_S = 2.0
PRESS_S = 0.01
"""Between two rounds of demotions ahead of need."""
AHEAD_SHARE = 8
"""While writers want more room than there is, this part of the budget is made free before they ask for it."""
UNFIT_MAX = 4096
"""A choice that is not urgent ends when so many objects can't go."""
UNBOUNDED = 2**64 - 1
"""What is said of the room below: NVMe makes its own, by letting go of what is worth least there (`kvd.tier.evicting`)."""
COMPLAIN_S = 60.0
"""A tier that stays full is reported once in this time."""


class Room:
    """Keeps DDR within its budget.

    Parameters
    ----------
    lives
        The objects in memory; those that go to NVMe here leave it.
    worth
        Chooses who goes, and where.
    quotas
        Says of which namespaces.
    """

    def __init__(
        self,
        lives: Lives,
        books: Books,
        admission: Admission,
        nvme: NvmeStore,
        sharing: Sharing,
        worth: Worth,
        quotas: Quotas,
        config: Config,
    ) -> None:
        self._lives = lives
        self._books = books
        self._admission = admission
        self._nvme = nvme
        self.sharing = sharing
        self.worth = worth
        self.quotas = quotas
        self._below = Below(room_units=UNBOUNDED, reuse_min=config.ageing.reuse_min)
        self._ddr_config = config.ddr
        self._nvme_config = config.nvme
        self._budget_blocks = config.ddr.budget_bytes // BLOCK_BYTES
        self._slots = trio.CapacityLimiter(DEMOTIONS_AT_ONCE)
        self._moving = 0
        self._leaving = quotas.leaving  # what was chosen to go
        self._needs: dict[int, int] = {}  # what those lack who wait for room, by inode number, in blocks
        self._changed = trio.Event()
        self.freed = 0
        self._pressed = trio.Event()
        self._pressed_s = -PRESSED_S
        self._complained_s = -COMPLAIN_S
        self._draining = False
        self._nvme_changed = False

    def __repr__(self) -> str:
        return f"<Room moving={self._moving} {self._lives!r}>"

    def changed(self) -> None:
        """Wake those who wait for room: something was demoted, released, settled or removed."""
        self._changed.set()
        self._changed = trio.Event()

    def gave_back(self) -> None:
        """Take note that DDR has room which it had not: whoever waits for room may go on hoping."""
        self.freed += 1
        self.changed()

    async def wait_changed(self, wait_s: float) -> None:
        """Wait until something changed, at most so long."""
        changed = self._changed
        self.sharing.watch()
        with trio.move_on_after(wait_s):
            await changed.wait()

    @property
    def pressed(self) -> bool:
        """Whether room was short a moment ago."""
        return trio.current_time() - self._pressed_s < PRESSED_S

    def press(self) -> None:
        """Say that room is short: some is made ahead of need from now on, for a while."""
        self._pressed_s = trio.current_time()
        self._pressed.set()

    def nvme_changed(self) -> None:
        """Take note that a directory went offline or came back: what NVMe can hold is another amount now."""
        self._nvme_changed = True
        self.changed()

    async def reserve(self, live: Live, blocks: int, *, wait_s: float) -> bool:
        """Set an object's reservation, demoting idle objects to make room for it.

        Waits up to `wait_s` for room while demotions run or other objects are in use whose release would allow
        demotions; then gives up and returns False. What can never be met, or not now with `wait_s` 0, demotes nothing.
        """
        if blocks + live.mapped_blocks * (live.tier is Tier.DDR) > self._budget_blocks + live.reserved_blocks:
            return await self.grant(live, blocks)
        deadline = trio.current_time() + wait_s
        while True:
            if over := self.quotas.over_limit(live, blocks):
                if not await self._free_own(over, live, deadline):
                    return False
                continue
            if await self._books.reserve(live, blocks):
                return True
            self.press()
            info = await self._books.tier(Tier.DDR)
            more = blocks - live.reserved_blocks
            need = max(1, more - info.free_blocks)
            self._needs[live.ino] = need
            try:
                if not await self._free(need, live, deadline, more):
                    return False
            finally:
                del self._needs[live.ino]

    async def grant(self, live: Live, blocks: int) -> bool:
        """Set an object's reservation if there is room for it, and in its namespace's limit, without a demotion."""
        return not self.quotas.over_limit(live, blocks) and await self._books.reserve(live, blocks)

    async def _free_own(self, over_blocks: int, asker: Live, deadline: float) -> bool:
        """Have the asker's namespace give what it is over its limit, or wait for a change of its objects."""
        leaving = self.quotas.leaving_blocks().get(asker.top, 0)
        need = over_blocks - leaving
        chosen = self._choose(need, asker, picking=self.quotas.own(asker.top, need))
        if chosen and await self._demote_all(chosen):
            return True
        busy = any(live.top == asker.top and live is not asker for live in self._lives.census.attached.values())
        if not leaving and not (busy and self.quotas.has_room_on_nvme(asker)):
            return False
        with trio.move_on_at(deadline) as scope:
            await self.wait_changed(RETRY_S)
        return not scope.cancelled_caught and trio.current_time() < deadline

    async def _free(self, need_blocks: int, asker: Live, deadline: float, more_blocks: int) -> bool:
        """Demote, or wait for a change; whether trying again makes sense."""
        others = sum(self._needs.values()) - need_blocks
        leaving_blocks = max(0, sum(blocks for _, blocks in self._leaving.values()) - others)
        short = need_blocks - leaving_blocks
        chosen = self._choose(short, asker, picking=self.quotas.picking(short, asker, more_blocks))
        enough = sum(live.mapped_blocks for live, _ in chosen) + leaving_blocks >= need_blocks
        if chosen and (enough or trio.current_time() < deadline):
            if await self._demote_all(chosen):
                return True
            with trio.move_on_at(deadline) as scope:  # NVMe takes nothing now: until the deadline it may
                await trio.sleep(RETRY_S)
            return not scope.cancelled_caught
        self._stay(chosen)
        if not self._moving and not self._lives.is_busy(asker):
            return False
        changed = self._changed
        self.sharing.watch()
        picking = self.quotas.picking(short, asker, more_blocks)
        if not chosen and (found := self._choose(short, asker, picking=picking)):
            self._stay(found)
            return True  # released by the data plane's clients before it was asked to say so
        # What is leaving for the asker is waited for as what it has chosen itself: a move ends.
        with trio.move_on_at(math.inf if 0 < need_blocks <= leaving_blocks else deadline) as scope:
            await changed.wait()
        return not scope.cancelled_caught

    def _choose(
        self, need_blocks: int, asker: Live | None = None, idle_s_min: float = 0.0, *, picking: Picking | None
    ) -> list[_Choice]:
        """Choose who leaves DDR; those who are not demoted after all are to be told of (`_stay`).

        Parameters
        ----------
        picking
            Of which namespaces how much; None for whoever is worth least.
        """
        self.sharing.drain()
        if picking is None:
            return self._choose_of(need_blocks, asker, idle_s_min)
        chosen: list[_Choice] = []
        for space, blocks in picking.rounds():
            left = need_blocks - sum(live.mapped_blocks for live, _ in chosen)
            if left <= 0:
                break
            homes = self.quotas.homes(space, self.worth.homes)
            chosen += self._choose_of(min(left, blocks), asker, idle_s_min, only=homes, picking=picking)
        return chosen

    def _choose_of(
        self,
        need_blocks: int,
        asker: Live | None,
        idle_s_min: float,
        *,
        only: Collection[int] | None = None,
        picking: Picking | None = None,
    ) -> list[_Choice]:
        now_s = trio.current_time()
        chosen: list[_Choice] = []
        unfit: list[Victim] = []
        while need_blocks > 0 and not (idle_s_min and len(unfit) > UNFIT_MAX):
            some = self.worth.victims(Place.DDR, need_blocks, self._below, only)
            if not some:
                break
            for victim in some:
                live = self._lives.by_ino.get(victim.key)
                if live is None or not self._may_go(live, asker, picking) or now_s - live.last_use_s < idle_s_min:
                    unfit.append(victim)
                    continue
                if picking is not None:
                    picking.take(self.quotas.space(live.top), live.mapped_blocks)
                chosen.append((live, victim.to != Place.NVME))
                need_blocks -= live.mapped_blocks
        for victim in unfit:
            live = self._lives.by_ino.get(victim.key)
            if live is not None and live.tier is Tier.DDR:
                self.worth.stays(victim.key, Place.DDR, victim.units)
            elif live is None and victim.key not in self._lives.sessions:
                self.worth.forget(victim.key)
        return chosen

    def _may_go(self, live: Live, asker: Live | None, picking: Picking | None) -> bool:
        """Whether an object can leave DDR; the data plane is asked only of those that are wanted."""
        if live is asker or not live.mapped_blocks or live.locked or live.ino in self._leaving:
            return False
        if picking is not None and not picking.wants(self.quotas.space(live.top), live.mapped_blocks):
            return False
        if not (live.clean or self.quotas.has_room_on_nvme(live) or self._admission.refuses(live)):
            return False
        return live.movable and not self.sharing.is_leased(live)

    def _stay(self, chosen: list[_Choice]) -> None:
        """Take back a choice."""
        for live, _ in chosen:
            if live.tier is Tier.DDR:
                self.worth.stays(live.ino, Place.DDR, live.mapped_blocks)

    async def _demote_all(self, chosen: list[_Choice]) -> int:
        """Demote objects, some at once; return how many went."""
        gone = 0

        async def demote(live: Live, *, drop: bool) -> None:
            nonlocal gone
            try:
                async with self._slots:
                    went = await self._demote(live, drop=drop)
            finally:
                self._leaving.pop(live.ino, None)
                self._stay([(live, drop)])  # if it did not go
            if went:
                gone += 1
                self.gave_back()

        self._moving += 1
        self._leaving.update((live.ino, (live.top, live.mapped_blocks)) for live, _ in chosen)
        try:
            async with trio.open_nursery() as nursery:
                for live, drop in chosen:
                    nursery.start_soon(partial(demote, live, drop=drop))
        finally:
            self._moving -= 1
            self.changed()
        return gone

    async def _demote(self, live: Live, *, drop: bool) -> bool:
        """Let one object go, if it still may; whether it went."""
        if live.locked or not live.movable:
            return False
        async with live.lock:
            if not live.movable or not await self.sharing.take_back(live, only_idle=True):
                return False
            try:
                await self._admission.let_go(live, drop=drop)
            except OSError as error:
                self._complain("demotion failed", error, ino=live.ino)
                return False
            self._lives.let_go_if_cold(live)
        return True

    def _complain(self, what: str, error: OSError, **more: int) -> None:
        now_s = trio.current_time()
        if now_s - self._complained_s >= COMPLAIN_S:
            self._complained_s = now_s
            log.warning(what, errno=error.errno, error=str(error), **more)

    async def run(self) -> None:
        """Keep the watermarks and the capacities, for ever."""
        async with trio.open_nursery() as nursery:
            if self._books.spares is not None:
                nursery.start_soon(self._books.spares.run)
            await self._run(nursery)

    async def _run(self, nursery: trio.Nursery) -> None:
        tick_s = min(TICK_S_MAX, max(TICK_S_MIN, self._ddr_config.idle_s / 4))
        resized_s = -NVME_RESIZE_S
        while True:
            await self._keep_watermarks(nursery)
            if self._nvme_changed or trio.current_time() - resized_s >= NVME_RESIZE_S:
                self._nvme_changed = False
                resized_s = trio.current_time()
                await self.resize_nvme()
            if self.pressed:
                await trio.sleep(PRESS_S)
                continue
            self._pressed = trio.Event()
            with trio.move_on_after(tick_s):
                await self._pressed.wait()

    async def _keep_watermarks(self, nursery: trio.Nursery) -> None:
        """Begin the demotions that the watermarks ask for, or that are ahead of need; these are not waited for."""
        info = await self._books.keep_budget(self._budget_blocks)
        held = info.used_blocks + info.reserved_blocks
        need = excess_blocks(
            held=held,
            budget=self._budget_blocks,
            high=self._ddr_config.high_watermark,
            low=self._ddr_config.low_watermark,
            draining=self._draining,
        )
        self._draining = need > 0
        for top, over in self.quotas.over_limits():
            await self._demote_all(self._choose(over, picking=self.quotas.own(top, over)))
        if held > self._budget_blocks:  # the burst reserve is in use: idle or not, the oldest go
            await self._demote_all(self._choose_for_all(held - self._budget_blocks))
        elif self.pressed:
            leaving = sum(blocks for _, blocks in self._leaving.values())
            ahead = held - leaving - self._budget_blocks * (AHEAD_SHARE - 1) // AHEAD_SHARE
            if ahead > 0 and (chosen := self._choose_for_all(ahead)):
                nursery.start_soon(self._demote_all, chosen)
        elif need:
            await self._demote_all(self._choose_for_all(need, idle_s_min=self._ddr_config.idle_s))

    def _choose_for_all(self, need_blocks: int, idle_s_min: float = 0.0) -> list[_Choice]:
        """Choose what leaves DDR for nobody's need in particular."""
        return self._choose(need_blocks, None, idle_s_min, picking=self.quotas.picking(need_blocks, None, 0))

    async def resize_nvme(self) -> None:
        """Tell the engine what the NVMe directories can hold now."""
        used = (await self._books.tier(Tier.NVME)).used_blocks
        blocks = self._nvme.capacity_blocks(used, self._nvme_config.capacity_bytes)
        await self._books.resize(Tier.NVME, blocks)
