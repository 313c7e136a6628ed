"""The twin of `kvd.mount_system.System`: a machine whose mounts are a list."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

from kvd import mount_system, mountinfo
from kvd.mount_system import FusermountError, Usage
from kvd.mountinfo import MountEntry

if TYPE_CHECKING:
    from pathlib import Path

FUSE_FD = 7


class FakeSystem(mount_system.System):
    """Behaves as the kernel does for what kvd asks; `fails` maps a method to the errors of its next calls."""

    def __init__(self, *, admin: bool = True) -> None:
        self.admin = admin
        self.allow_other = False
        self.has_huge = True
        self.on_tmpfs = True
        self.table: list[MountEntry] = []
        self.usages: dict[Path, Usage] = {}
        self.fails: dict[str, list[Exception]] = {}
        self.calls: list[str] = []
        self.open_fds: set[int] = set()

    def add(self, target: Path, *, fstype: str, source: str, data: str = "rw") -> None:
        self.table.append(
            MountEntry(
                mount_id=100 + len(self.table),
                parent_id=1,
                device=f"0:{100 + len(self.table)}",
                root="/",
                mount_point=mountinfo.place(target),
                options=("rw",),
                fstype=fstype,
                source=source,
                super_options=tuple(data.split(",")),
            )
        )

    def _fail(self, name: str) -> None:
        if self.fails.get(name):
            raise self.fails[name].pop(0)

    def is_admin(self) -> bool:
        return self.admin

    def ids(self) -> tuple[int, int]:
        return (0, 0) if self.admin else (1000, 1000)

    def mounts(self) -> tuple[MountEntry, ...]:
        return tuple(self.table)

    def user_allow_other(self) -> bool:
        return self.allow_other

    def open_fuse(self) -> int:
        self._fail("open_fuse")
        self.open_fds.add(FUSE_FD)
        return FUSE_FD

    def close(self, fd: int) -> None:
        self.open_fds.remove(fd)

    def mount(self, source: str, target: Path, fstype: str, flags: int, data: str) -> None:
        self._fail("mount")
        self.calls.append(f"mount {fstype} {flags} {data}")
        if not self.has_huge and "huge=within_size" in data:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        if flags & mount_system.MS_REMOUNT:
            self._pop(target)
        self.add(target, fstype=fstype, source=source, data=data)
        if fstype == "tmpfs":
            used_bytes = self.usages[target].used_bytes if target in self.usages else 0
            size_bytes = int(data.split(",", maxsplit=1)[0].removeprefix("size="))
            self.usages[target] = Usage(total_bytes=size_bytes, used_bytes=used_bytes)

    def umount(self, target: Path, flags: int) -> None:
        self._fail("umount")
        self.calls.append(f"umount {flags}")
        self._pop(target)

    def is_tmpfs(self, path: Path) -> bool:
        self._fail("is_tmpfs")
        return self.on_tmpfs

    def usage(self, path: Path) -> Usage:
        return self.usages[path]

    def fusermount(self, target: Path, options: str) -> int:
        self._fail("fusermount")
        self.calls.append(f"fusermount {options}")
        self.add(target, fstype="fuse.kvd", source=options.split(",", maxsplit=1)[0].removeprefix("fsname="))
        self.open_fds.add(FUSE_FD)
        return FUSE_FD

    def fusermount_unmount(self, target: Path) -> None:
        self._fail("fusermount_unmount")
        self.calls.append("fusermount -u -z")
        if not mountinfo.stack_at(self.table, target):
            raise FusermountError("not mounted")
        self._pop(target)

    def _pop(self, target: Path) -> None:
        stack = mountinfo.stack_at(self.table, target)
        if not stack:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        self.table.remove(stack[-1])
