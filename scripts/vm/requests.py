"""What the guest may ask of the host while it runs: ``HOST request`` comes in, ``done`` or the reason goes back."""

from __future__ import annotations

import json
import socket
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from vm.helpers import Helper

PREFIX = "HOST "
MONITOR_S_MAX = 10.0


class RefusedError(Exception):
    """The host cannot do what the guest asks; the message goes to the guest."""


class Requests:
    """Carries out requests.

    Parameters
    ----------
    helpers
        The programs that may be killed.
    monitor
        QEMU's control socket.
    """

    def __init__(self, helpers: Sequence[Helper], monitor: Path) -> None:
        self._helpers: Mapping[str, Helper] = {helper.name: helper for helper in helpers}
        self._monitor = monitor
        self.killed = False

    def answer(self, line: str) -> str:
        """Do what the line says and return the line that the guest gets."""
        try:
            self._do(line.removeprefix(PREFIX).split() if line.startswith(PREFIX) else [])
        except (RefusedError, OSError, ValueError) as error:
            return " ".join(f"{error}".split()) or type(error).__name__
        return "done"

    def _do(self, words: list[str]) -> None:
        match words:
            case ["ping"]:
                return
            case ["kill", name]:
                if name not in self._helpers:
                    raise RefusedError(f"no helper {name}, only {sorted(self._helpers)}")
                self._helpers[name].kill()
                self.killed = True
            case ["unplug", device]:
                monitor(self._monitor, "device_del", {"id": device})
            case _:
                raise RefusedError(f"unknown request {' '.join(words)!r}")


def monitor(path: Path, command: str, arguments: Mapping[str, str]) -> Any:
    """Send one command to QEMU's monitor (QMP) and return what it answers.

    Raises
    ------
    RefusedError
        QEMU says no.
    OSError
        QEMU is gone or silent.
    """
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(MONITOR_S_MAX)
        connection.connect(str(path))
        lines = connection.makefile("rw", encoding="utf-8")
        lines.readline()  # its greeting
        result: Any = None
        requests: list[dict[str, Any]] = [{"execute": "qmp_capabilities"}]
        requests.append({"execute": command, "arguments": dict(arguments)})
        for request in requests:
            lines.write(json.dumps(request) + "\n")
            lines.flush()
            result = _answer(lines.readline)
        return result


def _answer(readline: Callable[[], str]) -> Any:
    while text := readline():
        message = json.loads(text)
        if "error" in message:
            raise RefusedError(message["error"]["desc"])
        if "return" in message:
            return message["return"]
        # An event, which nobody waits for.
    raise ConnectionResetError("QEMU closed its monitor")
