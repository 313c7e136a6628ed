"""Lengths, holes, storage set aside, and how much of it there is."""

from __future__ import annotations

import os
import random

import pytest

from support.content import ddr_bytes, spare_bytes
from support.mounted import start_kvd
from support.posix import (
    COLLAPSE,
    INSERT,
    KEEP_SIZE,
    PUNCH_HOLE,
    UNSHARE,
    ZERO,
    fallocate,
    ftruncate,
    pwrite,
    tried,
    wait_for,
)

KIB, MIB = 1 << 10, 1 << 20


def opened(path):
    return os.open(path, os.O_RDWR | os.O_CREAT, 0o600)


def segments(fd):
    """Return where data and holes begin, as lseek tells."""
    end, at, found = os.fstat(fd).st_size, 0, []
    while at < end:
        data = tried(os.lseek, fd, at, os.SEEK_DATA)
        if data == "ENXIO":
            break
        at = os.lseek(fd, data, os.SEEK_HOLE)
        found.append((data, at))
    return found


def test_data_and_holes_are_where_they_were_put(folder, plain):
    """DDR holds data in folios of up to 2 MiB, so it may call more of a file data than ext4 does, but never less."""

    def case(d):
        fd = opened(d / "a")
        for start, length in ((0, 4096), (128 * KIB, 64 * KIB), (5 * MIB + 8192, 12 * KIB)):
            os.pwrite(fd, b"d" * length, start)
        ftruncate(fd, 9 * MIB)
        os.fsync(fd)
        whole = segments(fd)
        ends = [
            tried(os.lseek, fd, at, whence) for whence in (os.SEEK_DATA, os.SEEK_HOLE) for at in (9 * MIB, 10 * MIB, -1)
        ]
        fallocate(fd, PUNCH_HOLE | KEEP_SIZE, 128 * KIB, 32 * KIB)
        punched = os.pread(fd, 64 * KIB, 128 * KIB).count(b"d"), os.pread(fd, 9 * MIB, 0).count(b"d")
        os.close(fd)
        return whole, ends, punched

    expected, found = case(plain), case(folder)
    assert found[1:] == expected[1:]
    for start, end in expected[0]:
        assert any(first <= start and end <= last for first, last in found[0])
    assert sum(end - start for start, end in found[0]) <= 3 * 2 * MIB


def test_holes_read_as_zeros_and_take_no_room(folder):
    fd = opened(folder / "a")
    ftruncate(fd, 1 << 40)
    os.pwrite(fd, b"end", (1 << 40) - 3)
    assert os.pread(fd, 4096, 1 << 30) == bytes(4096)
    os.close(fd)
    info = os.stat(folder / "a")
    assert info.st_size == 1 << 40
    assert info.st_blocks * 512 <= 2 * MIB, "one folio"
    with open(folder / "a", "rb") as file:
        file.seek(-6, os.SEEK_END)
        assert file.read() == b"\0\0\0end"


def test_a_sparse_object_keeps_its_holes_on_nvme(folder, mounted):
    path = folder / "sparse"
    fd = opened(path)
    os.pwrite(fd, b"begin", 0)
    os.pwrite(fd, b"middle", 3 << 30)
    ftruncate(fd, 1 << 40)
    os.fsync(fd)
    os.close(fd)
    mounted.kvd.kvctl("demote", str(path))
    assert os.getxattr(path, "user.kvd.tier") == b"nvme"
    assert os.stat(path).st_blocks * 512 <= 256 * KIB
    fd = os.open(path, os.O_RDONLY)
    assert os.fstat(fd).st_size == 1 << 40
    assert (os.pread(fd, 5, 0), os.pread(fd, 8, (3 << 30) - 1)) == (b"begin", b"\0middle\0")
    assert os.pread(fd, 10, (1 << 40) - 4) == bytes(4)
    os.close(fd)


@pytest.mark.parametrize("keep", [0, KEEP_SIZE])
def test_setting_storage_aside(same, keep):
    def case(d):
        fd = opened(d / "a")
        os.pwrite(fd, b"x" * 1000, 0)
        done = tried(fallocate, fd, keep, 500, 3 * MIB), os.fstat(fd).st_size
        content = os.pread(fd, 4 * MIB, 0)
        held = os.fstat(fd).st_blocks * 512 >= 3 * MIB
        tried(fallocate, fd, keep, 8 * MIB, 1)
        size = os.fstat(fd).st_size
        os.close(fd)
        return done, content, held, size, os.stat(d / "a").st_size

    same(case)


