"""The archive of the guest's root file system, read back by a reader of the test's own."""

from __future__ import annotations

import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from vm.cpio import Archive

if TYPE_CHECKING:
    from pathlib import Path

HEAD_BYTES = 110


@dataclass(frozen=True, slots=True)
class Member:
    mode: int
    mtime_s: int
    data: bytes


def read(path: Path) -> dict[str, Member]:
    raw = path.read_bytes()
    members: dict[str, Member] = {}
    at = 0
    while True:
        assert at % 4 == 0
        assert raw[at : at + 6] == b"070701"
        numbers = [int(raw[at + 6 + 8 * i : at + 14 + 8 * i], 16) for i in range(13)]
        size, name_bytes = numbers[6], numbers[11]
        name = raw[at + HEAD_BYTES : at + HEAD_BYTES + name_bytes]
        assert name.endswith(b"\0")
        start = -(-(at + HEAD_BYTES + name_bytes) // 4) * 4
        if name == b"TRAILER!!!\0":
            return members
        text = name[:-1].decode()
        assert text not in members
        members[text] = Member(numbers[1], numbers[5], raw[start : start + size])
        at = -(-(start + size) // 4) * 4


def test_files_links_and_folders(tmp_path: Path):
    with Archive(tmp_path / "a.cpio") as archive:
        archive.file("/a/b/c", b"12345", mode=0o755, mtime_s=77)
        archive.link("/a/l", "b/c")
        archive.directory("/tmp", 0o1777)
        archive.file("/a/b/c", b"again")
        assert archive.content_bytes == 5 + 3
        assert "/a/b" in archive
    members = read(tmp_path / "a.cpio")
    assert list(members) == ["a", "a/b", "a/b/c", "a/l", "tmp"]
    assert members["a/b/c"] == Member(stat.S_IFREG | 0o755, 77, b"12345")
    assert members["a/l"] == Member(stat.S_IFLNK | 0o777, 0, b"b/c")
    assert members["tmp"].mode == stat.S_IFDIR | 0o1777


def test_a_file_of_the_host_comes_with_the_links_that_lead_to_it(tmp_path: Path):
    real = tmp_path / "real"
    real.mkdir()
    (real / "program").write_bytes(b"x")
    (real / "other").symlink_to("program")
    (tmp_path / "short").symlink_to(real)
    (tmp_path / "relative").symlink_to("short/../short")
    with Archive(tmp_path / "a.cpio") as archive:
        archive.host_file(tmp_path / "relative/other")
        archive.host_file(tmp_path / "short/program")
    members = read(tmp_path / "a.cpio")
    top = str(tmp_path)[1:]
    assert {name.removeprefix(f"{top}/") for name in members if name.startswith(f"{top}/")} == {
        "real",
        "real/other",
        "real/program",
        "relative",
        "short",
    }
    assert members[f"{top}/real/program"].data == b"x"
    assert members[f"{top}/real/program"].mtime_s == int((real / "program").stat().st_mtime)


def test_a_file_of_the_host_under_another_name(tmp_path: Path):
    (tmp_path / "x").write_bytes(b"x")
    with Archive(tmp_path / "a.cpio") as archive:
        archive.host_file(tmp_path / "x", tmp_path.with_name("there") / "y")
    assert read(tmp_path / "a.cpio")[f"{tmp_path.with_name('there')}/y"[1:]].data == b"x"


def test_links_in_a_circle_are_named_and_leave_no_archive(tmp_path: Path):
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(OSError, match="too many symbolic links"), Archive(tmp_path / "a.cpio") as archive:
        archive.host_file(tmp_path / "a")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]
