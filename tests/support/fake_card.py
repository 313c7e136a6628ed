"""A card in a thread of this process: registers, rings and the engine, and every fault at the command that it is told.

It is a `Transport`, so what drives it is the whole driver but the system calls.
"""

from __future__ import annotations

import enum
import errno
import mmap
import os
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kvdriver import abi
from kvdriver._engine import ffi, lib
from kvdriver.transport import Interrupt, Region, Transport, TransportInfo

if TYPE_CHECKING:
    from collections.abc import Sequence

BAR0_BYTES = 0x4000
BAR2_BYTES = 4096
IDLE_S = 0.0001
HOLD_S_MAX = 20.0
ALL_OPERATIONS = sum(1 << op for op in abi.Op)


class Trick(enum.Enum):
    """What the card does instead of going on, when it has taken the command at which it is told to."""

    ALL_ONES = enum.auto()
    """Registers read as all ones from now on; nothing is executed any more."""
    DEAD_BAR = enum.auto()
    """The memory behind the doorbells is not there any more."""
    UNKNOWN_ID = enum.auto()
    LYING_PHASE = enum.auto()
    """A completion of nothing follows the right one."""
    UNKNOWN_STATUS = enum.auto()
    NEVER_COMPLETES = enum.auto()
    """It is executed, its completion is not written."""
    NEVER_EXECUTES = enum.auto()
    NO_INTERRUPT = enum.auto()
    """From now on."""
    REMOVAL = enum.auto()
    """Somebody wants the card back; it goes on."""
    RESET = enum.auto()
    """Somebody resets the function in the middle of the batch."""
    FAULT = enum.auto()
    """It stops, and says so with a syndrome."""
    DIE_BEFORE = enum.auto()
    """Its process dies before it executes the command ..."""
    DIE_AFTER = enum.auto()
    """... or after, with the completion not written."""
    DEAF = enum.auto()
    """As NEVER_EXECUTES, and no register is answered either."""


@dataclass
class Script:
    """Trick by command, counted over all lives of the card; each is played once."""

    tricks: dict[int, Trick] = field(default_factory=dict)
    openings: list[str] = field(default_factory=list)
    """What is wrong at the next openings: "", "gone", "magic", "version", "loop", "long", "queues"; and what is only when
    it gets the tables: "memory", "deaf", "refuses", "stuck"."""
    hold: threading.Event | None = None
    """What openings wait for."""
    held: int = 0
    """Openings that wait."""
    executed: int = 0


