"""``kvd`` as an operator types it: one line and an exit status for each mistake, never a traceback."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from kvd import __main__ as cli
from kvd import daemon
from kvd.errors import ConfigError, ExitCode, UnavailableError


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "kvd", *map(str, arguments)]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=30)


@pytest.fixture
def file(scratch):
    """A configuration that can be used, in `scratch`."""
    (scratch / "mnt").mkdir()
    path = scratch / "kvd.toml"
    path.write_text(f"""
[daemon]
mount = "{scratch}/mnt"
state = "{scratch}/state"
socket = "{scratch}/run/kvd.sock"
[ddr]
path = "{scratch}/run/ddr"
budget = "8MiB"
[nvme]
dirs = ["{scratch}/nvme"]
[log]
format = "json"
""")
    return path


def test_check_config(file):
    done = run("--check-config", "--config", file)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"configuration is fine: {file}\n", "")
    assert not (file.parent / "state").exists()


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ("budget =", "budgt =", 'kvd: [ddr] budgt: no such key; set "budget" instead\n'),
        (
            "/mnt",
            "/nowhere",
            (
                "kvd: [daemon] mount: {scratch}/nowhere is not there; make it (mkdir -p {scratch}/nowhere), "
                "or set another\n"
            ),
        ),
        ("8MiB", "900TiB", "kvd: [ddr] budget: with burst it is "),
    ],
)
def test_a_mistake_is_one_line_and_78(file, old, new, line):
    file.write_text(file.read_text().replace(old, new))
    done = run("--check-config", "--config", file)
    assert done.returncode == ExitCode.CONFIG
    assert done.stderr.startswith(line.replace("{scratch}", str(file.parent)))
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


def test_the_printed_configuration_passes_the_check(file):
    printed = run("--print-config").stdout
    for path in ("/mnt/kvd", "/var/lib/kvd/nvme", "/var/lib/kvd", "/run/kvd/kvd.sock", "/run/kvd/ddr"):
        name = path.rpartition("/")[2] if path != "/mnt/kvd" else "mnt"
        printed = printed.replace(f'"{path}"', f'"{file.parent}/{name}-x"' if name != "mnt" else f'"{file.parent}/mnt"')
    file.write_text(printed)
    done = run("--check-config", "--config", file)
    assert (done.returncode, done.stderr) == (0, "")


def test_version_and_help():
    assert run("--version").stdout == metadata.version("kvd") + "\n"
    help_text = run("--help").stdout
    for option in ("--config", "--check-config", "--print-config", "--version"):
        assert option in help_text


@pytest.mark.parametrize("arguments", [["--frobnicate"], ["extra"], ["--config"]])
def test_a_wrong_command_line_is_one_line_and_78(arguments):
    done = run(*arguments)
    assert done.returncode == ExitCode.CONFIG
    assert done.stderr.startswith("kvd: ")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (UnavailableError("no lock; stop the other kvd"), 69, "kvd: no lock; stop the other kvd\n"),
        (ConfigError("name \x1b[2J\n"), 78, "kvd: name \\x1b[2J\\n\n"),
        (ExceptionGroup("nursery", [UnavailableError("one"), UnavailableError("two")]), 69, "kvd: one\n"),
        (BaseExceptionGroup("nursery", [KeyboardInterrupt(), UnavailableError("one")]), 69, "kvd: one\n"),
        (BaseExceptionGroup("nursery", [KeyboardInterrupt()]), 130, ""),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_how_the_daemon_ends_is_the_exit_status(file, monkeypatch, capsys, error, status, line):
    def run_daemon(_config: object) -> int:
        raise error

    monkeypatch.setattr(cli.log, "setup", lambda *_args: None)
    monkeypatch.setattr(daemon, "run", run_daemon)
    assert cli.main(["--config", str(file)]) == status
    assert capsys.readouterr().err == line
    assert (file.parent / "state").is_dir()


@pytest.mark.parametrize(
    "error", [RuntimeError("boom"), ExceptionGroup("nursery", [ValueError("x"), UnavailableError("y")])]
)
def test_a_bug_is_logged_and_70(file, monkeypatch, claim_log, error):
    def run_daemon(_config: object) -> int:
        raise error

    claim_log("kvd ended by an error of its own")
    monkeypatch.setattr(cli.log, "setup", lambda *_args: None)
    monkeypatch.setattr(daemon, "run", run_daemon)
    assert cli.main(["--config", str(file)]) == ExitCode.SOFTWARE


def test_the_daemon_gets_the_configuration_and_gives_the_status(file, monkeypatch):
    seen = []

    def run_daemon(config: object) -> int:
        seen.append(config)
        return 74

    monkeypatch.setattr(cli.log, "setup", lambda *args: seen.append(args))
    monkeypatch.setattr(daemon, "run", run_daemon)
    assert cli.main(["--config", str(file)]) == 74
    assert seen[0] == ("info", "json")
    assert seen[1].daemon.mount == file.parent / "mnt"
    assert seen[1].ddr.budget_bytes == 8 * 2**20


def test_a_bug_is_one_json_line_under_json_logging(file):
    code = (
        "import sys; from kvd import __main__, daemon\n"
        "def run(config): raise RuntimeError('boom')\n"
        "daemon.run = run; sys.exit(__main__.main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", code, "--config", str(file)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=30, cwd=Path("/"))
    assert done.returncode == ExitCode.SOFTWARE
    (line,) = done.stderr.splitlines()
    assert json.loads(line)["exception"][0]["exc_value"] == "boom"
