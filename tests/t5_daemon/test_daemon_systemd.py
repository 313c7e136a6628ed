"""What the daemon tells its service manager, and what it logs."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from typing import TYPE_CHECKING

import pytest

from support.daemons import WAIT_S, daemon, until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.daemons import Daemon

WATCHDOG_S = 0.2


@contextlib.contextmanager
def service_manager(monkeypatch: pytest.MonkeyPatch, path: str) -> Iterator[socket.socket]:
    """Listen where systemd would."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(path)
        listener.settimeout(WAIT_S)
        monkeypatch.setenv("NOTIFY_SOCKET", path)
        monkeypatch.setenv("WATCHDOG_USEC", str(round(WATCHDOG_S * 1e6)))
        yield listener


def told(listener: socket.socket) -> list[str]:
    listener.setblocking(False)
    words = []
    with contextlib.suppress(BlockingIOError):
        while True:
            words.append(listener.recv(4096).decode())
    return words


def test_systemd_is_told_of_readiness_life_progress_and_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    with daemon() as kvd, service_manager(monkeypatch, str(kvd.root / "notify")) as listener:
        kvd.up()
        ready = [listener.recv(4096).decode()]
        while ready[-1] != "READY=1":
            ready.append(listener.recv(4096).decode())
        assert set(ready) <= {"WATCHDOG=1", "READY=1"}
        begun_s = time.monotonic()
        for _ in range(10):
            assert listener.recv(4096) == b"WATCHDOG=1"
        # Ten signs of life, each within half of what systemd allows.
        assert time.monotonic() - begun_s < 10 * WATCHDOG_S
        kvd.write("object", b"x" * 100_000)
        told(listener)
        assert kvd.stop() == 0
        words = told(listener)
        assert words[0] in {"STOPPING=1", "WATCHDOG=1"}
        assert words.count("STOPPING=1") == 1
        assert "READY=1" not in words
        after = [word for word in words[words.index("STOPPING=1") :] if word != "WATCHDOG=1"]
        assert after[:2] == ["STOPPING=1", "STATUS=flushing to NVMe: 0 of 1 objects, 0 MiB"]
        assert after[2] == "EXTEND_TIMEOUT_USEC=10000000"


def test_the_watchdog_is_fed_through_a_stop_that_takes_time(monkeypatch: pytest.MonkeyPatch) -> None:
    with daemon() as kvd, service_manager(monkeypatch, str(kvd.root / "notify")) as listener:
        kvd.up().write("object", b"x")
        with (kvd.mount / "object").open("rb"):  # its release is waited for, for a second
            told(listener)
            assert kvd.stop() == 0
        words = told(listener)
        assert words[words.index("STOPPING=1") :].count("WATCHDOG=1") >= 0.8 / WATCHDOG_S


def test_a_start_that_fails_is_never_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    with daemon() as kvd, service_manager(monkeypatch, str(kvd.root / "notify")) as listener:
        (kvd.mount / "file").touch()
        assert kvd.refused()[0] == 78
        assert told(listener) == []


@pytest.fixture(scope="module")
def logged() -> Iterator[Daemon]:
    with daemon({"log": {"format": "json"}}) as made:
        yield made.up()


def records(kvd: Daemon) -> list[dict[str, object]]:
    return [json.loads(line) for line in kvd.lines()]


def test_each_line_is_one_json_object(logged: Daemon) -> None:
    found = records(logged)
    assert {"event", "level", "logger", "timestamp"} <= set.intersection(*(set(each) for each in found))
    assert "serving" in [each["event"] for each in found][-2:]  # "index checked" may have come


def test_using_objects_logs_nothing(logged: Daemon) -> None:
    logged.write("object", b"x" * 100_000)
    before = logged.lines()
    for number in range(1000):
        assert len(logged.read("object")) == 100_000
        (logged.mount / "other").write_bytes(b"%d" % number)
    os.listdir(logged.mount)
    logged.kvctl("status")
    assert logged.lines() == before


def test_a_name_that_is_no_text_can_not_break_a_line(logged: Daemon) -> None:
    name = b'bad \xff\xfe\n{"level": "critical"}\x1b[2J'
    path = os.fsencode(logged.mount) + b"/" + name
    with open(path, "wb") as file:
        file.write(bytes(100_000))
    until(lambda: os.getxattr(path, "user.kvd.state") == b"sealed", "seal")
    logged.kvctl("demote", str(logged.mount))
    ino = os.stat(path).st_ino
    (copy,) = logged.nvme_dirs[0].rglob(f"{ino:x}.*")
    with copy.open("r+b") as damaged:
        damaged.seek(70_000)
        damaged.write(b"damage")
    logged.claims += ["object quarantined"]
    with pytest.raises(OSError, match="Input/output error"), open(path, "rb") as file:
        file.read()
    (record,) = [each for each in records(logged) if each["event"] == "object quarantined"]
    assert record["path"] == r'/bad \xff\xfe\n{"level": "critical"}\x1b[2J'
    assert (record["page"], record["what"], record["level"]) == (1, "checksum differs", "error")
    shown = logged.kvctl("status").stdout
    assert "checksum differs" in shown
    assert shown.isprintable() is False  # it has line ends ...
    assert "".join(shown.split("\n")).isprintable()  # ... and nothing else that moves a cursor
    os.unlink(path)
