"""Writing: who is passed through, what each writer may hold, and what happens when room is short.

Once an open is passed through, the kernel writes into the DDR file without asking how much. It does ask one thing before
each write(2), though, and the split holds that answer back while the object has outgrown its reservation (the *gate*,
`kvd_storage_gate`). So a wrong guess costs at most one write(2), or what is stored through mappings until the next look,
and the burst reserve takes that: as many guesses are trusted at once as it can absorb. Others write through the split.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import structlog
import trio

from kvd.policy.reservation import UsualSize
from kvd.tier.extents import data_extents, ddr_charges, held_blocks
from kvd.tier.plane import Mode
from kvd.tier.turns import Turns
from kvdriver import BLOCK_BYTES, Tier

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from kvd.config import Config
    from kvd.tier.books import Books
    from kvd.tier.ddr import DdrStore
    from kvd.tier.live import Live
    from kvd.tier.lives import Lives
    from kvd.tier.plane import DataPlane
    from kvd.tier.room import Room

log = structlog.get_logger(__name__)

FIRST_GUESS_BYTES_MAX = 64 << 20
FIRST_GUESS_SHARE = 16
"""A kind of object not seen yet is guessed to need at most this part of the budget."""
GUESS_SHARE = 4
"""For a guess, at most this part of the budget is taken from other objects."""
SMALL_BYTES = 1 << 20
"""Smaller objects are not passed through: the kernel's question before a write(2) costs as much as a WRITE does."""
SHARE_BYTES_MAX = 16 << 20
"""A guess is taken to be wrong by as much as it says; at most so much of the burst reserve is kept for that."""
GROW_BYTES = 16 << 20
"""What a writer that asks is given at once, where there is room."""
GROW_SHARE = 16
"""At most this part of the budget."""
FLOOR_SHARE = 2
"""With less than this part of the burst reserve left, nothing is passed through that could make a file grow."""
SAMPLE_S = 0.1
TIGHT_S = 0.01
"""Between two looks at the writers in passthrough while one of them is near its reservation."""
TURN_S = 0.25
"""Between two looks whether it is an object's turn: nothing tells that the one before it went quiet."""
LOOK_S = 0.02
"""Between two looks at what the tmpfs has left, while somebody waits for that."""
WAITS_MAX = 30
"""A writer waits `[fuse] write_wait` from the last time that room was made, and this many times that in all."""


def no_space(what: str) -> OSError:
    """Return ENOSPC."""
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), what)


async def _no_window(_live: Live) -> int:
    return 0


