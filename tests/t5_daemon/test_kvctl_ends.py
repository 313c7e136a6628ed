"""How ``kvctl`` ends: exit statuses, absent and dying daemons, Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kvctl import client
from kvctl.exits import NoDaemonError
from support.kvctl_runs import (
    KVCTL,
    WAIT_S,
    Daemon,
    daemon,
    document,
    environment,
    kvctl,
    start,
)
from support.needs import need_root

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def still() -> Iterator[Daemon]:
    """A daemon for tests that change nothing."""
    with daemon("--degraded") as found:
        yield found


@pytest.fixture
def fresh() -> Iterator[Daemon]:
    with daemon() as found:
        yield found


# --- exit statuses -------------------------------------------------------------------------------------------------

FAILURES = [
    (["promote", "/mnt/kvd/model"], 1),
    (["nope"], 2),
    (["df", "extra"], 2),
    (["promote"], 2),
    (["--nope", "df"], 2),
    (["completion", "tcsh"], 2),
    (["stat", "/etc/passwd"], 2),
    (["stat", "/mnt/kvdx/a"], 2),
    (["stat", "/mnt/kvd/model/../../a"], 2),
    (["stat", "relative"], 2),
    (["ls"], 2),
    (["stat", "/mnt/kvd/nope"], 4),
    (["ls", "/mnt/kvd/nope"], 4),
    (["promote", "/mnt/kvd/nope"], 4),
    (["demote", "/mnt/kvd/model/leased.bin"], 5),
    (["unpin", "/mnt/kvd/model/leased.bin"], 5),
    (["promote", "/mnt/kvd/model/huge.bin"], 6),
    (["pin", "/mnt/kvd/model/huge.bin"], 6),
    (["sync", "/mnt/kvd/model/damaged.bin"], 7),
    (["pin", "/mnt/kvd/model/damaged.bin"], 7),
]


@pytest.fixture(scope="module")
def spent() -> Iterator[Daemon]:
    """A daemon for commands that fail: whatever they change, they fail the same way after it."""
    with daemon() as found:
        yield found


@pytest.mark.parametrize(("arguments", "status"), FAILURES)
def test_exit_statuses(spent: Daemon, arguments: list[str], status: int) -> None:
    done = kvctl(spent.path, *arguments)
    assert done.returncode == status
    assert done.stderr


def test_a_foreign_path_names_the_mount(still: Daemon) -> None:
    assert "/etc/passwd is not in /mnt/kvd" in kvctl(still.path, "stat", "/etc/passwd").stderr


def test_an_error_is_json_too(still: Daemon) -> None:
    done = kvctl(still.path, "--json", "ls", "/mnt/kvd/nope")
    assert done.returncode == 4
    assert document(done) == {"error": {"code": "ENOENT", "message": "no such name: /nope"}}


def test_a_bug_of_the_daemon() -> None:
    with daemon("--bug") as found:
        done = kvctl(found.path, "status")
    assert (done.returncode, done.stdout) == (1, "")
    assert "its log says why" in done.stderr


@pytest.mark.parametrize("command", ["status", "df", "metrics", "ls", "sync", "version"])
def test_no_daemon(tmp_path: Path, command: str) -> None:
    done = kvctl(tmp_path / "none", command)
    assert done.returncode == 3
    assert f"there is no socket {tmp_path}/none" in done.stderr
    assert "systemctl start kvd" in done.stderr
    assert done.stdout == ("kvctl 0.1.0\n" if command == "version" else "")


def test_a_dead_daemons_socket() -> None:
    with daemon() as found:
        found.process.kill()
        found.process.wait(WAIT_S)
        done = kvctl(found.path, "df")
    assert done.returncode == 3
    assert "nobody listens" in done.stderr


def test_the_default_socket_and_the_option(still: Daemon) -> None:
    assert kvctl(None, "--socket", str(still.path), "df").returncode == 0
    assert kvctl(Path("/nope"), "df", "--socket", str(still.path)).returncode == 0
    if not Path("/run/kvd/kvd.sock").exists():
        assert "/run/kvd/kvd.sock" in kvctl(None, "df").stderr


def test_permission_denied(fresh: Daemon) -> None:
    need_root()
    fresh.path.parent.chmod(0o755)
    # The rights are given up within the process: a clone below /root can't be executed by anybody else. The first call
    # imports what the second one needs.
    code = (
        "import os, sys; from kvctl.__main__ import main\n"
        "def call(*words):\n"
        "    sys.argv = ['kvctl', *words]\n"
        "    try: main()\n"
        "    except SystemExit as end: return end.code\n"
        "call('--socket', '/nowhere', 'df')\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "sys.exit(call('df'))\n"
    )
    done = subprocess.run(
        [sys.executable, "-B", "-c", code],
        env=environment(fresh.path),
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert done.returncode == 3, done.stderr
    assert "in the group kvd" in done.stderr


def answered(path: Path, reply: bytes) -> tuple[int, str]:
    """Run ``kvctl ls`` against a server that says one thing."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        with start(path, "ls", "/mnt") as process:
            connection, _ = server.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(reply), reply))
                _, complaint = process.communicate(timeout=WAIT_S)
    return process.returncode, complaint


