"""More bytes than DDR holds: floods, bursts, cold reads without room, and the watermarks."""

import errno
import hashlib
import mmap
import os
import random
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from support.content import MIB, WAYS, ddr_bytes, digest, file_bytes, fill, usage, wait_until
from support.mounted import start_kvd

BUDGET_BYTES = 64 * MIB
BURST_BYTES = 16 * MIB
HIGH_WATERMARK = 0.9
LOW_WATERMARK = 0.75
OBJECTS_MIN = 10
"""Of 6 MiB: more than the high watermark."""
OBJECTS_MAX = 30


@pytest.fixture(scope="module", params=["auto", "off"], ids=["passthrough", "served"])
def mounted(request):
    settings = {
        "fuse": {"passthrough": request.param, "write_wait": "3s"},
        "ddr": {"budget": BUDGET_BYTES, "burst": BURST_BYTES, "idle": "1h"},
    }
    with start_kvd(settings) as running:
        yield running


class Watch:
    """Looks at the tmpfs all the time."""

    def __init__(self, kvd):
        self._kvd = kvd
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.most_bytes = 0

    def _run(self):
        while not self._stop.wait(0.005):
            self.most_bytes = max(self.most_bytes, ddr_bytes(self._kvd))

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join()
        assert 0 < self.most_bytes <= BUDGET_BYTES + BURST_BYTES


def check_books(kvd):
    wait_until(lambda: kvd.status()["leased"] == 0, "nobody has anything open")
    wait_until(lambda: usage(kvd, "ddr")["used_bytes"] <= BUDGET_BYTES, "the burst is given back")
    for tier, top in (("ddr", kvd.ddr), ("nvme", kvd.nvme_dirs[0] / "objects")):
        line = usage(kvd, tier)
        assert (line["used_bytes"], line["reserved_bytes"]) == (file_bytes(top), 0), tier


def try_fill(path, size, seed):
    """Write a file by temporary name and rename, as engines do; return its digest, or None for ENOSPC."""
    data = (random.Random(seed).randbytes(MIB) * (size // MIB + 1))[:size]
    temporary = path.with_suffix(".tmp")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    at = 0
    try:
        while at < size:
            at += os.write(fd, data[at : at + MIB])
    except OSError as error:
        temporary.unlink()
        if error.errno != errno.ENOSPC:
            raise
        return None
    finally:
        os.close(fd)
    temporary.rename(path)
    return hashlib.sha256(data).hexdigest()


def test_a_flood_of_writers_harms_nothing_that_is_stored(mounted, folder):
    stored = {folder / f"old{index}": fill(folder / f"old{index}", 5 * MIB, index) for index in range(6)}
    with Watch(mounted.kvd), ThreadPoolExecutor(64) as pool:
        flood = {
            folder / f"new{index}": pool.submit(try_fill, folder / f"new{index}", 8 * MIB, index) for index in range(64)
        }
    written = {path: future.result() for path, future in flood.items()}
    stored |= {path: expected for path, expected in written.items() if expected}
    assert {path for path, expected in written.items() if expected is None} == {
        path for path in flood if not path.exists()
    }
    assert len(stored) > 6 + 16, "most of the flood got through"
    check_books(mounted.kvd)
    for path, expected in stored.items():
        assert digest(path) == expected, path.name
    check_books(mounted.kvd)


def test_an_object_larger_than_ddr_is_refused_and_harms_nothing(mounted, folder):
    old = fill(folder / "old", 10 * MIB)
    with Watch(mounted.kvd):
        assert try_fill(folder / "huge", BUDGET_BYTES + BURST_BYTES + MIB, 1) is None
    assert digest(folder / "old") == old
    check_books(mounted.kvd)


def test_an_object_far_larger_than_its_kind_is_kept_whole(mounted, folder):
    """Objects of this folder were small until now, so that little is reserved for the large one."""
    for index in range(16):
        fill(folder / f"small{index}", 4096, index)
    mounted.kvd.kvctl("demote", str(mounted.root))
    with Watch(mounted.kvd):
        expected = try_fill(folder / "large", BUDGET_BYTES * 3 // 4, 1)
    assert expected is not None
    assert digest(folder / "large") == expected
    check_books(mounted.kvd)


@pytest.fixture
def without_room(mounted, folder):
    """A cold object, while DDR is full of objects that are open."""
    expected = fill(folder / "cold", 12 * MIB + 777)
    mounted.kvd.kvctl("demote", str(folder / "cold"))
    held = []
    for index in range(7):
        fill(folder / f"held{index}", 8 * MIB, index)
        held.append((folder / f"held{index}").open("rb"))
    yield folder / "cold", expected
    for file in held:
        file.close()
    wait_until(lambda: mounted.kvd.status()["leased"] == 0, "released")
    assert digest(folder / "cold") == expected
    check_books(mounted.kvd)


def test_a_cold_object_is_read_from_nvme_when_ddr_is_full_of_leases(mounted, without_room):
    cold, expected = without_room
    for way in WAYS:
        assert way(cold) == expected, way.__name__
    entry = mounted.kvd.entry(str(cold.relative_to(mounted.root)))
    assert (entry["tier"], entry["state"]) == ("nvme", "sealed")
    with cold.open("rb") as file, mmap.mmap(file.fileno(), 0, mmap.MAP_PRIVATE, mmap.PROT_READ) as mapped:
        assert hashlib.sha256(mapped).hexdigest() == expected
        assert hashlib.sha256(file.read()).hexdigest() == expected


def test_writing_without_room_is_enospc_and_emptying_is_not(mounted, without_room, folder):
    cold, _ = without_room
    with pytest.raises(OSError, match="No space") as info:
        cold.open("r+b")
    assert info.value.errno == errno.ENOSPC
    with cold.open("rb") as reader:
        assert len(reader.read(100)) == 100
        other = folder / "other"
        fill(other, 5000)
        assert other.stat().st_size == 5000
    twin = folder / "twin"
    os.link(cold, twin)
    twin.unlink()


def test_idle_objects_leave_by_themselves_down_to_the_low_watermark():
    """A writer's reservation may cross the high watermark while objects are made: then fewer go, and more are made."""
    low_bytes, high_bytes = int(LOW_WATERMARK * BUDGET_BYTES), int(HIGH_WATERMARK * BUDGET_BYTES)
    watermarks = {"high_watermark": HIGH_WATERMARK, "low_watermark": LOW_WATERMARK}
    with start_kvd({"ddr": {"budget": BUDGET_BYTES, "burst": BURST_BYTES, "idle": "200ms", **watermarks}}) as running:

        def used_bytes():
            return usage(running.kvd, "ddr")["used_bytes"]

        stored = {}
        while len(stored) < OBJECTS_MIN or low_bytes < used_bytes() <= high_bytes:
            assert len(stored) < OBJECTS_MAX, "above the low watermark for ever"
            path = running.root / f"{len(stored)}"
            stored[path] = fill(path, 6 * MIB, len(stored))
        wait_until(lambda: used_bytes() <= low_bytes, "above the high watermark objects go")
        assert running.kvd.entry("0")["tier"] == "nvme", "the one that was idle longest"
        assert running.kvd.entry(f"{len(stored) - 1}")["tier"] == "ddr"
        for path, expected in stored.items():
            assert digest(path) == expected
