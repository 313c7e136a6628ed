"""``kvctl`` as a user runs it: a process, against a fake daemon that is a process too."""

from __future__ import annotations

import json
import os
import pty
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

WAIT_S = 30.0
KVCTL = str(Path(sys.executable).with_name("kvctl"))
FAKE = Path(__file__).parents[1] / "support" / "fake_control.py"
NOT_UTF8 = b"/mnt/kvd/model/not-utf8-\xff\xfe.bin"


class Daemon:
    """A fake daemon and its socket."""

    def __init__(self, path: Path, process: subprocess.Popen[str]) -> None:
        self.path = path
        self.process = process

    def wait_for(self, word: str) -> None:
        assert self.process.stdout is not None
        while (line := self.process.stdout.readline()) and line.strip() != word:
            pass
        assert line.strip() == word, f"the fake daemon ended without saying {word!r}"


@contextmanager
def daemon(*options: str) -> Iterator[Daemon]:
    with tempfile.TemporaryDirectory(prefix="kvd") as name:
        path = Path(name) / "s"
        command = [sys.executable, str(FAKE), str(path), *options]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        with process:
            try:
                found = Daemon(path, process)
                found.wait_for("ready")
                yield found
            finally:
                process.kill()


@pytest.fixture(scope="module")
def still() -> Iterator[Daemon]:
    """A daemon for tests that change nothing."""
    with daemon("--degraded") as found:
        yield found


@pytest.fixture
def fresh() -> Iterator[Daemon]:
    with daemon() as found:
        yield found


def environment(path: Path | None, **more: str) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if key in {"PATH", "HOME", "LANG"}}
    return kept | ({"KVD_SOCKET": str(path)} if path else {}) | more


def kvctl(path: Path | None, *arguments: str | bytes, cwd: str | None = None) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [KVCTL, *arguments],
        env=environment(path),
        cwd=cwd,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=WAIT_S,
        check=False,
    )
    assert "Traceback" not in done.stderr
    return done


def document(done: subprocess.CompletedProcess[str]) -> Any:
    assert done.stdout.isascii()
    return json.loads(done.stdout)


# --- what each command shows ---------------------------------------------------------------------------------------

SHOWS = [
    (
        ["status"],
        ["kvd 0.1.0 serves /mnt/kvd: degraded", "because", "without", "Faults", "/model/damaged.bin", "1d 2h"],
    ),
    (["df"], ["TIER", "ddr", "nvme", "64.0 GiB", "2.0 TiB", "47%", "/run/kvd/ddr"]),
    (["ls", "/mnt/kvd"], ["empty/\nmodel/\n"]),
    (
        ["ls", "/mnt/kvd/model/"],
        ["a.bin\nb.bin\n", "größe-鍵.bin\n", "name with space+plus.bin\n", r"not-utf8-\xff\xfe.bin"],
    ),
    (
        ["ls", "-l", "/mnt/kvd/model"],
        ["-rw-r--r--", "1000:1000", "3.0 MiB", "nvme", "sealed", "clean", "1h 6m", "a.bin\n"],
    ),
    (["ls", "/mnt/kvd/model/a.bin"], ["a.bin\n"]),
    (["stat", "/mnt/kvd/model/a.bin"], ["/model/a.bin\n", "3.0 MiB (3145728 bytes)", "inode", "sealed"]),
    (["stat", NOT_UTF8], [r"/model/not-utf8-\xff\xfe.bin"]),
    (["version"], ["kvctl 0.1.0\nkvd 0.1.0 (api 1) serves /mnt/kvd\n"]),
    (["--help"], ["Exit status", "130", "promote", "--json", "KVD_SOCKET"]),
    (["ls", "--help"], ["--long", "-l"]),
]


