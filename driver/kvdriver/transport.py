"""How a card is reached: registers, mappings of its memory, DMA, interrupts.

`kvdriver.vfio` is the real one, for the kernel's VFIO and for vfio-user; tests have a scripted card.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence


CALL_S_MAX: Final = 2.0
"""No single call to a device takes longer, unless it was told otherwise; after that the device is gone."""


class Region(enum.IntEnum):
    """Regions of the card; the numbers are `enum kvd_vfio_region`."""

    REGISTERS = 0
    DOORBELLS = 2
    MEMORY = 4


class Interrupt(enum.IntEnum):
    """Interrupts of the card; the numbers are `enum kvd_vfio_irq`."""

    COMPLETIONS = 2
    REQUEST = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class TransportInfo:
    """What a transport says of the device behind it; `address_first` to `address_last` may be used for DMA."""

    name: str
    vendor: int
    device: int
    region_bytes: dict[Region, int]
    interrupts: dict[Interrupt, int]
    page_bytes: int
    mappings_max: int
    address_first: int
    address_last: int
    can_reset: bool


class Transport(Protocol):
    """One open device. Failures are `OSError`: ENODEV when it is gone, ETIMEDOUT past the deadline."""

    @property
    def info(self) -> TransportInfo:
        """What is known of the device."""
        ...

    def read(self, region: Region, offset: int, count: int) -> bytes:
        """Read `count` bytes of a region."""
        ...

    def write(self, region: Region, offset: int, data: bytes) -> None:
        """Write to a region."""
        ...

    def map(self, region: Region, offset: int, count: int) -> int:
        """Map a stretch of a region; return its address in this process, good until `close`."""
        ...

    def dma_map(self, address: int, count: int, iova: int, fd: int) -> None:
        """Let the device reach `count` bytes at `address`, a shared mapping of `fd` from its beginning, at `iova`."""
        ...

    def dma_unmap(self, iova: int, count: int) -> None:
        """Take back exactly what one `dma_map` gave."""
        ...

    def interrupt(self, which: Interrupt, eventfds: Sequence[int]) -> None:
        """Signal these descriptors for the first vectors of an interrupt; none: switch it off."""
        ...

    def reset(self) -> None:
        """Reset the function; DMA mappings stay, interrupts are off."""
        ...

    def deadline(self, seconds: float) -> None:
        """Set what each call from now on may wait for another process; a kernel's device has no such bound."""
        ...

    def gone_fd(self) -> int:
        """Return a descriptor that gets readable when the device goes; -1: there is none."""
        ...

    def is_gone(self) -> bool:
        """Tell whether the device is known to be gone; never waits."""
        ...

    def close(self, *, dead: bool = False) -> None:
        """Let go of the device; the only call that a gone one still takes. `dead`: nobody waits for its reset."""
        ...
