"""One daemon a state: the lock of the state directory."""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from kvd.errors import UnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LOCK_NAME = "lock"
DYING_S_MAX = 10.0
"""How long a killed daemon may take to end once nothing keeps its threads in the kernel."""
LOOK_S = 0.05


@contextmanager
def locked(state: Path, *, unstick: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Hold the state directory: one daemon a state.

    Parameters
    ----------
    state
        The directory.
    unstick
        Is called when whoever has the lock was killed, but a thread of it waits in the kernel for the kernel's own client of
        its mount: each waits for the other until the mount is aborted.

    Raises
    ------
    UnavailableError
        Another daemon has it.
    """
    with (state / LOCK_NAME).open("a+") as lock:
        if not _take(lock):
            holder = _read(lock)
            if not _is_dying(holder):
                raise UnavailableError(
                    f"another kvd (pid {holder or 'unknown'}) uses {state}; stop it or set [daemon] state"
                )
            unstick()
            deadline_s = time.monotonic() + DYING_S_MAX
            while not _take(lock):
                if time.monotonic() >= deadline_s:
                    raise UnavailableError(f"a killed kvd (pid {holder}) does not end and keeps {state}; reboot")
                time.sleep(LOOK_S)
        lock.truncate(0)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        yield


def _take(lock: TextIO) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _read(lock: TextIO) -> str:
    lock.seek(0)
    return lock.read().strip()


def _is_dying(pid: str) -> bool:
    """Tell whether a process has ended but for threads that the kernel can't end yet."""
    try:
        text = Path("/proc", pid, "stat").read_text()
    except (OSError, ValueError):
        return False
    return text.rpartition(")")[2].split()[0] in {"Z", "X"}
