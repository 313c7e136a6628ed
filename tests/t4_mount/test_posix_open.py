"""Making, opening, appending, files without a name; each case does what it does on ext4."""

from __future__ import annotations

import itertools
import mmap
import os
import subprocess
import sys

import pytest

from support.posix import child, link_fd, tried, wait_for

MIB = 1 << 20
FLAGS = {name: getattr(os, name) for name in ("O_CREAT", "O_EXCL", "O_TRUNC", "O_APPEND", "O_DIRECTORY", "O_NOFOLLOW")}
CHOICES = [c for count in range(4) for c in itertools.combinations(FLAGS, count)]


@pytest.mark.parametrize("access", ["O_RDONLY", "O_WRONLY", "O_RDWR"])
def test_every_combination_of_flags_opens_as_on_ext4(same, access):
    def case(d):
        results = []
        for number, names in enumerate(CHOICES):
            flags = getattr(os, access) | sum(FLAGS[name] for name in names)
            for kind in ("file", "folder", "link", "dangling", "nothing"):
                at = d / f"{number}{kind}"
                if kind == "file":
                    at.write_bytes(b"old bytes")
                elif kind == "folder":
                    at.mkdir()
                elif kind == "link":
                    (d / f"{number}goal").write_bytes(b"goal")
                    at.symlink_to(f"{number}goal")
                elif kind == "dangling":
                    at.symlink_to(f"{number}none")
                results.append((names, kind, attempt(at, flags)))
        return results

    def attempt(at, flags):
        fd = tried(os.open, at, flags, 0o640)
        if isinstance(fd, str):
            return fd
        try:
            size = os.fstat(fd).st_size if not os.path.isdir(at) else None
            return size, tried(os.write, fd, b"new"), tried(os.pread, fd, 20, 0), os.lseek(fd, 0, os.SEEK_CUR)
        finally:
            os.close(fd)

    same(case)


def test_truncating_for_reading_empties_what_others_read(same):
    def case(d):
        (d / "a").write_bytes(b"x" * 100_000)
        reader = os.open(d / "a", os.O_RDONLY)
        before = len(os.pread(reader, MIB, 0))
        fd = os.open(d / "a", os.O_RDONLY | os.O_TRUNC)
        after = (os.pread(reader, MIB, 0), os.fstat(fd).st_size, os.stat(d / "a").st_size, tried(os.write, fd, b"x"))
        os.close(fd)
        os.close(reader)
        return before, after, (d / "a").read_bytes()

    same(case)


def test_two_processes_append_without_losing_a_line(folder):
    code = (
        "fd = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND | os.O_CREAT)\n"
        "for n in range(300): assert os.write(fd, f'{sys.argv[2]} {n:>60}\\n'.encode()) > 60"
    )
    command = [sys.executable, "-c", f"import os, sys\n{code}", folder / "log"]
    writers = [subprocess.Popen([*command, name]) for name in "ab"]
    assert [writer.wait(60) for writer in writers] == [0, 0]
    lines = (folder / "log").read_text().splitlines()
    assert sorted(lines) == sorted(f"{name} {n:>60}" for name in "ab" for n in range(300))


