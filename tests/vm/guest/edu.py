"""QEMU's `edu` device.

Its registers are those of QEMU's own description (docs/specs/edu): it computes factorials, raises an interrupt on demand
and copies between the guest's memory and a buffer of 4 KiB.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vfio_device import Device, check

from kvdriver._vfio import ffi, lib

if TYPE_CHECKING:
    from vfio_device import Interrupt

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
QUIET_S = 0.5
"""A copy takes the device 100 ms: what has not come after this does not come."""


class Edu(Device):
    """An open `edu`."""

    def __init__(self, where: str) -> None:
        super().__init__(where)
        self.bar = self.map(lib.KVD_VFIO_BAR0, 0, BAR_BYTES)
        # What a test that failed has left there; the device forgets it in no reset.
        self.acknowledge()

    def load(self, register: int) -> int:
        value = ffi.new("uint32_t *")
        check(lib.kvd_vfio_load32(self.bar + register, value))
        return value[0]

    def store(self, register: int, value: int) -> None:
        check(lib.kvd_vfio_store32(self.bar + register, value))

    def store64(self, register: int, value: int) -> None:
        check(lib.kvd_vfio_store64(self.bar + register, value))

    def msi(self) -> Interrupt:
        """Let its interrupt signal an eventfd."""
        return self.interrupt(lib.KVD_VFIO_IRQ_MSI)

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
