"""The configuration as the daemon uses it: sizes in bytes, durations in seconds, paths absolute."""

from __future__ import annotations

import os
import tomllib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import structs

from kvd import config_memory, config_units, mountinfo
from kvd.config_schema import CHOICES, HOT_NAMES, File, assignment, decode, default_of, fault
from kvd.errors import ConfigError
from kvd.patience import within

if TYPE_CHECKING:
    from collections.abc import Callable

DEFAULT_FILE = Path("/etc/kvd/kvd.toml")
READERS_MAX = 64
HOT_NAMES_MAX = 1 << 26
BLOCK_BYTES = 4096
BUDGET_BYTES_MIN = 1 << 20
CAPACITY_BYTES_MIN = 1 << 20
NVME_DIRS_MAX = 64
DRIVE_LOOK_S = 3.0
"""How long a look at an NVMe directory may take before the daemon runs, which then finds out more."""
SOCKET_PATH_BYTES_MAX = 107
"""What fits into a sockaddr_un."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonConfig:
    """Table ``[daemon]``."""

    mount: Path
    state: Path
    socket: Path
    socket_group: str
    flush_s: float
    device: str = "in-process"


@dataclass(frozen=True, slots=True, kw_only=True)
class FuseConfig:
    """Table ``[fuse]``; `passthrough` is ``auto`` or ``off``, `hot_names` 0 for no hot table."""

    passthrough: str
    allow_other: bool
    readers: int
    write_wait_s: float
    read_wait_s: float
    hot_names: int = HOT_NAMES


@dataclass(frozen=True, slots=True, kw_only=True)
class DdrConfig:
    """Table ``[ddr]``; the tmpfs is `budget_bytes` + `burst_bytes` large."""

    path: Path
    budget_bytes: int
    burst_bytes: int
    high_watermark: float
    low_watermark: float
    idle_s: float
    warm: str = "off"
    spare: str = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class NvmeConfig:
    """Table ``[nvme]``; `capacity_bytes` 0 means: what the file systems have, less `reserve_bytes` each."""

    dirs: tuple[Path, ...]
    capacity_bytes: int
    reserve_bytes: int
    direct: str
    deadline_s: float
    probe_s: float = 5.0
    on_full: str = "evict"


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionConfig:
    """Table ``[admission]``: the policies of what belongs to no namespace, and of a new one where none are given."""

    admit: str = "all"
    durability: str = "back"
    on_fault: str = "eio"


@dataclass(frozen=True, slots=True, kw_only=True)
class AgeingConfig:
    """Table ``[ageing]``; `reuse_min` is a probability, from which on an object is worth writing to NVMe."""

    policy: str = "default"
    reuse_min: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ScrubConfig:
    """Table ``[scrub]``; `rate_bytes` a second, 0: off."""

    rate_bytes: int = 32 << 20
    period_s: float = 7 * 86400.0


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
    admission: AdmissionConfig = AdmissionConfig()
    ageing: AgeingConfig = AgeingConfig()
    scrub: ScrubConfig = ScrubConfig()


def load(path: Path | None, *, device: str | None = None) -> Config:
    """Read the configuration: `path`, else ``/etc/kvd/kvd.toml`` where it exists, else the defaults.

    Parameters
    ----------
    path
        The file.
    device
        In place of what it says in ``[daemon] device``.

    Raises
    ------
    ConfigError
        With one line that names the key and the mend.
    """
    memory = config_memory.read()
    if path is None and not DEFAULT_FILE.exists():
        return _resolved(build(_with_device(File(), device), memory))
    file = path or DEFAULT_FILE
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror}; set --config to a readable file") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file}: is not UTF-8 at byte {error.start}; save it as UTF-8") from error
    return _resolved(parse(text, memory, name=str(file), device=device))


def _with_device(file: File, device: str | None) -> File:
    return file if device is None else structs.replace(file, daemon=structs.replace(file.daemon, device=device))


def parse(text: str, memory: config_memory.Memory, *, name: str = "configuration", device: str | None = None) -> Config:
    """Return the configuration that a TOML text describes; `name` is what errors call it, `device` overrides.

    Raises
    ------
    ConfigError
        With one line that names the key and the mend.
    """
    try:
        tree = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{name}: {error}; see kvd --print-config for how it is written") from error
    return build(_with_device(decode(tree), device), memory)


def build(file: File, memory: config_memory.Memory) -> Config:
    """Turn what the file says into bytes, seconds and paths, and check that it fits together.

    Raises
    ------
    ConfigError
        With one line that names the key and the mend.
    """
    values = _Values(file)
    for table, key in CHOICES:
        values.choice(table, key)
    if not 1 <= file.fuse.readers <= READERS_MAX:
        raise fault("fuse", "readers", f"{file.fuse.readers} is out of range", f"set 1 to {READERS_MAX}")
    if not 0 <= file.fuse.hot_names <= HOT_NAMES_MAX:
        raise fault("fuse", "hot_names", f"{file.fuse.hot_names} is out of range", f"set 0 to {HOT_NAMES_MAX}")
    if not 0 <= file.ageing.reuse_min <= 1:
        raise fault("ageing", "reuse_min", f"{file.ageing.reuse_min} is not between 0 and 1", "set 0")
    config = Config(
        daemon=DaemonConfig(
            mount=values.path("daemon", "mount"),
            state=values.path("daemon", "state"),
            socket=values.path("daemon", "socket"),
            socket_group=file.daemon.socket_group,
            flush_s=values.duration("daemon", "flush"),
            device=_device(file.daemon.device),
        ),
        fuse=FuseConfig(
            passthrough=file.fuse.passthrough,
            allow_other=file.fuse.allow_other,
            readers=file.fuse.readers,
            write_wait_s=values.duration("fuse", "write_wait"),
            read_wait_s=values.duration("fuse", "read_wait"),
            hot_names=file.fuse.hot_names,
        ),
        ddr=_ddr(values, memory),
        nvme=_nvme(values),
        log=LogConfig(level=file.log.level, format=file.log.format),
        admission=AdmissionConfig(
            admit=file.admission.admit, durability=file.admission.durability, on_fault=file.admission.on_fault
        ),
        ageing=AgeingConfig(policy=file.ageing.policy, reuse_min=file.ageing.reuse_min),
        scrub=ScrubConfig(rate_bytes=values.size("scrub", "rate"), period_s=values.duration("scrub", "period")),
    )
    _check_socket(config.daemon.socket)
    _check_apart(config)
    return config


def _ddr(values: _Values, memory: config_memory.Memory) -> DdrConfig:
    table = values.file.ddr
    budget_bytes = values.share("ddr", "budget", memory.usable_bytes)
    burst_bytes = values.share("ddr", "burst", budget_bytes)
    if budget_bytes < BUDGET_BYTES_MIN:
        raise fault("ddr", "budget", f"{budget_bytes} bytes is too little", "set 1MiB or more")
    if budget_bytes + burst_bytes > memory.usable_bytes:
        total, usable = (config_units.size_text(n) for n in (budget_bytes + burst_bytes, memory.usable_bytes))
        raise fault("ddr", "budget", f"with burst it is {total}, more than {memory.bound}, {usable}", "set less")
    if not 0 < table.high_watermark <= 1:
        raise fault("ddr", "high_watermark", f"{table.high_watermark} is not between 0 and 1", "set 0.9")
    if not 0 < table.low_watermark < table.high_watermark:
        what = f"{table.low_watermark} is not between 0 and high_watermark"
        raise fault("ddr", "low_watermark", what, f"set it below {table.high_watermark}")
    return DdrConfig(
        path=values.path("ddr", "path"),
        budget_bytes=budget_bytes,
        burst_bytes=burst_bytes,
        high_watermark=table.high_watermark,
        low_watermark=table.low_watermark,
        warm=table.warm,
        spare=table.spare,
        idle_s=values.duration("ddr", "idle"),
    )


def _nvme(values: _Values) -> NvmeConfig:
    table = values.file.nvme
    if not 1 <= len(table.dirs) <= NVME_DIRS_MAX:
        raise fault("nvme", "dirs", f"has {len(table.dirs)} directories", f"set 1 to {NVME_DIRS_MAX}")
    dirs = tuple(_absolute("nvme", "dirs", text) for text in table.dirs)
    _check_duplicates(dirs)
    capacity_bytes = 0
    if table.capacity != "auto":
        capacity_bytes = values.size("nvme", "capacity")
        if capacity_bytes < CAPACITY_BYTES_MIN:
            raise fault("nvme", "capacity", f"{capacity_bytes} bytes is too little", 'set 1MiB or more, or "auto"')
    return NvmeConfig(
        dirs=dirs,
        capacity_bytes=capacity_bytes,
        reserve_bytes=values.size("nvme", "reserve"),
        direct=table.direct,
        deadline_s=values.duration("nvme", "deadline"),
        probe_s=values.duration("nvme", "probe"),
        on_full=table.on_full,
    )


@dataclass(frozen=True, slots=True)
class _Values:
    """Reads values of a decoded file; whatever is wrong with one is said with its key."""

    file: File

    def _read(self, table: str, key: str, parse_value: Callable[..., float], **kwargs: int) -> float:
        try:
            return parse_value(getattr(getattr(self.file, table), key), **kwargs)
        except ValueError as error:
            raise fault(table, key, str(error), assignment(table, key)) from error

    def duration(self, table: str, key: str) -> float:
        """Return a duration in seconds."""
        return self._read(table, key, config_units.parse_duration)

    def size(self, table: str, key: str) -> int:
        """Return a size in bytes."""
        return int(self._read(table, key, config_units.parse_size))

    def share(self, table: str, key: str, whole_bytes: int) -> int:
        """Return a size in bytes, whole blocks, that may be set as a share of `whole_bytes`."""
        size_bytes = int(self._read(table, key, config_units.parse_share, whole_bytes=whole_bytes))
        return size_bytes - size_bytes % BLOCK_BYTES

    def path(self, table: str, key: str) -> Path:
        """Return a path, absolute and without detours."""
        return _absolute(table, key, getattr(getattr(self.file, table), key))

    def choice(self, table: str, key: str) -> None:
        """Check that a word is one of those that the key takes."""
        value, known = getattr(getattr(self.file, table), key), CHOICES[table, key]
        if value not in known:
            words = ", ".join(f'"{word}"' for word in known)
            raise fault(table, key, f'"{value}" is not one of {words}', f'set "{default_of(table, key)}"')


def _absolute(table: str, key: str, text: str) -> Path:
    path = Path(text)
    if not text or "\0" in text:
        raise fault(table, key, "is no path", assignment(table, key))
    if not path.is_absolute() or ".." in path.parts:
        raise fault(table, key, f'"{text}" is not absolute', 'set a path that starts with "/" and has no ".."')
    return Path(os.path.normpath(text.replace("//", "/")))


def _device(text: str) -> str:
    """Check how a device is named; one in process needs no driver."""
    if text == default_of("daemon", "device"):
        return text
    from kvdriver.address import DeviceAddress  # noqa: PLC0415  it brings a C extension with it

    try:
        return str(DeviceAddress.parse(text))
    except ValueError as error:
        raise fault("daemon", "device", str(error), assignment("daemon", "device")) from error


def _check_duplicates(dirs: tuple[Path, ...]) -> None:
    for directory in dirs:
        if dirs.count(directory) > 1:
            raise fault("nvme", "dirs", f"{directory} is there more than once", "set each directory once")


def _check_socket(socket: Path) -> None:
    if len(os.fsencode(socket)) > SOCKET_PATH_BYTES_MAX:
        what = f"the path has more than {SOCKET_PATH_BYTES_MAX} bytes"
        raise fault("daemon", "socket", what, "set a shorter one")


def named_paths(config: Config) -> list[tuple[str, str, Path]]:
    """Return each path of the configuration with the table and key it comes from."""
    return [
        ("daemon", "mount", config.daemon.mount),
        ("daemon", "state", config.daemon.state),
        ("daemon", "socket", config.daemon.socket),
        ("ddr", "path", config.ddr.path),
        *(("nvme", "dirs", directory) for directory in config.nvme.dirs),
    ]


def _check_apart(config: Config) -> None:
    """Refuse a path within a directory that kvd has for itself.

    kvd must never touch its own mount, sweeps what it does not know from its NVMe directories, and mounts over
    `ddr.path`.
    """
    own = {("daemon", "mount"), ("ddr", "path"), ("nvme", "dirs")}
    paths = named_paths(config)
    for here, (own_table, own_key, owned) in enumerate(paths):
        for number, (table, key, path) in enumerate(paths):
            if number == here or (own_table, own_key) not in own or not path.is_relative_to(owned):
                continue
            where = "is" if path == owned else f"{path} is inside"
            raise fault(table, key, f"{where} {owned}, which is [{own_table}] {own_key}", "set a path apart from it")


def _real_drive(path: Path) -> Path:
    """Follow the links of a directory on a drive; one that does not answer is taken as it is named."""
    try:
        return Path(within(DRIVE_LOOK_S, lambda: os.path.realpath(path)))
    except TimeoutError:
        return path


def _resolved(config: Config) -> Config:
    """Follow symbolic links, so that two names of one directory are one path. The mount point itself is not looked at."""
    state, socket, ddr = (
        Path(os.path.realpath(p)) for p in (config.daemon.state, config.daemon.socket, config.ddr.path)
    )
    daemon = replace(config.daemon, mount=mountinfo.place(config.daemon.mount), state=state, socket=socket)
    nvme = replace(config.nvme, dirs=tuple(map(_real_drive, config.nvme.dirs)))
    resolved = replace(config, daemon=daemon, ddr=replace(config.ddr, path=ddr), nvme=nvme)
    _check_duplicates(resolved.nvme.dirs)
    _check_apart(resolved)
    return resolved
