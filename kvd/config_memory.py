"""How much memory this process can have: the machine's, or less where a cgroup says so."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from kvd import mountinfo

if TYPE_CHECKING:
    from collections.abc import Iterator

_KIB = 1024
_LIMIT_FILES = {"cgroup2": "memory.max", "cgroup": "memory.limit_in_bytes"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """`limit_bytes` is the tightest cgroup limit, None where there is none; `limited_by` is the file that says so."""

    total_bytes: int
    limit_bytes: int | None = None
    limited_by: str = ""

    @property
    def usable_bytes(self) -> int:
        """What kvd can have at most."""
        return self.total_bytes if self.limit_bytes is None else min(self.total_bytes, self.limit_bytes)

    @property
    def bound(self) -> str:
        """What bounds `usable_bytes`, for messages."""
        if self.limit_bytes is not None and self.limit_bytes < self.total_bytes:
            return f"the memory limit of this cgroup ({self.limited_by})"
        return "this machine's RAM"


def read(root: Path = Path("/")) -> Memory:
    """Read the limits of this process from the /proc and cgroup file systems below `root`."""
    total_bytes = _mem_total(root / "proc/meminfo")
    tightest: tuple[int, str] | None = None
    for limit_file in _limit_files(root):
        try:
            text = limit_file.read_text().strip()
        except OSError:
            continue  # the root of a hierarchy has no limit file
        # "max" (v2), or a number near 2**63 (v1), is no limit.
        if text.isdigit() and int(text) < total_bytes and (tightest is None or int(text) < tightest[0]):
            tightest = int(text), f"/{limit_file.relative_to(root)}"
    if tightest is None:
        return Memory(total_bytes=total_bytes)
    return Memory(total_bytes=total_bytes, limit_bytes=tightest[0], limited_by=tightest[1])


def _mem_total(meminfo: Path) -> int:
    for line in meminfo.read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "MemTotal":
            return int(value.split()[0]) * _KIB
    raise OSError(f"{meminfo} has no MemTotal")


def _limit_files(root: Path) -> Iterator[Path]:
    """Yield the limit files of this process's cgroups and of all above them, for v1 and v2."""
    groups = _groups(root / "proc/self/cgroup")
    for entry in mountinfo.read(root / "proc/self/mountinfo"):
        group = groups.get(entry.fstype)
        if group is None or (entry.fstype == "cgroup" and "memory" not in entry.super_options):
            continue
        # In a container the mount shows only the part of the hierarchy below `entry.root`.
        try:
            below = group.relative_to(entry.root)
        except ValueError:
            below = PurePosixPath()
        top = root / entry.mount_point.relative_to("/")
        here = top / below
        for folder in (here, *here.parents):
            yield folder / _LIMIT_FILES[entry.fstype]
            if folder == top:
                break


def _groups(path: Path) -> dict[str, PurePosixPath]:
    """Return this process's memory cgroup in each hierarchy, by the hierarchy's file system type."""
    groups = {}
    for line in path.read_text().splitlines():
        number, controllers, group = line.split(":", 2)
        if number == "0" and not controllers:
            groups["cgroup2"] = PurePosixPath(group)
        elif "memory" in controllers.split(","):
            groups["cgroup"] = PurePosixPath(group)
    return groups
