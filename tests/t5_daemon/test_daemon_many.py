"""A daemon with many objects on NVMe: it serves at once, and a kill in the middle of its check costs nothing."""

from __future__ import annotations

import os

from kvctl.benches import many
from support.daemons import daemon, document, kvctl, until

OBJECTS = 600
FOLDERS = 4


def state(kvd):
    return kvd.status()["index"]


def test_objects_are_there_at_once_and_after_a_kill_in_the_middle_of_the_check():
    with daemon() as kvd:
        found = many.fill(kvd.root / "state", kvd.nvme_dirs, objects=OBJECTS, folders=FOLDERS, described=False)
        gone = found.first_ino + OBJECTS - 1
        kvd.up()
        assert kvd.read(found.name(3)) == found.content(3)
        status = kvd.status()
        assert status["objects"] == OBJECTS
        assert state(kvd)["total"] == OBJECTS
        used_bytes = next(tier for tier in status["tiers"] if tier["tier"] == "nvme")["used_bytes"]
        assert used_bytes >= sum(many.SIZES_BYTES[number % 16] for number in range(OBJECTS - 1))
        kvd.kill()
        path = kvd.nvme_dirs[0] / "objects" / f"{gone % 256:02x}" / f"{gone // 256 % 256:02x}" / f"{gone:x}.1"
        path.unlink()
        kvd.claims += ["object lost"]
        kvd.up()
        assert kvd.read(found.name(7)) == found.content(7)
        until(lambda: state(kvd)["state"] == "checked", "the check of the index")
        assert state(kvd)["done"] == state(kvd)["total"] <= OBJECTS
        names = sorted(name for folder in range(FOLDERS) for name in os.listdir(kvd.mount / f"many{folder:05d}"))
        assert names == [f"{number:08d}" for number in range(OBJECTS - 1)], "the one without a file is a miss"
        for number in range(0, OBJECTS - 1, 97):
            assert kvd.read(found.name(number)) == found.content(number)
        assert document(kvctl(kvd, "--json", "status"))["objects"] == OBJECTS - 1
        assert kvd.stop() == 0
        assert kvd.faults() == []
