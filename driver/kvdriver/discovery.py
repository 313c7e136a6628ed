"""Which cards there are, and what stands around them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kvdriver.abi import PCI_DEVICE_ID_RESET, PCI_VENDOR_ID_RESET

if TYPE_CHECKING:
    from kvdriver.sysfs import Sysfs

VFIO_DRIVER: Final = "vfio-pci"
HARMLESS: Final = frozenset({VFIO_DRIVER, "pci-stub", "pcieport"})
"""Drivers that leave the group of their device viable: they do no DMA of their own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbour:
    """Another device of an IOMMU group; `driver` None: nobody drives it."""

    slot: str
    driver: str | None

    @property
    def viable(self) -> bool:
        """Whether the kernel gives the group away while this device is as it is."""
        return self.driver is None or self.driver in HARMLESS


@dataclass(frozen=True, slots=True, kw_only=True)
class PciDevice:
    """A PCI device. `numa_node` and `group` are None where the machine has no such thing."""

    slot: str
    vendor: int
    device: int
    class_code: int
    numa_node: int | None
    group: int | None
    neighbours: tuple[Neighbour, ...]
    driver: str | None

    @property
    def is_card(self) -> bool:
        """Whether it says that it is a kvd card."""
        return (self.vendor, self.device) == (PCI_VENDOR_ID_RESET, PCI_DEVICE_ID_RESET)


def _number(sysfs: Sysfs, slot: str, name: str) -> int:
    return int(sysfs.read(sysfs.device(slot) / name) or "0", 0)


def find(sysfs: Sysfs, slot: str) -> PciDevice | None:
    """Describe the device in a slot; None if there is none."""
    folder = sysfs.device(slot)
    if sysfs.read(folder / "vendor") is None:
        return None
    node = int(sysfs.read(folder / "numa_node") or "-1")
    group = sysfs.link(folder / "iommu_group")
    return PciDevice(
        slot=slot,
        vendor=_number(sysfs, slot, "vendor"),
        device=_number(sysfs, slot, "device"),
        class_code=_number(sysfs, slot, "class"),
        numa_node=node if node >= 0 else None,
        group=int(group) if group is not None else None,
        neighbours=_neighbours(sysfs, slot, group),
        driver=sysfs.link(folder / "driver"),
    )


def _neighbours(sysfs: Sysfs, slot: str, group: str | None) -> tuple[Neighbour, ...]:
    if group is None:
        return ()
    members = sysfs.names(sysfs.sys / "kernel/iommu_groups" / group / "devices")
    return tuple(
        Neighbour(slot=member, driver=sysfs.link(sysfs.device(member) / "driver"))
        for member in members
        if member != slot
    )


def cards(sysfs: Sysfs, *, every: bool = False) -> list[PciDevice]:
    """List the kvd cards of this machine, or `every` PCI device."""
    found = (find(sysfs, slot) for slot in sysfs.slots())
    return [device for device in found if device is not None and (every or device.is_card)]
