"""Writers in processes of their own, and a watch over the memory that DDR holds meanwhile."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from private_kvd import PrivateKvd

MIB = 1 << 20
WATCH_S = 0.002
SETTLE_S = 10.0
STORM_S = 240.0
MARKER_BYTES = 4096

PATTERN = """
import errno, mmap, os, sys
MIB = 1 << 20
def block(seed, size):
    word = (seed * 2654435761 % 2**64 or 1).to_bytes(8, "little")
    return word * (size // 8)
def name(seed):
    return os.path.join(sys.argv[1], f"w{seed}")
"""


def block(seed: int, size: int) -> bytes:
    """Return what a writer of `PATTERN` writes."""
    return (seed * 2654435761 % 2**64 or 1).to_bytes(8, "little") * (size // 8)


def physical_bytes(kvd: PrivateKvd) -> int:
    """Return what the tmpfs holds beside its marker, whatever the daemon thinks of it."""
    found = os.statvfs(kvd.ddr)
    return (found.f_blocks - found.f_bfree) * found.f_frsize - MARKER_BYTES


class Watch:
    """Looks at the tmpfs all the time; fails if it ever held more than it may."""

    def __init__(self, kvd: PrivateKvd, *, budget_bytes: int, burst_bytes: int) -> None:
        self._kvd = kvd
        self._budget_bytes = budget_bytes
        self._burst_bytes = burst_bytes
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.most_bytes = 0
        self.looks = 0

    def _run(self) -> None:
        while True:
            self.most_bytes = max(self.most_bytes, physical_bytes(self._kvd))
            self.looks += 1
            if self._stop.wait(WATCH_S):
                return

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        if kind is None:
            assert self.looks
            assert 0 <= self.most_bytes <= self._budget_bytes + self._burst_bytes

    def settled(self) -> None:
        """Wait until the burst reserve is free again."""
        deadline_s = time.monotonic() + SETTLE_S
        while physical_bytes(self._kvd) > self._budget_bytes:
            assert time.monotonic() < deadline_s, "the burst reserve stays in use"
            time.sleep(WATCH_S)


def run_all(code: str, folder: Path, seeds: Sequence[int], *arguments: object) -> list[tuple[int, str]]:
    """Run `code` once for each seed (`int(sys.argv[2])`), all at once; return the exit statuses and what they said."""
    started = [
        subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", PATTERN + code, str(folder), str(seed), *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for seed in seeds
    ]
    deadline_s = time.monotonic() + STORM_S
    results = []
    for process in started:
        text, _ = process.communicate(timeout=max(1.0, deadline_s - time.monotonic()))
        results.append((process.returncode, text))
    return results
