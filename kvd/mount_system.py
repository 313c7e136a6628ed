"""The system calls that mounting needs, and nothing else; tests have a twin (``tests/fake_system.py``)."""

from __future__ import annotations

import array
import ctypes
import os
import socket
import subprocess
from dataclasses import dataclass
from pathlib import Path

from kvd import mountinfo

CAP_SYS_ADMIN = 21
FUSE_DEVICE = Path("/dev/fuse")
FUSE_CONF = Path("/etc/fuse.conf")
FUSERMOUNT = "fusermount3"
FUSERMOUNT_S_MAX = 10.0
"""fusermount3 only mounts; what takes longer hangs in a mount point that it may not touch."""

MS_NOSUID = 2
MS_NODEV = 4
MS_NOEXEC = 8
MS_REMOUNT = 32
MNT_FORCE = 1
MNT_DETACH = 2
UMOUNT_NOFOLLOW = 8

TMPFS_MAGIC = 0x01021994
# `f_type` is the first word of struct statfs on every 64-bit Linux; the rest is only room.
_STATFS_BYTES = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """The size of a file system and what is used of it."""

    total_bytes: int
    used_bytes: int


class FusermountError(Exception):
    """fusermount3 did not do it; the text is what it said."""


class System:
    """The machine kvd runs on. Failures are OSError unless said otherwise."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)

    def is_admin(self) -> bool:
        """Tell whether CAP_SYS_ADMIN is effective: it is what mount(2) and passthrough ask for."""
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("CapEff:"):
                return bool(int(line.split()[1], 16) >> CAP_SYS_ADMIN & 1)
        return False

    def ids(self) -> tuple[int, int]:
        """Return the user and group that files of a mount belong to: this process's."""
        return os.getuid(), os.getgid()

    def mounts(self) -> tuple[mountinfo.MountEntry, ...]:
        """Return what is mounted, in the kernel's order."""
        return mountinfo.read()

    def user_allow_other(self) -> bool:
        """Tell whether fusermount3 lets users ask for ``allow_other``."""
        try:
            lines = FUSE_CONF.read_text().splitlines()
        except OSError:
            return False
        return "user_allow_other" in [line.strip() for line in lines]

    def open_fuse(self) -> int:
        """Open /dev/fuse: one descriptor is one mount."""
        return os.open(FUSE_DEVICE, os.O_RDWR | os.O_CLOEXEC)

    def close(self, fd: int) -> None:
        """Close a descriptor."""
        os.close(fd)

    def mount(self, source: str, target: Path, fstype: str, flags: int, data: str) -> None:
        """Call mount(2)."""
        words = (os.fsencode(word) for word in (source, target, fstype))
        self._check(self._libc.mount(*words, ctypes.c_ulong(flags), os.fsencode(data)), target)

    def umount(self, target: Path, flags: int) -> None:
        """Call umount2(2); it never follows a link and never asks the mount."""
        self._check(self._libc.umount2(os.fsencode(target), ctypes.c_int(flags | UMOUNT_NOFOLLOW)), target)

    def is_tmpfs(self, path: Path) -> bool:
        """Tell whether `path` lies on a tmpfs."""
        buffer = ctypes.create_string_buffer(_STATFS_BYTES)
        self._check(self._libc.statfs(os.fsencode(path), buffer), path)
        return ctypes.c_long.from_buffer(buffer).value == TMPFS_MAGIC

    def usage(self, path: Path) -> Usage:
        """Return the size and use of the file system at `path`."""
        status = os.statvfs(path)
        total_bytes = status.f_blocks * status.f_frsize
        return Usage(total_bytes=total_bytes, used_bytes=total_bytes - status.f_bfree * status.f_frsize)

    def fusermount(self, target: Path, options: str) -> int:
        """Mount through the setuid helper and return the /dev/fuse descriptor that it sends.

        Raises
        ------
        FusermountError
            If it refuses.
        FileNotFoundError
            If it is not installed.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with ours, theirs:
            said = self._run_fusermount(
                ["-o", options, "--", os.fspath(target)],
                pass_fds=(theirs.fileno(),),
                env={**os.environ, "_FUSE_COMMFD": str(theirs.fileno())},
            )
            theirs.close()
            # It has ended: the descriptor waits in the socket, or never comes.
            ours.settimeout(FUSERMOUNT_S_MAX)
            _data, ancillary, _flags, _address = ours.recvmsg(1, socket.CMSG_LEN(array.array("i").itemsize))
        for level, kind, payload in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                (fd,) = array.array("i", payload)
                os.set_inheritable(fd, False)
                return int(fd)
        raise FusermountError(said or "it sent no descriptor")

    def fusermount_unmount(self, target: Path) -> None:
        """Unmount lazily through the setuid helper.

        Raises
        ------
        FusermountError
            If it refuses.
        FileNotFoundError
            If it is not installed.
        """
        self._run_fusermount(["-u", "-z", "--", os.fspath(target)], pass_fds=(), env=None)

    def _run_fusermount(self, arguments: list[str], *, pass_fds: tuple[int, ...], env: dict[str, str] | None) -> str:
        try:
            done = subprocess.run(
                [FUSERMOUNT, *arguments],
                check=False,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                pass_fds=pass_fds,
                env=env,
                timeout=FUSERMOUNT_S_MAX,
            )
        except subprocess.TimeoutExpired as error:
            raise FusermountError(f"it did not end within {FUSERMOUNT_S_MAX:.0f} s") from error
        said = " ".join(done.stderr.decode(errors="backslashreplace").split())
        if done.returncode != 0:
            raise FusermountError(said or f"exit status {done.returncode}")
        return said

    def _check(self, result: int, target: Path) -> None:
        if result != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), os.fspath(target))
