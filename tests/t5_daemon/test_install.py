"""``make install`` and ``make uninstall`` in a stage, and the systemd files that it puts there."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from kvd import config_schema
from support.needs import need_tool

ROOT = Path(__file__).parents[2]
BIN = "usr/local/bin"
UNIT = "usr/local/lib/systemd/system/kvd.service"
PACKAGE = "usr/local/lib/kvd"


def run(*command: object, **environ: str) -> subprocess.CompletedProcess[str]:
    outer = {name: value for name, value in os.environ.items() if name not in {"MAKEFLAGS", "MAKELEVEL", "MFLAGS"}}
    return subprocess.run(
        [str(word) for word in command],
        check=False,
        capture_output=True,
        text=True,
        timeout=100,
        cwd=ROOT,
        env={**outer, **environ},
    )


def make(target: str, stage: Path) -> str:
    # The dependencies are those of the environment that runs the tests: nothing is downloaded.
    done = run("make", "-s", target, f"DESTDIR={stage}", "INSTALL_DEPS=no")
    assert done.returncode == 0, done.stderr
    return done.stderr


def files(stage: Path) -> set[str]:
    return {str(path.relative_to(stage)) for path in stage.rglob("*") if path.is_symlink() or not path.is_dir()}


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    need_tool("make")
    stage = tmp_path_factory.mktemp("stage")
    make("install", stage)
    return stage


def test_the_installed_kvd_runs(installed):
    python = installed / PACKAGE / "bin/python"
    (site,) = (installed / PACKAGE).glob("lib/python*/site-packages")
    path = f"{site}{os.pathsep}{sysconfig.get_path('purelib')}"
    done = run(python, "-P", "-m", "kvd", "--version", PYTHONPATH=path)
    assert (done.returncode, done.stdout) == (0, "0.1.0\n")
    code = "from importlib.util import find_spec; print(find_spec('kvd.fs._split').origin)"
    assert run(python, "-P", "-c", code, PYTHONPATH=path).stdout.startswith(str(installed / PACKAGE))


@pytest.mark.parametrize("name", ["kvd", "kvctl"])
def test_commands_point_to_their_final_place(installed, name):
    assert (installed / BIN / name).readlink() == Path("/") / PACKAGE / "bin" / name
    script = (installed / PACKAGE / "bin" / name).read_text()
    assert script.splitlines()[0] == f"#!/{PACKAGE}/bin/python"


def test_the_card_model_points_to_its_final_place(installed):
    assert (installed / BIN / "kvd-card").readlink() == Path("/") / PACKAGE / "bin" / "kvd-card"
    assert run(installed / PACKAGE / "bin" / "kvd-card", "--help").stdout.startswith("usage: kvd-card")


def test_nothing_that_is_installed_knows_of_the_stage_or_the_sources(installed):
    for name in files(installed):
        path = installed / name
        if not path.is_symlink():
            content = path.read_bytes()
            assert os.fsencode(installed) not in content, name
            assert os.fsencode(ROOT) not in content, name


def test_modules_are_compiled_under_their_final_place(installed):
    (compiled,) = (installed / PACKAGE).glob("lib/python*/site-packages/kvd/__pycache__/flush.*.pyc")
    source = compiled.parents[1].relative_to(installed) / "flush.py"
    assert os.fsencode(f"/{source}") in compiled.read_bytes()


def test_the_sample_configuration_is_the_default(installed):
    sample = (installed / "etc/kvd/kvd.toml").read_text()
    assert sample == config_schema.render(config_schema.File())


@pytest.mark.parametrize(
    ("shell", "name"),
    [
        ("bash", "bash-completion/completions/kvctl"),
        ("zsh", "zsh/site-functions/_kvctl"),
        ("fish", "fish/vendor_completions.d/kvctl.fish"),
    ],
)
def test_completions_are_what_kvctl_prints(installed, shell, name):
    script = (installed / "usr/local/share" / name).read_text()
    assert script == run(sys.executable, "-P", "-m", "kvctl", "completion", shell).stdout


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_the_unit_is_clean(installed, tmp_path):
    text = (installed / UNIT).read_text()
    assert "ExecStart=/usr/local/bin/kvd\n" in text
    # What ExecStart names has to exist for systemd, here in the stage.
    program = installed / PACKAGE / "bin/kvd"
    unit = tmp_path / "kvd.service"
    unit.write_text(text.replace("ExecStart=/usr/local/bin/kvd", f"ExecStart={program}"))
    done = run("systemd-analyze", "verify", "--man=no", unit)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_stop_has_more_time_than_the_flush(installed):
    settings = dict(line.split("=", 1) for line in (installed / UNIT).read_text().splitlines() if "=" in line)
    assert settings["TimeoutStopSec"] == "6min"
    assert config_schema.default_of("daemon", "flush") == "5min"
    assert settings["RestartPreventExitStatus"] == "78"


@pytest.mark.skipif(shutil.which("systemd-sysusers") is None, reason="needs systemd-sysusers")
def test_group_and_mount_point_are_made(installed, scratch):
    (scratch / "etc").mkdir()
    for name in ("passwd", "group"):
        (scratch / "etc" / name).write_text("root:x:0:\n" if name == "group" else "root:x:0:0::/root:/bin/sh\n")
    done = run("systemd-sysusers", f"--root={scratch}", installed / "usr/local/lib/sysusers.d/kvd.conf")
    assert done.returncode == 0, done.stderr
    assert "kvd:" in (scratch / "etc/group").read_text()
    done = run("systemd-tmpfiles", "--create", f"--root={scratch}", installed / "usr/local/lib/tmpfiles.d/kvd.conf")
    assert done.returncode == 0, done.stderr
    assert (scratch / "mnt/kvd").is_dir()


def test_uninstall_removes_what_install_put_and_nothing_else(tmp_path):
    stage = tmp_path / "stage"
    others = {f"{BIN}/other", "usr/local/lib/systemd/system/other.service", "etc/kvd/other.toml"}
    for name in others:
        (stage / name).parent.mkdir(parents=True, exist_ok=True)
        (stage / name).write_text("not kvd's")
    make("install", stage)
    assert {f"{BIN}/kvd", f"{BIN}/kvctl", f"{BIN}/kvd-card", UNIT, "etc/kvd/kvd.toml"} <= files(stage)
    make("uninstall", stage)
    assert files(stage) == others
    make("uninstall", stage)
    assert files(stage) == others


def test_an_edited_configuration_survives_install_and_uninstall(tmp_path):
    stage = tmp_path / "stage"
    conf = stage / "etc/kvd/kvd.toml"
    conf.parent.mkdir(parents=True)
    conf.write_text("[log]\nlevel = 'debug'\n")
    make("install", stage)
    assert conf.read_text() == "[log]\nlevel = 'debug'\n"
    assert "it was edited" in make("uninstall", stage)
    assert files(stage) == {"etc/kvd/kvd.toml"}
