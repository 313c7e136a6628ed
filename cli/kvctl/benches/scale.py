"""``scale``: very many objects. The start, memory, and operations against the same with few objects in the same run."""

from __future__ import annotations

import os
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kvctl.benches import ground, many
from kvctl.benches.memory import alternate
from kvctl.benches.outcome import Outcome, Series
from kvctl.exits import CtlError, Exit, UsageError
from kvctl.private import PrivateKvd

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

FEW_OBJECTS: Final = 10_000
FOLDER_OBJECTS: Final = 1000
"""In each folder, where they are in many."""
LAYOUTS: Final = ("one", "many")
COLD: Final = 100
STATS: Final = 500
NEW: Final = 100
"""Operations a round."""
NEW_BYTES: Final = 4096
OBJECTS_MIN: Final = 2 * FEW_OBJECTS
FILE_BYTES: Final = 1024
"""Of the disk for an object: its inode, its name and its rows."""
CHECK_S: Final = 1800.0
START_BAR_S: Final = 10.0
RSS_BAR_MIB: Final = 2048
RATIO_BAR: Final = 2.0
OPERATIONS: Final = ("cold", "warm", "stat", "missing", "create", "unlink")
US: Final = 1e6
MS: Final = 1e3


@dataclass(slots=True)
class _Side:
    """A kvd with its objects, and what was measured of it once."""

    kvd: PrivateKvd
    found: many.Many
    start_s: float
    checked_s: float
    fresh: Iterator[str]
    read: list[str] = field(default_factory=list)
    rounds: int = 0

    def take(self, count: int) -> list[Path]:
        """Return objects that nobody has asked for."""
        return [self.kvd.mount / next(self.fresh) for _ in range(count)]

    def status_mib(self, key: str) -> float:
        """Return a line of the daemon's process status, in MiB."""
        for line in Path(f"/proc/{self.kvd.pid}/status").read_text().splitlines():
            name, _, value = line.partition(":")
            if name == key:
                return int(value.split()[0]) / 1024
        raise CtlError(f"process {self.kvd.pid} says nothing of {key}", Exit.FAILED, "ENOENT")


