"""System calls that Python lacks, and the same case run on two file systems."""

from __future__ import annotations

import ctypes
import errno
import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

AT_FDCWD = -100
AT_SYMLINK_FOLLOW = 0x400
RENAME_NOREPLACE, RENAME_EXCHANGE, RENAME_WHITEOUT = 1, 2, 4
KEEP_SIZE, PUNCH_HOLE, COLLAPSE, ZERO, INSERT, UNSHARE = 1, 2, 8, 16, 32, 64
UTIME_NOW, UTIME_OMIT = (1 << 30) - 1, (1 << 30) - 2
NOBODY = 65534
CHILD_S = 60
DEADLINE_S = 20
POLL_S = 0.01

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = _libc.mremap.restype = ctypes.c_void_p
_LONG = ctypes.c_long


class Timespec(ctypes.Structure):
    _fields_ = (("s", ctypes.c_long), ("ns", ctypes.c_long))


def _checked(result: int, *what: object) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), *what)
    return result


def fallocate(fd: int, mode: int, offset: int, length: int) -> None:
    _checked(_libc.fallocate(fd, mode, _LONG(offset), _LONG(length)))


def pwrite(fd: int, data: bytes, offset: int) -> int:
    return _checked(_libc.pwrite(fd, data, ctypes.c_size_t(len(data)), _LONG(offset)))


def ftruncate(fd: int, length: int) -> None:
    _checked(_libc.ftruncate(fd, _LONG(length)))


def rename2(old: os.PathLike[str], new: os.PathLike[str], flags: int) -> None:
    _checked(_libc.renameat2(AT_FDCWD, os.fsencode(old), AT_FDCWD, os.fsencode(new), flags))


def link_fd(fd: int, new: os.PathLike[str]) -> None:
    """Give what a descriptor has open a name, as open(2) says for O_TMPFILE."""
    path = f"/proc/self/fd/{fd}".encode()
    _checked(_libc.linkat(AT_FDCWD, path, AT_FDCWD, os.fsencode(new), AT_SYMLINK_FOLLOW))


def utimensat(path: os.PathLike[str], access: tuple[int, int], modified: tuple[int, int]) -> None:
    times = (Timespec * 2)(Timespec(*access), Timespec(*modified))
    _checked(_libc.utimensat(AT_FDCWD, os.fsencode(path), times, 0))


def syncfs(fd: int) -> None:
    _checked(_libc.syncfs(fd))


def tried(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Return what a call gives, or the name of its errno."""
    try:
        return function(*args, **kwargs)
    except OSError as error:
        return errno.errorcode[error.errno or 0]


def wait_for(condition: Callable[[], bool]) -> None:
    """Poll until a condition holds."""
    deadline_s = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline_s, "it never came to that"
        time.sleep(POLL_S)


def child(code: str, *args: object, uid: int = 0, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run Python code in a process of its own, as another user if need be; `sys.argv[1:]` are its arguments.

    The code may use `tried` and all other names of this file.
    """
    become = f"os.setgroups([]); os.setgid({uid}); os.setuid({uid})" if uid else ""
    head = f"import os, sys\nsys.path.insert(0, {os.path.dirname(os.path.dirname(__file__))!r})\n"
    text = f"{head}from support.posix import *\nfrom support.posix import tried\n{become}\n{code}"
    done = subprocess.run(
        [sys.executable, "-I", "-c", text, *map(str, args)],
        capture_output=True,
        text=True,
        timeout=CHILD_S,
        check=False,
    )
    if check and done.returncode:
        raise AssertionError(f"status {done.returncode}: {done.stderr}")
    return done
