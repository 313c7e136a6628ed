"""Real daemons for tests: started on state of their own, watched, and checked when they have stopped."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import trio
from private_kvd import BIN, PrivateKvd

from kvd import config, fsck
from kvd.daemon import PAGE_BYTES
from support.needs import need_fuse

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

WAIT_S = 30.0
POLL_S = 0.005
UNPRIVILEGED = (sys.executable, str(Path(__file__).with_name("unprivileged.py")))
SETTINGS = {"ddr": {"budget": "96MiB", "burst": "32MiB"}}
_LOUD = re.compile(r"\[(warning|error|critical) *\]|\"level\": ?\"(warning|error|critical)\"|Traceback")


def until(condition: Callable[[], object], what: str) -> None:
    """Poll until something is so."""
    deadline_s = time.monotonic() + WAIT_S
    while not condition():
        if time.monotonic() > deadline_s:
            pytest.fail(f"not within {WAIT_S:g} s: {what}")
        time.sleep(POLL_S)


class Daemon(PrivateKvd):
    """A private daemon whose log and state are examined at the end."""

    def __init__(self, settings: Mapping[str, Mapping[str, Any]] | None = None, *, unprivileged: bool = False) -> None:
        merged = {table: {**SETTINGS.get(table, {}), **(settings or {}).get(table, {})} for table in ("ddr", "fuse")}
        super().__init__({**(settings or {}), **merged})
        self.claims: list[str] = []
        self.prefix: tuple[str, ...] = ()
        if unprivileged:
            self.prefix = UNPRIVILEGED
            self.ddr = Path(tempfile.mkdtemp(prefix="kvd-", dir="/dev/shm"))
            self.set("ddr", path=self.ddr)

    def set(self, table: str, **values: Any) -> None:
        """Change the configuration of the next start."""
        self.settings.setdefault(table, {}).update(values)
        self.write_config()

    def up(self) -> Daemon:
        """Start."""
        self.start(prefix=self.prefix)
        return self

    def refused(self) -> tuple[int, str]:
        """Start where a start must fail; return the exit status and the sentence for the operator."""
        done = subprocess.run(
            [*self.prefix, str(BIN / "kvd"), "--config", str(self.config)],
            capture_output=True,
            text=True,
            timeout=WAIT_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        assert "Traceback" not in done.stderr
        *_, sentence = done.stderr.splitlines()
        assert sentence.startswith("kvd: ")
        return done.returncode, sentence.removeprefix("kvd: ")

    def send(self, number: int) -> None:
        """Send a signal to the daemon."""
        os.kill(self.pid, number)

    def ended(self) -> int:
        """Wait for the end; return the exit status."""
        until(lambda: not self.running, "the daemon's end")
        return self.stop()

    def write(self, name: str, content: bytes) -> bytes:
        """Make an object and wait until it is sealed: the kernel tells of a close after close(2) has returned."""
        (self.mount / name).write_bytes(content)
        until(lambda: os.getxattr(self.mount / name, "user.kvd.state") == b"sealed", f"seal of {name}")
        return content

    def read(self, name: str) -> bytes:
        """Read an object."""
        return (self.mount / name).read_bytes()

    def tier(self, name: str) -> str:
        """Tell where an object is."""
        return os.getxattr(self.mount / name, "user.kvd.tier").decode()

    def lines(self) -> list[str]:
        """Return the log."""
        return self.log.read_text().splitlines()

    def loud(self) -> list[str]:
        """Return what was logged at WARNING and above and is claimed by nobody."""
        found = [line for line in self.lines() if _LOUD.search(line)]
        return [line for line in found if not any(claim in line for claim in self.claims)]

    def faults(self) -> list[str]:
        """Return what fsck finds in the stopped daemon's state, data included."""
        loaded = config.load(self.config)
        return trio.run(lambda: fsck.check(loaded, page_bytes=PAGE_BYTES, data=True))


@contextmanager
def daemon(settings: Mapping[str, Mapping[str, Any]] | None = None, *, unprivileged: bool = False) -> Iterator[Daemon]:
    """Make a daemon's state; at the end stop what runs on it, check it and its log, and see that nothing is left."""
    need_fuse()
    made = Daemon(settings, unprivileged=unprivileged)
    try:
        yield made
        if made.running:
            assert made.stop() == 0, made.log.read_text()
        if (made.root / "state" / "catalog.sqlite").exists():
            faults = made.faults()
            assert not faults, faults
        if made.log.exists():
            assert made.loud() == []
    finally:
        made.close()
    assert made.mounts() == []
    assert not made.root.exists()
    assert not made.ddr.exists()


def mounted_at(path: Path) -> list[str]:
    """Return ``fstype source`` of what is mounted at a place, the topmost last."""
    lines = [line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    return [" ".join(words[words.index("-") + 1 :][:2]) for words in lines if words[4] == str(path)]


def kvctl(made: PrivateKvd, *arguments: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run kvctl against a daemon, wherever."""
    command = [BIN / "kvctl", "--socket", made.socket, *arguments]
    done = subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, timeout=WAIT_S, check=False, cwd=cwd
    )
    assert "Traceback" not in done.stderr
    return done


def document(done: subprocess.CompletedProcess[str]) -> Any:
    """Return what kvctl --json printed."""
    return json.loads(done.stdout)


def tree_of(path: Path) -> dict[str, bytes]:
    """Return all files below a folder with what is in them."""
    return {str(file.relative_to(path)): file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()}


def have(program: str) -> None:
    """Fail where a program of the base system is missing."""
    if shutil.which(program) is None:
        pytest.fail(f"{program} is not installed", pytrace=False)