@contextmanager
def _side(folder: Path, settings: Mapping[str, Mapping[str, Any]], objects: int, folders: int) -> Iterator[_Side]:
    with PrivateKvd(settings, parent=folder) as kvd:
        found = many.fill(kvd.root / "state", kvd.nvme_dirs, objects=objects, folders=folders)
        ground.drop_page_cache()
        began_s = time.monotonic()
        kvd.start()
        start_s = time.monotonic() - began_s
        ground.until_checked(kvd.socket, objects, CHECK_S)
        yield _Side(kvd, found, start_s, time.monotonic() - began_s, iter(found.names(objects // 2, seed=objects)))


def _timed(action: Callable[[Path], object], paths: list[Path]) -> float:
    """Return how long an operation takes, in microseconds."""
    began_s = time.perf_counter()
    for path in paths:
        action(path)
    return (time.perf_counter() - began_s) / len(paths) * US


def _cold(side: _Side) -> float:
    paths = side.take(COLD)
    side.read = [str(path) for path in paths]
    return _timed(Path.read_bytes, paths)


def _warm(side: _Side) -> float:
    return _timed(Path.read_bytes, [Path(path) for path in side.read])


def _stat(side: _Side) -> float:
    return _timed(Path.stat, side.take(STATS))


def _missing(side: _Side) -> float:
    side.rounds += 1
    paths = [side.kvd.mount / f"{name}.{side.rounds}" for name in many.missing(side.found, STATS)]
    return _timed(Path.exists, paths)


def _create(side: _Side) -> float:
    names = [side.kvd.mount / f"{side.found.name(number)}.new{side.rounds}" for number in range(NEW)]
    return _timed(lambda path: path.write_bytes(bytes(NEW_BYTES)), names)


def _unlink(side: _Side) -> float:
    return _timed(Path.unlink, side.take(NEW))


MEASURED: Final[dict[str, Callable[[_Side], float]]] = {
    "cold": _cold,
    "warm": _warm,
    "stat": _stat,
    "missing": _missing,
    "create": _create,
    "unlink": _unlink,
}
TOLD: Final = {
    "cold": "open and read of objects on NVMe",
    "warm": "open and read of objects in DDR",
    "stat": "stat of names that nobody has asked for",
    "missing": "stat of names that are not there",
    "create": "making objects of 4 KiB",
    "unlink": "unlinking objects on NVMe",
}


def _list(side: _Side) -> tuple[float, float]:
    """Return when the first name of a listing came, in ms, and what one took, in microseconds."""
    began_s = time.perf_counter()
    with os.scandir(side.kvd.mount / Path(side.found.name(0)).parent) as entries:
        next(entries)
        first_s = time.perf_counter() - began_s
        count = 1 + sum(1 for _ in entries)
    return first_s * MS, (time.perf_counter() - began_s) / count * US


def measure(
    folder: Path, settings: Mapping[str, Mapping[str, Any]], objects: int, rounds: int, step: Callable[[], None]
) -> list[Outcome]:
    """Measure `objects` objects of 4 KiB to 64 KiB in one folder and in many.

    Raises
    ------
    UsageError
        If there are too few to compare.
    """
    if objects < OBJECTS_MIN:
        raise UsageError(f"--objects {objects}: at least {OBJECTS_MIN} are compared with {FEW_OBJECTS}")
    ground.need_space(folder, objects * FILE_BYTES)
    outcomes: list[Outcome] = []
    for layout in LAYOUTS:
        with ExitStack() as stack:
            sides = [
                stack.enter_context(
                    _side(folder, settings, count, 1 if layout == "one" else max(1, count // FOLDER_OBJECTS))
                )
                for count in (FEW_OBJECTS, objects)
            ]
            outcomes += _compare(layout, sides[1], sides[0], rounds, step)
    return outcomes


def _compare(layout: str, large: _Side, small: _Side, rounds: int, step: Callable[[], None]) -> list[Outcome]:
    where = f"{large.found.objects:,} objects in {large.found.folders:,} folder{'s' * (large.found.folders > 1)}"
    key = f"scale_{layout}"
    few = f"{FEW_OBJECTS:,} objects"
    outcomes = [
        Outcome(
            key=f"{key}_start",
            what=f"start to ready with {where}",
            value=large.start_s,
            unit="s",
            bar=START_BAR_S,
            at_most=True,
            note=f"with {few} {small.start_s:.2f} s; files checked after {large.checked_s:.1f} s",
        )
    ]
    for name in OPERATIONS:
        ours, peer = alternate(rounds, partial(MEASURED[name], large), partial(MEASURED[name], small), lambda: None)
        outcomes.append(_ratio(f"{key}_{name}", TOLD[name], ours, peer, "us"))
        step()
    listed = [_list(side) for side in (large, small)]
    outcomes += [
        _ratio(f"{key}_first", "first name of a listing", [listed[0][0]], [listed[1][0]], "ms"),
        _ratio(f"{key}_list", "each name of a listing", [listed[0][1]], [listed[1][1]], "us"),
        Outcome(
            key=f"{key}_rss",
            what=f"memory of the daemon at the most, {where}",
            value=large.status_mib("VmHWM"),
            unit="MiB",
            bar=RSS_BAR_MIB,
            at_most=True,
            note=f"with {few} {small.status_mib('VmHWM'):.0f} MiB",
        ),
    ]
    step()
    return outcomes


def _ratio(key: str, what: str, ours: list[float], peer: list[float], unit: str) -> Outcome:
    large = Series(name="many", unit=unit, values=tuple(ours))
    small = Series(name="few", unit=unit, values=tuple(peer))
    return Outcome(
        key=key,
        what=f"{what}, against {FEW_OBJECTS:,} objects",
        value=large.median / small.median,
        bar=RATIO_BAR,
        at_most=True,
        ours=large,
        peer=small,
    )
