"""What ``kvctl`` shows, as a user runs it, and which paths it takes."""

from __future__ import annotations

import os
import pty
import shutil
import subprocess
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kvctl import units
from support.kvctl_runs import (
    NOT_UTF8,
    WAIT_S,
    Daemon,
    daemon,
    document,
    kvctl,
    on_a_terminal,
)

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


# --- what each command shows ---------------------------------------------------------------------------------------

SHOWS = [
    (
        ["status"],
        ["kvd 0.1.0 serves /mnt/kvd: degraded", "because", "without", "Faults", "/model/damaged.bin", "1d 2h"],
    ),
    (["status"], ["/data/a: online, 900 GiB free", "/data/b: offline since", "no answer within 30 s"]),
    (["status"], ["being checked: 900 of 1000 objects on NVMe"]),
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
    (["metrics"], ['kvd_tier_capacity_bytes{tier="ddr"} ', "kvd_degraded 1.0\n", "kvd_faults_total 17.0\n"]),
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
        (["metrics"], {"metrics"}),
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
    assert done.stderr == "kvctl: /mnt/kvd/model/damaged.bin: page 3 failed its checksum\n"
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
    assert r"/mnt/kvd/\x1b[31m[bold]evil\n" in done.stderr


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


# --- terminals and shells ------------------------------------------------------------------------------------------


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


def test_version_option_asks_no_daemon() -> None:
    for arguments in (["--version"], ["ls", "--version"]):
        done = kvctl(Path("/nope"), *arguments)
        assert (done.returncode, done.stdout) == (0, f"kvctl {metadata.version('kvd')}\n")


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
    assert "compgen -f" not in script, "words of its answer break at blanks"
    ask = '\nCOMP_WORDS=(kvctl pro); COMP_CWORD=1; _kvctl; echo "${COMPREPLY[*]}"\n'
    done = subprocess.run(["bash"], input=script + ask, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "promote"


@pytest.mark.parametrize(
    ("count", "shown"),
    [
        (None, "-"),
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (102_348, "99.9 KiB"),
        (102_399, "100 KiB"),
        (2**20 - 1, "1.0 MiB"),
        (900 * 2**30, "900 GiB"),
        (5 * 2**60, "5120 PiB"),
    ],
)
def test_sizes(count: int | None, shown: str) -> None:
    assert units.size(count) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(None, "-"), (-3, "0s"), (59.9, "59s"), (60, "1m 0s"), (3600, "1h 0m"), (93_784, "1d 2h")],
)
def test_ages(seconds: float | None, shown: str) -> None:
    assert units.age(seconds) == shown


def test_bash_completes_a_name_with_blanks(tmp_path: Path) -> None:
    (tmp_path / "script").write_text(kvctl(Path("/nope"), "completion", "bash").stdout)
    (tmp_path / "some name").touch()
    master, slave = pty.openpty()
    with open(slave, "r+b", buffering=0) as terminal, open(master, "r+b", buffering=0) as keys:
        shell = subprocess.Popen(
            ["bash", "--norc", "--noprofile", "-i"],
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
            cwd=tmp_path,
            env={"PATH": os.environ["PATH"], "TERM": "dumb"},
            start_new_session=True,
        )
        keys.write(b'kvctl() { printf "%s\\n" "$@" >"$PWD/told"; }\n. ./script\nkvctl demote som\t\nexit\n')
        assert shell.wait(WAIT_S) == 0
    assert (tmp_path / "told").read_text() == "demote\nsome name\n"
