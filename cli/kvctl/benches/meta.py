"""``meta``: names. Opens of sealed objects against pyfuse3's handlers, and what the kernel's caches answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kvctl import units
from kvctl.benches.loads import Load
from kvctl.benches.memory import alternate
from kvctl.benches.outcome import Outcome, Series, lowest, ratio
from kvd import config_schema

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from kvctl.benches.ground import Ground

CLIENTS: Final = (1, 4)
OBJECTS: Final = 200
OBJECT_BYTES: Final = 4096
WATCH_ROUNDS: Final = 200
PYTHON_BAR: Final = 5.0
STAT_BAR: Final = 200_000
HOT_KEY: Final = ("fuse", "hot_names")
"""The setting that leaves metadata to pyfuse3's handlers, where it is `HOT_OFF`."""
HOT_OFF: Final = 0
NO_HANDLERS: Final = "not available: this kvd has no [fuse] hot_names"
PEER: Final = "pyfuse3's handlers"


def can_leave_to_handlers() -> bool:
    """Tell whether kvd has the setting that the peer of `opens` needs."""
    table, key = HOT_KEY
    return key in config_schema.keys_of(table)


def _sealed(ground: Ground) -> list[Path]:
    files = ground.make("meta", OBJECTS)
    Load(kind="write", block_bytes=OBJECT_BYTES, file_bytes=OBJECT_BYTES).run(files).flawless("write")
    ground.until_sealed(files)
    return files


def _rate(load: Load, files: list[Path] | None) -> Callable[[], float]:
    """Return what measures a timed load once; 0 where there is nothing to measure."""
    return lambda: load.run(files).flawless(load.kind).per_s if files else 0.0


def opens(
    ground: Ground, handlers: Ground | None, duration_ms: int, rounds: int, step: Callable[[], None]
) -> list[Outcome]:
    """Measure open and close of sealed objects; `handlers` is a kvd that leaves them to pyfuse3, if there is one."""
    ours, peer = _sealed(ground), _sealed(handlers) if handlers else None
    compared: list[Outcome] = []
    rates: list[Series] = []
    for clients in CLIENTS:
        load = Load(kind="open", workers=clients, duration_ms=duration_ms)
        ours_per_s, peer_per_s = alternate(rounds, _rate(load, ours), _rate(load, peer), step)
        rates.append(Series(name="kvd", unit="/s", values=tuple(ours_per_s)))
        if peer:
            other = Series(name=PEER, unit="/s", values=tuple(peer_per_s))
            what = f"open and close of sealed objects, {units.plural(clients, 'client')}"
            compared.append(ratio(f"meta_{clients}_vs_python", what, PYTHON_BAR, rates[-1], other))
    best = max(rates, key=lambda one: one.median)
    what = f"open and close of sealed objects, of {PEER}"
    return [
        lowest("meta_vs_python", what, compared)
        if compared
        else Outcome(key="meta_vs_python", what=what, value=None, bar=PYTHON_BAR, note=NO_HANDLERS),
        *compared,
        Outcome(
            key="meta_ops",
            what=f"the same, a second, the better of {' and '.join(map(str, CLIENTS))} clients",
            value=best.median,
            unit="/s",
            ours=best,
        ),
    ]


def stats(ground: Ground, duration_ms: int, rounds: int, step: Callable[[], None]) -> list[Outcome]:
    """Measure stat of names that are there and of names that are not, and whether changes are seen at once."""
    files = [ground.folder / "meta" / f"{index:06d}" for index in range(OBJECTS)]
    missing = [path.with_suffix(".absent") for path in files]
    found_per_s, missing_per_s = alternate(
        rounds,
        lambda: Load(kind="stat", duration_ms=duration_ms).run(files).flawless("stat").per_s,
        lambda: Load(kind="miss", duration_ms=duration_ms).run(missing).flawless("stat of a missing name").per_s,
        step,
    )
    ground.make("watch", 0)
    seen = Load(kind="watch", rounds=WATCH_ROUNDS).run([ground.folder / "watch"])
    for name in ("watch", "meta"):
        ground.remove(name)
    found = Series(name="kvd", unit="/s", values=tuple(found_per_s))
    absent = Series(name="kvd", unit="/s", values=tuple(missing_per_s))
    return [
        Outcome(key="stat_ops", what="stat of a name", value=found.median, unit="/s", bar=STAT_BAR, ours=found),
        Outcome(
            key="stat_missing_ops",
            what="stat of a name that is not there",
            value=absent.median,
            unit="/s",
            bar=STAT_BAR,
            ours=absent,
        ),
        Outcome(
            key="stale",
            what=f"changes of {seen.ops:,} that another process did not see at once",
            value=seen.errors,
            unit="changes",
            bar=0,
            at_most=True,
            note=seen.error,
        ),
    ]
