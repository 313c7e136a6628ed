"""``make run``: one's own kvd in ``./run``."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.daemons import WAIT_S, mounted_at, until
from support.needs import need_fuse

if TYPE_CHECKING:
    from collections.abc import Iterator

SCRIPT = Path(__file__).parents[2] / "scripts" / "run.py"
KVCTL = Path(sys.executable).with_name("kvctl")


class Run:
    """A kvd in the foreground of a folder."""

    def __init__(self, folder: Path) -> None:
        self.run = folder / "run"
        self.output = folder / "output"
        with self.output.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, SCRIPT], cwd=folder, stdout=output, stderr=output, stdin=subprocess.DEVNULL
            )

    def kvctl(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [KVCTL, "--socket", self.run / "kvd.sock", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=WAIT_S)

    def serving(self) -> bool:
        assert self.process.poll() is None, self.output.read_text()
        return self.kvctl("status").returncode == 0


@pytest.fixture
def folder(scratch: Path) -> Iterator[Path]:
    need_fuse()
    started = scratch / "clone"
    started.mkdir()
    yield started
    for name in ("mnt", "ddr"):
        while mounted_at(started / "run" / name):
            subprocess.run(["umount", "-l", started / "run" / name], check=True, timeout=WAIT_S)


def test_it_serves_ends_at_ctrl_c_and_goes_on_where_it_was(folder: Path) -> None:
    first = Run(folder)
    until(first.serving, "a kvd that serves")
    # It was told how to reach it, and that is how.
    words = first.output.read_text().splitlines()[2].removeprefix("kvctl: ").split()
    assert (words[0], words[1:]) == (".venv/bin/kvctl", ["--socket", f"{first.run}/kvd.sock", "status"])
    (first.run / "mnt/object").write_bytes(b"kept")
    first.process.send_signal(signal.SIGINT)
    assert first.process.wait(WAIT_S) == 0
    assert (mounted_at(first.run / "mnt"), mounted_at(first.run / "ddr")) == ([], [])
    settings = first.run / "kvd.toml"
    settings.write_text(settings.read_text() + '[log]\nformat = "json"\n')
    second = Run(folder)
    until(second.serving, "a kvd that serves")
    assert (second.run / "mnt/object").read_bytes() == b"kept"
    assert second.output.read_text().splitlines()[-1].startswith("{")
    second.process.kill()
    second.process.wait(WAIT_S)
    third = Run(folder)
    until(third.serving, "a kvd that serves")
    assert os.listdir(third.run / "mnt") == ["object"]
    third.process.send_signal(signal.SIGTERM)
    assert third.process.wait(WAIT_S) == 0
    assert "Traceback" not in third.output.read_text()
