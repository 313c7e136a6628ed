"""A PCI device of the guest as the tests use it: bound to vfio-pci, opened through kvdriver's VFIO layer.

Bind and unbind are plain writes to sysfs here: they are the test's set-up, not what is tested.
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

APART = 16 << 20
"""Between the start of the usable IOVA, the memory of a test, and an address that is not mapped."""
OPEN_MS = 5000
WAIT_S = 10.0
FAULTS_TOLD = 3
FAULTS_S = 5.5


def slot(vendor: int, device: int) -> str:
    """Return where the machine has its only device of this kind."""
    (found,) = (path.name for path in DEVICES.iterdir() if _id(path) == (vendor, device))
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


class Device:
    """An open device."""

    def __init__(self, where: str) -> None:
        result, why, self.handle = open_kernel(where)
        assert result == 0, why
        self._fds: list[int] = []
        self.info = ffi.new("struct kvd_vfio_info *")
        lib.kvd_vfio_info(self.handle, self.info)
        self.iova = self.info.iova_first + APART
        self.elsewhere = self.iova + APART

    def close(self) -> None:
        lib.kvd_vfio_close(self.handle)
        for fd in self._fds:
            os.close(fd)

    def map(self, region: int, offset: int, size: int) -> object:
        out = ffi.new("void **")
        check(lib.kvd_vfio_region_map(self.handle, region, offset, size, out))
        return ffi.cast("uint8_t *", out[0])

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

    def interrupt(self, irq: int, vector: int = 0) -> Interrupt:
        """Let a vector of an interrupt signal an eventfd."""
        fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._fds.append(fd)
        check(lib.kvd_vfio_irqs(self.handle, irq, vector, 1, ffi.new("int[]", [fd])))
        return Interrupt(fd)


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
