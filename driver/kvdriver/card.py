"""A card that is open: its memory, its queue, its interrupts.

All of this may wait, each step no longer than its deadline, so an event loop calls it in a thread; one at a time.
"""

from __future__ import annotations

import contextlib
import os
import select
from typing import TYPE_CHECKING, Any, Final, Self

from kvdriver import abi
from kvdriver._vfio import ffi, lib
from kvdriver.faults import DeviceFault, FaultKind
from kvdriver.memory import AddressSpace, Scratch, SharedMemory
from kvdriver.registers import READY_S_MAX, Registers, fault_of
from kvdriver.transport import CALL_S_MAX, Interrupt, Region

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kvdriver.abi import Tier
    from kvdriver.device import Mappable
    from kvdriver.registers import CardDescription
    from kvdriver.transport import Transport

QUEUE: Final = 0
VECTOR: Final = 0
DEPTH: Final = 256
"""Entries of each ring, where the card has as many."""
REGION_BYTES: Final = 2 << 20
"""Rings, and buffers of commands."""
DOORBELLS_BYTES: Final = 4096
OTHER_PROCESS: Final = "vfio-user"
"""The transport whose device has the memory itself: only the device can let go of it, not the kernel."""

_RING_FAULTS: Final = {
    lib.KVD_RING_UNKNOWN_ID: "it completed a command that was not the next one",
    lib.KVD_RING_UNKNOWN_STATUS: "it completed a command with a status that this driver does not know",
    lib.KVD_RING_LYING_PHASE: "it wrote a completion though none was owed",
    lib.KVD_RING_BAD_HEAD: "it says that it took another number of commands than it was given",
    lib.KVD_RING_NOT_ZERO: "it set bits of a completion that are reserved",
}


def ring_fault(result: int) -> DeviceFault:
    """Return the fault that a negative result of a ring is."""
    if result in _RING_FAULTS:
        return DeviceFault(FaultKind.BAD_COMPLETION, f"the card can't be believed: {_RING_FAULTS[result]}")
    return fault_of(OSError(-result, os.strerror(-result)), "doorbell")