class Writing:
    """Reservations of objects that are being written."""

    def __init__(self, config: Config, lives: Lives, books: Books, ddr: DdrStore, room: Room, plane: DataPlane) -> None:
        self._lives = lives
        self._books = books
        self._ddr = ddr
        self._room = room
        self._plane = plane
        self.wait_s = config.fuse.write_wait_s
        self._budget_blocks = config.ddr.budget_bytes // BLOCK_BYTES
        self._burst_blocks = config.ddr.burst_bytes // BLOCK_BYTES
        self.floor_bytes = config.ddr.burst_bytes // FLOOR_SHARE
        first_blocks = min(FIRST_GUESS_BYTES_MAX // BLOCK_BYTES, self._budget_blocks // FIRST_GUESS_SHARE)
        self._first_blocks = first_blocks
        self._usual = UsualSize(first_blocks=first_blocks)
        self._small_blocks = min(SMALL_BYTES // BLOCK_BYTES, first_blocks)
        self._guess_blocks_max = self._budget_blocks // GUESS_SHARE
        self._plenty_blocks = min(GROW_BYTES // BLOCK_BYTES, self._budget_blocks // GROW_SHARE)
        self.turns = Turns(budget_blocks=self._budget_blocks)
        self._shares: dict[int, int] = {}
        self.slide: Callable[[Live], Awaitable[int]] = _no_window
        """Gives back what the window of an object's session has left behind, under the object's lock; returns the blocks."""

    def __repr__(self) -> str:
        return f"<Writing through={len(self._shares)} {self.turns!r}>"

    # -- passthrough ---------------------------------------------------------------------------------------------

    async def admit(self, live: Live) -> bool:
        """Reserve what an object will likely need; whether its writer may be passed through.

        What that is: the length that it was given before it was written (ftruncate, fallocate), or what objects of its kind
        usually come to need.
        """
        sure = not live.usual_key or self._usual.sure(live.usual_key)
        guess = self._usual.guess(live.usual_key) if live.usual_key else live.mapped_blocks
        declared = -(-os.fstat(live.ddr_fd).st_size // BLOCK_BYTES)
        doubtful = self._usual.doubtful(live.usual_key)
        if guess <= declared <= self._guess_blocks_max:  # what it has or is to have: nothing is guessed
            guess, sure, doubtful = declared, True, False
        share = min(guess, SHARE_BYTES_MAX // BLOCK_BYTES) if sure else self._first_blocks
        others = sum(blocks for ino, blocks in self._shares.items() if ino != live.ino)
        through = not others or others + share <= self._burst_blocks
        if guess < self._small_blocks:
            await self._room.grant(live, max(live.reserved_blocks, guess - live.mapped_blocks))
            return False
        if self._room.quotas.is_tight(live, guess):  # the split can refuse a write, the kernel by itself would not
            return False
        if doubtful or not through or self._free_bytes() < self.floor_bytes:
            return False
        wanted = max(live.reserved_blocks, guess - live.mapped_blocks)
        if wanted > self._guess_blocks_max:  # only a guess: not worth throwing others out
            granted = await self._room.grant(live, wanted)
        elif sure:
            granted = await self._room.reserve(live, wanted, wait_s=0)
        else:
            granted = await self._reserve(live, wanted, wait_s=0) is True
        if granted:
            self._shares[live.ino] = share
            self.turns.join(live)
            if sure and self._ddr.spares.blocks and not held_blocks(live.ddr_fd):
                laid_bytes = await self._ddr.spares.lay(live.ddr_fd, [(0, wanted * BLOCK_BYTES)])
                live.laid_blocks = laid_bytes // BLOCK_BYTES
        return granted

    def learn(self, live: Live) -> None:
        """Take note of the size of an object that was sealed."""
        if live.usual_key:
            self._usual.learn(live.usual_key, live.mapped_blocks)

    def ended(self, live: Live) -> None:
        """Take note that an object has no writer any more."""
        live.laid_blocks = 0
        self._shares.pop(live.ino, None)
        self.turns.leave(live.ino)

    def unsealed_blocks(self) -> int:
        """Return what objects hold that are being written, beyond what the engine has mapped."""
        writers = (live for live in self.turns.growing if live.ddr_fd >= 0)
        return sum(max(0, live.written_blocks - live.mapped_blocks) for live in writers)

    async def space(self) -> tuple[int, int]:
        """Return the blocks that both tiers can hold, and those that objects use: of each what its present bytes need.

        The burst reserve is not counted; neither is an object's copy beside it, which makes room in DDR for nothing, nor a
        reservation, which is only a guess.
        """
        ddr, nvme = [await self._books.tier(tier) for tier in (Tier.DDR, Tier.NVME)]
        used = ddr.used_blocks + self.unsealed_blocks() + nvme.used_blocks - self._books.beside.blocks
        return self._budget_blocks + nvme.capacity_blocks, used

    # -- growing -------------------------------------------------------------------------------------------------

    async def grow(self, ino: int, need_bytes: int, *, gate: bool = False) -> None:
        """Let an object hold `need_bytes` of storage, waiting for room; ENOSPC past the deadline.

        Parameters
        ----------
        gate
            Its writer is in passthrough: a refusal lets the kernel go on, and it finds out what the tmpfs has left.
        """
        need = -(-need_bytes // BLOCK_BYTES)
        async with self._lives.hold(ino) as live:
            extra = need - live.mapped_blocks
            if extra > live.reserved_blocks:
                need -= await self.slide(live)
                extra = need - live.mapped_blocks
            if extra > live.reserved_blocks:
                if gate and live.usual_key:
                    self._usual.wrong(live.usual_key, need)
                await self._grant(live, extra)
            held = held_blocks(live.ddr_fd) if live.ddr_fd >= 0 else 0
            await self._await_storage(self.floor_bytes if gate else max(0, need - held) * BLOCK_BYTES)
            self._limit(live)

    def _limit(self, live: Live) -> None:
        self._plane.object_limit(live.ino, (live.mapped_blocks + live.reserved_blocks) * BLOCK_BYTES)

    async def _grant(self, live: Live, extra: int) -> None:
        """Reserve `extra` blocks, or more, when it is this object's turn and there is room."""
        if live.mapped_blocks + extra > self._budget_blocks:  # whatever is demoted
            if not await self._room.grant(live, extra):
                raise no_space("larger than the DDR budget")
            return
        self.turns.ask(live)
        try:
            await self._wait_for_room(live, extra)
        finally:
            self.turns.served(live)

    async def _wait_for_room(self, live: Live, extra: int) -> None:
        now_s = trio.current_time()
        give_up_s, until_s, freed = now_s + WAITS_MAX * self.wait_s, now_s + self.wait_s, self._room.freed
        while not await self._try(live, extra):
            left_s = max(0.0, until_s - trio.current_time())
            turn = await self._reserve(live, extra, wait_s=left_s)
            if turn is True:
                return
            if turn is None:
                await self._room.wait_changed(min(left_s, TURN_S))
            now_s = trio.current_time()
            if self._room.freed != freed:  # it goes on, if slowly
                freed, until_s = self._room.freed, min(give_up_s, now_s + self.wait_s)
            elif turn is False or now_s >= until_s:
                log.info("writer gets no room", ino=live.ino, need=extra, turns=self.turns.describe())
                raise no_space("no room in DDR")

    async def _try(self, live: Live, extra: int) -> bool:
        """Reserve more than `extra` without a wait for others, so that not each write has to ask."""
        if live.usual_key and self._usual.sure(live.usual_key):
            guess = self._usual.guess(live.usual_key) - live.mapped_blocks
            if extra <= guess <= self._guess_blocks_max and await self._reserve(live, guess, wait_s=0):
                return True
        plenty = extra + self._plenty_blocks
        return plenty <= await self._free_blocks(live) and await self._reserve(live, plenty, wait_s=0) is True

    async def _free_blocks(self, live: Live) -> int:
        """Return what an object's reservation can be without a demotion."""
        return (await self._books.tier(Tier.DDR)).free_blocks + live.reserved_blocks

    async def _reserve(self, live: Live, blocks: int, *, wait_s: float) -> bool | None:
        """Reserve if there is room; None: it is others' turn."""
        if not self.turns.claim(live, blocks):
            return None
        try:
            return await self._room.reserve(live, blocks, wait_s=wait_s)
        finally:
            self.turns.unclaim(live)

    def _free_bytes(self) -> int:
        return self._ddr.free_bytes() + self._ddr.spares.blocks * BLOCK_BYTES

    async def _await_storage(self, free_bytes: int) -> None:
        """Wait until the tmpfs has what the books say: others may have outgrown theirs, and hold the burst reserve."""
        deadline_s = trio.current_time() + self.wait_s
        while (short_bytes := free_bytes - self._ddr.free_bytes()) > 0:
            if await self._ddr.spares.give_back(-(-short_bytes // BLOCK_BYTES)):
                continue
            if trio.current_time() >= deadline_s:
                raise no_space("no room in the tmpfs")
            self._room.press()
            await self._room.wait_changed(LOOK_S)

    # -- what the kernel does by itself --------------------------------------------------------------------------

    async def look(self) -> float:
        """Top up reservations of what is in passthrough; return the seconds until the next look.

        Writers get more before they need it; readers a reservation for the holes that they mapped and touched.
        """
        tight = False
        for live in list(self._lives.census.sampled.values()):
            tight |= await self.sample(live)
        return TIGHT_S if tight else SAMPLE_S

    async def sample(self, live: Live) -> bool:
        """Look at one object; whether it has to be looked at again soon."""
        if live.locked:
            return False
        async with live.lock:
            if not live.attached or live.ddr_fd < 0:
                return False
            extra = live.written_blocks - live.mapped_blocks
            if extra <= live.reserved_blocks * 3 // 4 or (extra == live.reserved_blocks and not live.writers):
                return False
            slack = max(self._plenty_blocks, extra // 2)
            if not (live.writers and await self._reserve(live, extra + slack, wait_s=0)):
                held = max(extra, live.reserved_blocks)
                if not await self._room.reserve(live, held, wait_s=0):
                    await self._books.reserve(live, held)  # it is there, whatever its namespace may have
            if extra > live.reserved_blocks:
                self._room.press()
            self._limit(live)
            return live.writers > 0

    async def resized(self, live: Live, size: int, *, shorter: bool) -> None:
        """Follow a change of an object's length while others have it open for writing.

        A longer one declares what may come; a hole needs no room, so it is no error if there is none. What a shorter one
        gives back is there at once.
        """
        async with live.lock:
            if live.ddr_fd < 0 or live.sealed:
                return
            if shorter:
                await self._charge(live, size)
            elif live.mode is Mode.PASSTHROUGH:
                wanted = -(-size // BLOCK_BYTES) - live.mapped_blocks
                if live.reserved_blocks < wanted <= self._guess_blocks_max:
                    await self._room.grant(live, wanted)
            self._limit(live)
        if shorter:
            self._room.gave_back()

    async def _charge(self, live: Live, size: int, *, spare_blocks: int = 0) -> None:
        """Charge what a file holds that holds less than before, and reserve what it may grow by, as far as there is room."""
        await self._books.settle(live, ddr_charges(data_extents(live.ddr_fd, size), self._books.page_bytes))
        beside = max(0, held_blocks(live.ddr_fd) - live.mapped_blocks)
        if not spare_blocks or not await self._books.reserve(live, beside + spare_blocks):
            await self._books.reserve(live, beside)

    async def punched(self, live: Live, spare_blocks: int) -> None:
        """Charge a writer's object what it holds now that pages of it were given back; it may grow by as much as before.

        The caller holds its lock.

        Parameters
        ----------
        spare_blocks
            What it might still grow by then.
        """
        await self._charge(live, os.fstat(live.ddr_fd).st_size, spare_blocks=spare_blocks)
        self._limit(live)
