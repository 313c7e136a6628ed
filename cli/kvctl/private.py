"""A kvd of one's own in a scratch folder: for ``kvctl bench``, the demo and the tests.

Everything lies below one folder, and `PrivateKvd.close` leaves nothing behind: no process, no mount, no file.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from types import TracebackType

READY_S: Final = 30.0
STOP_S: Final = 60.0
POLL_S: Final = 0.02
FILE_SYSTEM: Final = "/var/tmp"  # noqa: S108 - a real file system, unlike /tmp on many machines
BIN: Final = Path(sys.executable).parent
"""Where kvd, kvctl and kvd-bench are: beside the interpreter that they were installed with."""


@contextlib.contextmanager
def signals_held() -> Iterator[Callable[[], object]]:
    """Keep Ctrl-C until a program that is started is known to the one who will end it.

    Yields what the new program has to call before it begins.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield lambda: signal.pthread_sigmask(signal.SIG_SETMASK, before)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class KvdFailedError(Exception):
    """The daemon or a command of it did not do what it should; the message has its output."""


class PrivateKvd:
    """One kvd, started, stopped or killed at will, on state that stays until `close`.

    Parameters
    ----------
    settings
        Tables of the configuration that differ from the defaults; paths are set here.
    nvme_dirs
        How many NVMe directories it has.
    parent
        Where its folder is made.
    """

    def __init__(
        self,
        settings: Mapping[str, Mapping[str, Any]] | None = None,
        *,
        nvme_dirs: int = 1,
        parent: Path = Path(FILE_SYSTEM),
    ) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="kvd-", dir=parent))
        self.mount = self.root / "mnt"
        self.socket = self.root / "kvd.sock"
        self.log = self.root / "kvd.log"
        self.config = self.root / "kvd.toml"
        self.nvme_dirs = [self.root / f"nvme{index}" for index in range(nvme_dirs)]
        self.ddr = self.root / "ddr"
        if os.geteuid() != 0:
            self.ddr = Path(tempfile.mkdtemp(prefix="kvd-", dir="/dev/shm"))
        self.settings: dict[str, dict[str, Any]] = {
            "daemon": {"mount": self.mount, "state": self.root / "state", "socket": self.socket, "flush": "30s"},
            "ddr": {"path": self.ddr, "budget": "256MiB", "burst": "64MiB"},
            "nvme": {"dirs": self.nvme_dirs, "reserve": "64MiB"},
        }
        for table, values in (settings or {}).items():
            self.settings.setdefault(table, {}).update(values)
        for path in (self.mount, self.ddr, self.root / "state", *self.nvme_dirs):
            path.mkdir(exist_ok=True)
        self.write_config()
        self._process: subprocess.Popen[bytes] | None = None
        self._asked = False

    def write_config(self) -> None:
        """Write `settings` for the next start."""
        lines = []
        for table, values in self.settings.items():
            lines += [f"[{table}]", *(f"{key} = {_toml(value)}" for key, value in values.items())]
        self.config.write_text("\n".join(lines) + "\n")

    @property
    def pid(self) -> int:
        """The daemon's process id."""
        assert self._process is not None
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the daemon runs."""
        return self._process is not None and self._process.poll() is None

    def start(self, *, prefix: tuple[str, ...] = ()) -> Self:
        """Start the daemon and wait until it serves."""
        assert not self.running
        self._asked = False
        with self.log.open("ab") as log, signals_held() as restore:
            self._process = subprocess.Popen(
                [*prefix, str(BIN / "kvd"), "--config", str(self.config)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=restore,  # noqa: PLW1509 - it does nothing but one system call
            )
        deadline = time.monotonic() + READY_S
        while not self._answers():
            if self._process.poll() is not None:
                raise KvdFailedError(f"kvd ended with status {self._process.returncode}:\n{self.log.read_text()}")
            if time.monotonic() > deadline:
                raise KvdFailedError(f"kvd does not serve after {READY_S:g} s:\n{self.log.read_text()}")
            time.sleep(POLL_S)
        return self

    def _answers(self) -> bool:
        return self.socket.exists() and self.kvctl("status", check=False).returncode == 0

    def kvctl(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run kvctl against this daemon."""
        command = [str(BIN / "kvctl"), "--socket", str(self.socket), *arguments]
        process = None
        try:
            with signals_held() as restore:
                process = subprocess.Popen(
                    command,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                    preexec_fn=restore,  # noqa: PLW1509 - it does nothing but one system call
                )
            out, err = process.communicate()
        except BaseException:  # a signal that was held comes at the end of `signals_held`
            if process is not None:
                process.kill()
                process.communicate()
            raise
        done = subprocess.CompletedProcess(command, process.returncode, out, err)
        if check and done.returncode:
            raise KvdFailedError(f"kvctl {' '.join(arguments)}: status {done.returncode}: {done.stderr or done.stdout}")
        return done

    def status(self) -> dict[str, Any]:
        """Return `kvctl status --json`."""
        status: dict[str, Any] = json.loads(self.kvctl("--json", "status").stdout)
        return status

    def entry(self, name: str) -> dict[str, Any]:
        """Return `kvctl stat --json` of one name in the mount."""
        entry: dict[str, Any] = json.loads(self.kvctl("--json", "stat", str(self.mount / name)).stdout)["entries"][0]
        return entry

    def stop(self) -> int:
        """Ask the daemon to stop; return its exit status."""
        assert self._process is not None
        if self.running and not self._asked:
            self.ask_to_stop()
        try:
            return self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise KvdFailedError(f"kvd did not stop within {STOP_S:g} s:\n{self.log.read_text()}") from None

    def ask_to_stop(self) -> None:
        """Send SIGTERM and go on; a second one would tell the daemon to give its flush up."""
        assert self._process is not None
        self._asked = True
        self._process.send_signal(signal.SIGTERM)

    def wait_unmounted(self) -> None:
        """Wait until the mount point is a plain directory again."""
        deadline = time.monotonic() + STOP_S
        while str(self.mount) in self.mounts():
            if time.monotonic() > deadline:
                raise KvdFailedError(f"still mounted after {STOP_S:g} s:\n{self.log.read_text()}")
            time.sleep(POLL_S)

    def kill(self) -> None:
        """Kill the daemon without warning, as a power supply or an OOM killer would."""
        assert self._process is not None
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        self._process.wait()

    def mounts(self) -> list[str]:
        """Return the mount points below the scratch folder, innermost first."""
        points = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
        return sorted((point for point in points if point.startswith(f"{self.root}/")), reverse=True)

    def close(self) -> None:
        """Stop the daemon if it runs, unmount what is left and remove the folder."""
        try:
            if self.running:
                self.stop()
        finally:
            for point in self.mounts():
                umount = ["umount", "-l"] if os.geteuid() == 0 else ["fusermount3", "-u", "-z"]
                subprocess.run([*umount, point], check=False, capture_output=True)
            for path in {self.root, self.ddr}:
                shutil.rmtree(path, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return str(value)
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(str(value))