def test_storage_set_aside_is_accounted_for_after_the_close(folder, mounted):
    before = mounted.kvd.status()["tiers"][0]
    held_before = ddr_bytes(mounted.kvd) - spare_bytes(mounted.kvd)
    for number in range(4):
        fd = opened(folder / f"{number}")
        fallocate(fd, 0, 0, 8 * MIB)
        os.pwrite(fd, b"x" * 4096, 4 * MIB)
        os.close(fd)
    wait_for(lambda: all(os.getxattr(path, "user.kvd.state") == b"sealed" for path in folder.iterdir()))

    def agree() -> bool:
        held = ddr_bytes(mounted.kvd) - spare_bytes(mounted.kvd)
        after = mounted.kvd.status()["tiers"][0]
        grown, charged = held - held_before, after["used_bytes"] - before["used_bytes"]
        return after["reserved_bytes"] == before["reserved_bytes"] and grown <= charged

    wait_for(agree)
    assert (folder / "3").read_bytes() == bytes(4 * MIB) + b"x" * 4096 + bytes(4 * MIB - 4096)


@pytest.mark.parametrize("mode", [COLLAPSE, ZERO, ZERO | KEEP_SIZE, INSERT, UNSHARE, 1 << 20])
def test_other_ways_of_fallocate_are_refused(folder, mode):
    fd = opened(folder / "a")
    os.pwrite(fd, b"x" * 8192, 0)
    assert tried(fallocate, fd, mode, 0, 4096) == "ENOTSUP"
    assert os.pread(fd, 9000, 0) == b"x" * 8192
    os.close(fd)


def test_fallocate_checks_its_range_and_descriptor(same):
    def case(d):
        fd = opened(d / "a")
        os.pwrite(fd, b"x", 0)
        reader = os.open(d / "a", os.O_RDONLY)
        results = [
            tried(fallocate, fd, 0, -1, 10),
            tried(fallocate, fd, 0, 0, 0),
            tried(fallocate, fd, 0, 0, -5),
            tried(fallocate, fd, 0, 1 << 62, 1 << 62),
            tried(fallocate, fd, KEEP_SIZE, 1 << 50, 4096),
            tried(fallocate, fd, PUNCH_HOLE, 0, 4096),
            tried(fallocate, fd, PUNCH_HOLE | KEEP_SIZE, 1 << 40, 4096),
            tried(fallocate, reader, 0, 0, 4096),
            os.fstat(fd).st_size,
        ]
        os.close(fd)
        os.close(reader)
        return results

    same(case)


def test_lengths_change_up_and_down_by_path_and_descriptor(same):
    def case(d):
        results = []
        fd = opened(d / "a")
        os.pwrite(fd, bytes(range(1, 251)) * 400, 0)
        for length in (100_000, 4097, 1, 0, 65_537, 3, 70_000):
            os.truncate(d / "a", length)
            results.append((os.fstat(fd).st_size, os.pread(fd, 200_000, 0)))
            ftruncate(fd, length + 4096)
            results.append((os.stat(d / "a").st_size, os.pread(fd, 200_000, 0)))
        os.close(fd)
        os.truncate(d / "a", 12_345)
        results.append((d / "a").read_bytes())
        os.truncate(d / "a", 99_999)
        results.append((d / "a").read_bytes())
        results.append((tried(os.truncate, d, 0), tried(os.truncate, d / "none", 0)))
        return results

    same(case)


def test_times_of_a_changed_length(same):
    def case(d):
        (d / "a").write_bytes(b"x" * 10)
        results = []
        for change in (
            lambda: os.truncate(d / "a", 5),
            lambda: os.truncate(d / "a", 5),
            lambda: os.truncate(d / "a", 0),
        ):
            os.utime(d / "a", ns=(10**18, 10**18))
            before = os.stat(d / "a")
            change()
            after = os.stat(d / "a")
            results.append((after.st_mtime_ns > 10**18, after.st_ctime_ns > before.st_ctime_ns, after.st_atime_ns))
        return results

    same(case)


