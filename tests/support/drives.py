"""A kvd on a good drive and on one that fails on command."""

from __future__ import annotations

import errno
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from support.bad_disk import BadDisk, bad_disk
from support.content import MIB, digest, fill, wait_until
from support.mounted import Mounted, start_kvd

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

DEADLINE_S = 3.0
BOUND_S = 10 * DEADLINE_S
"""What an answer may take that the deadline bounds; far less than for ever, more than a busy machine needs."""
SIZE = 3 * 65536 + 777
OFFLINE = "nvme directory is offline"


@dataclass
class Drives:
    """A kvd on a good drive and a bad one."""

    mounted: Mounted
    disk: BadDisk
    good: Path
    stored: dict[Path, str] = field(default_factory=dict)

    @property
    def root(self) -> Path:
        return self.mounted.root

    def fill(self, name: str, size: int = SIZE, seed: int = 0) -> Path:
        path = self.root / name
        self.stored[path] = fill(path, size, seed)
        return path

    def fill_cold(self, count: int = 6) -> list[Path]:
        """Store objects on NVMe, by turns in one directory and the other."""
        paths = [self.fill(f"cold{number}", seed=number) for number in range(count)]
        self.mounted.kvd.kvctl("demote", *map(str, paths))
        assert self.on_bad(paths)
        assert self.on_good(paths)
        return paths

    def on_bad(self, paths: list[Path]) -> list[Path]:
        """Return those whose copy is on the bad drive; looks behind it, so that it may hang."""
        return [path for path in paths if list((self.disk.behind / "objects").rglob(f"{self._ino(path):x}.*"))]

    def on_good(self, paths: list[Path]) -> list[Path]:
        return [path for path in paths if list((self.good / "objects").rglob(f"{self._ino(path):x}.*"))]

    @staticmethod
    def _ino(path: Path) -> int:
        return path.stat().st_ino

    def directory(self) -> dict[str, Any]:
        """Return what the status says of the bad drive."""
        (found,) = [each for each in self.mounted.kvd.status()["directories"] if each["path"] == str(self.disk.path)]
        return found

    def wait_state(self, *states: str) -> None:
        wait_until(lambda: self.directory()["state"] in states, f"the directory is {states}")

    def check(self, paths: list[Path] | None = None) -> None:
        for path in self.stored if paths is None else paths:
            assert digest(path) == self.stored[path], path.name

    def check_eio(self, paths: list[Path], bound_s: float = BOUND_S) -> None:
        for path in paths:
            began_s = time.monotonic()
            with pytest.raises(OSError, match="Input/output error") as info:
                path.read_bytes()
            assert info.value.errno == errno.EIO
            assert time.monotonic() - began_s < bound_s


@contextmanager
def drives(
    *, only_bad: bool = False, ddr: dict[str, Any] | None = None, claims: tuple[str, ...] = (OFFLINE,), **more: Any
) -> Iterator[Drives]:
    """Run a kvd; at the end the drive is a good one again, and everything that was stored must be right."""
    with bad_disk() as disk:
        good = disk.root / "good"
        good.mkdir()
        settings = {
            "ddr": {"budget": 64 * MIB, "burst": 32 * MIB, **(ddr or {})},
            "fuse": {"write_wait": "500ms"},
            "nvme": {
                "dirs": [disk.path] if only_bad else [good, disk.path],
                "deadline": f"{DEADLINE_S * 1000:.0f}ms",
                "probe": "100ms",
                **more,
            },
        }
        with start_kvd(settings) as mounted:
            mounted.kvd.nvme_dirs = settings["nvme"]["dirs"]
            for claim in claims:
                mounted.claim(claim)
            made = Drives(mounted, disk, good)
            try:
                yield made
            finally:
                disk.heal()
            if mounted.kvd.running:
                made.wait_state("online")
                made.check()
