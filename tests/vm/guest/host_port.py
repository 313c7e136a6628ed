"""Ask the host to do something, over the second serial line: one line there, one line back."""

from __future__ import annotations

import os
import select
import time

PORT = "/dev/ttyS1"
ANSWER_S_MAX = 30.0
ANSWER_BYTES_MAX = 4096


class HostRefusedError(Exception):
    """The host could not do it, or did not answer."""


def ask(request: str, *, deadline_s: float = ANSWER_S_MAX) -> None:
    """Send ``HOST request`` and return when the host says ``done``.

    Raises
    ------
    HostRefusedError
        The host says why not, or is silent past the deadline.
    """
    port = os.open(PORT, os.O_RDWR | os.O_NOCTTY)
    try:
        os.write(port, f"HOST {request}\n".encode())
        answer = _line(port, time.monotonic() + deadline_s)
    finally:
        os.close(port)
    if answer != "done":
        raise HostRefusedError(f"{request}: {answer}")


def _line(port: int, deadline: float) -> str:
    received = b""
    while not received.endswith(b"\n") and len(received) < ANSWER_BYTES_MAX:
        if not select.select([port], [], [], max(0.0, deadline - time.monotonic()))[0]:
            return f"no answer, only {received!r}"
        received += os.read(port, ANSWER_BYTES_MAX)
    return received.decode(errors="replace").strip()
