"""One daemon a state: the lock of the state directory."""

from __future__ import annotations

import fcntl
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

from kvd.errors import UnavailableError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LOCK_NAME = "lock"


@contextmanager
def locked(state: Path) -> Iterator[None]:
    """Hold the state directory: one daemon a state."""
    with (state / LOCK_NAME).open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            raise UnavailableError(
                f"another kvd (pid {lock.read().strip() or 'unknown'}) uses {state}; stop it or set [daemon] state"
            ) from None
        lock.truncate(0)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        yield
