"""Memory that is touched before it is needed: no more than the budget, and not when memory is short."""

import random

import pytest

from kvd.tier.ddr import WARM_NAME
from kvd.tier.hostmemory import memory_bytes
from kvd.tier.warming import STEP_BYTES, Warming
from support.tiers import MIB, tiers_at

TOTAL_KIB = 1 << 20


@pytest.fixture
def meminfo(tmp_path):
    def write(available_kib):
        path = tmp_path / "meminfo"
        path.write_text(f"MemTotal: {TOTAL_KIB} kB\nMemFree: 1 kB\nMemAvailable: {available_kib} kB\n")
        return path

    return write


def warming(tiers, path):
    budget_bytes = tiers.config.ddr.budget_bytes
    return Warming(tiers.config.ddr.path, tiers.books, tiers.objects.room, budget_bytes=budget_bytes, meminfo=path)


async def test_what_is_free_in_the_budget_is_touched_and_given_back(scratch, meminfo):
    async with tiers_at(scratch, ddr_mib=64) as tiers:
        await tiers.make(b"a", random.Random(1).randbytes(20 * MIB))
        leftover = tiers.config.ddr.path / WARM_NAME
        leftover.write_bytes(b"of a killed daemon")
        warm = warming(tiers, meminfo(TOTAL_KIB))
        await warm.run()
        assert warm.warm_bytes == 2 * STEP_BYTES
        assert not leftover.exists()


@pytest.mark.parametrize("short", ["memory", "room"])
async def test_it_stops_when_something_is_short(scratch, meminfo, short):
    async with tiers_at(scratch, ddr_mib=64) as tiers:
        warm = warming(tiers, meminfo(TOTAL_KIB // 8 if short == "memory" else TOTAL_KIB))
        if short == "room":
            tiers.objects.room.press()
        await warm.run()
        assert warm.warm_bytes == 0


def test_meminfo_of_this_machine_can_be_read():
    with open("/proc/meminfo") as file:
        total, available = memory_bytes(file.read())
    assert 0 < available <= total