@pytest.mark.parametrize("reply", [b"hello", b"[]", b"{}", b"7", b'{"error": {}}'])
def test_something_else_on_the_socket(tmp_path: Path, reply: bytes) -> None:
    status, complaint = answered(tmp_path / "s", reply)
    assert status == 3
    assert "is not kvd" in complaint


def test_a_daemon_of_another_age(tmp_path: Path) -> None:
    status, complaint = answered(tmp_path / "s", b'{"version": "9", "api": 2, "mount": "/mnt"}')
    assert status == 1
    assert "use the kvctl that came with the daemon" in complaint


def test_a_daemon_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "SILENCE_S", 0.05)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "s"))
        server.listen()
        with client.Client(tmp_path / "s") as asker, pytest.raises(NoDaemonError, match="it hangs"):
            asker.get("status")


def test_a_full_disk_is_a_sentence(still: Daemon) -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [KVCTL, "df"], env=environment(still.path), stdout=full, stderr=subprocess.PIPE, timeout=WAIT_S, check=False
        )
    assert (done.returncode, done.stderr) == (1, b"kvctl: can't write: No space left on device\n")


# --- breaking off --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("as_json", [False, True])
def test_ctrl_c_cancels_at_the_daemon(as_json: bool) -> None:
    with (
        daemon("--hold") as found,
        start(found.path, "demote", "/mnt/kvd", *(["--json"] if as_json else [])) as process,
    ):
        found.wait_for("step")
        process.send_signal(signal.SIGINT)
        out, complaint = process.communicate(timeout=WAIT_S)
        found.wait_for("cancelled")
    assert process.returncode == 130
    assert complaint == "kvctl: interrupted\n"
    if as_json:
        assert json.loads(out)["error"]["code"] == "EINTR"
    else:
        assert out == ""


def test_the_daemon_dies_in_the_middle() -> None:
    with daemon("--die-at", "3") as found:
        done = kvctl(found.path, "sync")
    assert (done.returncode, done.stdout) == (3, "synced 2 objects, 3.5 MiB\n")
    assert "went away in the middle" in done.stderr


def test_the_daemon_dies_in_the_middle_in_json() -> None:
    with daemon("--die-at", "3") as found:
        done = kvctl(found.path, "sync", "--json")
    summary = document(done)
    assert done.returncode == 3
    assert (summary["done"], summary["error"]["code"]) == (2, "NO_DAEMON")


def test_the_operation_breaks_in_the_middle() -> None:
    with daemon("--bug", "--fail-at", "2") as found:
        done = kvctl(found.path, "sync", "--json")
    summary = document(done)
    assert done.returncode == 1
    assert (summary["done"], summary["error"]["code"]) == (1, "INTERNAL")


def test_a_closed_pipe_is_no_error(still: Daemon) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    with os.fdopen(write_end, "wb") as out:
        done = subprocess.run(
            [KVCTL, "status"],
            env=environment(still.path),
            stdout=out,
            stderr=subprocess.PIPE,
            timeout=WAIT_S,
            check=False,
        )
    assert (done.returncode, done.stderr) == (0, b"")
