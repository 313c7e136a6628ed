"""The program ``kvd-card``, started and stopped by tests."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from kvdriver import cardmodel
from kvdriver.cardmodel import program

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["program", "running", "start", "stop"]

STOP_S_MAX = 10.0


def start(socket: Path, *options: str) -> subprocess.Popen[bytes]:
    """Start a card that listens on a socket."""
    process = cardmodel.start(socket, *options)
    try:
        cardmodel.until_listening(process, socket)
    except BaseException:
        process.kill()
        process.wait()
        raise
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
