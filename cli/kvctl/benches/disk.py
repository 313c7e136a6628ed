"""``cold`` and ``sustained``: objects that come from NVMe and go there, against what the disk can do by itself."""

from __future__ import annotations

import os
import shutil
import time
from typing import TYPE_CHECKING, Final

from kvctl.benches.ground import drop_page_cache, need_space, on_peer, tmpfs_used_bytes, until
from kvctl.benches.loads import DEPTH, Load
from kvctl.benches.outcome import COLD_OBJECTS, SUSTAINED_BUDGETS, Outcome, Series, ratio

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from kvctl.benches.ground import Ground
    from kvctl.benches.outcome import Sizes

READERS: Final = 8
WRITERS: Final = 4
COLD_BAR: Final = 0.90
BUFFERED_BAR: Final = 2.0
FIRST_BAR_MS: Final = 20.0
SUSTAINED_BAR: Final = 0.85
SUSTAINED_ROUNDS_MAX: Final = 3
"""A round moves the budget a dozen times over."""
DIRECT: Final = f"O_DIRECT, {DEPTH} in flight"


def _cold_files(ground: Ground, name: str, count: int, object_bytes: int) -> tuple[list[Path], list[Path], str]:
    """Write objects and move them to NVMe; return them, the peer's files with the same bytes, and what those are."""
    load = Load(kind="write", file_bytes=object_bytes)
    ours = ground.make(name, count)
    load.run(ours).flawless("write")
    ground.until_sealed(ours)
    ground.demote(ground.folder / name)
    peer = ground.backing(ours)
    if peer is not None:
        return ours, peer, "the very files that kvd keeps them in"
    peer = on_peer(ground.disk, name, count)
    load.run(peer).flawless("write")
    return ours, peer, "copies in the scratch folder"


def cold(ground: Ground, sizes: Sizes, rounds: int, step: Callable[[], None]) -> list[Outcome]:
    """Measure reads of objects that are only on NVMe, with nothing of them in the page cache."""
    ours, peer, which = _cold_files(ground, "cold", COLD_OBJECTS, sizes.cold_object_bytes)
    read = Load(kind="read", workers=READERS, stamped=True)
    direct = Load(kind="direct-read", depth=DEPTH, stamped=True)
    sides: dict[str, list[float]] = {"kvd": [], DIRECT: [], "buffered": []}
    for number in range(rounds):
        ground.demote(ground.folder / "cold")
        order = [("kvd", read, ours), (DIRECT, direct, peer), ("buffered", read, peer)]
        for name, load, files in order[number % len(order) :] + order[: number % len(order)]:
            drop_page_cache()
            sides[name].append(load.run(files).flawless(f"cold read, {name}").gbs)
        step()
    ground.remove("cold")
    series = {name: Series(name=name, unit="GB/s", values=tuple(values)) for name, values in sides.items()}
    what = f"{COLD_OBJECTS} cold objects of {sizes.cold_object_bytes / (1 << 20):g} MiB, {READERS} readers"
    note = f"peer: {which}"
    limit = series[DIRECT].median / series["buffered"].median
    limited = f"{note}; {DIRECT} itself is {limit:.2f} times the plain reads"
    return [
        ratio("cold_ratio", f"{what}, of {DIRECT}", COLD_BAR, series["kvd"], series[DIRECT], note),
        ratio("cold_vs_buffered", f"{what}, of plain reads", BUFFERED_BAR, series["kvd"], series["buffered"], limited),
    ]


def big(ground: Ground, sizes: Sizes, rounds: int, step: Callable[[], None]) -> list[Outcome]:
    """Measure one large cold object: how soon its first byte comes, and how fast all of them."""
    ours, peer, which = _cold_files(ground, "big", 1, sizes.big_bytes)
    read = Load(kind="read", stamped=True, first=True)
    direct = Load(kind="direct-read", depth=DEPTH, stamped=True)
    first_ms, ours_gbs, peer_gbs = [], [], []
    for _ in range(rounds):
        ground.demote(ground.folder / "big")
        drop_page_cache()
        tally = read.run(ours).flawless("cold read of the large object")
        first_ms.append(tally.first_s * 1e3)
        ours_gbs.append(tally.gbs)
        drop_page_cache()
        peer_gbs.append(direct.run(peer).flawless("direct read of the large object").gbs)
        step()
    ground.remove("big")
    what = f"one cold object of {sizes.big_bytes / (1 << 20):g} MiB"
    first = Series(name="kvd", unit="ms", values=tuple(first_ms))
    return [
        Outcome(
            key="big_first_ms",
            what=f"{what}: from open to the first byte",
            value=first.median,
            unit="ms",
            bar=FIRST_BAR_MS,
            at_most=True,
            ours=first,
        ),
        ratio(
            "big_ratio",
            f"{what}, 1 reader, of {DIRECT}",
            COLD_BAR,
            Series(name="kvd", unit="GB/s", values=tuple(ours_gbs)),
            Series(name=DIRECT, unit="GB/s", values=tuple(peer_gbs)),
            f"peer: {which}",
        ),
    ]