class FakeCard(Transport):
    """See above."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.closed = self.closed_as_dead = False
        self.quiesced = False
        if script.hold is not None:
            script.held += 1
            assert script.hold.wait(HOLD_S_MAX)
            script.held -= 1
        self._wrong = script.openings.pop(0) if script.openings else ""
        self._registers = bytearray(BAR0_BYTES)
        self._bar2_fd = os.memfd_create("bar2", os.MFD_CLOEXEC)
        os.ftruncate(self._bar2_fd, BAR2_BYTES)
        self._bar2 = mmap.mmap(self._bar2_fd, BAR2_BYTES)
        self._mappings: dict[int, tuple[int, int]] = {}
        self._eventfds: dict[Interrupt, Sequence[int]] = {}
        self._gone = False
        self._ones = False
        self._deaf = False
        self._silent = False
        self._gone_read, self._gone_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._thread: threading.Thread | None = None
        self._halt = threading.Event()
        self._engine: Any = None
        self._reach = ffi.callback("void *(void *, uint64_t, uint64_t, int)", self._reached)
        self._describe()

    # -- the transport -------------------------------------------------------------------------------------------

    @property
    def info(self) -> TransportInfo:
        return TransportInfo(
            name="fake",
            vendor=0x1234,
            device=0x6B76,
            region_bytes={Region.REGISTERS: BAR0_BYTES, Region.DOORBELLS: BAR2_BYTES},
            interrupts={Interrupt.COMPLETIONS: 1, Interrupt.REQUEST: 1},
            page_bytes=4096,
            mappings_max=8,
            address_first=0,
            address_last=(1 << 40) - 1,
            can_reset=True,
        )

    def _answer(self) -> None:
        if self._gone:
            raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))
        if self._deaf:
            self._gone = True
            raise OSError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))

    def read(self, region: Region, offset: int, count: int) -> bytes:
        assert region is Region.REGISTERS
        self._answer()
        return b"\xff" * count if self._ones else bytes(self._registers[offset : offset + count])

    def write(self, region: Region, offset: int, data: bytes) -> None:
        assert region is Region.REGISTERS
        if offset == abi.BAR0_TABLES_ADDRESS_AT and self._wrong == "deaf":
            self._deaf = True
        self._answer()
        self._registers[offset : offset + len(data)] = data
        if offset == abi.BAR0_CONTROL_AT and not self._ones:
            self._control(int.from_bytes(data, "little"))

    def map(self, region: Region, offset: int, count: int) -> int:
        assert (region, offset, count) == (Region.DOORBELLS, 0, BAR2_BYTES)
        self._answer()
        return int(ffi.cast("uintptr_t", ffi.from_buffer(self._bar2)))

    def dma_map(self, address: int, count: int, iova: int, fd: int) -> None:
        self._answer()
        assert os.fstat(fd).st_size == count
        if self._mappings and self._wrong == "memory":
            raise OSError(errno.EPERM, os.strerror(errno.EPERM))
        assert iova not in self._mappings
        self._mappings[iova] = (count, address)

    def dma_unmap(self, iova: int, count: int) -> None:
        self._answer()
        assert self._mappings.pop(iova)[0] == count

    def interrupt(self, which: Interrupt, eventfds: Sequence[int]) -> None:
        self._answer()
        self._eventfds[which] = list(eventfds)

    def reset(self) -> None:
        self._answer()
        self._control(abi.BAR0_CONTROL_RESET_MASK)

    def deadline(self, seconds: float) -> None:
        assert seconds > 0

    def gone_fd(self) -> int:
        return self._gone_read

    def is_gone(self) -> bool:
        return self._gone

    def vanish(self) -> None:
        """Be gone, without a word."""
        self._ones = True

    def close(self, *, dead: bool = False) -> None:
        self.closed_as_dead = dead
        if self.closed:
            return
        self.closed = True
        self._stop()
        for fd in (self._bar2_fd, self._gone_read, self._gone_write):
            os.close(fd)

    # -- registers -----------------------------------------------------------------------------------------------

    def _set(self, offset: int, value: int, count: int = 4) -> None:
        self._registers[offset : offset + count] = value.to_bytes(count, "little")

    def _get(self, offset: int, count: int = 8) -> int:
        return int.from_bytes(self._registers[offset : offset + count], "little")

    def _describe(self) -> None:
        wrong = self._wrong
        self._ones = wrong == "gone"
        self._set(abi.BAR0_MAGIC_AT, 0x1234 if wrong == "magic" else abi.BAR0_MAGIC_RESET, 8)
        self._set(abi.BAR0_VERSION_AT, 7 << 16 if wrong == "version" else abi.BAR0_VERSION_RESET)
        self._set(abi.BAR0_CAPABILITIES_AT, abi.BAR0_CAPABILITIES_RESET)
        bodies = [
            (abi.CapabilityId.OPERATIONS, abi.CAPABILITY_OPERATIONS, (ALL_OPERATIONS,)),
            (99, abi.CAPABILITY, ()),  # one that the driver does not know
            (abi.CapabilityId.QUEUES, abi.CAPABILITY_QUEUES, (1, 64, 1, 0)),
        ]
        if wrong == "queues":
            bodies.pop()
        at = abi.BAR0_CAPABILITIES_RESET
        for number, (identity, layout, words) in enumerate(bodies):
            after = at + layout.size if number + 1 < len(bodies) else 0
            after = at if wrong == "loop" else after
            count = BAR0_BYTES if wrong == "long" else layout.size
            layout.pack_into(self._registers, at, identity | after << 16, count, *words)
            at += layout.size
        self._status()

    def _status(self, *, enabled: bool = False, fault: bool = False) -> None:
        word = abi.BAR0_STATUS_READY_MASK
        word |= abi.BAR0_STATUS_ENABLED_MASK if enabled else abi.BAR0_STATUS_QUIET_MASK
        word |= abi.BAR0_STATUS_FAULT_MASK if fault else 0
        self._set(abi.BAR0_STATUS_AT, word)

    def _control(self, word: int) -> None:
        if word & abi.BAR0_CONTROL_RESET_MASK:
            self._stop()
            self._bar2[:] = bytes(BAR2_BYTES)
            self._set(abi.BAR0_CONTROL_AT, 0)
            self._status()
        elif word & abi.BAR0_CONTROL_QUIESCE_MASK:
            self._stop()
            self.quiesced = True
            self._status()
        elif word & abi.BAR0_CONTROL_ENABLE_MASK and self._wrong == "refuses":
            self._set(abi.BAR0_SYNDROME_AT, abi.Syndrome.OWN_FAULT)
            self._status(fault=True)
        elif word & abi.BAR0_CONTROL_ENABLE_MASK and self._wrong != "stuck":
            self._begin()

    def _begin(self) -> None:
        address, count = self._get(abi.BAR0_TABLES_ADDRESS_AT), self._get(abi.BAR0_TABLES_BYTES_AT)
        out = ffi.new("kvd_engine **")
        base = self._reached(ffi.NULL, address, count, 1)
        assert base != ffi.NULL
        result = lib.kvd_engine_attach(base, count, self._reach, ffi.NULL, out)
        if result < 0:
            self._set(abi.BAR0_SYNDROME_AT, abi.Syndrome.NO_TABLES)
            self._status(fault=True)
            return
        self._engine = out[0]
        for tier in list(abi.Tier)[1:]:
            at, length = (self._get(start + 8 * tier) for start in (abi.BAR0_TIER_ADDRESS_AT, abi.BAR0_TIER_BYTES_AT))
            lib.kvd_engine_tier_memory(self._engine, tier, at, length)
        self._depth = self._get(abi.BAR0_QUEUE_AT + abi.BAR0_QUEUE_DEPTH_AT, 4)
        self._sq = self._view(abi.BAR0_QUEUE_SQ_ADDRESS_AT, abi.CMD.size)
        self._cq = self._view(abi.BAR0_QUEUE_CQ_ADDRESS_AT, abi.CPL.size)
        self._taken = self._made = 0
        self._halt = threading.Event()
        self._status(enabled=True)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _view(self, register: int, entry_bytes: int) -> Any:
        count = self._depth * entry_bytes
        return ffi.buffer(self._reached(ffi.NULL, self._get(abi.BAR0_QUEUE_AT + register), count, 1), count)

    def _reached(self, _context: Any, address: int, count: int, _writable: int) -> Any:
        for iova, (length, where) in self._mappings.items():
            if iova <= address and address + count <= iova + length:
                return ffi.cast("void *", where + address - iova)
        return ffi.NULL

    def _stop(self, *, orderly: bool = True) -> None:
        self._halt.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        self._thread = None
        engine, self._engine = self._engine, None
        if engine is not None and orderly:
            lib.kvd_engine_fini(engine)

    # -- commands ------------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        while not self._halt.is_set():
            if int.from_bytes(self._bar2[:4], "little") == self._taken % self._depth:
                time.sleep(IDLE_S)
                continue
            if not self._take():
                return

    def _take(self) -> bool:
        """Execute the next command; False: the card does nothing any more."""
        trick = self.script.tricks.pop(self.script.executed, None)
        if trick is not None and not self._before(trick):
            return False
        cmd = ffi.from_buffer("struct kvd_abi_cmd[]", bytearray(self._entry(self._sq, self._taken, abi.CMD.size)))
        cpl = ffi.new("struct kvd_abi_cpl *")
        lib.kvd_engine_submit(self._engine, cmd, cpl, 1)
        self._taken += 1
        self.script.executed += 1
        if trick in {Trick.NEVER_COMPLETES, Trick.DIE_AFTER}:
            if trick is Trick.DIE_AFTER:
                self._die()
            return False
        cpl.sq_head = self._taken % self._depth
        if trick is Trick.UNKNOWN_ID:
            cpl.id += 17
        if trick is Trick.UNKNOWN_STATUS:
            cpl.status = len(abi.Status)
        self._write(bytes(ffi.buffer(cpl)))
        if trick is Trick.LYING_PHASE:
            self._write(bytes(abi.CPL.size))
        return True

    def _before(self, trick: Trick) -> bool:
        """Play what comes before the command is executed; False: it is not."""
        match trick:
            case Trick.ALL_ONES:
                self._ones = True
            case Trick.DEAD_BAR:
                os.ftruncate(self._bar2_fd, 0)
                self._ones = True
            case Trick.DIE_BEFORE:
                self._die()
            case Trick.DEAF:
                self._deaf = True
            case Trick.RESET:
                self._stop()
                self._status()
            case Trick.FAULT:
                self._set(abi.BAR0_SYNDROME_AT, abi.Syndrome.OWN_FAULT)
                self._status(fault=True)
            case Trick.NEVER_EXECUTES:
                pass
            case Trick.REMOVAL:
                os.eventfd_write(self._eventfds[Interrupt.REQUEST][0], 1)
                return True
            case Trick.NO_INTERRUPT:
                self._silent = True
                return True
            case _:
                return True
        return False

    def ask_for_removal(self) -> None:
        os.eventfd_write(self._eventfds[Interrupt.REQUEST][0], 1)

    def die(self) -> None:
        """End as a process that is killed: the tables stay as they are."""
        self._stop(orderly=False)
        self._die()

    def _die(self) -> None:
        self._gone = True
        self._engine = None
        os.write(self._gone_write, b"x")

    @staticmethod
    def _entry(ring: Any, number: int, size: int) -> bytes:
        at = number % (len(ring) // size) * size
        return bytes(ring[at : at + size])

    def _write(self, entry: bytes) -> None:
        """Write a completion; its flags last, with the phase of this round."""
        at = self._made % self._depth * abi.CPL.size
        phase = 1 if self._made // self._depth % 2 == 0 else 0
        flags_at = abi.CPL_OFFSETS["flags"]
        self._cq[at : at + flags_at] = entry[:flags_at]
        self._cq[at + flags_at + 2 : at + abi.CPL.size] = entry[flags_at + 2 :]
        self._cq[at + flags_at : at + flags_at + 2] = phase.to_bytes(2, "little")
        self._made += 1
        if not self._silent:
            os.eventfd_write(self._eventfds[Interrupt.COMPLETIONS][0], 1)
