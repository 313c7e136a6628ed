"""Run the virtual machine and watch it to its end: the console goes to the judge, requests are answered."""

from __future__ import annotations

import selectors
import socket
import subprocess
import time
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from vm.console import Judge
    from vm.requests import Requests

READ_BYTES = 65536
LINE_BYTES_MAX = 65536
END_S_MAX = 10.0
"""Between the end of the console and the end of QEMU."""


@dataclass(slots=True)
class Lines:
    """Cuts a stream of bytes into lines; one without an end is cut at a bound."""

    _rest: bytearray = field(default_factory=bytearray)

    def feed(self, data: bytes) -> list[str]:
        """Take bytes, return the lines that they complete."""
        self._rest += data
        *whole, rest = self._rest.split(b"\n")
        if len(rest) > LINE_BYTES_MAX:
            whole.append(rest)
            rest = bytearray()
        self._rest = rest
        return [line.decode(errors="replace") for line in whole]


class Watch:
    """One run.

    Parameters
    ----------
    judge
        Gets each line of the console, and has the results afterwards.
    requests
        Gets what the guest asks for.
    log
        Gets the console as it is.
    errors
        Gets what QEMU itself says.
    echo
        Gets each line of the console.
    """

    def __init__(
        self, judge: Judge, requests: Requests, log: BinaryIO, errors: BinaryIO, echo: Callable[[str], object]
    ) -> None:
        self._judge = judge
        self._requests = requests
        self._log = log
        self._errors = errors
        self._echo = echo
        self._selector = selectors.DefaultSelector()
        self._console_open = True

    def run(self, command: Sequence[str], port: Path) -> None:
        """Start QEMU and return when it has ended, by itself or because a stage was late.

        Parameters
        ----------
        command
            QEMU and its arguments; its standard output is the console.
        port
            The socket to which QEMU connects the guest's second serial line.
        """
        with self._selector, socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(port))
            listener.listen(1)
            self._selector.register(listener, selectors.EVENT_READ, lambda: self._accept(listener))
            with subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=self._errors, bufsize=0
            ) as process:
                try:
                    self._watch(process)
                finally:
                    process.kill()

    def _watch(self, process: subprocess.Popen[bytes]) -> None:
        console, lines = process.stdout, Lines()
        assert console is not None
        self._selector.register(console, selectors.EVENT_READ, lambda: self._read_console(console, lines))
        while self._console_open:
            for key, _ in self._selector.select(max(0.0, self._seconds_left())):
                key.data()
            if self._seconds_left() <= 0:
                self._judge.late(time.monotonic())
                return
        try:
            status = process.wait(END_S_MAX)
        except subprocess.TimeoutExpired:
            self._judge.gone("QEMU does not end", time.monotonic())
        else:
            self._judge.ended(status, time.monotonic(), device_killed=self._requests.killed)

    def _seconds_left(self) -> float:
        return min(self._judge.deadline - time.monotonic(), END_S_MAX)

    def _read_console(self, console: IO[bytes], lines: Lines) -> None:
        data = console.read(READ_BYTES)
        self._log.write(data)
        self._log.flush()
        for line in lines.feed(data):
            self._judge.line(line, time.monotonic())
            self._echo(line.rstrip("\r"))
        if not data:
            self._console_open = False
            self._selector.unregister(console)

    def _accept(self, listener: socket.socket) -> None:
        connection, _ = listener.accept()
        connection.settimeout(END_S_MAX)
        lines = Lines()
        self._selector.register(connection, selectors.EVENT_READ, lambda: self._serve(connection, lines))

    def _serve(self, connection: socket.socket, lines: Lines) -> None:
        data = connection.recv(READ_BYTES)
        for line in lines.feed(data):
            if line:
                connection.sendall(self._requests.answer(line).encode() + b"\n")
        if not data:
            self._selector.unregister(connection)
            connection.close()
