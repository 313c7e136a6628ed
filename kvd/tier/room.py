"""Room in DDR: reservations, and the demotions that make space for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog
import trio

from kvd.policy.demotion import Candidate, excess_blocks, victims
from kvdriver import BLOCK_BYTES, Tier

if TYPE_CHECKING:
    from kvd.config import DdrConfig, NvmeConfig
    from kvd.tier.books import Books
    from kvd.tier.live import Live
    from kvd.tier.lives import Lives
    from kvd.tier.moves import Moves
    from kvd.tier.nvme import NvmeStore

log = structlog.get_logger(__name__)

DEMOTIONS_AT_ONCE = 4
TICK_S_MAX = 1.0
TICK_S_MIN = 0.05
NVME_RESIZE_S = 5.0
RETRY_S = 0.1
COMPLAIN_S = 60.0
"""A tier that stays full is reported once in this time."""


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
        moves: Moves,
        nvme: NvmeStore,
        *,
        ddr_config: DdrConfig,
        nvme_config: NvmeConfig,
    ) -> None:
        self._lives = lives
        self._books = books
        self._moves = moves
        self._nvme = nvme
        self._ddr_config = ddr_config
        self._nvme_config = nvme_config
        self._budget_blocks = ddr_config.budget_bytes // BLOCK_BYTES
        self._slots = trio.CapacityLimiter(DEMOTIONS_AT_ONCE)
        self._moving = 0
        self._changed = trio.Event()
        self._complained_s = -COMPLAIN_S
        self._draining = False

    def __repr__(self) -> str:
        return f"<Room moving={self._moving} {self._lives!r}>"

    def changed(self) -> None:
        """Wake those who wait for room: something was demoted, released, settled or removed."""
        self._changed.set()
        self._changed = trio.Event()

    async def reserve(self, live: Live, blocks: int, *, wait_s: float) -> bool:
        """Set an object's reservation, demoting idle objects to make room for it.

        Waits up to `wait_s` for room while demotions run or other objects are in use whose release would allow
        demotions; then gives up and returns False. What can never be met, or not now with `wait_s` 0, demotes nothing.
        """
        if blocks + live.mapped_blocks * (live.tier is Tier.DDR) > self._budget_blocks + live.reserved_blocks:
            return await self._books.reserve(live, blocks)
        deadline = trio.current_time() + wait_s
        while not await self._books.reserve(live, blocks):
            info = await self._books.tier(Tier.DDR)
            need = blocks - live.reserved_blocks - info.free_blocks
            if not await self._free(max(1, need), live, deadline):
                return False
        return True

    async def _free(self, need_blocks: int, asker: Live, deadline: float) -> bool:
        """Demote, or wait for a change; whether trying again makes sense."""
        chosen = self._choose(need_blocks, asker)
        enough = sum(live.mapped_blocks for live in chosen) >= need_blocks
        if chosen and (enough or trio.current_time() < deadline):
            if await self._demote_all(chosen):
                return True
            with trio.move_on_at(deadline) as scope:  # NVMe takes nothing now: until the deadline it may
                await trio.sleep(RETRY_S)
            return not scope.cancelled_caught
        busy = self._moving or any(
            live is not asker and live.tier is Tier.DDR and (live.opens or live.lock.locked())
            for live in self._lives.by_ino.values()
        )
        if not busy:
            return False
        changed = self._changed
        with trio.move_on_at(deadline) as scope:
            await changed.wait()
        return not scope.cancelled_caught

    def _choose(self, need_blocks: int, asker: Live | None = None, idle_s_min: float = 0.0) -> list[Live]:
        now_s = trio.current_time()
        candidates = (
            Candidate(ino=live.ino, idle_s=now_s - live.last_use_s, blocks=live.mapped_blocks)
            for live in self._lives.by_ino.values()
            if live is not asker and live.movable and live.mapped_blocks and not live.lock.locked()
        )
        return [self._lives.by_ino[ino] for ino in victims(candidates, need_blocks=need_blocks, idle_s_min=idle_s_min)]

    async def _demote_all(self, chosen: list[Live]) -> int:
        """Demote objects, some at once; return how many went."""
        gone = 0

        async def demote(live: Live) -> None:
            nonlocal gone
            async with self._slots:
                if live.lock.locked() or not live.movable:
                    return
                async with live.lock:
                    if not live.movable:
                        return
                    try:
                        await self._moves.demote(live)
                    except OSError as error:
                        self._complain("demotion failed", error, ino=live.ino)
                        return
                    self._lives.let_go_if_cold(live)
            gone += 1
            self.changed()

        self._moving += 1
        try:
            async with trio.open_nursery() as nursery:
                for live in chosen:
                    nursery.start_soon(demote, live)
        finally:
            self._moving -= 1
            self.changed()
        return gone

    def _complain(self, what: str, error: OSError, **more: int) -> None:
        now_s = trio.current_time()
        if now_s - self._complained_s >= COMPLAIN_S:
            self._complained_s = now_s
            log.warning(what, errno=error.errno, error=str(error), **more)

    async def run(self) -> None:
        """Keep the watermarks and the capacities, for ever."""
        tick_s = min(TICK_S_MAX, max(TICK_S_MIN, self._ddr_config.idle_s / 4))
        resized_s = -NVME_RESIZE_S
        while True:
            await self._keep_watermarks()
            if trio.current_time() - resized_s >= NVME_RESIZE_S:
                resized_s = trio.current_time()
                try:
                    await self.resize_nvme()
                except OSError as error:  # a drive that does not answer; what is known of it stays
                    self._complain("nvme capacity can't be read", error)
            await trio.sleep(tick_s)

    async def _keep_watermarks(self) -> None:
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
        if held > self._budget_blocks:  # the burst reserve is in use: idle or not, the oldest go
            await self._demote_all(self._choose(held - self._budget_blocks))
        elif need:
            await self._demote_all(self._choose(need, idle_s_min=self._ddr_config.idle_s))

    async def resize_nvme(self) -> None:
        """Tell the engine what the NVMe directories can hold now."""
        used = (await self._books.tier(Tier.NVME)).used_blocks
        blocks = await trio.to_thread.run_sync(self._nvme.capacity_blocks, used, self._nvme_config.capacity_bytes)
        await self._books.resize(Tier.NVME, blocks)
