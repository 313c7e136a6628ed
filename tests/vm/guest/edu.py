"""QEMU's `edu` device as the tests use it: bound to vfio-pci, opened through kvdriver's VFIO layer.

Its registers are those of QEMU's own description (docs/specs/edu): it computes factorials, raises an interrupt on demand
and copies between the guest's memory and a buffer of 4 KiB.
"""

from __future__ import annotations

import collections
import mmap
import os
import select
import subprocess
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from kvdriver._vfio import ffi, lib

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

DEVICES = Path("/sys/bus/pci/devices")
DRIVERS = Path("/sys/bus/pci/drivers")
PROBE = Path("/sys/bus/pci/drivers_probe")
VENDOR = 0x1234
DEVICE = 0x11E8

IDENT = 0x00
LIVENESS = 0x04
FACTORIAL = 0x08
STATUS = 0x20
STATUS_COMPUTING = 0x01
STATUS_INTERRUPT = 0x80
IRQ_STATUS = 0x24
IRQ_RAISE = 0x60
IRQ_ACKNOWLEDGE = 0x64
DMA_SOURCE = 0x80
DMA_TARGET = 0x88
DMA_BYTES = 0x90
DMA_COMMAND = 0x98
DMA_START = 0x01
DMA_TO_MEMORY = 0x02
DMA_INTERRUPT = 0x04
DMA_IRQ_STATUS = 0x100
BUFFER = 0x40000
BUFFER_BYTES = 4096
BAR_BYTES = 1 << 20
APART = 16 << 20
"""Between the start of the usable IOVA, the memory of a test, and an address that is not mapped."""

OPEN_MS = 5000
WAIT_S = 10.0
FAULTS_TOLD = 3
FAULTS_S = 5.5
QUIET_S = 0.5
"""A copy takes the device 100 ms: what has not come after this does not come."""


def slot() -> str:
    """Return where the machine has it."""
    (found,) = (path.name for path in DEVICES.iterdir() if _id(path) == (VENDOR, DEVICE))
    return found


def _id(device: Path) -> tuple[int, int]:
    return int((device / "vendor").read_text(), 16), int((device / "device").read_text(), 16)


@contextmanager
def bound(where: str) -> Iterator[None]:
    """Give a device to vfio-pci, and take it back."""
    override = DEVICES / where / "driver_override"
    override.write_text("vfio-pci")
    PROBE.write_text(where)
    assert (DEVICES / where / "driver").resolve().name == "vfio-pci"
    yield
    if override.exists():
        unbind(where)
        override.write_text("\n")


def unbind(where: str) -> None:
    """Take a device from vfio-pci.

    The write waits, beyond any signal, until the device is closed. So another process does it: should this one have left
    the device open, it still comes to say so, and its end closes the device.
    """
    command = ["sh", "-c", f"echo {where} > {DRIVERS}/vfio-pci/unbind"]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL) as process:
        try:
            status = process.wait(WAIT_S)
        except subprocess.TimeoutExpired:
            # Not even killed does it end before this process: so nobody waits for it here.
            process.returncode = -1
            raise AssertionError(f"{where} is still open in this process") from None
    assert status == 0


def check(result: int) -> None:
    """Raise what a call of the VFIO layer returned."""
    if result < 0:
        raise OSError(-result, os.strerror(-result))


def open_kernel(where: str) -> tuple[int, str, object]:
    """Return result, reason and handle of an open."""
    why = ffi.new("char[]", lib.KVD_VFIO_TEXT_BYTES)
    out = ffi.new("kvd_vfio **")
    result = lib.kvd_vfio_open_kernel(where.encode(), OPEN_MS, why, out)
    return result, ffi.string(why).decode(), out[0]


def wait_until(done: Callable[[], bool], what: str) -> None:
    """Look again and again, with a deadline."""
    deadline = time.monotonic() + WAIT_S
    while not done():
        assert time.monotonic() < deadline, f"{what}: not within {WAIT_S} s"


class Memory:
    """Memory of this process that a device can be given."""

    def __init__(self, size: int) -> None:
        self._map = mmap.mmap(-1, size)
        self.view = ffi.from_buffer("uint8_t[]", self._map, require_writable=True)
        self.size = size

    def __getitem__(self, where: slice) -> bytes:
        return self._map[where]

    def __setitem__(self, where: slice, data: bytes) -> None:
        self._map[where] = data


@dataclass(slots=True)
class Interrupt:
    """An eventfd that an interrupt signals."""

    fd: int

    def fired(self, seconds: float = WAIT_S) -> int:
        """Return how often it came, or 0 after `seconds` without."""
        if not select.select([self.fd], [], [], seconds)[0]:
            return 0
        return os.eventfd_read(self.fd)


