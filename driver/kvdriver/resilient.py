"""A card while it is well, the engine of this process on the same tables while it is not."""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final, Self

import trio

from kvdriver.address import IN_PROCESS
from kvdriver.carddevice import CardDevice
from kvdriver.device import Device
from kvdriver.enginestate import EngineState
from kvdriver.faults import DeviceFault, FaultKind
from kvdriver.losses import LostSessions
from kvdriver.preparing import PREPARE_S_MAX, Preparer, close
from kvdriver.recall import recall

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvdriver.abi import Tier
    from kvdriver.card import Card
    from kvdriver.commands import Command
    from kvdriver.device import Capabilities, Completion, DeviceStatistics, Mappable
    from kvdriver.losses import Lost, Repair
    from kvdriver.tables import Tables

logger = logging.getLogger(__name__)

BACK_OFF_S_MIN: Final = 1.0
BACK_OFF_S_MAX: Final = 60.0
GIVE_S_MAX: Final = 1.0
LOSSES_MAX: Final = 100
"""Losses that are kept as sentences, the last ones."""


class ResilientDevice(Device):
    """A card that may fail. Make one with `open`, and let `tend` look after it.

    Every submit is executed once, wherever that is: what a failed card had executed is known from the journal of the
    tables, the rest is executed in process. While the card is away it is tried again, ever more rarely.
    """

    def __init__(self, tables: Tables, preparer: Preparer, *, wanted: str, deadline_s: float, give_s: float) -> None:
        self._tables: Tables | None = tables
        self._preparer = preparer
        self._deadline_s = deadline_s
        self._give_s = give_s
        self._card: CardDevice | None = None
        self._attempts = trio.Lock()
        self._lock = trio.Lock()
        self._tried = trio.Event()
        self._lost = LostSessions()
        self._memories: list[Mappable] = []
        self._tiers: dict[Tier, Mappable] = {}
        self._state = EngineState(
            wanted=wanted,
            transport=IN_PROCESS,
            degraded=True,
            reason="not opened yet",
            since_s=time.time(),
        )

    @classmethod
    async def open(
        cls,
        tables: Tables,
        prepare: Callable[[], Card],
        *,
        wanted: str,
        deadline_s: float = 5.0,
        prepare_s: float = PREPARE_S_MAX,
        give_s: float = GIVE_S_MAX,
    ) -> Self:
        """Hand the tables to the card; if it can't be opened, begin without it.

        Parameters
        ----------
        tables
            Owned by the device from now on.
        prepare
            Opens the card as far as that goes without tables; may wait, raises `DeviceFault`.
        wanted
            The card's name.
        deadline_s
            What a command may take.
        prepare_s
            How long an opening is waited for.
        give_s
            What a card may take to begin on the tables; submissions wait meanwhile.
        """
        preparer = Preparer(prepare, within_s=prepare_s)
        device = cls(tables, preparer, wanted=wanted, deadline_s=deadline_s, give_s=give_s)
        try:
            await device._begin()
        except DeviceFault as fault:
            device._degrade(fault)
        return device

    def __repr__(self) -> str:
        if self._tables is None:
            return "<ResilientDevice closed>"
        return f"<ResilientDevice {self._state.transport}, wanted {self._state.wanted}, {self._tables.local!r}>"

    def _opened(self) -> Tables:
        if self._tables is None:
            raise ValueError("the device is closed")
        return self._tables

    @property
    def state(self) -> EngineState:
        """Where commands are executed, and why there."""
        return self._state

    @property
    def capabilities(self) -> Capabilities:
        """What the device can do."""
        return replace(self._opened().local.capabilities, transport=self._state.transport)

    # -- submitting ----------------------------------------------------------------------------------------------

    async def submit(self, commands: Sequence[Command]) -> list[Completion]:
        """Execute a batch in order; a refused command does not stop those after it.

        Raises
        ------
        ValueError
            If the device is closed, or a number does not fit its field; then no command was executed.
        """
        self._opened()
        async with self._lock:
            tables = self._opened()
            if self._card is None:
                return await tables.local.submit(commands)
            try:
                return await self._card.submit(commands)
            except DeviceFault as fault:
                met = fault
            except OSError as error:  # nothing is executed: the card can't have the memory of this batch
                met = DeviceFault(FaultKind.UNUSABLE, f"no memory for a batch: {error.strerror}")
            with trio.CancelScope(shield=True):
                done = await self._finish(met, commands)
        return done

    async def _finish(self, fault: DeviceFault, commands: Sequence[Command]) -> list[Completion]:
        """End a submission that met a fault: take what was executed from the journal, execute the rest."""
        await self._fail(fault)
        local = self._opened().local
        done, rest = recall(local, fault.interrupted, commands)
        if fault.interrupted is not None and fault.interrupted.batch is not None:
            given = len(fault.interrupted.completions) + len(fault.interrupted.batch.commands) - len(done)
            self._state = replace(self._state, replayed=self._state.replayed + given)
        if self._card is not None:
            try:
                return done + await self._card.submit(rest)
            except (DeviceFault, OSError) as error:
                again = error if isinstance(error, DeviceFault) else DeviceFault(FaultKind.UNUSABLE, str(error))
                await self._fail(again, restart=False)
                local = self._opened().local
                more, rest = recall(local, again.interrupted, rest)
                done += more
        return done + await local.submit(rest)

    # -- the card's coming and going -----------------------------------------------------------------------------

    async def _begin(self) -> None:
        """Open the card and give it the tables. Submissions wait for the second alone, and that not for long."""
        card = await self._preparer.card()
        with trio.CancelScope(shield=True):
            try:
                async with self._lock:
                    await self._give(card)
            except BaseException:
                await close(card)
                raise

    async def _give(self, card: Card) -> None:
        """Give a prepared card the tables; if it fails they are here again. Whoever calls has the lock."""
        tables = self._opened()
        give = partial(
            card.give, tables.memory, memories=list(self._memories), tiers=dict(self._tiers), within_s=self._give_s
        )
        tables.local.leave()
        try:
            await trio.to_thread.run_sync(give)
        except BaseException as error:
            card.silent = isinstance(error, DeviceFault) and error.kind is FaultKind.TIMEOUT
            await self._return(await trio.to_thread.run_sync(card.withdraw))
            raise
        self._card = CardDevice(card, tables.local, deadline_s=self._deadline_s)
        self._state = replace(
            self._state,
            transport=card.transport.info.name,
            degraded=False,
            reason="",
            since_s=time.time(),
        )

    async def _return(self, cut_off: bool) -> None:
        """Take the tables from a card that failed and repair them."""
        tables = self._opened()
        if not cut_off:
            logger.warning("the card may yet write to the engine's tables: going on in a copy of them")
            await trio.to_thread.run_sync(tables.move)
            for tier, memory in self._tiers.items():
                tables.local.give_memory(tier, address=memory.address, size_bytes=memory.bytes)
        self._lose(tables.local.take())

    def _degrade(self, fault: DeviceFault) -> None:
        faults = self._state.faults | {fault.kind.value: self._state.faults.get(fault.kind.value, 0) + 1}
        first = not self._state.degraded or self._state.reason != str(fault)
        self._state = replace(
            self._state,
            transport=IN_PROCESS,
            degraded=True,
            reason=str(fault),
            since_s=time.time() if first else self._state.since_s,
            faults=faults,
        )
        if first:
            logger.warning("the engine goes on in process: %s (%s)", fault, fault.kind.value)

    async def _fail(self, fault: DeviceFault, *, restart: bool = True) -> None:
        """Take the tables from a card that failed and repair them. One that was only reset begins anew."""
        card = self._card
        assert card is not None
        if restart and fault.kind is FaultKind.RESET:
            try:
                self._lose(await card.restart())
            except DeviceFault as again:
                fault = again
            else:
                kind = fault.kind.value
                faults = self._state.faults | {kind: self._state.faults.get(kind, 0) + 1}
                self._state = replace(self._state, faults=faults)
                logger.warning("the card begins anew: %s", fault)
                return
        self._card = None
        cut_off = await card.leave()
        self._degrade(fault)
        await self._return(cut_off)

    def _lose(self, repair: Repair) -> None:
        """Keep and tell what the repair of the tables had to give up."""
        told = repair.told[-LOSSES_MAX:]
        for loss in told:
            logger.error("lost when the tables were repaired: %s", loss)
        losses = (*self._state.losses, *told)[-LOSSES_MAX:]
        self._state = replace(self._state, losses=losses, losses_count=self._state.losses_count + repair.count)
        self._lost.add(repair)

    async def lost(self) -> Lost:
        """Wait until a repair had to give something up; return whose it was, each time once, to one who mends it."""
        return await self._lost.take()

    async def take_back(self) -> EngineState:
        """Hand the tables to the card again, if it is there; a card that is in use is reset and begins anew."""
        self._opened()
        async with self._attempts:
            if self._card is None or not await self._restart():
                try:
                    await self._begin()
                except DeviceFault as fault:
                    self._degrade(fault)
                else:
                    self._state = replace(self._state, taken_back=self._state.taken_back + 1)
                    logger.info("the card has the engine's tables again")
            self._tried.set()
            self._tried = trio.Event()
        return self._state

    async def _restart(self) -> bool:
        """Reset the card that is in use; False: there is none any more."""
        async with self._lock:
            self._opened()
            if self._card is None:
                return False
            with trio.CancelScope(shield=True):
                try:
                    self._lose(await self._card.restart())
                except DeviceFault as fault:
                    await self._fail(fault, restart=False)
        return True

    async def tend(self) -> None:
        """Look after the card, for ever: notice when it goes, try to take it back."""
        back_off_s = BACK_OFF_S_MIN
        while True:
            if self._card is not None:
                back_off_s = BACK_OFF_S_MIN
                await self._watch(self._card)
                continue
            tried = self._tried
            with trio.move_on_after(back_off_s) as scope:
                await tried.wait()
            if scope.cancelled_caught:
                back_off_s = min(back_off_s * 2, BACK_OFF_S_MAX)
                await self.take_back()

    async def _watch(self, card: CardDevice) -> None:
        """Wait until a card fails that nobody is asking anything."""
        fault = await card.watch()
        async with self._lock:
            if self._card is card and card.failed:  # and no submission met the fault first, and the card began anew
                with trio.CancelScope(shield=True):
                    await self._fail(fault)

    # -- memory that is not the tables' --------------------------------------------------------------------------

    async def map_memory(self, memory: Mappable) -> None:
        """Let the device reach a memory, whichever it is now and later; see `Device`."""
        async with self._lock:
            self._opened()
            if self._card is not None:
                try:
                    await self._card.map_memory(memory)
                except DeviceFault as fault:
                    await self._fail_shielded(fault)
            self._memories.append(memory)

    async def unmap_memory(self, memory: Mappable) -> None:
        """Take a memory back; when this returns no device reaches it."""
        async with self._lock:
            self._opened()
            self._memories.remove(memory)
            if self._card is not None:
                try:
                    await self._card.unmap_memory(memory)
                except DeviceFault as fault:
                    await self._fail_shielded(fault)

    async def tier_memory(self, tier: Tier, memory: Mappable) -> None:
        """Say where a tier's frames are; see `Device`."""
        async with self._lock:
            self._opened().local.give_memory(tier, address=memory.address, size_bytes=memory.bytes)
            self._tiers[tier] = memory
            if self._card is not None:
                try:
                    await self._card.tier_memory(tier, memory)
                except DeviceFault as fault:
                    await self._fail_shielded(fault)

    async def _fail_shielded(self, fault: DeviceFault) -> None:
        with trio.CancelScope(shield=True):
            await self._fail(fault, restart=False)

    # -- the rest ------------------------------------------------------------------------------------------------

    async def check(self) -> list[str]:
        """Check the tables against each other; one sentence for each fault found."""
        self._opened()
        async with self._lock:
            return await self._opened().local.check()

    async def reset(self) -> None:
        """Drop every session and page; capacities stay."""
        self._opened()
        async with self._lock:
            tables = self._opened()
            if self._card is not None:
                try:
                    await self._card.reset()
                except DeviceFault as fault:
                    with trio.CancelScope(shield=True):
                        await self._fail(fault, restart=False)
                else:
                    return
            await tables.local.reset()

    def statistics(self) -> DeviceStatistics:
        """Return the counters."""
        return self._opened().local.statistics()

    def close(self) -> None:
        """Release the device; further calls raise `ValueError`."""
        card, self._card = self._card, None
        tables, self._tables = self._tables, None
        if card is not None:
            card.close()
        if tables is not None:
            tables.close()
