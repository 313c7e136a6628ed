"""What the guest may ask of the host."""

from __future__ import annotations

import json
import socket
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from vm.helpers import Helper
from vm.requests import Requests

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

GREETING = {"QMP": {"version": {}}}


class FakeMonitor:
    """QEMU's control socket: greets, and answers each command as it was told."""

    def __init__(self, path: Path, answers: list[list[dict[str, object]]]) -> None:
        self.commands: list[dict[str, object]] = []
        self._answers = answers
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(str(path))
        self._socket.listen(1)
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        connection, _ = self._socket.accept()
        with connection, connection.makefile("rw") as lines:
            self._send(lines, GREETING)
            for answer in self._answers:
                self.commands.append(json.loads(lines.readline()))
                for message in answer:
                    self._send(lines, message)

    @staticmethod
    def _send(lines: object, message: dict[str, object]) -> None:
        lines.write(json.dumps(message) + "\n")
        lines.flush()

    def close(self) -> None:
        self._thread.join()
        self._socket.close()


LISTENS = "import signal, socket, sys; s = socket.socket(socket.AF_UNIX); s.bind(sys.argv[1]); signal.pause()"


@pytest.fixture
def card(scratch: Path) -> Iterator[Helper]:
    path = scratch / "s"
    made = Helper(name="card", command=[sys.executable, "-c", LISTENS, str(path)], socket=path, log=scratch / "log")
    yield made
    made.kill()


def test_ping(scratch: Path):
    assert Requests([], scratch / "m").answer("HOST ping\r") == "done"


def test_kill(scratch: Path, card: Helper):
    card.start()
    requests = Requests([card], scratch / "m")
    assert not requests.killed
    assert requests.answer("HOST kill card") == "done"
    assert not card.alive
    assert requests.killed


@pytest.mark.parametrize("line", ["HOST", "HOST ", "HOST kill", "HOST dance now", "kill card", "", "\0"])
def test_what_is_not_known_is_refused(scratch: Path, line: str):
    assert Requests([], scratch / "m").answer(line).startswith("unknown request")


def test_a_helper_that_is_not_there_is_named(scratch: Path, card: Helper):
    assert Requests([card], scratch / "m").answer("HOST kill nobody") == "no helper nobody, only ['card']"


def test_unplug(scratch: Path):
    event = {"event": "RTC_CHANGE"}
    monitor = FakeMonitor(scratch / "m", [[{"return": {}}], [event, {"return": {}}]])
    assert Requests([], scratch / "m").answer("HOST unplug edu") == "done"
    monitor.close()
    assert monitor.commands == [
        {"execute": "qmp_capabilities"},
        {"execute": "device_del", "arguments": {"id": "edu"}},
    ]


def test_what_qemu_refuses_is_told(scratch: Path):
    error = {"error": {"class": "DeviceNotFound", "desc": "Device 'x'\nnot found"}}
    monitor = FakeMonitor(scratch / "m", [[{"return": {}}], [error]])
    assert Requests([], scratch / "m").answer("HOST unplug x") == "Device 'x' not found"
    monitor.close()


def test_a_qemu_that_is_gone_is_told(scratch: Path):
    assert "No such file" in Requests([], scratch / "m").answer("HOST unplug edu")
    monitor = FakeMonitor(scratch / "m", [[{"return": {}}]])
    assert Requests([], scratch / "m").answer("HOST unplug edu") != "done"
    monitor.close()