class Card:
    """See above. Make one with `open`; every call but `close` may raise `DeviceFault`."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self.registers = Registers(transport)
        self._tables: Mappable | None = None
        self._tables_at = 0
        self._tiers: dict[Tier, Mappable] = {}
        self._undo = contextlib.ExitStack()
        self.silent = False
        """It did not answer in time: it may wake up and go on."""
        self.dead = False
        """It does not answer any more: closing it waits for nothing."""

    @classmethod
    def prepare(cls, transport: Transport, *, depth: int = DEPTH) -> Self:
        """Do all that can be done without the tables: the card is reset, and has its rings and interrupts.

        On failure it is closed.

        Raises
        ------
        DeviceFault
            If it is no card that this driver can use, or it fails on the way.
        """
        card = cls(transport)
        card._undo.callback(lambda: transport.close(dead=card.dead))
        try:
            card._set_up(depth)
            card._arm()
        except OSError as error:
            card.close(gone=True)
            raise DeviceFault(FaultKind.UNUSABLE, f"the card can't be set up: {error.strerror or error}") from error
        except BaseException:
            card.close(gone=True)
            raise
        return card

    @classmethod
    def open(cls, transport: Transport, tables: Mappable, *, depth: int = DEPTH) -> Self:
        """Prepare a card and give it the tables, which nobody else works on. On failure it is closed."""
        card = cls.prepare(transport, depth=depth)
        try:
            card.give(tables)
        except BaseException:
            card.close(gone=True)
            raise
        return card

    def give(
        self,
        tables: Mappable,
        *,
        memories: Sequence[Mappable] = (),
        tiers: Mapping[Tier, Mappable] | None = None,
        within_s: float = READY_S_MAX,
    ) -> None:
        """Let a prepared card take commands on tables that nobody else works on. What fails is for the caller to close.

        Parameters
        ----------
        tables
            The tables.
        memories
            What commands may name besides.
        tiers
            Those of `memories` that hold frames.
        within_s
            What one answer of the card may take, and its start.
        """
        self._check_size(tables)
        self.transport.deadline(within_s)
        try:
            self._tables_at = self.space.map(tables)
            self._tables = tables
            for memory in memories:
                self.space.map(memory)
        except TimeoutError as error:
            raise fault_of(error, "mapping of the tables") from error
        except OSError as error:
            raise DeviceFault(
                FaultKind.UNUSABLE, f"the card can't reach the memory: {error.strerror or error}"
            ) from error
        self._tiers = dict(tiers or {})
        self._begin(within_s)
        self.transport.deadline(CALL_S_MAX)

    def withdraw(self) -> bool:
        """Take the tables back from a card that could not begin on them; it is still to be closed. Raises nothing.

        Returns
        -------
        bool
            As `close`.
        """
        tables, self._tables = self._tables, None
        if tables is None:
            return True
        try:
            self.space.unmap(tables)
        except OSError:
            return self.transport.is_gone() and not self.silent
        return True

    def __repr__(self) -> str:
        return f"<Card at {self.transport!r}>"

    def _set_up(self, depth: int) -> None:
        self.description: CardDescription = self.registers.describe()
        self._check()
        self.registers.reset()
        self.depth = min(depth, 1 << self.description.depth_max.bit_length() - 1)
        self.space = AddressSpace(self.transport, last=self.description.address_last)
        self._memory = SharedMemory("kvd-rings", REGION_BYTES)
        self._undo.callback(self._memory.close)
        self._rings_at = self.space.map(self._memory)
        rings = lib.kvd_ring_bytes(self.depth)
        self.scratch = Scratch(self.space, self._memory.view[rings:], self._rings_at + rings)
        self._undo.callback(self.scratch.abandon)
        self.ring = self._make_ring(self.transport.map(Region.DOORBELLS, 0, DOORBELLS_BYTES))
        self.completed_fd = self._eventfd()
        self.request_fd = self._eventfd()
        self.waiter = select.epoll()
        self._undo.callback(self.waiter.close)
        self.waiter.register(self.completed_fd, select.EPOLLIN)
        self.watcher = select.epoll()
        self._undo.callback(self.watcher.close)
        self.watcher.register(self.request_fd, select.EPOLLIN)
        gone_fd = self.transport.gone_fd()
        if gone_fd >= 0:
            self.watcher.register(gone_fd, select.EPOLLIN | select.EPOLLRDHUP)
        self.waiter.register(self.watcher.fileno(), select.EPOLLIN)

    def _check(self) -> None:
        needed = sum(1 << op for op in abi.Op if op <= abi.Op.RESIZE)
        missing = [op.name for op in abi.Op if needed >> op & 1 and not self.description.operations >> op & 1]
        if missing:
            raise DeviceFault(FaultKind.UNUSABLE, f"the card lacks operations that kvd needs: {', '.join(missing)}")
        if not self.description.queues or self.description.depth_max < lib.KVD_RING_DEPTH_MIN:
            raise DeviceFault(FaultKind.UNUSABLE, "the card has no queue")
        if self.transport.info.region_bytes.get(Region.DOORBELLS, 0) < DOORBELLS_BYTES:
            raise DeviceFault(FaultKind.UNUSABLE, "the card has no doorbells in BAR2")

    def _check_size(self, tables: Mappable) -> None:
        bytes_max = self.description.tables_bytes_max
        if bytes_max and tables.bytes > bytes_max:
            raise DeviceFault(
                FaultKind.UNUSABLE,
                f"the tables have {tables.bytes >> 20} MiB, the card takes {bytes_max >> 20} MiB at most",
            )

    def _make_ring(self, doorbells: int) -> Any:
        out = ffi.new("kvd_ring **")
        memory = ffi.cast("void *", self._memory.address)
        self._doorbells = ffi.cast("void *", doorbells + QUEUE * abi.BAR2_QUEUE_STRIDE)
        result = lib.kvd_ring_init(self.depth, memory, self._doorbells, out)
        if result < 0:
            raise OSError(-result, os.strerror(-result))
        self._undo.callback(lib.kvd_ring_fini, out[0])
        return out[0]

    def _eventfd(self) -> int:
        fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._undo.callback(os.close, fd)
        return fd

    def start(self) -> None:
        """Describe tables and queue to a card that is stopped, and let it begin anew."""
        self._arm()
        self._begin(READY_S_MAX)

    def _arm(self) -> None:
        """Describe the queue to a card that is stopped, and let it signal."""
        lib.kvd_ring_reset(self.ring)
        write64, write32 = self.registers.write64, self.registers.write32
        queue = abi.BAR0_QUEUE_AT + QUEUE * abi.BAR0_QUEUE_STRIDE
        write64(queue + abi.BAR0_QUEUE_SQ_ADDRESS_AT, self._rings_at)
        write64(queue + abi.BAR0_QUEUE_CQ_ADDRESS_AT, self._rings_at + lib.kvd_ring_cq_offset(self.depth))
        write32(queue + abi.BAR0_QUEUE_DEPTH_AT, self.depth)
        write32(queue + abi.BAR0_QUEUE_VECTOR_AT, VECTOR)
        write64(abi.BAR0_IRQ_MASK_AT, 0)
        interrupts = self.transport.info.interrupts
        try:
            if interrupts.get(Interrupt.COMPLETIONS, 0):
                self.transport.interrupt(Interrupt.COMPLETIONS, [self.completed_fd])
            if interrupts.get(Interrupt.REQUEST, 0):
                self.transport.interrupt(Interrupt.REQUEST, [self.request_fd])
        except OSError as error:
            raise fault_of(error, "interrupts") from error

    def _begin(self, within_s: float) -> None:
        """Describe tables and tiers, and let the card take commands."""
        assert self._tables is not None
        write64 = self.registers.write64
        write64(abi.BAR0_TABLES_ADDRESS_AT, self._tables_at)
        write64(abi.BAR0_TABLES_BYTES_AT, self._tables.bytes)
        for tier, memory in self._tiers.items():
            write64(abi.BAR0_TIER_ADDRESS_AT + tier * 8, self.space.of(memory.address, memory.bytes))
            write64(abi.BAR0_TIER_BYTES_AT + tier * 8, memory.bytes)
        self.registers.enable(within_s)

    def keep_tier(self, tier: Tier, memory: Mappable) -> None:
        """Describe a tier's memory, which is mapped, at the next `start`."""
        self._tiers[tier] = memory

    def stop(self) -> None:
        """Reset the card, so that it reaches for nothing any more."""
        self.registers.reset()

    def remap_tables(self) -> None:
        """Let the card reach the tables' file anew: its pages are others now. It is stopped."""
        assert self._tables is not None
        try:
            self.space.unmap(self._tables)
            self._tables_at = self.space.map(self._tables)
        except OSError as error:
            raise fault_of(error, "tables") from error

    def look(self) -> None:
        """See whether the card is well; return if so.

        Raises
        ------
        DeviceFault
            What is wrong with it.
        """
        if self.removal_asked():
            raise DeviceFault(FaultKind.REMOVED, "somebody wants the card back")
        if self.transport.is_gone():
            raise DeviceFault(FaultKind.GONE, "the card is gone: nobody is at the other end")
        if lib.kvd_vfio_load32(self._doorbells, ffi.new("uint32_t *")) < 0:
            raise DeviceFault(FaultKind.GONE, "the card's doorbells are not there any more")
        status = self.registers.status()
        if status.fault:
            raise DeviceFault(FaultKind.FAULTED, f"the card stopped with a fault: {status.syndrome}")
        if not status.enabled:
            raise DeviceFault(FaultKind.RESET, "the card was reset by somebody else")

    def removal_asked(self) -> bool:
        """Whether the request interrupt came."""
        return bool(select.select([self.request_fd], [], [], 0)[0])

    def interrupted(self) -> bool:
        """Take the interrupts that came since the last call; whether there were any."""
        try:
            return os.eventfd_read(self.completed_fd) > 0
        except BlockingIOError:
            return False

    def close(self, *, gone: bool = False) -> bool:
        """Stop the card if it still answers, take its memory back and let go of it. Raises nothing.

        Returns
        -------
        bool
            Whether it is sure that the card reaches the memory no more: it said so, or nobody is there, or the kernel
            has cut it off.
        """
        hung_up = self.dead = gone or self.transport.is_gone()
        cut_off = hung_up and not self.silent
        if not hung_up:
            try:
                self.registers.quiesce()
                self.registers.reset()
            except DeviceFault as fault:
                self.dead = fault.kind is FaultKind.GONE  # nobody had noticed yet
            with contextlib.suppress(OSError):
                if self._tables is not None:
                    self.space.unmap(self._tables)
                self.space.unmap(self._memory)
                cut_off = True
        with contextlib.suppress(OSError):
            self._undo.close()
        return cut_off or self.transport.info.name != OTHER_PROCESS
