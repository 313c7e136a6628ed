"""The program ``kvd-card``, a card model in a process of its own: where it is installed, and how it is started."""

from __future__ import annotations

import errno
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

PROGRAM: Final = "kvd-card"
START_S_MAX: Final = 10.0
STOP_S_MAX: Final = 10.0
POLL_S: Final = 0.01


def program() -> Path | None:
    """Return where it is installed, if it is."""
    beside = Path(sys.executable).parent / PROGRAM
    found = str(beside) if beside.exists() else shutil.which(PROGRAM)
    return Path(found) if found else None


def log_of(socket: Path) -> Path:
    """Return where a card that `start` has made for a socket tells what it does."""
    return socket.with_suffix(".log")


def start(socket: Path, *options: str, **popen: Any) -> subprocess.Popen[bytes]:
    """Start a card that will listen on a socket; it is the caller's to end.

    Parameters
    ----------
    socket
        Where it will listen; its log lies beside it.
    options
        Further options of the program.
    popen
        Further arguments of `subprocess.Popen`.

    Raises
    ------
    OSError
        If it is not installed or can't be started.
    """
    path = program()
    if path is None:
        raise OSError(errno.ENOENT, f"{PROGRAM} is not installed")
    with log_of(socket).open("wb") as log:
        return subprocess.Popen(
            [path, "--socket", socket, *options],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            **popen,
        )


def until_listening(process: subprocess.Popen[bytes], socket: Path) -> None:
    """Wait until a card that `start` has made listens.

    Raises
    ------
    OSError
        If it ends before, or does not within `START_S_MAX`; it says what it said.
    """
    end_s = time.monotonic() + START_S_MAX
    while b"listening" not in log_of(socket).read_bytes():
        if process.poll() is not None or time.monotonic() > end_s:
            said = log_of(socket).read_text(errors="replace")
            raise OSError(errno.ECONNREFUSED, f"{PROGRAM} does not listen: {said}")
        time.sleep(POLL_S)


def stop(process: subprocess.Popen[bytes]) -> int:
    """End a card, dead or alive, by force if it does not go; return its exit status."""
    if process.poll() is None:
        process.terminate()
    try:
        return process.wait(STOP_S_MAX)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()
