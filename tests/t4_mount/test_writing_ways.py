"""Every way to write, in more than DDR holds: the bytes are right, and no more memory is taken than was promised."""

from __future__ import annotations

import mmap
import os

import pytest

from support.content import digest, fill, usage, wait_until
from support.mounted import start_kvd
from support.posix import KEEP_SIZE, PUNCH_HOLE, fallocate, ftruncate, tried
from support.storm import MIB, Watch, block, physical_bytes, run_all

BUDGET_BYTES = 96 * MIB
BURST_BYTES = 24 * MIB
WRITERS = 8
OBJECT_BYTES = 32 * MIB
KIB = 1 << 10


@pytest.fixture(scope="module", params=["auto", "off"], ids=["passthrough", "served"])
def mounted(request):
    settings = {
        "fuse": {"passthrough": request.param, "write_wait": "20s"},
        "ddr": {"budget": BUDGET_BYTES, "burst": BURST_BYTES, "idle": "1h"},
        "nvme": {"capacity": "4GiB"},
    }
    with start_kvd(settings) as running:
        yield running


@pytest.fixture
def watch(mounted):
    with Watch(mounted.kvd, budget_bytes=BUDGET_BYTES, burst_bytes=BURST_BYTES) as watch:
        yield watch
        watch.settled()
        wait_until(lambda: mounted.kvd.status()["leased"] == 0, "nobody has anything open")


HEAD = "seed, size = int(sys.argv[2]), int(sys.argv[3])\nfd = os.open(name(seed), os.O_RDWR | os.O_CREAT)\n"
CASES = {
    "backwards into holes": """
os.ftruncate(fd, size)
for at in reversed(range(0, size, MIB)):
    assert os.pwrite(fd, block(seed, MIB), at) == MIB
""",
    "set aside": """
os.posix_fallocate(fd, 0, size)
for at in range(0, size, MIB):
    assert os.pwrite(fd, block(seed, MIB), at) == MIB
""",
    "unbuffered": """
os.close(fd)
fd = os.open(name(seed), os.O_RDWR | os.O_DIRECT)
buffer = mmap.mmap(-1, MIB)
buffer[:] = block(seed, MIB)
for at in range(0, size, MIB):
    assert os.pwritev(fd, [buffer], at) == MIB
""",
    "up and down": """
for end in (size // 2, MIB, size):
    os.ftruncate(fd, end)
    for at in range(0, end, MIB):
        assert os.pwrite(fd, block(seed, MIB), at) == MIB
    os.ftruncate(fd, end // 4)
for at in range(0, size, MIB):
    assert os.pwrite(fd, block(seed, MIB), at) == MIB
""",
    "copied by the kernel": """
part = size // 8
source = os.open(os.path.join(sys.argv[1], f"source{seed}"), os.O_RDWR | os.O_CREAT)
for at in range(0, part, MIB):
    os.pwrite(source, block(seed, MIB), at)
for number in range(8):
    os.lseek(source, 0, os.SEEK_SET)
    left = part
    while left:
        copy = os.copy_file_range if number % 2 else lambda a, b, count: os.sendfile(b, a, None, count)
        left -= copy(source, fd, left)
os.close(source)
""",
    "through a pipe": """
ours, theirs = os.pipe()
for at in range(0, size, 65536):
    assert os.write(theirs, block(seed, 65536)) == 65536
    left = 65536
    while left:
        left -= os.splice(ours, fd, left)
""",
}


@pytest.mark.parametrize("case", CASES)
def test_more_writers_than_room(mounted, folder, watch, case):
    code = HEAD + CASES[case] + "os.close(fd)\n"
    results = run_all(code, folder, range(1, WRITERS + 1), OBJECT_BYTES)
    assert [result for result in results if result != (0, "")] == []
    for seed in range(1, WRITERS + 1):
        check(folder / f"w{seed}", seed, OBJECT_BYTES)


def check(path, seed, size):
    assert path.stat().st_size == size
    want = block(seed, MIB)
    with path.open("rb") as file:
        for at in range(0, size, MIB):
            assert file.read(MIB) == want, (path.name, at)


MAPPED = """
os.ftruncate(fd, size)
with mmap.mmap(fd, size) as mapped:
    for at in range(0, size, MIB):
        mapped[at:at + MIB] = block(seed, MIB)
os.close(fd)
"""


def test_mappings_over_holes(mounted, folder, watch):
    """One behind the other: a store can't be held up, so what is mapped has to fit."""
    for seed in range(1, WRITERS + 1):
        assert run_all(HEAD + MAPPED, folder, [seed], OBJECT_BYTES) == [(0, "")]
        watch.settled()
    for seed in range(1, WRITERS + 1):
        check(folder / f"w{seed}", seed, OBJECT_BYTES)


