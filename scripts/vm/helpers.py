"""Programs on the host that the guest's devices need, above all the card model behind a UNIX socket."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from vm.error import BedError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

READY_S_MAX = 10.0
STOP_S_MAX = 5.0
POLL_S = 0.02
LOG_LINES = 20


@dataclass(slots=True, kw_only=True)
class Helper:
    """One program that listens on a socket.

    Parameters
    ----------
    name
        How the guest calls it in its requests.
    command
        Program and arguments; its output goes to `log`.
    socket
        The program is ready when this is there. Nobody connects to see: a model serves one client only.
    log
        File for its output.
    """

    name: str
    command: Sequence[str]
    socket: Path
    log: Path
    _process: subprocess.Popen[bytes] | None = field(default=None, init=False)

    def start(self) -> None:
        """Start it and wait for its socket.

        Raises
        ------
        BedError
            It ends, or does not listen in time.
        """
        self.socket.unlink(missing_ok=True)
        with self.log.open("wb") as log:
            try:
                self._process = subprocess.Popen(
                    self.command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
                )
            except OSError as error:
                raise BedError(f"{self.name} cannot be started: {error}", "run `make build`") from error
        deadline = time.monotonic() + READY_S_MAX
        while not self.socket.is_socket():
            if (status := self._process.poll()) is not None:
                raise BedError(f"{self.name} ended with status {status}\n{self._tail()}", f"see {self.log}")
            if time.monotonic() > deadline:
                self.stop()
                raise BedError(
                    f"{self.name} did not listen within {READY_S_MAX:.0f} s\n{self._tail()}", f"see {self.log}"
                )
            time.sleep(POLL_S)

    def kill(self) -> None:
        """End it as a crash would, and wait until it is gone."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def stop(self) -> None:
        """End it politely, then by force."""
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_S_MAX)
        except subprocess.TimeoutExpired:
            self.kill()

    @property
    def alive(self) -> bool:
        """Whether the program runs."""
        return self._process is not None and self._process.poll() is None

    @property
    def status(self) -> int | None:
        """How it ended, or None if it runs or never ran."""
        return None if self._process is None else self._process.poll()

    def _tail(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-LOG_LINES:])
