"""A card as a `Device`: batches over its rings, by polling while it is quick and by interrupts when it is not.

One batch at a time is on the wire, so what its commands did is told by the sequence of the tables alone.
"""

from __future__ import annotations

import errno
from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import trio

from kvdriver._vfio import ffi, lib
from kvdriver._wire import Batch, buffers_bytes
from kvdriver.abi import Status
from kvdriver.card import ring_fault
from kvdriver.commands import Gather, Scatter, Translate
from kvdriver.device import Device
from kvdriver.faults import DeviceFault, FaultKind, Interrupted
from kvdriver.inprocess import segments
from kvdriver.registers import fault_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from kvdriver.abi import Tier
    from kvdriver.card import Card
    from kvdriver.commands import Command
    from kvdriver.device import Capabilities, Completion, DeviceStatistics, Mappable
    from kvdriver.inprocess import InProcessDevice
    from kvdriver.losses import Repair
    from kvdriver.memory import AddressSpace

SPIN_US: Final = 200
"""How long a batch is polled for before the interrupt is waited for."""
DEADLINE_S: Final = 5.0
"""A command that takes longer from its submission has failed, and the card with it."""
LOOK_S: Final = 0.05
"""How long an interrupt is waited for before somebody looks whether it got lost."""
HEALTH_S: Final = 1.0
"""How often a card is looked at that gives no reason for it."""
LOST_MAX: Final = 3
"""After so many lost interrupts the card is polled."""
POLL_S: Final = 0.001
SILENT: Final = frozenset({FaultKind.GONE, FaultKind.UNUSABLE})
"""Faults after which nothing is asked of the card any more."""


@dataclass(slots=True, kw_only=True)
class CardCounts:
    """How the card's answers came in."""

    interrupts: int = 0
    lost_interrupts: int = 0

    @property
    def polled(self) -> bool:
        """Whether interrupts are not waited for any more."""
        return self.lost_interrupts >= LOST_MAX