def test_appending_by_several(folder, mounted, watch):
    code = """
seed, size = int(sys.argv[2]), int(sys.argv[3])
fd = os.open(name(0), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
for _ in range(size // 65536):
    assert os.write(fd, block(seed, 65536)) == 65536
os.close(fd)
"""
    assert run_all(code, folder, range(1, 5), 8 * MIB) == [(0, "")] * 4
    counts = dict.fromkeys(range(1, 5), 0)
    wanted = {block(seed, 65536): seed for seed in counts}
    with (folder / "w0").open("rb") as file:
        while piece := file.read(65536):
            counts[wanted[piece]] += 1
    assert set(counts.values()) == {8 * MIB // 65536}


def test_setting_aside_more_than_the_budget_leaves_nothing_behind(mounted, folder, watch):
    fd = os.open(folder / "a", os.O_RDWR | os.O_CREAT)
    os.pwrite(fd, b"kept", 0)
    for mode in (0, KEEP_SIZE):
        assert tried(fallocate, fd, mode, 0, BUDGET_BYTES + BURST_BYTES + MIB) == "ENOSPC"
        assert os.fstat(fd).st_size == 4
    assert physical_bytes(mounted.kvd) <= BUDGET_BYTES
    fallocate(fd, KEEP_SIZE, 0, 16 * MIB)
    assert os.fstat(fd).st_size == 4
    fallocate(fd, PUNCH_HOLE | KEEP_SIZE, 2 * MIB, 12 * MIB)
    assert os.pread(fd, 10, 0) == b"kept"
    os.close(fd)


def test_a_longer_length_needs_no_room_and_a_shorter_one_gives_it_back(mounted, folder, watch):
    fd = os.open(folder / "a", os.O_RDWR | os.O_CREAT)
    ftruncate(fd, 1 << 40)
    assert os.fstat(fd).st_size == 1 << 40
    ftruncate(fd, 0)
    for at in range(0, OBJECT_BYTES, MIB):
        os.pwrite(fd, block(1, MIB), at)
    before = physical_bytes(mounted.kvd)
    ftruncate(fd, MIB)
    assert before - physical_bytes(mounted.kvd) >= OBJECT_BYTES - 4 * MIB, "while it is open"
    line = usage(mounted.kvd, "ddr")
    held = os.fstat(fd).st_blocks * 512
    os.close(fd)
    assert line["used_bytes"] + line["reserved_bytes"] <= physical_bytes(mounted.kvd) + held + BUDGET_BYTES // 2


def blocks_of(path, flags, cases):
    """Return what reads and writes at these places come to, without the page cache."""
    fd = os.open(path, os.O_RDWR | os.O_DIRECT | flags)
    memory = mmap.mmap(-1, 64 * KIB)
    results = []
    for write, memory_at, length, at in cases:
        view = memoryview(memory)[memory_at : memory_at + length]
        if write:
            view[:] = bytes([length % 251]) * length
            results.append(tried(os.pwritev, fd, [view], at))
        else:
            got = tried(os.preadv, fd, [view], at)
            results.append((got, bytes(view[: got if isinstance(got, int) else 0])))
        view.release()
    os.close(fd)
    return results


def test_unbuffered_reads_and_writes_that_ext4_accepts(mounted, folder, plain, watch):
    cases = [
        (write, memory_at, length, at)
        for write in (True, False)
        for memory_at in (0, 512, 4096)
        for length in (512, 4096, 8192, 12 * KIB)
        for at in (0, 512, 4096, 20 * KIB, 64 * KIB)
    ]
    for path in (plain / "a", folder / "a"):
        path.write_bytes(block(7, 64 * KIB))
    expected, found = blocks_of(plain / "a", 0, cases), blocks_of(folder / "a", 0, cases)
    for case, want, got in zip(cases, expected, found, strict=True):
        assert want in (got, "EINVAL") or want[0] == "EINVAL", case
    odd = [(False, 1, 100, 3), (True, 3, 1000, 5), (False, 0, 4096, 64 * KIB - 7)]
    results = blocks_of(folder / "a", 0, odd)  # ext4 refuses these; here they work, as without O_DIRECT
    assert (results[0][0], results[1]) == (100, 1000)


def test_unbuffered_reads_of_a_cold_object(mounted, folder, watch):
    want = fill(folder / "a", 5 * MIB + 777)
    mounted.kvd.kvctl("demote", str(folder / "a"))
    fd = os.open(folder / "a", os.O_RDONLY | os.O_DIRECT)
    memory = mmap.mmap(-1, MIB)
    content = bytearray()
    while got := os.preadv(fd, [memory], len(content)):
        content += memory[:got]
    os.close(fd)
    assert bytes(content) == (folder / "a").read_bytes()
    assert digest(folder / "a") == want
