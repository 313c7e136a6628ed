"""Runs of ``kvctl`` as a process, against a fake daemon that is a process too."""

from __future__ import annotations

import json
import os
import pty
import select
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

WAIT_S = 120.0
KVCTL = str(Path(sys.executable).with_name("kvctl"))
FAKE = Path(__file__).with_name("fake_control.py")
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


def start(path: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [KVCTL, *arguments], env=environment(path), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


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
