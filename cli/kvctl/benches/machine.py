"""The machine that was measured: a number without it says nothing."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

from kvd import config_memory, mountinfo


def facts() -> dict[str, Any]:
    """Return processor, memory, kernel, and how busy the machine was before."""
    load_1min, _, _ = os.getloadavg()
    return {
        "cpu": _cpu_model(),
        "cpus": len(os.sched_getaffinity(0)),
        "memory_bytes": config_memory.read().usable_bytes,
        "kernel": f"{platform.system()} {platform.release()}",
        "load": round(load_1min, 2),
    }


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.machine()


def file_system(path: Path) -> dict[str, str]:
    """Return what file system a path is on: never asked itself, for it may be a mount that hangs."""
    place = mountinfo.place(path)
    entries = [entry for entry in mountinfo.read() if place.is_relative_to(entry.mount_point)]
    # Of several at one place the last covers the others.
    entry = max(enumerate(entries), key=lambda pair: (len(pair[1].mount_point.parts), pair[0]))[1]
    return {
        "path": str(path),
        "type": entry.fstype,
        "source": entry.source,
        "options": ",".join((*entry.options, *entry.super_options)),
    }


def sentence(found: dict[str, Any]) -> str:
    """Return `facts` for people."""
    memory_gib = found["memory_bytes"] / (1 << 30)
    return f"{found['cpus']} x {found['cpu']}, {memory_gib:.0f} GiB, {found['kernel']}, load before {found['load']:g}"
