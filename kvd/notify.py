"""Telling systemd how the daemon is: sd_notify(3) without its library, and the watchdog."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING

import trio

from kvd import log

if TYPE_CHECKING:
    from collections.abc import Mapping

_log = log.get(__name__)

_STATUS_CHARS_MAX = 500
_US_PER_S = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Notifier:
    """The service manager's end; without an `address` nothing is sent.

    `watchdog_s` is how long systemd waits for a sign of life, None when it doesn't.
    """

    address: str | None = None
    watchdog_s: float | None = None

    @classmethod
    def from_environ(cls, environ: Mapping[str, str] = os.environ, *, pid: int | None = None) -> Notifier:
        """Return the notifier that this process's environment describes."""
        address = environ.get("NOTIFY_SOCKET", "")
        if address[:1] not in {"/", "@"}:
            return cls()
        period_us = environ.get("WATCHDOG_USEC", "")
        ours = environ.get("WATCHDOG_PID", "") in {"", str(os.getpid() if pid is None else pid)}
        watchdog_s = int(period_us) / _US_PER_S if ours and period_us.isdecimal() and int(period_us) > 0 else None
        return cls(address=address, watchdog_s=watchdog_s)

    def ready(self) -> None:
        """Say that the mount serves."""
        self._send("READY=1")

    def status(self, text: str) -> None:
        """Show one line in ``systemctl status``."""
        self._send(f"STATUS={' '.join(text.split())[:_STATUS_CHARS_MAX]}")

    def stopping(self) -> None:
        """Say that the daemon drains and will end."""
        self._send("STOPPING=1")

    def extend(self, seconds: float) -> None:
        """Ask for that much more time to start or stop."""
        self._send(f"EXTEND_TIMEOUT_USEC={round(seconds * _US_PER_S)}")

    def alive(self) -> None:
        """Give the watchdog its sign of life."""
        self._send("WATCHDOG=1")

    async def watchdog(self) -> None:
        """Give signs of life for as long as this task runs: as long as the trio loop turns."""
        if self.watchdog_s is None:
            return
        while True:
            self.alive()
            await trio.sleep(self.watchdog_s / 2)

    def _send(self, message: str) -> None:
        """Send without ever waiting: a service manager that is slow or gone must not stop the daemon."""
        if self.address is None:
            return
        # A leading "@" is the abstract name space, whose names begin with a zero byte.
        address = "\0" + self.address[1:] if self.address.startswith("@") else self.address
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK) as sender:
            try:
                sender.sendto(message.encode(), address)
            except OSError as error:
                _log.debug("could not notify systemd", message=message, reason=error.strerror)
