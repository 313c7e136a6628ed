"""The program ``kvd-card``, started and stopped by tests."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

START_S_MAX = 10.0
STOP_S_MAX = 10.0


def program() -> Path | None:
    """Return where the program is installed, if it is."""
    beside = Path(sys.executable).parent / "kvd-card"
    found = str(beside) if beside.exists() else shutil.which("kvd-card")
    return Path(found) if found else None


def start(socket: Path, *options: str) -> subprocess.Popen[bytes]:
    """Start a card that listens on a socket."""
    path = program()
    assert path is not None
    said = socket.with_suffix(".log")
    with said.open("wb") as log:
        process = subprocess.Popen([path, "--socket", socket, *options], stdout=log)
    end_s = time.monotonic() + START_S_MAX
    while b"listening" not in said.read_bytes():
        assert process.poll() is None, "kvd-card ended at once"
        assert time.monotonic() < end_s, "kvd-card did not listen"
        time.sleep(0.01)
    return process


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a card, dead or alive."""
    if process.poll() is None:
        process.terminate()
    process.wait(STOP_S_MAX)


@contextmanager
def running(socket: Path, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    """A card that is there for a while."""
    process = start(socket, *options)
    try:
        yield process
    finally:
        stop(process)