class Edu:
    """An open `edu`."""

    def __init__(self, where: str) -> None:
        result, why, self.handle = open_kernel(where)
        assert result == 0, why
        self._fds: list[int] = []
        self.info = ffi.new("struct kvd_vfio_info *")
        lib.kvd_vfio_info(self.handle, self.info)
        self.iova = self.info.iova_first + APART
        self.elsewhere = self.iova + APART
        self.bar = self.map(lib.KVD_VFIO_BAR0, 0, BAR_BYTES)
        # What a test that failed has left there; the device forgets it in no reset.
        self.acknowledge()

    def close(self) -> None:
        lib.kvd_vfio_close(self.handle)
        for fd in self._fds:
            os.close(fd)

    def map(self, region: int, offset: int, size: int) -> object:
        out = ffi.new("void **")
        check(lib.kvd_vfio_region_map(self.handle, region, offset, size, out))
        return ffi.cast("uint8_t *", out[0])

    def load(self, register: int) -> int:
        value = ffi.new("uint32_t *")
        check(lib.kvd_vfio_load32(self.bar + register, value))
        return value[0]

    def store(self, register: int, value: int) -> None:
        check(lib.kvd_vfio_store32(self.bar + register, value))

    def store64(self, register: int, value: int) -> None:
        check(lib.kvd_vfio_store64(self.bar + register, value))

    def read(self, region: int, offset: int, size: int) -> bytes:
        data = ffi.new("uint8_t[]", size)
        check(lib.kvd_vfio_read(self.handle, region, offset, data, size))
        return bytes(ffi.buffer(data))

    def write(self, region: int, offset: int, data: bytes) -> None:
        check(lib.kvd_vfio_write(self.handle, region, offset, data, len(data)))

    def map_memory(self, memory: Memory, iova: int, *, writable: bool = True) -> None:
        check(lib.kvd_vfio_dma_map(self.handle, memory.view, memory.size, iova, -1, 0, writable))

    def unmap_memory(self, iova: int, size: int) -> None:
        check(lib.kvd_vfio_dma_unmap(self.handle, iova, size))

    def interrupt(self, irq: int | None = None) -> Interrupt:
        """Let an interrupt (MSI, unless told otherwise) signal an eventfd."""
        fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._fds.append(fd)
        irq = lib.KVD_VFIO_IRQ_MSI if irq is None else irq
        check(lib.kvd_vfio_irqs(self.handle, irq, 0, 1, ffi.new("int[]", [fd])))
        return Interrupt(fd)

    def acknowledge(self) -> int:
        """Return why it interrupted, and take that back."""
        status = self.load(IRQ_STATUS)
        self.store(IRQ_ACKNOWLEDGE, status)
        return status

    def copy(self, source: int, target: int, size: int, *, to_memory: bool, interrupt: Interrupt) -> None:
        """Let the device copy, and wait for its interrupt."""
        self.store64(DMA_SOURCE, source)
        self.store64(DMA_TARGET, target)
        self.store64(DMA_BYTES, size)
        self.store64(DMA_COMMAND, DMA_START | DMA_INTERRUPT | (DMA_TO_MEMORY if to_memory else 0))
        assert interrupt.fired() == 1
        assert self.acknowledge() == DMA_IRQ_STATUS


class KernelLog:
    """The kernel's log from now on, with room in it for one fault.

    The kernel tells of three faults in 5 s at most (three of the ten messages that it allows itself for each), so a
    fourth waits until it will be told.
    """

    _faults_at_s: ClassVar[collections.deque[float]] = collections.deque(maxlen=FAULTS_TOLD)

    def __init__(self) -> None:
        if len(self._faults_at_s) == FAULTS_TOLD:
            select.select([], [], [], max(0.0, self._faults_at_s[0] + FAULTS_S - time.monotonic()))
        self._fd = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
        os.lseek(self._fd, 0, os.SEEK_END)

    def close(self) -> None:
        os.close(self._fd)

    def wait_for(self, *words: str) -> str:
        """Return the next record with all of the words in it.

        Raises
        ------
        AssertionError
            None comes in time; the message has what came.
        """
        seen: list[str] = []
        deadline = time.monotonic() + WAIT_S
        while select.select([self._fd], [], [], max(0.0, deadline - time.monotonic()))[0]:
            record = os.read(self._fd, 8192).decode(errors="replace").partition(";")[2]
            if all(word in record for word in words):
                self._faults_at_s.append(time.monotonic())
                return record
            seen.append(record)
        raise AssertionError(f"no kernel message with {words}, only {seen}")
