"""What is mounted where, read from ``/proc/self/mountinfo``: asking the mount itself could hang on a dead one."""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

MOUNTINFO = Path("/proc/self/mountinfo")
FUSE_FSTYPE = "fuse.kvd"

_OCTAL = re.compile(rb"\\([0-7]{3})")
_FIELDS_BEFORE_TAGS = 6
_FIELDS_AFTER_DASH = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class MountEntry:
    """One line of mountinfo; see proc(5)."""

    mount_id: int
    parent_id: int
    device: str
    root: str
    mount_point: Path
    options: tuple[str, ...]
    fstype: str
    source: str
    super_options: tuple[str, ...]


def source_name(state: Path) -> str:
    """Return what a kvd with this state directory calls its mount: only one daemon can hold that state's lock."""
    return f"kvd@{state}"


def _unescape(field: bytes) -> str:
    return os.fsdecode(_OCTAL.sub(lambda match: bytes([int(match[1], 8)]), field))


def _parse_line(line: bytes) -> MountEntry:
    fields = line.split(b" ")
    dash = fields.index(b"-", _FIELDS_BEFORE_TAGS)
    # A file system may have an empty source, which leaves two spaces in a row; so no field is ever dropped.
    tail = fields[dash + 1 :]
    if len(tail) < _FIELDS_AFTER_DASH:
        raise ValueError("too few fields")
    return MountEntry(
        mount_id=int(fields[0]),
        parent_id=int(fields[1]),
        device=fields[2].decode(),
        root=_unescape(fields[3]),
        mount_point=Path(_unescape(fields[4])),
        options=tuple(_unescape(fields[5]).split(",")),
        fstype=_unescape(tail[0]),
        source=_unescape(tail[1]),
        super_options=tuple(_unescape(tail[2]).split(",")),
    )


def parse(text: bytes) -> tuple[MountEntry, ...]:
    """Return the mounts in the kernel's order: of several at one place, the last is on top.

    Raises
    ------
    ValueError
        If a line is not mountinfo.
    """
    entries = []
    for number, line in enumerate(text.split(b"\n"), start=1):
        if line:
            try:
                entries.append(_parse_line(line))
            except (ValueError, IndexError) as error:
                raise ValueError(f"mountinfo line {number}: {error}") from error
    return tuple(entries)


def read(path: Path = MOUNTINFO) -> tuple[MountEntry, ...]:
    """Return the mounts that this process sees."""
    return parse(path.read_bytes())


def place(path: Path) -> Path:
    """Return `path` as mountinfo would name it, without looking at its last component, which may be a dead mount."""
    return Path(os.path.realpath(path.parent)) / path.name


def stack_at(entries: Sequence[MountEntry], path: Path) -> tuple[MountEntry, ...]:
    """Return the mounts at exactly `path`, the topmost last."""
    where = place(path)
    return tuple(entry for entry in entries if entry.mount_point == where)


def is_ours(entry: MountEntry, state: Path) -> bool:
    """Tell whether a mount was made by a kvd with this state directory."""
    return entry.fstype == FUSE_FSTYPE and entry.source == source_name(state)


def describe(entry: MountEntry) -> str:
    """Name a mount in a message."""
    return f"{entry.fstype} {entry.source!r}"
