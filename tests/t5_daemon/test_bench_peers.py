"""``make bench-peers`` with few chunks and no framework: what it compares, what it says, and that nothing is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.daemons import until
from support.needs import need_fuse

pytestmark = pytest.mark.timeout(300)

COMPARE = Path(__file__).parents[1] / "peers/compare.py"
RUN_S = 240
FEW = ("--rounds", "1", "--chunks", "4")


def run(*words: object, **variables: str) -> subprocess.CompletedProcess[str]:
    need_fuse(root=True)
    command = [sys.executable, str(COMPARE), *map(str, words)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=RUN_S, check=False, env={**os.environ, **variables}
    )


def test_plain_files_are_stored_and_loaded_everywhere(tmp_path: Path) -> None:
    done = run("plain", *FEW, "--json", tmp_path / "found.json")
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    found: dict[str, Any] = json.loads((tmp_path / "found.json").read_text())
    assert {place: set(steps) for place, steps in found["gbs"]["plain"].items()} == {
        "disk": {"store", "load", "cold"},
        "tmpfs": {"store", "load"},
        "kvd": {"store", "load", "cold"},
    }
    assert all(rate > 0 for steps in found["gbs"]["plain"].values() for rate in steps.values())
    assert set(found["kvd_vs"]["plain"]) == {"store", "load", "cold"}
    assert (found["wrong"], found["failed"]) == ([], {})
    assert found["file_systems"]["kvd"]["type"] == "fuse.kvd"
    assert not Path(found["file_systems"]["disk"]["path"]).exists()


def test_a_peer_that_was_named_and_can_not_be_installed_fails_it(tmp_path: Path) -> None:
    nowhere = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "", "PIP_CONFIG_FILE": os.devnull}
    done = run("sglang", *FEW, "--environment", tmp_path / "peers", **nowhere)
    assert done.returncode == 1
    assert "sglang: can't be installed: ERROR: No matching distribution" in done.stdout
    assert "Traceback" not in done.stderr


def test_other_bytes_fail_it(tmp_path: Path) -> None:
    driver = [sys.executable, str(COMPARE.with_name("driver.py")), "plain"]

    def step(name: str) -> dict[str, Any]:
        command = [*driver, name, str(tmp_path), "4", "65536"]
        found: dict[str, Any] = json.loads(subprocess.run(command, capture_output=True, check=True, text=True).stdout)
        return found

    assert step("store")["bytes"] == 4 << 16
    assert (step("load")["wrong"], step("load")["missing"]) == (0, 0)
    (tmp_path / "000001.kv").write_bytes((tmp_path / "000002.kv").read_bytes())
    (tmp_path / "000003.kv").unlink()
    assert (step("load")["wrong"], step("load")["missing"]) == (1, 1)


@pytest.mark.parametrize("words", [("nobody",), ("--rounds", "0")])
def test_what_makes_no_sense(words: tuple[str, ...]) -> None:
    done = run(*words)
    assert (done.returncode, done.stdout) == (2, "")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_an_interruption_leaves_nothing(scratch: Path, number: signal.Signals) -> None:
    need_fuse(root=True)
    output = scratch / "output"
    with output.open("w") as file:
        command = [sys.executable, "-u", str(COMPARE), "plain", "--rounds", "1000"]
        environment = {**os.environ, "TMPDIR": str(scratch)}
        process = subprocess.Popen(command, stdout=file, stderr=file, env=environment)
    try:
        until(lambda: "plain on disk" in output.read_text(), "the first round")
        assert str(scratch) in Path("/proc/self/mountinfo").read_text()
        process.send_signal(number)
        assert process.wait(RUN_S) == 130
    finally:
        process.kill()
        process.wait()
    assert output.read_text().splitlines()[-1] == "interrupted; nothing is left running or mounted"
    assert str(scratch) not in Path("/proc/self/mountinfo").read_text()
    assert os.listdir(scratch) == ["output"]
