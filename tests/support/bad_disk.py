"""A drive that fails on command: a FUSE file system of the tests' own over a plain folder, served by an own process.

The process dies with `BadDisk.close`, and the kernel then fails whatever still waits for it; so a test that fails never
leaves anybody hanging. Over kvd's own files it behaves as ext4 does, O_DIRECT and io_uring included.
"""

from __future__ import annotations

import errno
import json
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from support.needs import need_fuse

if TYPE_CHECKING:
    from collections.abc import Iterator

SERVER = Path(__file__).with_name("bad_disk_server.py")
WAIT_S = 20.0
POLL_S = 0.01
ANSWER_BYTES_MAX = 65536
KINDS = ("read", "write", "fsync", "names", "statfs")
"""What can fail apart: `names` is look-up, create, open, unlink, rename, attributes and folders."""


class BadDisk:
    """A folder behind a mount point that can be told to misbehave.

    Attributes
    ----------
    path
        Where it is mounted.
    behind
        The plain folder with the files.
    """

    def __init__(self) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="bad-disk-", dir="/var/tmp"))
        self.path = self.root / "mnt"
        self.behind = self.root / "behind"
        self._socket = self.root / "control"
        for path in (self.path, self.behind):
            path.mkdir()
        self._process: subprocess.Popen[bytes] | None = None

    def mount(self) -> None:
        """Start the file system and wait until it answers."""
        log = self.root / "log"
        with log.open("ab") as out:
            self._process = subprocess.Popen(
                [sys.executable, str(SERVER), str(self.behind), str(self.path), str(self._socket)],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
            )
        deadline_s = time.monotonic() + WAIT_S
        while not (self._socket.exists() and self.path.is_mount()):
            assert self._process.poll() is None, log.read_text()
            assert time.monotonic() < deadline_s, log.read_text()
            time.sleep(POLL_S)

    def tell(self, **rules: Any) -> dict[str, Any]:
        """Set all rules anew, the others as they are in a healthy drive; return what has happened so far.

        Parameters
        ----------
        rules
            ``hang=["read", ...]``: requests of these kinds wait until they are let go. ``fail={"write": errno}``.
            ``full=True``: no room. ``read_only=True``. ``flip=True``: reads have one bit wrong. ``slow_s=0.1``: each
            read, write and fsync takes so long.
        """
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as control:
            control.settimeout(WAIT_S)
            control.connect(str(self._socket))
            control.sendall(json.dumps(rules).encode() + b"\n")
            found: dict[str, Any] = json.loads(control.recv(ANSWER_BYTES_MAX))
        return found

    def hang(self, *kinds: str) -> None:
        """Answer no request of these kinds (all, without any) until the next command."""
        self.tell(hang=kinds or KINDS)

    def fail(self, *kinds: str, code: int = errno.EIO) -> None:
        """Answer requests of these kinds with an error."""
        self.tell(fail=dict.fromkeys(kinds, code))

    def heal(self) -> None:
        """Let everybody go that waits, and be a good drive again."""
        self.tell()

    def waiting(self) -> int:
        """Return how many requests hang now. The rules stay as they are."""
        return int(self.tell(keep=True)["waiting"])

    def unmount(self) -> None:
        """Take the file system away, as a drive that is pulled; what hangs fails with ENOTCONN."""
        if self._process is None:
            return
        self._process.kill()
        self._process.wait()
        self._process = None
        self._socket.unlink(missing_ok=True)
        subprocess.run(["umount", "-l", str(self.path)], check=False, capture_output=True)

    def close(self) -> None:
        """Unmount and remove everything."""
        self.unmount()
        shutil.rmtree(self.root)


@contextmanager
def bad_disk() -> Iterator[BadDisk]:
    """Make a drive that behaves well until it is told otherwise."""
    need_fuse(root=True)
    disk = BadDisk()
    try:
        disk.mount()
        yield disk
    finally:
        disk.close()


def flip_bit(path: Path, offset: int, bit: int = 0) -> None:
    """Change one bit of a file, as a drive does that returns wrong data."""
    with path.open("r+b") as file:
        file.seek(offset)
        (byte,) = file.read(1)
        file.seek(offset)
        file.write(bytes([byte ^ (1 << bit)]))
