"""The programs on the host: started, waited for, killed, and named when they fail."""

from __future__ import annotations

import signal
import sys
from typing import TYPE_CHECKING

import pytest

from vm import helpers
from vm.error import BedError
from vm.helpers import Helper

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LISTENS = (
    "import signal, socket, sys; s = socket.socket(socket.AF_UNIX); s.bind(sys.argv[1]); s.listen(); signal.pause()"
)
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + LISTENS
DIES = "import sys; print('no card today'); sys.exit(3)"
SILENT = "import signal; print('thinking', flush=True); signal.pause()"


@pytest.fixture
def made() -> Iterator[list[Helper]]:
    found: list[Helper] = []
    yield found
    for helper in found:
        helper.kill()


def make(scratch: Path, made: list[Helper], code: str) -> Helper:
    socket = scratch / "s"
    helper = Helper(
        name="card", command=[sys.executable, "-c", code, str(socket)], socket=socket, log=scratch / "card.log"
    )
    made.append(helper)
    return helper


def test_it_is_there_when_started_and_gone_when_stopped(scratch: Path, made: list[Helper]):
    helper = make(scratch, made, LISTENS)
    assert not helper.alive
    helper.start()
    assert helper.alive
    assert helper.socket.is_socket()
    helper.stop()
    assert not helper.alive
    assert helper.status == -signal.SIGTERM
    helper.stop()


def test_a_socket_of_an_earlier_run_is_not_taken_for_ready(scratch: Path, made: list[Helper]):
    first = make(scratch, made, LISTENS)
    first.start()
    first.kill()
    assert first.status == -signal.SIGKILL
    assert first.socket.is_socket()
    second = make(scratch, made, DIES)
    with pytest.raises(BedError, match="ended with status 3\nno card today"):
        second.start()


def test_one_that_does_not_end_is_ended(scratch: Path, made: list[Helper], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(helpers, "STOP_S_MAX", 0.1)
    helper = make(scratch, made, STUBBORN)
    helper.start()
    helper.stop()
    assert helper.status == -signal.SIGKILL


def test_one_that_does_not_listen_is_named_and_ended(
    scratch: Path, made: list[Helper], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(helpers, "READY_S_MAX", 0.5)
    helper = make(scratch, made, SILENT)
    with pytest.raises(BedError, match="did not listen"):
        helper.start()
    assert not helper.alive


def test_a_program_that_is_not_there_is_named(scratch: Path):
    helper = Helper(name="card", command=[str(scratch / "none")], socket=scratch / "s", log=scratch / "log")
    with pytest.raises(BedError, match="card cannot be started"):
        helper.start()
    helper.kill()
    helper.stop()
