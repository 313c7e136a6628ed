"""Large objects striped over two NVMe directories: whole again, also without room in DDR, and never half."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from support.content import BESIDE, MIB, wait_until

if TYPE_CHECKING:
    from pathlib import Path

from support.drives import Drives, drives


def parts_of(made: Drives, path: Path) -> list[Path]:
    ino = f"{path.stat().st_ino:x}.*"
    tops = (made.good, made.disk.behind)
    return [file for top in tops for file in (top / "objects").rglob(ino) if file.suffix not in BESIDE]


def test_large_objects_are_striped_and_survive_and_small_ones_are_not():
    with drives(ddr={"budget": 160 * MIB, "burst": 32 * MIB}) as made:
        kvd = made.mounted.kvd
        large = made.fill("large", 40 * MIB + 12345)
        small = made.fill("small", 5 * MIB, seed=1)
        kvd.kvctl("demote", str(large), str(small))
        assert len(parts_of(made, small)) == 1
        parts = parts_of(made, large)
        assert len(parts) == 2
        assert {part.stat().st_size for part in parts} == {40 * MIB + 12345}
        held = [part.stat().st_blocks * 512 for part in parts]
        assert sum(held) <= 41 * MIB, "the stripes of the other part are holes"
        assert min(held) >= 16 * MIB
        made.check()
        kvd.kvctl("demote", str(large))
        kvd.kill()
        kvd.start()
        made.check()
        kvd.kvctl("demote", str(large))
        made.disk.fail("read")
        made.mounted.claim("object can't be read")
        made.check_eio([large])
        made.disk.heal()
        made.wait_state("online")
        made.check()
        large.unlink()
        del made.stored[large]
        wait_until(lambda: not any(part.exists() for part in parts), "all parts are removed")


def test_a_striped_copy_is_read_where_ddr_has_no_room():
    with drives(ddr={"budget": 48 * MIB, "burst": 16 * MIB}) as made:
        kvd = made.mounted.kvd
        large = made.fill("large", 40 * MIB + 777)
        kvd.kvctl("demote", str(large))
        pinned = made.fill("pinned", 20 * MIB, seed=1)
        kvd.kvctl("pin", str(pinned))
        assert kvd.entry("large")["tier"] == "nvme"
        made.check()
        assert kvd.entry("large")["tier"] == "nvme", "it was read from its parts"
        kvd.kvctl("unpin", str(pinned))


@pytest.mark.parametrize("spoil", ["short", "gone"])
def test_a_start_looks_at_each_part(spoil):
    with drives(ddr={"budget": 96 * MIB, "burst": 32 * MIB}, claims=("object quarantined", "object lost")) as made:
        kvd = made.mounted.kvd
        large = made.fill("large", 40 * MIB)
        kvd.kvctl("demote", str(large))
        first, second = parts_of(made, large)
        kvd.stop()
        if spoil == "short":
            os.truncate(second, 39 * MIB)
        else:
            second.unlink()
        kvd.start()
        del made.stored[large]
        if spoil == "short":
            made.check_eio([large])
            assert str(large.name) in kvd.status()["faults"][0]["path"]
            large.unlink()
        else:
            assert not large.exists(), "a miss"
            wait_until(lambda: not first.exists(), "its other part is swept")
