"""A kvd with a mount for tests: started, and looked at when it is stopped.

Every life ends the same way: exit status 0, nothing left mounted or running, a log without a WARNING that no test
claimed, and a state that `kvd.fsck` finds no fault in, every checksum included.
"""

from __future__ import annotations

import json
import os
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import trio
from private_kvd import PrivateKvd

from kvd import config, fsck
from kvd.daemon import PAGE_BYTES
from support.needs import need_fuse

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

QUIET = ("debug", "info")


@dataclass
class Mounted:
    """A running kvd and what tests said of its log."""

    kvd: PrivateKvd
    claims: list[str] = field(default_factory=list)
    _read_bytes: int = 0

    @property
    def root(self) -> Path:
        """Where it is mounted."""
        return self.kvd.mount

    @property
    def passthrough(self) -> bool:
        """Whether the kernel reads and writes DDR files by itself."""
        return "passthrough" in self.kvd.status()["features"]

    def claim(self, text: str) -> None:
        """Say that a WARNING (or worse) of the daemon with this text in it belongs to the test."""
        self.claims.append(text)

    def unclaimed(self) -> list[str]:
        """Return what the log got since the last call that is worse than INFO, or no record at all."""
        with self.kvd.log.open("rb") as log:
            log.seek(self._read_bytes)
            text = log.read()
        text = text[: text.rfind(b"\n") + 1]
        self._read_bytes += len(text)
        return [line for line in text.decode().splitlines() if _is_loud(line) and not self._is_claimed(line)]

    def _is_claimed(self, line: str) -> bool:
        return any(claim in line for claim in self.claims)

    def check_log(self) -> None:
        """Fail the test if the daemon logged what nobody claimed."""
        if lines := self.unclaimed():
            pytest.fail("the daemon logged, and nobody claimed:\n" + "\n".join(lines), pytrace=False)

    def fsck(self) -> list[str]:
        """Return the faults in the state of the stopped daemon."""
        assert not self.kvd.running
        settings = config.load(self.kvd.config)
        return trio.run(lambda: fsck.check(settings, page_bytes=PAGE_BYTES, data=True))


def _is_loud(line: str) -> bool:
    try:
        record = json.loads(line)
    except ValueError:
        return True  # a traceback, an assertion of a library
    return not isinstance(record, dict) or record.get("level") not in QUIET


def _session(pid: int) -> list[int]:
    """Return the processes of a session (setsid), dead but unreaped ones included."""
    found = []
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                fields = Path(entry.path, "stat").read_text().rpartition(")")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                continue
            if int(fields[3]) == pid:
                found.append(int(entry.name))
    return found


@contextmanager
def start_kvd(
    settings: Mapping[str, Mapping[str, Any]] | None = None, *, nvme_dirs: int = 1, prefix: tuple[str, ...] = ()
) -> Iterator[Mounted]:
    """Run a kvd of one's own; at the end (also after a restart or a stop by the test) check what it leaves behind.

    A test that fails inside is not also blamed for what its daemon leaves.
    """
    need_fuse(root=True)
    tables = {"log": {"format": "json"}, **(settings or {})}
    with PrivateKvd(tables, nvme_dirs=nvme_dirs) as kvd:
        kvd.root.chmod(0o755)  # other users get as far as the mount
        kvd.start(prefix=prefix)
        mounted = Mounted(kvd)
        yield mounted
        pid = kvd.pid
        assert kvd.stop() == 0, kvd.log.read_text()
        mounts, processes = kvd.mounts(), _session(pid)
        assert not mounts, mounts
        assert not processes, processes
        mounted.check_log()
        faults = mounted.fsck()
        assert not faults, (faults, kvd.log.read_text())
