"""What the daemon's ageing policies cost with a million objects: a use, a start, the longest slice of a tick.

Run it on a machine that is quiet: `.venv/bin/python scripts/worth_speed.py [OBJECTS]`.
"""

from __future__ import annotations

import random
import sys
import time
from dataclasses import dataclass

import trio

from kvd.policy.ageing import Place, Seed
from kvd.policy.policies import DEFAULT, PLAIN, POLICIES
from kvd.tier.worth import Worth
from kvdriver import Tier

OBJECTS = 1_000_000
BATCH = 512
"""Uses that the hot table tells at once: a tenth of a second of 5,000 opens a second."""
EVENTS = 400_000
SEEDS = 1024
TICK_S = 600.0


@dataclass(slots=True)
class _Used:
    """What `Worth.used` reads of an object."""

    ino: int
    mapped_blocks: int = 256
    tier: Tier = Tier.DDR


async def main(objects: int) -> None:
    """Measure."""
    worth = Worth(lambda _ino: 1, lambda _ino: None, POLICIES[DEFAULT], POLICIES[PLAIN])
    now_s = worth.now_s()
    longest_s = longest_cpu_s = 0.0
    began_s = time.perf_counter()
    for first in range(1, objects, SEEDS):
        slice_s, slice_cpu_s = time.perf_counter(), time.process_time()
        inos = range(first, min(first + SEEDS, objects + 1))
        worth.found((1, Seed(ino, 256, Place.DDR, now_s - 1e6 + ino / 2)) for ino in inos)
        longest_s = max(longest_s, time.perf_counter() - slice_s)
        longest_cpu_s = max(longest_cpu_s, time.process_time() - slice_cpu_s)
    took_s = time.perf_counter() - began_s
    print(f"{objects} objects found by a start: {took_s:.2f} s, {_longest(longest_s, longest_cpu_s)}")

    rng = random.Random(1)  # noqa: S311 (nothing secret)
    batches = [[_Used(rng.randint(1, objects)) for _ in range(BATCH)] for _ in range(EVENTS // BATCH)]
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    for batch in batches:
        worth.used(batch)  # type: ignore[arg-type]
    took_s, cpu_s = time.perf_counter() - began_s, time.process_time() - began_cpu_s
    events = len(batches) * BATCH
    print(
        f"a use, {BATCH} at once: {took_s / events * 1e6:.2f} us by the clock, {cpu_s / events * 1e6:.2f} us of the processor"
    )

    longest_s = longest_cpu_s = 0.0
    slices, more = 0, True
    while more:
        slice_s, slice_cpu_s = time.perf_counter(), time.process_time()
        more = worth.age(now_s + TICK_S)
        longest_s = max(longest_s, time.perf_counter() - slice_s)
        longest_cpu_s = max(longest_cpu_s, time.process_time() - slice_cpu_s)
        slices += 1
    print(f"a tick of all: {slices} slices, {_longest(longest_s, longest_cpu_s)}")


def _longest(slice_s: float, cpu_s: float) -> str:
    return f"the longest slice {slice_s * 1e3:.1f} ms by the clock, {cpu_s * 1e3:.1f} ms of the processor"


if __name__ == "__main__":
    trio.run(main, int(sys.argv[1]) if len(sys.argv) > 1 else OBJECTS)
