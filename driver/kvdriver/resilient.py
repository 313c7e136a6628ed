"""A card while it is well, the engine of this process on the same tables while it is not."""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Self

import trio

from kvdriver.abi import Status
from kvdriver.address import IN_PROCESS
from kvdriver.carddevice import CardDevice
from kvdriver.device import Device, Translate
from kvdriver.enginestate import EngineState
from kvdriver.faults import DeviceFault, FaultKind, Interrupted
from kvdriver.inprocess import run

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvdriver.abi import Tier
    from kvdriver.card import Card
    from kvdriver.device import Capabilities, Command, Completion, DeviceStatistics, Mappable
    from kvdriver.tables import Tables

logger = logging.getLogger(__name__)

BACK_OFF_S_MIN: Final = 1.0
BACK_OFF_S_MAX: Final = 60.0
LOSSES_MAX: Final = 100
"""Losses that are kept; more are counted in the log."""


class ResilientDevice(Device):
    """A card that may fail. Make one with `open`, and let `tend` look after it.

    Every submit is executed once, wherever that is: what a failed card had executed is known from the journal of the
    tables, the rest is executed in process. While the card is away it is tried again, ever more rarely.
    """

    def __init__(
        self, tables: Tables, open_card: Callable[[Mappable], Card], *, wanted: str, deadline_s: float
    ) -> None:
        self._tables: Tables | None = tables
        self._open_card = open_card
        self._deadline_s = deadline_s
        self._card: CardDevice | None = None
        self._lock = trio.Lock()
        self._tried = trio.Event()
        self._memories: list[Mappable] = []
        self._tiers: dict[Tier, Mappable] = {}
        self._state = EngineState(
            wanted=wanted,
            transport=IN_PROCESS,
            degraded=True,
            reason="not opened yet",
            since_s=time.time(),
            faults={},
            replayed=0,
            taken_back=0,
            losses=(),
        )

    @classmethod
    async def open(
        cls, tables: Tables, open_card: Callable[[Mappable], Card], *, wanted: str, deadline_s: float = 5.0
    ) -> Self:
        """Hand the tables to the card; if it can't be opened, begin without it.

        Parameters
        ----------
        tables
            Owned by the device from now on.
        open_card
            Opens the card on tables; may wait, raises `DeviceFault`.
        wanted
            The card's name.
        deadline_s
            What a command may take.
        """
        device = cls(tables, open_card, wanted=wanted, deadline_s=deadline_s)
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
        done, rest = self._recall(fault.interrupted, commands)
        local = self._opened().local
        if fault.interrupted is not None and fault.interrupted.batch is not None:
            given = len(fault.interrupted.completions) + len(fault.interrupted.batch.commands) - len(done)
            self._state = replace(self._state, replayed=self._state.replayed + given)
        if self._card is not None:
            try:
                return done + await self._card.submit(rest)
            except (DeviceFault, OSError) as error:
                again = error if isinstance(error, DeviceFault) else DeviceFault(FaultKind.UNUSABLE, str(error))
                await self._fail(again, restart=False)
                more, rest = self._recall(again.interrupted, rest)
                done += more
        return done + await local.submit(rest)

    def _recall(
        self, interrupted: Interrupted | None, commands: Sequence[Command]
    ) -> tuple[list[Completion], list[Command]]:
        """Return the completions of what was executed, and the commands that were not."""
        if interrupted is None:
            return [], list(commands)
        local = self._opened().local
        done = list(interrupted.completions)
        batch = interrupted.batch
        if batch is not None:
            executed = local.sequence() - interrupted.sequence
            if not 0 <= executed <= len(batch.commands):
                raise RuntimeError(f"the tables count {executed} commands of a batch of {len(batch.commands)}")
            for number in range(executed):
                batch.put(number, local.journal(interrupted.sequence + 1 + number))
            done += batch.completions(executed)
        for number, (command, completion) in enumerate(zip(commands, done, strict=False)):
            if completion.status is Status.BUFFER_SMALL and type(command) is Translate:
                done[number] = local.translate_again(command, completion)
        return done, list(commands[len(done) :])

    # -- the card's coming and going -----------------------------------------------------------------------------

    async def _begin(self) -> None:
        """Open the card on the tables."""
        tables = self._opened()
        tables.local.leave()
        try:
            card = await trio.to_thread.run_sync(self._open_card, tables.memory)
        except BaseException:
            self._lose(tables.local.take())
            raise
        device = CardDevice(card, tables.local, deadline_s=self._deadline_s)
        try:
            for memory in self._memories:
                await device.map_memory(memory)
            for tier, memory in self._tiers.items():
                await device.tier_memory(tier, memory)
        except (DeviceFault, OSError) as error:
            await device.leave()
            self._lose(tables.local.take())
            if isinstance(error, OSError):
                raise DeviceFault(FaultKind.UNUSABLE, f"the card can't reach the memory: {error.strerror}") from error
            raise
        self._card = device
        self._state = replace(
            self._state,
            transport=card.transport.info.name,
            degraded=False,
            reason="",
            since_s=time.time(),
        )

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
        tables = self._opened()
        if not cut_off:
            logger.warning("the card may yet write to the engine's tables: going on in a copy of them")
            await trio.to_thread.run_sync(tables.move)
            for tier, memory in self._tiers.items():
                tables.local.give_memory(tier, address=memory.address, size_bytes=memory.bytes)
        self._lose(tables.local.take())

    def _lose(self, losses: list[str]) -> None:
        """Keep and tell what the repair of the tables had to give up."""
        for loss in losses[:LOSSES_MAX]:
            logger.error("lost when the tables were repaired: %s", loss)
        self._state = replace(self._state, losses=(*self._state.losses, *losses)[-LOSSES_MAX:])

    async def take_back(self) -> EngineState:
        """Hand the tables to the card again, if it is there; a card that is in use is reset and begins anew."""
        async with self._lock:
            self._opened()
            with trio.CancelScope(shield=True):
                try:
                    if self._card is not None:
                        self._lose(await self._card.restart())
                    else:
                        await self._begin()
                        self._state = replace(self._state, taken_back=self._state.taken_back + 1)
                        logger.info("the card has the engine's tables again")
                except DeviceFault as fault:
                    if self._card is not None:
                        await self._fail(fault, restart=False)
                    else:
                        self._degrade(fault)
                self._tried.set()
                self._tried = trio.Event()
        return self._state

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

    async def run(self, command: Command) -> Completion:
        """Execute one command.

        Raises
        ------
        EngineError
            If it was refused.
        """
        return await run(self, command)

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
