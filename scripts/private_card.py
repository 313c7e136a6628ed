"""A card model (kvd-card) of one's own: for the demo and the tests. Leaves no process and no socket behind."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Self

from private_kvd import signals_held

if TYPE_CHECKING:
    from types import TracebackType

BIN = Path(sys.executable).parent
READY_S = 10.0
STOP_S = 10.0
POLL_S = 0.01


class CardFailedError(Exception):
    """The card model did not do what it should; the message has its output."""


class PrivateCard:
    """One kvd-card on a socket in a folder of its own.

    Parameters
    ----------
    options
        Further options of the program.
    """

    def __init__(self, *options: str) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="kvd-card-")
        self._options = options
        self.socket = Path(self._folder.name) / "card.sock"
        self.log = Path(self._folder.name) / "card.log"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """How a daemon names it."""
        return f"vfio-user:{self.socket}"

    def start(self) -> Self:
        """Start it and wait until it listens."""
        with self.log.open("ab") as log, signals_held() as restore:
            self._process = subprocess.Popen(
                [str(BIN / "kvd-card"), "--socket", str(self.socket), *self._options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=restore,  # noqa: PLW1509 - it does nothing but one system call
            )
        deadline = time.monotonic() + READY_S
        while not self.socket.exists():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise CardFailedError(f"kvd-card does not listen: {self.log.read_text()}")
            time.sleep(POLL_S)
        return self

    def kill(self) -> None:
        """End it without warning."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """End it if it runs, and remove its folder."""
        try:
            if self._process is not None and self._process.poll() is None:
                self._process.terminate()
                try:
                    self._process.wait(STOP_S)
                except subprocess.TimeoutExpired:
                    self.kill()
        finally:
            self._folder.cleanup()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
