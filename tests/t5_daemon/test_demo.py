"""The demo with a server that has no model: what it shows, when it fails, and that it leaves nothing behind."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.daemons import until
from support.needs import need_fuse

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parents[2]
FAKE = ROOT / "tests/support/fake_model.py"
WAIT_S = 60
DRIVER = f"""\
import sys
sys.path.insert(0, {str(ROOT / "scripts")!r})
import demo
kind = sys.argv[1]
sys.exit(demo.main(lambda slots: [sys.executable, {str(FAKE)!r}, str(slots), kind], sys.argv[2:]))
"""


class Demo:
    """A running demo with its output in a file."""

    def __init__(self, scratch: Path, kind: str, *words: str) -> None:
        self.output = scratch / "output"
        self.hangs = scratch / "hangs"
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-u", "-c", DRIVER, kind, *words],
                stdout=output,
                stderr=output,
                stdin=subprocess.DEVNULL,
                env={**os.environ, "FAKE_MODEL_HANGS": str(self.hangs), "COLUMNS": "160"},
                start_new_session=True,
            )

    @property
    def text(self) -> str:
        return self.output.read_text()

    def root(self) -> str:
        """Return the scratch folder of its kvd, once it serves."""
        found = re.search(r"kvd serves (\S+)/mnt", self.text)
        assert found is not None, self.text
        return found[1]

    def wait_for(self, text: str) -> None:
        until(lambda: text in self.text or self.process.poll() is not None, f"{text!r} in {self.text!r}")
        assert text in self.text

    def ended(self) -> int:
        return self.process.wait(WAIT_S)


@pytest.fixture
def run(scratch: Path) -> Callable[..., Demo]:
    need_fuse()
    return lambda kind, *words: Demo(scratch, kind, *words)


def left_of(root: str) -> list[str]:
    """Return the mounts, processes and files that have `root` in their name."""
    found = [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if root in line]
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = process.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if root in command:
            found.append(command)
    return found + [root] * Path(root).exists()


def test_it_shows_that_each_restore_answers_the_same(run: Callable[..., Demo]) -> None:
    demo = run("honest")
    assert demo.ended() == 0, demo.text
    last = demo.text.splitlines()[-1]
    summary = json.loads(last.removeprefix("DEMO "))
    seconds = {"recompute_s", "restore_ddr_s", "restore_nvme_s", "restore_after_kill_s"}
    assert set(summary) == seconds | {"identical", "ratio", "device", "engine"}
    assert (summary["device"], summary["engine"]) == ("in-process", "ok")
    assert summary["identical"] is True
    for step in ("recompute, then save", "restore from DDR", "restore from NVMe", "restore after the kill"):
        assert len([line for line in demo.text.splitlines() if f" {step} " in line and "yes" in line]) == 1
    assert "slot of 3.1 MB" in demo.text
    assert left_of(demo.root()) == []


def test_on_a_card_that_is_killed_the_answers_are_the_same(run: Callable[..., Demo]) -> None:
    demo = run("honest", "--card")
    assert demo.ended() == 0, demo.text
    summary = json.loads(demo.text.splitlines()[-1].removeprefix("DEMO "))
    assert (summary["identical"], summary["device"], summary["engine"]) == (True, "vfio-user", "degraded")
    engines = re.findall(r"engine: (\S+), (\w+)", demo.text)
    assert engines == [("vfio-user", "ok")] * 2 + [("in-process", "degraded")] * 2
    assert left_of(demo.root()) == []
    card = re.search(r"(/\S*kvd-card-\w+)/card\.sock", demo.text)
    assert card is not None
    assert left_of(card[1]) == []


def test_a_device_that_is_not_there_fails_it_in_one_sentence(run: Callable[..., Demo], tmp_path: Path) -> None:
    demo = run("honest", "--device", f"vfio-user:{tmp_path}/nobody.sock")
    assert demo.ended() == 1
    assert "demo failed: the engine should be ok, but is degraded: " in demo.text
    assert left_of(demo.root()) == []


def test_another_answer_after_a_restore_fails_it(run: Callable[..., Demo]) -> None:
    demo = run("liar")
    assert demo.ended() == 1
    summary = json.loads(demo.text.splitlines()[-1].removeprefix("DEMO "))
    assert summary["identical"] is False
    assert " NO " in demo.text
    assert left_of(demo.root()) == []


def test_a_server_that_does_not_start_fails_it_in_one_sentence(run: Callable[..., Demo]) -> None:
    demo = run("absent")
    assert demo.ended() == 1
    assert demo.text.splitlines()[-1] == "demo failed: the model server did not start (status 3)"
    assert left_of(demo.root()) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
@pytest.mark.parametrize("moment", ["kvd serves", "1. ", "3. ", "4. "])
def test_ctrl_c_leaves_nothing(run: Callable[..., Demo], moment: str, number: signal.Signals) -> None:
    demo = run("honest")
    demo.wait_for(moment)
    demo.process.send_signal(number)
    assert demo.ended() == 130, demo.text
    assert demo.text.splitlines()[-1] == "interrupted; nothing is left running or mounted"
    assert "Traceback" not in demo.text
    assert left_of(demo.root()) == []


def test_ctrl_c_twice_in_the_middle_of_an_answer_leaves_nothing(run: Callable[..., Demo]) -> None:
    demo = run("hanging")
    until(demo.hangs.exists, "an answer that does not come")
    for _ in range(2):
        demo.process.send_signal(signal.SIGINT)
    assert demo.ended() == 130, demo.text
    assert left_of(demo.root()) == []