class _Flood:
    """Objects of several times the DDR budget, written and given time to settle."""

    def __init__(self, ground: Ground, count: int, object_bytes: int) -> None:
        self._ground = ground
        self._count = count
        self._load = Load(kind="write", workers=WRITERS, file_bytes=object_bytes)
        self._idle_bytes: int = ground.tier("ddr")["used_bytes"]
        # What kvd keeps there for itself is no object's.
        self._own_bytes = tmpfs_used_bytes(ground.tier("ddr")) - self._idle_bytes
        self.errors = 0
        self.error = ""
        self.moved_bytes: list[int] = []

    def write(self) -> float:
        """Write everything; return GB/s until all of it is sealed and DDR is within its budget."""
        moved_before = self._ground.status()["demoted_bytes"]
        files = self._ground.make("sustained", self._count)
        began_s = time.monotonic()
        tally = self._load.run(files)
        until(self._settled, "what was written is sealed and within the DDR budget")
        seconds = time.monotonic() - began_s
        self.errors += tally.errors
        self.error = self.error or tally.error
        self.moved_bytes.append(self._ground.status()["demoted_bytes"] - moved_before)
        self._ground.remove("sustained")
        until(self._idle, "what was removed gives its memory back")
        return tally.bytes / seconds / 1e9

    def _settled(self) -> bool:
        status = self._ground.status()
        ddr = next(tier for tier in status["tiers"] if tier["tier"] == "ddr")
        there_bytes: int = max(ddr["used_bytes"], tmpfs_used_bytes(ddr) - self._own_bytes)
        return bool(status["leased"] == 0 and there_bytes <= ddr["budget_bytes"])

    def _idle(self) -> bool:
        return bool(self._ground.tier("ddr")["used_bytes"] <= self._idle_bytes)


def sustained(ground: Ground, sizes: Sizes, rounds: int, step: Callable[[], None]) -> list[Outcome]:
    """Measure writes that go on far past the DDR budget."""
    budget_bytes = ground.tier("ddr")["budget_bytes"]
    object_bytes = sizes.write_object_bytes
    count = max(1, SUSTAINED_BUDGETS * budget_bytes // object_bytes)
    need_space(ground.disk, 2 * count * object_bytes)
    flood = _Flood(ground, count, object_bytes)
    sides: dict[str, list[float]] = {"kvd": [], "new files": [], "allocated files": []}

    def direct(*, allocate: bool) -> float:
        load = Load(kind="direct-write", depth=DEPTH, file_bytes=object_bytes, allocate=allocate)
        tally = load.run(on_peer(ground.disk, "peer", count)).flawless("direct write")
        shutil.rmtree(ground.disk / "peer")
        os.sync()
        return tally.gbs

    for _ in range(min(rounds, SUSTAINED_ROUNDS_MAX)):
        sides["kvd"].append(flood.write())
        os.sync()
        sides["new files"].append(direct(allocate=False))
        sides["allocated files"].append(direct(allocate=True))
        step()
    series = {name: Series(name=name, unit="GB/s", values=tuple(values)) for name, values in sides.items()}
    fast = max((series["new files"], series["allocated files"]), key=lambda one: one.median)
    slow = series["new files"] if fast is series["allocated files"] else series["allocated files"]
    what = f"{count} x {object_bytes / (1 << 20):g} MiB, {SUSTAINED_BUDGETS} times the DDR budget"
    moved = sum(flood.moved_bytes) / len(flood.moved_bytes) / (count * object_bytes)
    return [
        ratio(
            "sustained_ratio",
            f"writing {what}, until settled, of O_DIRECT writes",
            SUSTAINED_BAR,
            series["kvd"],
            fast,
            f"peer: {DIRECT}, {fast.name}, durable; {slow.name}: {slow.median:.2f} GB/s; "
            f"kvd moved {moved:.0%} of the bytes to NVMe meanwhile",
        ),
        Outcome(
            key="sustained_errors",
            what="objects of these that could not be written",
            value=flood.errors,
            unit="objects",
            bar=0,
            at_most=True,
            note=flood.error,
        ),
    ]
