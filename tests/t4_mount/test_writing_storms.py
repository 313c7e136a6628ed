"""Far more at once than DDR holds, in every way to write: slowed, never refused, and never more memory than promised."""

from __future__ import annotations

import pytest

from support.content import wait_until
from support.mounted import start_kvd
from support.storm import MIB, Watch, block, run_all

BUDGET_BYTES = 256 * MIB
BURST_BYTES = 32 * MIB
WRITERS = 64
OBJECT_BYTES = 64 * MIB


@pytest.fixture(scope="module", params=["auto", "off"], ids=["passthrough", "served"])
def mounted(request):
    settings = {
        "fuse": {"passthrough": request.param, "write_wait": "20s"},
        "ddr": {"budget": BUDGET_BYTES, "burst": BURST_BYTES, "idle": "1h"},
        "nvme": {"capacity": "20GiB"},
    }
    with start_kvd(settings) as running:
        yield running


WAYS = {
    "blocks": """
fd = os.open(name(seed), os.O_WRONLY | os.O_CREAT)
for at in range(0, size, MIB):
    data = memoryview(block(seed, MIB))
    while data:
        data = data[os.write(fd, data):]
os.close(fd)
""",
    "whole": """
fd = os.open(name(seed), os.O_WRONLY | os.O_CREAT)
data = memoryview(block(seed, size))
while data:
    data = data[os.write(fd, data):]
os.close(fd)
""",
}


def storm(mounted, folder, way, *, writers, size):
    code = "seed, size = int(sys.argv[2]), int(sys.argv[3])\n" + WAYS[way]
    with Watch(mounted.kvd, budget_bytes=BUDGET_BYTES, burst_bytes=BURST_BYTES) as watch:
        results = run_all(code, folder, range(1, writers + 1), size)
        assert [result for result in results if result != (0, "")] == []
        watch.settled()
    for seed in range(1, writers + 1):
        path = folder / f"w{seed}"
        assert path.stat().st_size == size
        want = block(seed, MIB)
        with path.open("rb") as file:
            for at in range(0, size, MIB):
                assert file.read(MIB) == want[: size - at], (seed, at)
    watch.settled()
    for path in folder.iterdir():
        path.unlink()
    wait_until(lambda: mounted.kvd.status()["leased"] == 0, "nobody has anything open")


@pytest.mark.parametrize("way", ["blocks", "whole"])
def test_sixty_four_writers_of_far_more_than_ddr(mounted, folder, way):
    storm(mounted, folder, way, writers=WRITERS, size=OBJECT_BYTES)


def test_a_kind_that_was_small_until_now(mounted, folder):
    """Each writer is trusted with 4 KiB, and writes 64 MiB at once."""
    for number in range(16):
        (folder / f"small{number}").write_bytes(bytes(4096))
    storm_size = OBJECT_BYTES
    for path in folder.iterdir():
        path.unlink()
    storm(mounted, folder, "whole", writers=WRITERS, size=storm_size)
