"""NVMe filled three times over: what goes is a miss, what stays is right, and fsck finds nothing."""

import os
import random
from concurrent.futures import ThreadPoolExecutor

import pytest

from support.content import MIB, digest, fill, usage
from support.mounted import start_kvd

CAPACITY = 48 * MIB
OBJECT = 3 * MIB
FILES = 64
SETTINGS = {"ddr": {"budget": 24 * MIB, "burst": 8 * MIB, "idle": "1h"}, "nvme": {"capacity": CAPACITY}}


def found(stored):
    """Return which objects are there; each is what was written to it."""
    there = []
    for path, expected in stored.items():
        try:
            seen = digest(path)
        except FileNotFoundError:
            continue
        assert seen == expected, path.name
        there.append(path)
    return there


def there_now(root):
    return {path for path in root.iterdir() if path.name != ".kvd"}


@pytest.mark.parametrize("passthrough", ["auto", "off"])
def test_three_times_the_nvme_tier_goes_through_it(passthrough):
    with start_kvd({**SETTINGS, "fuse": {"passthrough": passthrough}}) as running:
        kvd, root = running.kvd, running.root
        stored = {}
        for number in range(FILES):
            path = root / f"{number}"
            stored[path] = fill(path, OBJECT, number)
            if number % 8 == 7:
                survivors = sorted(int(path.name) for path in there_now(root))
                assert survivors == list(range(survivors[0], number + 1)), "the oldest went, and nothing new"
        assert len(stored) * OBJECT >= 3 * CAPACITY
        evicted = kvd.status()["admission"]["evicted"]
        assert evicted == FILES - len(there_now(root))
        assert evicted > FILES // 2
        assert "nvme tier is full" not in kvd.status()["reasons"], "that is how it is meant to be"
        assert usage(kvd, "nvme")["used_bytes"] <= CAPACITY
        assert len(found(stored)) >= 10
        kvd.kill()
        kvd.start()
        again = found(stored)
        assert set(again) <= there_now(root)
        for number in range(FILES, FILES + 20):  # and a daemon that has just started
            path = root / f"{number}"
            stored[path] = fill(path, OBJECT, number)
        assert all(path in there_now(root) for path in list(stored)[-8:])
        found(stored)


def test_readers_and_writers_at_once_meet_misses_and_never_wrong_bytes():
    with start_kvd(SETTINGS) as running:
        root = running.root

        def work(worker):
            rng = random.Random(worker)
            stored = {}
            misses = 0
            for number in range(30):
                path = root / f"{worker}.{number}"
                stored[path] = fill(path, rng.choice([4096, 70_000, OBJECT]), worker * 1000 + number)
                if number % 5 == 4:
                    fd = os.open(path, os.O_RDONLY)
                    os.fsync(fd)
                    os.close(fd)
                chosen = rng.choice(list(stored))
                misses += not found({chosen: stored[chosen]})
            return stored, misses

        with ThreadPoolExecutor(4) as pool:
            done = list(pool.map(work, range(4)))
        assert all(found(stored) for stored, _ in done)
        assert running.kvd.status()["admission"]["evicted"] > 0
