"""``read`` and ``write``: objects in DDR against the same on a plain tmpfs."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from kvctl import units
from kvctl.benches.ground import on_peer, tmpfs_used_bytes, until
from kvctl.benches.loads import Load
from kvctl.benches.outcome import READ_OBJECTS, Outcome, Series, lowest, ratio
from kvctl.exits import CtlError, Exit

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvctl.benches.ground import Ground
    from kvctl.benches.loads import Tally
    from kvctl.benches.outcome import Sizes

READERS: Final = (1, 8)
READ_BAR: Final = 1.2
MAP_BAR: Final = 5.0
MEMORY_BAR: Final = 0.9
SUM_BYTES_MAX: Final = 1 << 30
"""What kvd-bench sums at most."""
WRITE_BAR: Final = 2.0
SMALL_BAR_BYTES: Final = 8192
SMALL_BYTES: Final = 4096
SMALL_FOLDER_OBJECTS: Final = 10_000
PEER: Final = "plain tmpfs"


def alternate(
    rounds: int, ours: Callable[[], float], peer: Callable[[], float], step: Callable[[], None]
) -> tuple[list[float], list[float]]:
    """Measure both sides in turn, each first in every second round.

    Parameters
    ----------
    rounds
        How often.
    ours, peer
        One measurement of a side.
    step
        Called after each round.
    """
    sides: tuple[list[float], list[float]] = ([], [])
    for number in range(rounds):
        order = (0, 1) if number % 2 == 0 else (1, 0)
        for side in order:
            sides[side].append((ours, peer)[side]())
        step()
    return sides


def read(ground: Ground, plain: Path, sizes: Sizes, rounds: int, step: Callable[[], None]) -> list[Outcome]:
    """Measure reads and mappings of objects in DDR."""
    ours, peer = ground.make("read", READ_OBJECTS), on_peer(plain, "read", READ_OBJECTS)
    write = Load(kind="write", file_bytes=sizes.read_object_bytes)
    for files in (ours, peer):
        write.run(files).flawless("write")
    ground.until_sealed(ours)
    outcomes = []
    for readers in READERS:
        load = Load(kind="read", workers=readers, stamped=True)
        outcomes.append(
            _compared(
                f"read_{readers}_ratio",
                f"read() of DDR objects in 1 MiB blocks, {units.plural(readers, 'reader')}",
                READ_BAR,
                alternate(
                    rounds,
                    lambda load=load: load.run(ours).flawless("read").gbs,  # type: ignore[misc]
                    lambda load=load: load.run(peer).flawless("read").gbs,  # type: ignore[misc]
                    step,
                ),
            )
        )
    worst = lowest("read_ratio", "read() of DDR objects in 1 MiB blocks", outcomes)
    outcomes += _mappings(ours, peer, rounds, step)
    ground.remove("read")
    shutil.rmtree(plain / "read")
    return [worst, *outcomes]


def _mappings(ours: list[Path], peer: list[Path], rounds: int, step: Callable[[], None]) -> list[Outcome]:
    """Measure fresh mappings: all of the bytes, one byte a page, and against memory that needs no mapping."""
    looks: tuple[tuple[str, Literal["map", "touch"], str], ...] = (
        ("mmap_ratio", "map", "the sum over a fresh mapping of them"),
        ("touch_ratio", "touch", "one byte of each 4 KiB of a fresh mapping of them"),
    )
    outcomes = []
    for key, kind, what in looks:
        sums: set[int] = set()

        load = Load(kind=kind)
        sides = alternate(rounds, partial(_mapped, load, ours, sums), partial(_mapped, load, peer, sums), step)
        if len(sums) != 1:
            raise CtlError(f"{kind}: the two sides do not hold the same bytes", Exit.DAMAGED, "EBADMSG")
        outcomes.append(_compared(key, what, MAP_BAR, sides))
    held = Load(kind="sum", file_bytes=min(SUM_BYTES_MAX, sum(path.stat().st_size for path in ours)))
    sides = alternate(
        rounds,
        lambda: Load(kind="map").run(ours).flawless("map").gbs,
        lambda: held.run(ours).flawless("sum").gbs,
        step,
    )
    best = "the sum over a fresh mapping of them, of the same over memory that needs none: the most that it can be"
    return [*outcomes, _compared("mmap_vs_memory", best, MEMORY_BAR, sides, "touched huge pages")]


def _mapped(load: Load, files: list[Path], sums: set[int]) -> float:
    tally = load.run(files).flawless(load.kind)
    sums.add(tally.sum)
    return tally.gbs


def _compared(key: str, what: str, bar: float, sides: tuple[list[float], list[float]], against: str = PEER) -> Outcome:
    ours, peer = sides
    return ratio(
        key,
        what,
        bar,
        Series(name="kvd", unit="GB/s", values=tuple(ours)),
        Series(name=against, unit="GB/s", values=tuple(peer)),
    )


def write(ground: Ground, plain: Path, sizes: Sizes, rounds: int, step: Callable[[], None]) -> list[Outcome]:
    """Measure writes of new objects where there is room."""
    load = Load(kind="write", file_bytes=sizes.write_object_bytes)
    idle_bytes = ground.tier("ddr")["used_bytes"]

    def ours() -> float:
        tally = load.run(ground.make("write", sizes.write_objects)).flawless("write")
        ground.remove("write")
        # What is removed gives its memory back after unlink(2) has returned.
        until(lambda: ground.tier("ddr")["used_bytes"] <= idle_bytes, "removed objects give their memory back")
        return tally.gbs

    def peer() -> float:
        tally = load.run(on_peer(plain, "write", sizes.write_objects)).flawless("write")
        shutil.rmtree(plain / "write")
        return tally.gbs

    # The warm-up: memory that a virtual machine never used before is slow once, on both sides.
    for side in (ours, peer):
        side()
    step()
    what = f"write of new objects of {sizes.write_object_bytes >> 20} MiB in 1 MiB blocks"
    return [_compared("write_ratio", what, WRITE_BAR, alternate(rounds, ours, peer, step))]


def small(ground: Ground, objects: int) -> list[Outcome]:
    """Measure what small objects cost of memory: what the tmpfs grows, and the daemon."""
    before = _memory(ground)
    folders = range(0, objects, SMALL_FOLDER_OBJECTS)
    tally: Tally | None = None
    for start in folders:
        files = ground.make(f"small{start}", min(SMALL_FOLDER_OBJECTS, objects - start))
        tally = Load(kind="write", block_bytes=SMALL_BYTES, file_bytes=SMALL_BYTES).run(files).flawless("write")
    until(lambda: ground.status()["leased"] == 0, "small objects are sealed")
    after = _memory(ground)
    for start in folders:
        ground.remove(f"small{start}")
    (tmpfs_bytes, rss_bytes), rate = ((b - a for a, b in zip(before, after, strict=True)), tally.per_s if tally else 0)
    return [
        Outcome(
            key="small_bytes",
            what=f"memory of each of {objects:,} objects of 4 KiB: tmpfs and the daemon",
            value=(tmpfs_bytes + rss_bytes) / objects,
            unit="bytes",
            bar=SMALL_BAR_BYTES,
            at_most=True,
            note=f"tmpfs {tmpfs_bytes / objects:.0f}, daemon {rss_bytes / objects:.0f}; made at {rate:,.0f}/s",
        )
    ]


def _memory(ground: Ground) -> tuple[int, int]:
    """Return what the DDR tier's tmpfs and the daemon use, in bytes."""
    status = ground.status()
    ddr = next(tier for tier in status["tiers"] if tier["tier"] == "ddr")
    used_bytes = tmpfs_used_bytes(ddr)
    for line in Path(f"/proc/{status['pid']}/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "VmRSS":
            return used_bytes, int(value.split()[0]) * 1024
    raise CtlError(f"process {status['pid']} says nothing of its memory", Exit.FAILED, "ENOENT")
