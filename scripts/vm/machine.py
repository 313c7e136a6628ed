"""The virtual machine: QEMU's command line."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from vm.bed import Bed

MEMORY_MIB = 1024
PROCESSORS = 2
EDU_DMA_MASK = 2**64 - 1
"""Without it the device reaches 28 bits only, and a driver for wider ones takes the largest range of IOVA, above 4 GiB."""
APPEND = "console=ttyS0 quiet loglevel=3 mitigations=off intel_iommu=on panic=-1"
"""Kernel messages below `critical` stay off the console, where they would cut markers in two; `dmesg` has them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What is in the machine.

    Parameters
    ----------
    bed
        QEMU and the kernel.
    image
        The guest's root file system.
    sockets
        A folder with a short name, for the sockets between QEMU and this program.
    card
        The socket of the card model, or None for a machine without a card.
    """

    bed: Bed
    image: Path
    sockets: Path
    card: Path | None

    @property
    def monitor(self) -> Path:
        """QEMU's control socket."""
        return self.sockets / "monitor"

    @property
    def port(self) -> Path:
        """Where the guest's second serial line comes out. QEMU connects to it."""
        return self.sockets / "port"

    def command(self) -> list[str]:
        """Return QEMU's command line."""
        return [
            *self.bed.qemu,
            # No KVM: it is not there on the machines that this runs on, and a result must not depend on it.
            *("-accel", "tcg", "-cpu", "max", "-smp", str(PROCESSORS), "-m", str(MEMORY_MIB)),
            *("-no-reboot", "-nodefaults", "-no-user-config", "-display", "none"),
            *("-machine", "q35,kernel-irqchip=split,memory-backend=ram0"),
            # Shared, as a device in another process has the guest's memory as a mapping of the same file. With share=off
            # DMA reports success and moves nothing.
            *("-object", f"memory-backend-memfd,id=ram0,size={MEMORY_MIB}M,share=on"),
            *("-device", "intel-iommu,intremap=on,caching-mode=on,device-iotlb=on"),
            *self._devices(),
            *("-serial", "stdio", "-chardev", f"socket,id=port,path={self.port}", "-serial", "chardev:port"),
            *("-qmp", f"unix:{self.monitor},server=on,wait=off"),
            *("-kernel", str(self.bed.kernel), "-initrd", str(self.image), "-append", APPEND),
        ]

    def _devices(self) -> list[str]:
        # Each device below a root port of its own: an IOMMU group of its own, a bus reset, and it can be unplugged.
        edu = f"edu,id=edu,bus=port1,dma_mask={EDU_DMA_MASK:#x}"
        devices = ["-device", "pcie-root-port,id=port1,chassis=1,addr=4", "-device", edu]
        if self.card is not None:
            card = {"driver": "vfio-user-pci", "id": "card", "bus": "port2"}
            card_socket = {"socket": {"type": "unix", "path": str(self.card)}}
            devices += [
                "-device",
                "pcie-root-port,id=port2,chassis=2,addr=5",
                "-device",
                json.dumps(card | card_socket),
            ]
        return devices
