"""Room in DDR: reservations, and the demotions that make space for them."""

from __future__ import annotations

from contextlib import closing
from itertools import islice
from typing import TYPE_CHECKING

import structlog
import trio

from kvd.policy.demotion import Candidate, excess_blocks, victims
from kvdriver import BLOCK_BYTES, Tier

if TYPE_CHECKING:
    from kvd.config import DdrConfig, NvmeConfig
    from kvd.tier.admission import Admission
    from kvd.tier.books import Books
    from kvd.tier.live import Live
    from kvd.tier.lives import Lives
    from kvd.tier.nvme import NvmeStore
    from kvd.tier.quotas import Picking, Quotas
    from kvd.tier.sharing import Sharing

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
COMPLAIN_S = 60.0
"""A tier that stays full is reported once in this time."""
LOOKED_AT = 32768
"""Objects that are looked at to find some of certain namespaces: about a tenth of a second."""


class Room:
    """Keeps DDR within its budget.

    Parameters
    ----------
    lives
        The objects in memory; those that go to NVMe here leave it.
    """

    def __init__(
        self,
        lives: Lives,
        books: Books,
        admission: Admission,
        nvme: NvmeStore,
        sharing: Sharing,
        quotas: Quotas,
        *,
        ddr_config: DdrConfig,
        nvme_config: NvmeConfig,
    ) -> None:
        self._lives = lives
        self._books = books
        self._admission = admission
        self._nvme = nvme
        self.sharing = sharing
        self.quotas = quotas
        self._ddr_config = ddr_config
        self._nvme_config = nvme_config
        self._budget_blocks = ddr_config.budget_bytes // BLOCK_BYTES
        self._slots = trio.CapacityLimiter(DEMOTIONS_AT_ONCE)
        self._moving = 0
        self._leaving = quotas.leaving  # what was chosen to go
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
            if not await self._free(max(1, more - info.free_blocks), live, deadline, more):
                return False

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
        chosen = self._choose(need_blocks, asker, picking=self.quotas.picking(need_blocks, asker, more_blocks))
        enough = sum(live.mapped_blocks for live in chosen) >= need_blocks
        if chosen and (enough or trio.current_time() < deadline):
            if await self._demote_all(chosen):
                return True
            with trio.move_on_at(deadline) as scope:  # NVMe takes nothing now: until the deadline it may
                await trio.sleep(RETRY_S)
            return not scope.cancelled_caught
        if not self._moving and not self._lives.is_busy(asker):
            return False
        changed = self._changed
        self.sharing.watch()
        if not chosen and self._choose(
            need_blocks, asker, picking=self.quotas.picking(need_blocks, asker, more_blocks)
        ):
            return True  # released by the data plane's clients before it was asked to say so
        with trio.move_on_at(deadline) as scope:
            await changed.wait()
        return not scope.cancelled_caught

    def _choose(
        self, need_blocks: int, asker: Live | None = None, idle_s_min: float = 0.0, *, picking: Picking | None = None
    ) -> list[Live]:
        """Return objects to demote; with `picking` of whom, and how much at most."""
        self.sharing.drain()
        if picking is not None:
            return self._pick(need_blocks, asker, idle_s_min, picking)
        now_s = trio.current_time()
        candidates: list[Candidate] = []
        with closing(self._lives.census.oldest()) as oldest:
            for live in oldest:
                idle_s = now_s - live.last_use_s
                if need_blocks <= 0 or idle_s < idle_s_min:
                    break
                # The data plane is asked only of those that are wanted.
                if live is asker or not live.mapped_blocks or live.locked or live.ino in self._leaving:
                    continue
                if self.sharing.is_leased(live):
                    continue
                candidates.append(Candidate(ino=live.ino, idle_s=idle_s, blocks=live.mapped_blocks))
                need_blocks -= live.mapped_blocks
        wanted_blocks = sum(candidate.blocks for candidate in candidates)
        inos = victims(candidates, need_blocks=wanted_blocks, idle_s_min=idle_s_min)
        return [self._lives.by_ino[ino] for ino in inos]

    def _pick(self, need_blocks: int, asker: Live | None, idle_s_min: float, picking: Picking) -> list[Live]:
        """Choose from those who should give; if they have too little that can be moved, from all who may be made to."""
        later: list[Live] = []
        chosen: list[Live] = []

        def choose(live: Live) -> int:
            space = self.quotas.space(live.top)
            if not self._can_leave(live) or self.sharing.is_leased(live):
                return 0
            chosen.append(live)
            picking.take(space, live.mapped_blocks)
            return live.mapped_blocks

        with closing(self._lives.census.oldest()) as oldest:
            for live in islice(oldest, LOOKED_AT):
                if need_blocks <= 0 or trio.current_time() - live.last_use_s < idle_s_min:
                    break
                if live is asker or not live.mapped_blocks or live.locked or live.ino in self._leaving:
                    continue
                if picking.wants(self.quotas.space(live.top), live.mapped_blocks):
                    need_blocks -= choose(live)
                else:
                    later.append(live)
        picking.fill()
        for live in later:
            if need_blocks > 0 and picking.wants(self.quotas.space(live.top), live.mapped_blocks):
                need_blocks -= choose(live)
        return chosen

    def _can_leave(self, live: Live) -> bool:
        """Whether NVMe may take an object, by the limit of its namespace."""
        return live.clean or self.quotas.has_room_on_nvme(live) or self._admission.refuses(live)

    async def _demote_all(self, chosen: list[Live]) -> int:
        """Demote objects, some at once; return how many went."""
        gone = 0

        async def demote(live: Live) -> None:
            nonlocal gone
            try:
                async with self._slots:
                    went = await self._demote(live)
            finally:
                self._leaving.pop(live.ino, None)
            if went:
                gone += 1
                self.gave_back()

        self._moving += 1
        self._leaving.update((live.ino, (live.top, live.mapped_blocks)) for live in chosen)
        try:
            async with trio.open_nursery() as nursery:
                for live in chosen:
                    nursery.start_soon(demote, live)
        finally:
            self._moving -= 1
            self.changed()
        return gone

    async def _demote(self, live: Live) -> bool:
        """Let one object go, if it still may; whether it went."""
        if live.locked or not live.movable:
            return False
        async with live.lock:
            if not live.movable or not await self.sharing.take_back(live, only_idle=True):
                return False
            try:
                await self._admission.let_go(live)
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

    def _choose_for_all(self, need_blocks: int, idle_s_min: float = 0.0) -> list[Live]:
        """Choose what leaves DDR for nobody's need in particular."""
        return self._choose(need_blocks, None, idle_s_min, picking=self.quotas.picking(need_blocks, None, 0))

    async def resize_nvme(self) -> None:
        """Tell the engine what the NVMe directories can hold now."""
        used = (await self._books.tier(Tier.NVME)).used_blocks
        blocks = self._nvme.capacity_blocks(used, self._nvme_config.capacity_bytes)
        await self._books.resize(Tier.NVME, blocks)
