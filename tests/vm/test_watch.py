"""The loop around QEMU, with a program in its place that speaks as the guest does."""

from __future__ import annotations

import io
import sys
import textwrap
import time
from typing import TYPE_CHECKING

import pytest

from vm import watch
from vm.console import Judge, Stage
from vm.requests import Requests
from vm.watch import Lines, Watch

if TYPE_CHECKING:
    from pathlib import Path

STAGES = ("boot", "one", "poweroff")


class Run:
    """One run of a program in QEMU's place; its first argument is the name of the port's socket."""

    def __init__(self, scratch: Path, code: str, seconds_max: float = 30.0) -> None:
        self.judge = Judge([Stage(name=name, seconds_max=seconds_max) for name in STAGES], time.monotonic())
        self.log = io.BytesIO()
        self.heard: list[str] = []
        port = scratch / "port"
        with (scratch / "errors").open("wb") as errors:
            Watch(self.judge, Requests([], scratch / "m"), self.log, errors, self.heard.append).run(
                [sys.executable, "-c", textwrap.dedent(code), str(port)], port
            )
        self.errors = (scratch / "errors").read_text()

    @property
    def results(self) -> list[tuple[str, int, str]]:
        return [(result.stage, result.failed, result.why) for result in self.judge.results]


def test_a_run_to_its_end(scratch: Path):
    run = Run(
        scratch,
        """
        import sys
        print("hello\\r\\nVM-TEST boot ok\\r", flush=True)
        print("not for the judge", file=sys.stderr)
        sys.stdout.write("VM-TEST one ")
        sys.stdout.flush()
        print("ok passed=2", flush=True)
        print("[ 1.0] reboot: Power down", flush=True)
        """,
    )
    assert run.results == [("boot", 0, ""), ("one", 0, ""), ("poweroff", 0, "")]
    assert run.judge.summary() == ("4 passed, 0 failed", True)
    assert run.heard == ["hello", "VM-TEST boot ok", "VM-TEST one ok passed=2", "[ 1.0] reboot: Power down"]
    assert run.log.getvalue().startswith(b"hello\r\nVM-TEST boot")
    assert run.errors == "not for the judge\n"


def test_requests_are_answered_while_the_guest_runs(scratch: Path):
    run = Run(
        scratch,
        """
        import socket, sys
        port = socket.socket(socket.AF_UNIX)
        port.connect(sys.argv[1])
        port.sendall(b"HOST pi")
        print("VM-TEST boot ok", flush=True)
        port.sendall(b"ng\\nHOST dance\\n")
        lines = port.makefile()
        answers = lines.readline(), lines.readline()
        print("answers", answers, flush=True)
        print("VM-TEST one ok\\n[ 1.0] reboot: Power down", flush=True)
        """,
    )
    assert run.judge.summary() == ("3 passed, 0 failed", True)
    assert run.heard[1] == r"""answers ('done\n', "unknown request 'dance'\n")"""


def test_a_guest_that_hangs_is_ended(scratch: Path):
    started = time.monotonic()
    run = Run(scratch, "import signal; print('VM-TEST boot ok', flush=True); signal.pause()", seconds_max=0.5)
    assert time.monotonic() - started < 10
    assert run.results[1] == ("one", 1, "nothing for 0.5 s")
    assert run.judge.summary()[1] is False


def test_a_guest_that_only_chatters_is_late_too(scratch: Path):
    run = Run(scratch, "while True: print('noise', flush=True)", seconds_max=0.5)
    assert run.results[0] == ("boot", 1, "nothing for 0.5 s")


def test_a_qemu_that_dies_is_a_failure(scratch: Path):
    run = Run(scratch, "import os, signal; print('VM-TEST boot ok', flush=True); os.kill(os.getpid(), signal.SIGKILL)")
    assert run.results[1] == ("one", 1, "QEMU ended early, with status -9")


def test_a_qemu_that_does_not_end_is_a_failure_and_ended(scratch: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(watch, "END_S_MAX", 0.3)
    run = Run(
        scratch,
        """
        import os, signal
        print("VM-TEST boot ok\\nVM-TEST one ok", flush=True)
        os.close(1)
        signal.pause()
        """,
    )
    assert run.results[2] == ("poweroff", 1, "QEMU does not end")


def test_a_qemu_that_cannot_be_started_raises(scratch: Path):
    judge = Judge([Stage(name="boot", seconds_max=1.0)], time.monotonic())
    with (scratch / "errors").open("wb") as errors, pytest.raises(FileNotFoundError):
        Watch(judge, Requests([], scratch / "m"), io.BytesIO(), errors, print).run(
            [str(scratch / "qemu")], scratch / "port"
        )


def test_lines_are_cut_at_their_ends_or_at_a_bound():
    lines = Lines()
    assert lines.feed(b"a\nb") == ["a"]
    assert lines.feed(b"c\n\nd\xff") == ["bc", ""]
    assert lines.feed(b"\n") == ["d\ufffd"]
    assert lines.feed(b"x" * watch.LINE_BYTES_MAX) == []
    assert lines.feed(b"x") == ["x" * (watch.LINE_BYTES_MAX + 1)]
    assert lines.feed(b"\n") == [""]
