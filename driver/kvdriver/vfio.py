"""A card behind the kernel's VFIO or behind vfio-user."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any, Final, Self

from kvdriver._vfio import ffi, lib
from kvdriver.faults import DeviceFault, FaultKind
from kvdriver.results import check_result
from kvdriver.sysfs import Sysfs
from kvdriver.transport import CALL_S_MAX, Interrupt, Region, Transport, TransportInfo

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kvdriver.address import DeviceAddress

MS_PER_S: Final = 1000
DEADLINE_MS: Final = round(CALL_S_MAX * MS_PER_S)


class VfioTransport(Transport):
    """An open device of csrc/vfio. Make one with `open`."""

    def __init__(self, handle: Any, *, slot: str = "") -> None:
        self._handle: Any | None = handle
        self._slot = slot
        told = ffi.new("struct kvd_vfio_info *")
        lib.kvd_vfio_info(handle, told)
        self._info = TransportInfo(
            name=ffi.string(told.transport).decode("ascii", "replace"),
            vendor=told.vendor,
            device=told.device,
            region_bytes={region: told.regions[region].bytes for region in Region},
            interrupts={interrupt: told.irqs[interrupt] for interrupt in Interrupt},
            page_bytes=told.iova_page_bytes,
            mappings_max=told.mappings_max,
            address_first=told.iova_first,
            address_last=told.iova_last,
            can_reset=bool(told.can_reset),
        )

    @classmethod
    def open(cls, address: DeviceAddress, *, deadline_ms: int = DEADLINE_MS) -> Self:
        """Open the device at an address.

        Raises
        ------
        DeviceFault
            `FaultKind.UNUSABLE`, with what is wrong and what mends it.
        """
        if address.is_kernel and not Sysfs().answers(address.place):
            # The kernel resets a device that is opened, and waits more than a minute for one that does not answer.
            raise DeviceFault(
                FaultKind.UNUSABLE, f"{address}: the card is gone: its configuration space reads as all ones"
            )
        why = ffi.new("char[]", lib.KVD_VFIO_TEXT_BYTES)
        out = ffi.new("kvd_vfio **")
        opener = lib.kvd_vfio_open_kernel if address.is_kernel else lib.kvd_vfio_open_user
        result = opener(address.place.encode(), deadline_ms, why, out)
        if result < 0:
            told = ffi.string(why).decode("utf-8", "replace") or os.strerror(-result)
            raise DeviceFault(FaultKind.UNUSABLE, f"{address}: {told}")
        return cls(out[0], slot=address.place if address.is_kernel else "")

    def __repr__(self) -> str:
        return f"<VfioTransport {self._info.name} {'open' if self._handle is not None else 'closed'}>"

    def _opened(self) -> Any:
        if self._handle is None:
            raise ValueError("the device is closed")
        return self._handle

    @property
    def info(self) -> TransportInfo:
        """What is known of the device."""
        return self._info

    def read(self, region: Region, offset: int, count: int) -> bytes:
        """Read `count` bytes of a region."""
        data = ffi.new("char[]", count)
        check_result(lib.kvd_vfio_read(self._opened(), region, offset, data, count), "read of a register")
        return bytes(ffi.buffer(data, count))

    def write(self, region: Region, offset: int, data: bytes) -> None:
        """Write to a region."""
        check_result(lib.kvd_vfio_write(self._opened(), region, offset, data, len(data)), "write of a register")

    def map(self, region: Region, offset: int, count: int) -> int:
        """Map a stretch of a region; return its address in this process, good until `close`."""
        out = ffi.new("void **")
        check_result(
            lib.kvd_vfio_region_map(self._opened(), region, offset, count, out), "mapping of the device's memory"
        )
        return int(ffi.cast("uintptr_t", out[0]))

    def dma_map(self, address: int, count: int, iova: int, fd: int) -> None:
        """Let the device reach `count` bytes at `address`, a shared mapping of `fd` from its beginning, at `iova`."""
        where = ffi.cast("void *", address)
        result = lib.kvd_vfio_dma_map(self._opened(), where, count, iova, fd, 0, 1)
        check_result(result, f"DMA mapping of {count >> 10} KiB")

    def dma_unmap(self, iova: int, count: int) -> None:
        """Take back exactly what one `dma_map` gave."""
        check_result(lib.kvd_vfio_dma_unmap(self._opened(), iova, count), "DMA unmapping")

    def interrupt(self, which: Interrupt, eventfds: Sequence[int]) -> None:
        """Signal these descriptors for the first vectors of an interrupt; none: switch it off."""
        result = lib.kvd_vfio_irqs(self._opened(), which, 0, len(eventfds), ffi.new("int[]", list(eventfds) or [-1]))
        check_result(result, "interrupts")

    def reset(self) -> None:
        """Reset the function; DMA mappings stay, interrupts are off."""
        check_result(lib.kvd_vfio_reset(self._opened()), "reset")

    def deadline(self, seconds: float) -> None:
        """Set what each call from now on may wait for another process; a kernel's device has no such bound."""
        lib.kvd_vfio_deadline(self._opened(), max(1, round(seconds * MS_PER_S)))

    def gone_fd(self) -> int:
        """Return a descriptor that gets readable when the device goes; -1: there is none."""
        return int(lib.kvd_vfio_gone_fd(self._opened()))

    def is_gone(self) -> bool:
        """Tell whether the device is known to be gone; never waits."""
        return bool(lib.kvd_vfio_is_gone(self._opened()))

    def close(self, *, dead: bool = False) -> None:
        """Let go of the device; the only call that a gone one still takes. `dead`: nobody waits for its reset."""
        if self._handle is None:
            return
        handle, self._handle = self._handle, None
        with without_reset(Sysfs(), self._slot) if dead and self._slot else contextlib.nullcontext():
            lib.kvd_vfio_close(handle)


@contextlib.contextmanager
def without_reset(sysfs: Sysfs, slot: str) -> Iterator[None]:
    """Keep the kernel from resetting a device as it is closed: it waits a minute and more for one that is dead."""
    method = sysfs.device(slot) / "reset_method"
    before = None
    with contextlib.suppress(OSError):  # an older kernel, or not ours to write: then it takes its time
        before = sysfs.read(method)
        sysfs.write(method, "\n")
    try:
        yield
    finally:
        if before:
            with contextlib.suppress(OSError):
                sysfs.write(method, before)