@pytest.mark.parametrize(("arguments", "shown"), SHOWS)
def test_shows(still: Daemon, arguments: list[str], shown: list[str]) -> None:
    done = kvctl(still.path, *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    for text in shown:
        assert text in done.stdout
    if "--help" not in arguments:
        assert not any(line.endswith(" ") for line in done.stdout.splitlines())
        assert "\x1b" not in done.stdout


def test_an_empty_directory_is_no_output(still: Daemon) -> None:
    assert kvctl(still.path, "ls", "/mnt/kvd/empty").stdout == ""


@pytest.mark.parametrize(
    ("arguments", "keys"),
    [
        (["status"], {"state", "mount", "tiers", "faults"}),
        (["df"], {"mount", "tiers"}),
        (["ls", "-l", "/mnt/kvd/model"], {"path", "entries"}),
        (["stat", "/mnt/kvd/model/a.bin", NOT_UTF8], {"entries", "failed"}),
        (["version"], {"client", "daemon"}),
    ],
)
def test_json_shows(still: Daemon, arguments: list[str], keys: set[str]) -> None:
    for given in (["--json", *arguments], [*arguments, "--json"]):
        done = kvctl(still.path, *given)
        assert (done.returncode, done.stderr) == (0, "")
        assert keys <= set(document(done))
        assert done.stdout.count("\n") == 1


def test_json_has_bytes_and_whole_names(still: Daemon) -> None:
    (entry,) = document(kvctl(still.path, "--json", "stat", NOT_UTF8))["entries"]
    assert entry["size_bytes"] == 4096
    assert b"/mnt/kvd" + os.fsencode(entry["path"]) == NOT_UTF8


def test_operations_for_people(fresh: Daemon) -> None:
    done = kvctl(fresh.path, "promote", "/mnt/kvd/model/a.bin", NOT_UTF8)
    assert (done.returncode, done.stdout) == (0, "promoted 2 objects, 3.0 MiB\n")
    assert "ddr" in kvctl(fresh.path, "stat", NOT_UTF8).stdout
    done = kvctl(fresh.path, "demote", "/mnt/kvd/model/a.bin")
    assert (done.returncode, done.stdout) == (0, "demoted 1 object, 3.0 MiB\n")
    done = kvctl(fresh.path, "sync")
    assert (done.returncode, done.stdout) == (7, "synced 7 objects, 900 GiB; 1 object failed\n")
    assert done.stderr == "kvctl: /model/damaged.bin: page 3 failed its checksum\n"
    done = kvctl(fresh.path, "pin", "/mnt/kvd/model")
    assert (done.returncode, done.stdout) == (0, "pinned 8 objects\n")
    done = kvctl(fresh.path, "unpin", "/mnt/kvd/model/a.bin", "/mnt/kvd/model/b.bin")
    assert (done.returncode, done.stdout) == (0, "unpinned 2 objects\n")


def test_operations_in_json(fresh: Daemon) -> None:
    done = kvctl(fresh.path, "promote", "/mnt/kvd/model", "--json")
    summary = document(done)
    assert (done.returncode, done.stderr.count("\n")) == (1, 2)
    assert (summary["done"], summary["bytes"]) == (6, 3 * 2**20 + 2**19 + 2**16 + 3 * 4096)
    assert [(failure["path"], failure["code"]) for failure in summary["failed"]] == [
        ("/model/damaged.bin", "EIO"),
        ("/model/huge.bin", "ENOSPC"),
    ]
    assert document(kvctl(fresh.path, "--json", "sync", "/mnt/kvd/empty")) == {"done": 0, "failed": [], "bytes": 0}
    assert document(kvctl(fresh.path, "--json", "pin", "/mnt/kvd/model")) == {"changed": 8, "failed": []}
    half = kvctl(fresh.path, "--json", "unpin", "/mnt/kvd/nope", "/mnt/kvd/model/a.bin")
    assert half.returncode == 4
    assert document(half)["changed"] == 1
    assert [failure["code"] for failure in document(half)["failed"]] == ["ENOENT"]


def test_names_can_not_talk_to_the_terminal(fresh: Daemon) -> None:
    done = kvctl(fresh.path, "stat", "/mnt/kvd/\x1b[31m[bold]evil\n")
    assert done.returncode == 4
    assert r"/\x1b[31m[bold]evil\n" in done.stderr


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


@pytest.mark.parametrize(("arguments", "status"), FAILURES)
def test_exit_statuses(fresh: Daemon, arguments: list[str], status: int) -> None:
    done = kvctl(fresh.path, *arguments)
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


@pytest.mark.parametrize("command", ["status", "df", "ls", "sync", "version"])
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


@pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("setpriv") is None, reason="needs root and setpriv to become nobody"
)
def test_permission_denied(fresh: Daemon) -> None:
    fresh.path.parent.chmod(0o755)
    code = "import sys; sys.argv = ['kvctl', 'df']; from kvctl.__main__ import main; main()"
    done = subprocess.run(
        ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", sys.executable, "-B", "-c", code],
        env=environment(fresh.path),
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert done.returncode == 3, done.stderr
    assert "in the group kvd" in done.stderr


def test_something_else_on_the_socket(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        with subprocess.Popen([KVCTL, "df"], env=environment(path), stderr=subprocess.PIPE, text=True) as process:
            connection, _ = server.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello")
                _, complaint = process.communicate(timeout=WAIT_S)
    assert process.returncode == 3
    assert "is not kvd" in complaint


# --- paths ---------------------------------------------------------------------------------------------------------


def test_paths_from_a_working_directory_in_the_mount(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    with daemon("--mount", str(tmp_path)) as found:
        inside = str(tmp_path / "model")
        assert "a.bin" in kvctl(found.path, "ls", cwd=inside).stdout
        assert kvctl(found.path, "stat", "a.bin", "../model/./b.bin", "..", cwd=inside).returncode == 0
        assert kvctl(found.path, "ls", ".", cwd=str(tmp_path)).stdout == "empty/\nmodel/\n"
        assert kvctl(found.path, "ls", "../..", cwd=inside).returncode == 2
        assert kvctl(found.path, "ls", f"{tmp_path}//model/").returncode == 0


def test_links_are_not_followed(tmp_path: Path) -> None:
    mount = tmp_path / "mount"
    mount.mkdir()
    (tmp_path / "link").symlink_to(mount)
    (mount / "model").symlink_to("/etc")
    with daemon("--mount", str(mount)) as found:
        assert kvctl(found.path, "ls", str(tmp_path / "link")).returncode == 2
        assert "a.bin" in kvctl(found.path, "ls", str(mount / "model")).stdout


def test_a_name_that_begins_with_a_dash(tmp_path: Path) -> None:
    with daemon("--mount", str(tmp_path)) as found:
        done = kvctl(found.path, "stat", "--", "-x", cwd=str(tmp_path))
    assert done.returncode == 4
    assert "/-x" in done.stderr


# --- breaking off --------------------------------------------------------------------------------------------------


def start(path: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [KVCTL, *arguments], env=environment(path), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


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


# --- terminals and shells ------------------------------------------------------------------------------------------


def on_a_terminal(path: Path, *arguments: str, **more: str) -> tuple[int, str]:
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [KVCTL, *arguments],
        env=environment(path, TERM="xterm-256color", COLUMNS="60", **more),
        stdin=follower,
        stdout=follower,
        stderr=follower,
    )
    os.close(follower)
    shown = b""
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline and select.select([leader], [], [], WAIT_S)[0]:
        try:
            shown += os.read(leader, 65536)
        except OSError:  # EIO: the last process on the terminal has ended
            break
    os.close(leader)
    return process.wait(WAIT_S), shown.decode()


def test_a_terminal_gets_colours_and_whole_names(still: Daemon) -> None:
    status, shown = on_a_terminal(still.path, "ls", "-l", "/mnt/kvd/model")
    assert status == 0
    assert "\x1b[34mnvme" in shown
    assert "name with space+plus.bin" in shown
    assert "…" not in shown


def test_no_color(still: Daemon) -> None:
    status, shown = on_a_terminal(still.path, "df", NO_COLOR="1")
    assert status == 0
    assert "nvme" in shown
    assert "\x1b[34m" not in shown


def test_a_terminal_gets_a_bar(fresh: Daemon) -> None:
    status, shown = on_a_terminal(fresh.path, "sync", "/mnt/kvd/model/a.bin", "/mnt/kvd/model/b.bin")
    assert status == 0
    assert "2/2" in shown
    assert "━" in shown
    assert shown.rstrip().endswith("synced 2 objects, 3.5 MiB")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(shell: str) -> None:
    done = kvctl(Path("/nope"), "completion", shell)
    assert done.returncode == 0
    for word in ("promote", "unpin", "socket"):
        assert word in done.stdout
    if shutil.which(shell):
        parsed = subprocess.run([shell, "-n"], input=done.stdout, capture_output=True, text=True, check=False)
        assert (parsed.returncode, parsed.stderr) == (0, "")


def test_completion_in_bash_completes(still: Daemon) -> None:
    script = kvctl(still.path, "completion", "bash").stdout
    ask = '\nCOMP_WORDS=(kvctl pro); COMP_CWORD=1; _kvctl; echo "${COMPREPLY[*]}"\n'
    done = subprocess.run(["bash"], input=script + ask, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "promote"