class CardDevice(Device):
    """A card that works on the tables of an in-process engine, which rests meanwhile.

    A submit is cancelled before the card sees the first of its commands, or not at all: the commands of one that was
    begun are completed, or their card has failed, before the call ends. Each command has its deadline, so that takes no
    longer than `deadline_s`.

    Parameters
    ----------
    card
        Set up on the tables of `local`.
    local
        The engine of this process, which has left the tables to the card. Whoever made it takes them back and closes it.
    """

    def __init__(
        self, card: Card, local: InProcessDevice, *, deadline_s: float = DEADLINE_S, spin_us: int = SPIN_US
    ) -> None:
        self._card: Card | None = card
        self._local = local
        self._deadline_s = deadline_s
        self._spin_ns = spin_us * 1000
        self._lock = trio.Lock()
        self._fault: DeviceFault | None = None
        self._look_s = 0.0
        self._capabilities = replace(local.capabilities, transport=card.transport.info.name)
        self.counts = CardCounts()

    def __repr__(self) -> str:
        if self._card is None:
            return "<CardDevice closed>"
        counts = self.statistics()
        state = "open" if self._fault is None else self._fault.kind.value
        return f"<CardDevice {state}, {counts.sessions} sessions, {counts.mapped_pages} pages>"

    def _opened(self) -> Card:
        if self._card is None:
            raise ValueError("the device is closed")
        if self._fault is not None:
            raise DeviceFault(self._fault.kind, str(self._fault))
        return self._card

    @property
    def failed(self) -> bool:
        """Whether every submit raises `DeviceFault`, until a `restart`."""
        return self._fault is not None

    @property
    def capabilities(self) -> Capabilities:
        """What the device can do."""
        if self._card is None:
            raise ValueError("the device is closed")
        return self._capabilities

    # -- submitting ----------------------------------------------------------------------------------------------

    async def submit(self, commands: Sequence[Command]) -> list[Completion]:
        """Execute a batch in order; a refused command does not stop those after it.

        Raises
        ------
        DeviceFault
            The card failed; its `interrupted` says how far the batch came. From then on every call raises it.
        OSError
            If there is no memory for the batch's buffers; then no command was executed.
        ValueError
            If the device is closed, or a number does not fit its field; then no command was executed.
        """
        self._opened()
        async with self._lock:
            card = self._opened()
            cut = list(segments(commands))
            try:
                batches = list(_pack(card, cut))
                with trio.CancelScope(shield=True):
                    done = await self._execute(card, batches)
            finally:
                if self._fault is None:
                    self._give_back(card)
        return done

    def _give_back(self, card: Card) -> None:
        """End the use of a batch's memory; a card that does not let go of it has failed, the batch has not."""
        try:
            card.scratch.give_back()
        except OSError as error:
            self._fault = fault_of(error, "memory of a batch")

    async def _execute(self, card: Card, batches: list[Batch]) -> list[Completion]:
        done: list[Completion] = []
        for batch in batches:
            progress = Interrupted(completions=done, batch=batch, sequence=self._local.sequence())
            await self._exchange(card, batch, progress)
            done += batch.completions()
            for place in range(len(done) - len(batch.commands), len(done)):
                command = batch.commands[place - len(done)]
                if done[place].status is Status.BUFFER_SMALL and type(command) is Translate:
                    progress = Interrupted(completions=done, batch=None, sequence=0)
                    done[place] = await self._translate_again(card, command, done[place].value, progress)
        return done

    async def _translate_again(self, card: Card, command: Translate, runs: int, progress: Interrupted) -> Completion:
        """Execute a TRANSLATE once more, with the room that it asked for."""
        try:
            memory = card.scratch.take(buffers_bytes([command], translate_runs=runs))
        except OSError as error:  # others of the batch are executed, so this is the card's failure, not the batch's
            fault = DeviceFault(FaultKind.UNUSABLE, f"no memory for {runs} runs: {error.strerror}")
            self._fault, fault.interrupted = fault, progress
            raise fault from error
        batch = Batch([command], translate_runs=runs, memory=memory)
        await self._exchange(card, batch, progress)
        self._local.retries += 1
        return batch.completions()[0]

    async def _exchange(self, card: Card, batch: Batch, progress: Interrupted) -> None:
        """Give a batch to the card and wait until all of it is completed."""
        if not batch.commands:
            return
        request, completions = batch.addresses
        work = ffi.new("struct kvd_ring_batch *")
        work.cmd = ffi.cast("struct kvd_abi_cmd *", request)
        work.cpl = ffi.cast("struct kvd_abi_cpl *", completions)
        work.count = len(batch.commands)
        try:
            await self._work(card, work)
        except DeviceFault as fault:
            self._fault = DeviceFault(fault.kind, str(fault))
            fault.interrupted = progress
            raise

    async def _work(self, card: Card, work: Any) -> None:
        given: deque[tuple[int, float]] = deque()
        """Up to which command the card had been given at which time."""
        spin_ns = self._spin_ns
        while True:
            result = lib.kvd_ring_work(card.ring, work, spin_ns)
            if not result:
                return
            if result != -errno.EAGAIN:
                raise ring_fault(result)
            now_s = trio.current_time()
            if not given or given[-1][0] < work.submitted:
                given.append((work.submitted, now_s))
            while given[0][0] <= work.completed:
                given.popleft()
            left_s = given[0][1] + self._deadline_s - now_s
            if left_s <= 0:
                raise DeviceFault(
                    FaultKind.TIMEOUT, f"the card did not complete a command within {self._deadline_s:g} s"
                )
            await self._wait(card, work, min(left_s, LOOK_S))
            spin_ns = 0 if self.counts.polled else self._spin_ns

    async def _wait(self, card: Card, work: Any, wait_s: float) -> None:
        """Wait for the card's interrupt; without one look whether there should have been one, and whether it is well."""
        if self.counts.polled:
            await trio.sleep(POLL_S)
            if trio.current_time() >= self._look_s:
                self._look_s = trio.current_time() + LOOK_S
                await trio.to_thread.run_sync(card.look)
            return
        with trio.move_on_after(wait_s):
            await trio.lowlevel.wait_readable(card.waiter.fileno())
        if card.interrupted():
            self.counts.interrupts += 1
        elif lib.kvd_ring_arrived(card.ring):
            self.counts.lost_interrupts += 1
        else:
            await trio.to_thread.run_sync(card.look)

    # -- the rest ------------------------------------------------------------------------------------------------

    async def map_memory(self, memory: Mappable) -> None:
        """Let the card reach a memory; see `Device`."""
        async with self._lock:
            space = self._opened().space
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(space.map, memory)

    async def unmap_memory(self, memory: Mappable) -> None:
        """Take a memory back; when this returns the card no longer reaches it."""
        async with self._lock:
            space = self._opened().space
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(space.unmap, memory)

    async def tier_memory(self, tier: Tier, memory: Mappable) -> None:
        """Say where a tier's frames are. The card is told while it is stopped, so it begins anew."""
        self._local.give_memory(tier, address=memory.address, size_bytes=memory.bytes)
        self._opened().keep_tier(tier, memory)
        await self.restart()

    async def check(self) -> list[str]:
        """Check the tables against each other; one sentence for each fault found."""
        self._opened()
        async with self._lock:
            self._opened()
            return await self._local.check()

    async def reset(self) -> None:
        """Drop every session and page; capacities stay."""
        self._opened()
        async with self._lock:
            card = self._opened()
            with trio.CancelScope(shield=True):
                await self._waited(card.stop)
                self._local.take()
                await self._local.reset()
                self._local.leave()
                await self._waited(card.remap_tables)
                await self._waited(card.start)

    async def restart(self) -> Repair:
        """Reset the card, repair the tables and begin anew on them; what was outstanding is forgotten.

        Returns
        -------
        Repair
            What the repair had to give up.

        Raises
        ------
        DeviceFault
            If the card fails again; the tables are left to it all the same.
        """
        if self._card is None:
            raise ValueError("the device is closed")
        async with self._lock:
            card = self._card
            with trio.CancelScope(shield=True):
                await self._waited(card.stop)
                repair = self._local.take()
                self._local.leave()
                await self._waited(card.start)
                card.scratch.give_back()
                self._fault = None
        return repair

    async def _waited(self, step: Callable[[], None]) -> None:
        try:
            await trio.to_thread.run_sync(step)
        except DeviceFault as fault:
            self._fault = fault
            raise

    async def watch(self) -> DeviceFault:
        """Wait until the card goes, or somebody wants it back, while nobody may be asking it anything.

        It is looked at now and then too: a card may go without a word, or be reset by somebody else.
        """
        card = self._opened()
        while True:
            try:
                with trio.move_on_after(HEALTH_S) as scope:
                    await trio.lowlevel.wait_readable(card.watcher.fileno())
            except trio.ClosedResourceError:
                return _closed()
            async with self._lock:
                if self._card is None:
                    return _closed()
                try:
                    await self._waited(self._opened().look)
                except DeviceFault as fault:
                    return fault
            if not scope.cancelled_caught:
                await trio.sleep(LOOK_S)  # it spoke, and is well all the same

    def statistics(self) -> DeviceStatistics:
        """Return the counters."""
        if self._card is None:
            raise ValueError("the device is closed")
        return self._local.statistics()

    async def leave(self) -> bool:
        """As `close`, without holding up the event loop; return what `Card.close` does."""
        card, self._card = self._card, None
        cut_off = True
        if card is not None:
            trio.lowlevel.notify_closing(card.watcher.fileno())
            gone = self._fault is not None and self._fault.kind in SILENT
            card.silent = self._fault is not None and self._fault.kind is FaultKind.TIMEOUT
            with trio.CancelScope(shield=True):
                cut_off = await trio.to_thread.run_sync(lambda: card.close(gone=gone))
        return cut_off

    def close(self) -> None:
        """Release the device, which nobody watches any more; further calls raise `ValueError`."""
        card, self._card = self._card, None
        if card is not None:
            card.close()


def _reached(space: AddressSpace, command: Command) -> Command:
    """Return a command with the card's own addresses of what it moves."""
    if not isinstance(command, Gather | Scatter):
        return command
    told = command.transfer
    scales = space.of(told.scales, told.scales_bytes) if told.scales_bytes else told.scales
    return replace(command, transfer=replace(told, host=space.of(told.host, told.host_bytes), scales=scales))


def _closed() -> DeviceFault:
    return DeviceFault(FaultKind.GONE, "the card was closed")


def _pack(card: Card, cut: list[Sequence[Command]]) -> Iterator[Batch]:
    """Pack all before the first is given away: a number that does not fit stops the whole batch."""
    sizes = [buffers_bytes(segment) for segment in cut]
    view, address = card.scratch.take(sum(sizes))
    at = 0
    for segment, size in zip(cut, sizes, strict=True):
        reached = [_reached(card.space, command) for command in segment]
        yield Batch(reached, memory=(view[at : at + size], address + at))
        at += size
