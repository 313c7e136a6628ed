"""Memory that objects leave to those that come, with the kernel's own writers and readers (`[ddr] spare`)."""

import mmap
import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from kvdriver import BLOCK_BYTES
from support.content import MIB, ddr_bytes, digest, file_bytes, fill, spare_bytes, usage, wait_until
from support.mounted import start_kvd

BUDGET_BYTES = 96 * MIB
BURST_BYTES = 16 * MIB
SIZE = 6 * MIB
ROUNDS = 6
WRITERS = 4
WATCH_S = 0.002


@pytest.fixture(scope="module", params=["auto", "off"], ids=["passthrough", "served"])
def mounted(request):
    settings = {
        "fuse": {"passthrough": request.param},
        "ddr": {"budget": BUDGET_BYTES, "burst": BURST_BYTES, "idle": "1h", "spare": "on"},
    }
    with start_kvd(settings) as running:
        yield running


def used_blocks(root):
    """Return what `df` of the mount calls used, in blocks."""
    info = os.statvfs(root)
    assert info.f_frsize == BLOCK_BYTES
    return info.f_blocks - info.f_bfree


def leave_memory(mounted, folder):
    """Let objects of a kind leave what they held."""
    for index in range(4):
        fill(folder / f"old{index}", SIZE, index)
    for index in range(4):
        (folder / f"old{index}").unlink()
    wait_until(lambda: spare_bytes(mounted.kvd) >= 2 * SIZE, "what was removed is spare")


def check_books(mounted):
    kvd = mounted.kvd
    wait_until(lambda: kvd.status()["leased"] == 0, "nobody has anything open")
    line = usage(kvd, "ddr")
    assert (line["used_bytes"], line["reserved_bytes"]) == (file_bytes(kvd.ddr), 0)
    assert line["used_bytes"] + spare_bytes(kvd) <= BUDGET_BYTES


def test_what_is_removed_is_used_for_what_comes(mounted, folder):
    leave_memory(mounted, folder)
    check_books(mounted)
    before, used = spare_bytes(mounted.kvd), used_blocks(mounted.root)
    expected = fill(folder / "new", SIZE)
    assert digest(folder / "new") == expected
    wait_until(lambda: usage(mounted.kvd, "ddr")["reserved_bytes"] == 0, "sealed")
    if mounted.passthrough:
        assert spare_bytes(mounted.kvd) <= before - SIZE
    assert (used_blocks(mounted.root) - used) * BLOCK_BYTES == SIZE
    check_books(mounted)


def test_what_is_demoted_is_used_for_what_is_promoted(mounted, folder):
    stored = {folder / f"o{index}": fill(folder / f"o{index}", 20 * MIB + 4321, index) for index in range(4)}
    for path, expected in stored.items():
        mounted.kvd.kvctl("demote", str(path))
        assert spare_bytes(mounted.kvd) > 0
        assert digest(path) == expected
    check_books(mounted)


def test_nothing_is_seen_of_what_was_there(mounted, folder):
    """Laid and not written: before the end it reads as zeroes, and is a hole; it takes no room once sealed."""
    leave_memory(mounted, folder)
    path = folder / "new"
    with path.open("w+b", buffering=0) as file:
        assert path.stat().st_blocks == 0
        file.write(b"a" * MIB)
        assert path.stat().st_blocks * 512 == MIB
        assert os.lseek(file.fileno(), 0, os.SEEK_HOLE) == MIB
        os.pwrite(file.fileno(), b"z", 5 * MIB)
    expected = b"a" * MIB + bytes(4 * MIB) + b"z"
    assert path.read_bytes() == expected
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        assert mapped[:] == expected
    check_books(mounted)
    mounted.kvd.kvctl("demote", str(path))
    assert path.read_bytes() == expected
    with path.open("r+b") as file:
        file.truncate(100)
        file.truncate(2 * MIB)
    assert path.read_bytes() == b"a" * 100 + bytes(2 * MIB - 100)
    with (folder / "empty").open("wb"):
        pass
    assert (folder / "empty").stat().st_size == (folder / "empty").stat().st_blocks == 0
    check_books(mounted)


def test_a_mapping_of_a_removed_object_keeps_what_it_shows(mounted, folder):
    path = folder / "mapped"
    fill(path, SIZE)
    before = path.read_bytes()
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    path.unlink()
    leave_memory(mounted, folder)
    for index in range(8):
        fill(folder / f"new{index}", SIZE, index)
    assert mapped[:] == before
    mapped.close()
    for index in range(8):
        (folder / f"new{index}").unlink()
    check_books(mounted)


def test_writers_that_come_and_go_stay_within_the_budget(mounted, folder):
    most_bytes = [0]
    done = threading.Event()

    def watch():
        while not done.wait(WATCH_S):
            most_bytes[0] = max(most_bytes[0], ddr_bytes(mounted.kvd))

    def write(number):
        """Write objects of two sizes, read each, and remove all but the last."""
        for turn in range(ROUNDS):
            path = folder / f"w{number}-{turn}"
            size = SIZE if turn % 2 else 3 * MIB + 5
            expected = fill(path, size, number * ROUNDS + turn)
            assert digest(path) == expected
            if turn < ROUNDS - 1:
                path.unlink()
        return path, expected

    with ThreadPoolExecutor(WRITERS + 1) as pool:
        watcher = pool.submit(watch)
        try:
            stored = list(pool.map(write, range(WRITERS)))
        finally:
            done.set()
        watcher.result()
    assert 0 < most_bytes[0] <= BUDGET_BYTES + BURST_BYTES
    for path, expected in stored:
        assert digest(path) == expected
    check_books(mounted)


def test_what_a_killed_daemon_leaves_goes_at_the_next_start(mounted, folder):
    expected = fill(folder / "kept", SIZE)
    leave_memory(mounted, folder)
    with (folder / "kept").open("rb") as file:
        os.fsync(file.fileno())
    mounted.kvd.kill()
    assert spare_bytes(mounted.kvd) > 0
    faults = [fault for fault in mounted.fsck() if "memory that was kept" in fault]
    assert len(faults) >= 2
    mounted.kvd.start()
    assert spare_bytes(mounted.kvd) == 0
    assert digest(folder / "kept") == expected
    check_books(mounted)