def test_an_appender_meets_what_another_put_meanwhile(same):
    def case(d):
        one = os.open(d / "a", os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
        other = os.open(d / "a", os.O_WRONLY)
        os.write(one, b"1" * 10)
        os.pwrite(other, b"2" * 5, 20)
        os.write(one, b"3")
        where = os.lseek(one, 0, os.SEEK_CUR)
        os.ftruncate(other, 4)
        os.write(one, b"4")
        content = os.pread(one, 100, 0)
        os.close(one)
        os.close(other)
        return where, content, (d / "a").read_bytes()

    same(case)


def test_a_file_without_a_name_gets_one(same):
    def case(d):
        fd = os.open(d, os.O_TMPFILE | os.O_RDWR, 0o640)
        os.write(fd, b"nameless")
        before = os.fstat(fd).st_nlink, os.listdir(d)
        link_fd(fd, d / "named")
        again = tried(link_fd, fd, d / "named")
        os.write(fd, b", named")
        after = os.fstat(fd).st_nlink, os.listdir(d), oct(os.stat(d / "named").st_mode)
        os.close(fd)
        return before, again, after, (d / "named").read_bytes()

    same(case)


def test_a_file_without_a_name_may_stay_without(same):
    def case(d):
        fd = os.open(d, os.O_TMPFILE | os.O_RDWR | os.O_EXCL, 0o600)
        os.write(fd, b"x" * MIB)
        refused = tried(link_fd, fd, d / "named")
        content = os.pread(fd, 3, MIB - 3)
        os.close(fd)
        return refused, content, os.listdir(d), tried(os.open, d, os.O_TMPFILE | os.O_RDONLY)

    same(case)


def test_files_without_a_name_leave_nothing_stored(mounted, folder):
    before = mounted.kvd.status()["objects"]
    fds = [os.open(folder, os.O_TMPFILE | os.O_RDWR, 0o600) for _ in range(20)]
    assert mounted.kvd.status()["objects"] == before + 20
    for fd in fds:
        os.close(fd)
    os.statvfs(folder)  # comes after the releases
    wait_for(lambda: mounted.kvd.status()["objects"] == before)


@pytest.mark.parametrize("also", [0, os.O_SYNC, os.O_DSYNC, os.O_NOATIME, os.O_NONBLOCK])
def test_aligned_direct_io(same, also):
    def case(d):
        fd = os.open(d / "a", os.O_RDWR | os.O_CREAT | os.O_DIRECT | also, 0o600)
        page = mmap.mmap(-1, 8192)
        page.write(b"ab" * 4096)
        wrote = os.pwritev(fd, [page], 4096)
        page[:] = bytes(8192)
        got = os.preadv(fd, [page], 8192), page[:4096]
        os.close(fd)
        return wrote, got, (d / "a").read_bytes()

    same(case)


def test_direct_and_buffered_io_see_each_other(folder):
    fd = os.open(folder / "a", os.O_RDWR | os.O_CREAT)
    direct = os.open(folder / "a", os.O_RDWR | os.O_DIRECT)
    page = mmap.mmap(-1, 4096)
    for value in (b"1", b"2", b"3"):
        os.pwrite(fd, value * 4096, 0)
        os.preadv(direct, [page], 0)
        assert page[:] == value * 4096
        page[:] = value.upper() * 4096
        os.pwritev(direct, [page], 4096)
        assert os.pread(fd, 4096, 4096) == page[:]
    os.close(fd)
    os.close(direct)


def test_readv_writev_across_pages(same):
    def case(d):
        fd = os.open(d / "a", os.O_RDWR | os.O_CREAT, 0o600)
        wrote = os.pwritev(fd, [b"a" * 5000, b"", b"b" * 70_001, b"c"], 4095)
        buffers = [bytearray(1), bytearray(4094), bytearray(75_010)]
        got = os.preadv(fd, buffers, 0)
        os.close(fd)
        return wrote, got, [bytes(b) for b in buffers]

    same(case)


def test_reading_and_writing_through_the_wrong_descriptor(same):
    def case(d):
        (d / "a").write_bytes(b"x")
        reader, writer = os.open(d / "a", os.O_RDONLY), os.open(d / "a", os.O_WRONLY)
        folder_fd = os.open(d, os.O_RDONLY)
        results = (
            tried(os.write, reader, b"y"),
            tried(os.read, writer, 1),
            tried(os.read, folder_fd, 1),
            tried(os.ftruncate, reader, 0),
            tried(os.pread, reader, 5, 1),
            tried(os.pread, reader, 5, 1 << 40),
        )
        for fd in (reader, writer, folder_fd):
            os.close(fd)
        return results

    same(case)


def test_a_killed_writer_closes_as_any_other(folder, mounted):
    child("fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)\nos.write(fd, b'k' * 99999)\nos.kill(os.getpid(), 9)",
          folder / "a", check=False)  # fmt: skip
    wait_for(lambda: os.getxattr(folder / "a", "user.kvd.state") == b"sealed")
    assert (folder / "a").read_bytes() == b"k" * 99999