def test_lengths_and_offsets_beyond_every_file_system(same):
    def case(d):
        fd = opened(d / "a")
        results = [
            tried(ftruncate, fd, 1 << 62),
            tried(ftruncate, fd, -1),
            tried(ftruncate, fd, (1 << 63) - 1),
            tried(pwrite, fd, b"xx", (1 << 63) - 2),
            tried(pwrite, fd, b"xx", -3),
            tried(os.pread, fd, 10, (1 << 63) - 20),
            tried(os.lseek, fd, (1 << 63) - 1, os.SEEK_SET) in ("EINVAL", (1 << 63) - 1),
            os.fstat(fd).st_size,
        ]
        os.close(fd)
        return results

    same(case)


def test_the_longest_length_is_kept_on_both_tiers(folder, mounted, plain):
    def longest(d):
        fd = opened(d / "a")
        low, high = 1 << 40, 1 << 62
        while high - low > 1:
            middle = (low + high) // 2
            if tried(ftruncate, fd, middle) is None:
                low = middle
            else:
                high = middle
        ftruncate(fd, low)
        os.close(fd)
        return low

    length = longest(folder)
    assert length <= longest(plain)
    mounted.kvd.kvctl("demote", str(folder / "a"))
    fd = opened(folder / "a")
    assert os.fstat(fd).st_size == length
    os.pwrite(fd, b"x", length - 1)
    os.fsync(fd)
    os.close(fd)


def test_a_random_life_of_one_file(same):
    def case(d):
        dice = random.Random(7)
        fd = opened(d / "a")
        results = []
        for _ in range(400):
            at, length = dice.randrange(0, 300_000), dice.randrange(1, 60_000)
            match dice.randrange(6):
                case 0 | 1:
                    results.append(os.pwrite(fd, bytes([dice.randrange(1, 256)]) * length, at))
                case 2:
                    ftruncate(fd, at)
                case 3:
                    fallocate(fd, dice.choice((0, KEEP_SIZE)), at, length)
                case 4:
                    fallocate(fd, PUNCH_HOLE | KEEP_SIZE, at, length)
                case _:
                    os.close(fd)
                    fd = opened(d / "a")
            results.append((os.fstat(fd).st_size, hash(os.pread(fd, 1 << 20, 0))))
        os.close(fd)
        return results

    same(case)


@pytest.fixture
def fixed_size():
    """Run a daemon whose NVMe tier does not follow what others leave free on the disk."""
    with start_kvd({"nvme": {"capacity": "1GiB"}}) as running:
        yield running.root


def test_statvfs_is_consistent_while_filling(fixed_size):
    folder = fixed_size

    def check():
        found = os.statvfs(folder)
        assert found.f_bsize == found.f_frsize == 4096
        assert 0 < found.f_bavail <= found.f_bfree <= found.f_blocks
        assert 0 < found.f_ffree <= found.f_files
        assert found.f_namemax == 255
        return found

    first = check()
    for number in range(8):
        (folder / f"{number}").write_bytes(b"f" * 4 * MIB)
        check()
    full = check()
    assert full.f_blocks == first.f_blocks
    assert first.f_bfree - full.f_bfree >= 8 * 1024
    assert first.f_ffree - full.f_ffree == 8
    for number in range(8):
        (folder / f"{number}").unlink()
    wait_for(lambda: check().f_ffree == first.f_ffree)  # the kernel says later that it has forgotten them
    assert first.f_bfree - check().f_bfree < 1024


@pytest.mark.parametrize("offset", [17 << 40, 1 << 62])
def test_a_write_beyond_the_longest_length_is_refused_or_cut(folder, mounted, offset):
    fd = opened(folder / "a")
    os.pwrite(fd, b"kept", 0)
    done = tried(pwrite, fd, b"beyond", offset)
    if not mounted.passthrough:
        assert done == "EFBIG"
        os.close(fd)
        return
    # The kernel writes into tmpfs, which takes any offset. No disk would: fsync says so, and the end is cut off.
    mounted.claim("object cut")
    assert done == 6
    assert tried(os.fsync, fd) == "EFBIG"
    os.close(fd)
    wait_for(lambda: os.getxattr(folder / "a", "user.kvd.state") == b"sealed")
    mounted.kvd.kvctl("demote", str(folder / "a"))
    assert mounted.kvd.entry(str((folder / "a").relative_to(mounted.root)))["size_bytes"] == (16 << 40) - 4096
    assert any("cut at" in fault["what"] for fault in mounted.kvd.status()["faults"])
    with open(folder / "a", "rb") as file:
        assert file.read(10) == b"kept" + bytes(6)
