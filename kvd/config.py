"""The configuration as the daemon uses it: sizes in bytes, durations in seconds, paths absolute."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonConfig:
    """Table ``[daemon]``."""

    mount: Path
    state: Path
    socket: Path
    socket_group: str
    flush_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FuseConfig:
    """Table ``[fuse]``; `passthrough` is ``auto`` or ``off``."""

    passthrough: str
    allow_other: bool
    readers: int
    write_wait_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DdrConfig:
    """Table ``[ddr]``; the tmpfs is `budget_bytes` + `burst_bytes` large."""

    path: Path
    budget_bytes: int
    burst_bytes: int
    high_watermark: float
    low_watermark: float
    idle_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NvmeConfig:
    """Table ``[nvme]``; `capacity_bytes` 0 means: what the file systems have, less `reserve_bytes` each."""

    dirs: tuple[Path, ...]
    capacity_bytes: int
    reserve_bytes: int
    direct: str
    deadline_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """Table ``[log]``; `format` is ``auto``, ``text`` or ``json``."""

    level: str
    format: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """All of it."""

    daemon: DaemonConfig
    fuse: FuseConfig
    ddr: DdrConfig
    nvme: NvmeConfig
    log: LogConfig
