"""What the machine's memory is like: how much is available, and whether free memory stays with it."""

from __future__ import annotations

import contextlib
from pathlib import Path

MEMINFO = Path("/proc/meminfo")
BALLOONS = Path("/sys/bus/virtio/drivers/virtio_balloon")
REPORTING_BIT = 5
"""VIRTIO_BALLOON_F_REPORTING (virtio 1.2, 5.5.3): the guest tells the host which pages are free, and the host takes them."""
AVAILABLE_SHARE = 8
"""When less than this part of the machine's memory is available, nothing is held that nobody asked for."""


def memory_bytes(text: str) -> tuple[int, int]:
    """Return what ``/proc/meminfo`` says of all memory and of what is available."""
    lines = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    total, available = (int(lines[name].split()[0]) << 10 for name in ("MemTotal", "MemAvailable"))
    return total, available


def host_takes_free_memory(balloons: Path = BALLOONS) -> bool:
    """Tell whether this is a virtual machine whose host takes what is free for some seconds (free page reporting)."""
    for features in balloons.glob("*/features"):
        with contextlib.suppress(OSError):
            bits = features.read_text().strip()  # bit 0 first
            if bits[REPORTING_BIT : REPORTING_BIT + 1] == "1":
                return True
    return False
