"""A window that slides under readers and writers of a mount: those inside are not disturbed, those outside see zeroes."""

from __future__ import annotations

import errno
import hashlib
import json
import mmap
import os
from typing import TYPE_CHECKING, Any

import pytest

from support.content import wait_until
from support.mounted import start_kvd
from support.sliding import TOKEN, WINDOW, check, kept, tokens, told

if TYPE_CHECKING:
    from pathlib import Path

    from support.mounted import Mounted

SINK = 3
LENGTHS = (60, 200, 201, 330, 460)
LAST = LENGTHS[-1]


def say(path: Path, *, window: int = WINDOW, token: int = TOKEN) -> None:
    os.setxattr(path, "user.kvd.bytes_per_token", b"%d" % token)
    os.setxattr(path, "user.kvd.sink", b"%d" % SINK)
    os.setxattr(path, "user.kvd.window", b"%d" % window)


def valid(path: Path) -> bytes:
    return os.getxattr(path, "user.kvd.valid")


def slid(path: Path, length: int) -> bool:
    return valid(path) == told(kept(length))


def wait_slid(path: Path, length: int) -> None:
    wait_until(lambda: slid(path, length), "the window does not slide")


def extents(fd: int, size: int) -> list[tuple[int, int]]:
    """Return what SEEK_DATA and SEEK_HOLE tell of a file."""
    found, at = [], 0
    while at < size:
        try:
            at = os.lseek(fd, at, os.SEEK_DATA)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            break
        end = os.lseek(fd, at, os.SEEK_HOLE)
        found.append((at, end))
        at = end
    return found


def in_bytes(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    return [(start * TOKEN, end * TOKEN) for start, end in ranges]


def session(mounted: Mounted, path: Path) -> dict[str, Any]:
    return json.loads(mounted.kvd.kvctl("--json", "session", "show", str(path)).stdout)


@pytest.fixture
def grown(mounted: Mounted, folder: Path) -> Path:
    """A sealed file of `LAST` tokens without a window."""
    path = folder / "grown"
    path.write_bytes(tokens(LAST))
    os.setxattr(path, "user.kvd.bytes_per_token", b"%d" % TOKEN)
    return path


def test_a_window_slides_under_a_writer_and_a_mapped_reader_inside_it(mounted: Mounted, folder: Path) -> None:
    path = folder / "chat"
    path.touch()
    say(path)
    at = 0
    with path.open("r+b", buffering=0) as writer, path.open("rb", buffering=0) as reader:
        for length in LENGTHS:
            writer.write(tokens(length - at, first=at))
            at = length
            with mmap.mmap(reader.fileno(), length * TOKEN, mmap.MAP_SHARED, mmap.PROT_READ) as mapped:
                inside = mapped[(length - WINDOW) * TOKEN :]
                before = hashlib.sha256(inside).digest()
                assert inside == tokens(WINDOW, first=length - WINDOW)
                wait_slid(path, length)
                assert hashlib.sha256(mapped[(length - WINDOW) * TOKEN :]).digest() == before
                assert mapped[: SINK * TOKEN] == tokens(SINK)
            assert extents(reader.fileno(), length * TOKEN) == in_bytes(kept(length))
            check(os.pread(reader.fileno(), length * TOKEN, 0), length)
            held = sum(end - start for start, end in kept(length)) * TOKEN
            assert (mounted.kvd.ddr / f"{path.stat().st_ino:x}").stat().st_blocks * 512 == held
    wait_until(lambda: os.getxattr(path, "user.kvd.state") == b"sealed", "it is not sealed")
    check(path.read_bytes(), LAST)
    assert path.stat().st_blocks * 512 == held
    assert slid(path, LAST)


def test_a_reader_outside_sees_zeroes_and_never_anything_else(mounted: Mounted, grown: Path) -> None:
    content, passthrough = tokens(LAST), mounted.passthrough
    with grown.open("rb", buffering=0) as file, mmap.mmap(file.fileno(), 0, mmap.MAP_SHARED, mmap.PROT_READ) as mapped:
        assert mapped[:] == content
        say(grown)
        wait_slid(grown, LAST)
        check(os.pread(file.fileno(), LAST * TOKEN, 0), LAST)
        for token in range(LAST):
            found = mapped[token * TOKEN : (token + 1) * TOKEN]
            wrote = content[token * TOKEN : (token + 1) * TOKEN]
            there = any(start <= token < end for start, end in kept(LAST))
            # Served without passthrough, the kernel may show its own page of before for as long as it is mapped.
            assert found == wrote or (not there and not any(found))
            if passthrough:
                assert there or not any(found)
    assert slid(grown, LAST), "what a mapping touches is no token"
    expected = sum(end - start for start, end in kept(LAST)) * TOKEN
    wait_until(lambda: grown.stat().st_blocks * 512 == expected, "what the mapping touched is not given back")


def test_holes_last_through_the_tiers_and_are_told(mounted: Mounted, grown: Path) -> None:
    say(grown)
    wait_slid(grown, LAST)
    expected = sum(end - start for start, end in kept(LAST)) * TOKEN
    for _ in range(2):
        mounted.kvd.kvctl("demote", str(grown))
        assert os.getxattr(grown, "user.kvd.tier") == b"nvme"
        assert slid(grown, LAST)
        assert grown.stat().st_blocks * 512 == expected
        check(grown.read_bytes(), LAST)
        assert slid(grown, LAST)
    found = session(mounted, grown)
    assert (found["session"]["window"], found["session"]["sink"]) == (WINDOW, SINK)
    assert found["given_bytes"] == LAST * TOKEN - expected
    text = mounted.kvd.kvctl("session", "show", str(grown)).stdout
    assert f"{WINDOW} trailing and {SINK} first tokens, 1.6 MiB given back" in text
    metrics = mounted.kvd.kvctl("metrics").stdout
    assert 'kvd_window_given_bytes_total{tier="ddr"}' in metrics
    assert os.listxattr(grown) == ["user.kvd.bytes_per_token"]


def test_a_cold_file_gives_back_on_nvme(mounted: Mounted, grown: Path) -> None:
    mounted.kvd.kvctl("demote", str(grown))
    say(grown)
    wait_slid(grown, LAST)
    assert os.getxattr(grown, "user.kvd.tier") == b"nvme"
    assert grown.stat().st_blocks * 512 == sum(end - start for start, end in kept(LAST)) * TOKEN
    check(grown.read_bytes(), LAST)


@pytest.mark.parametrize("passthrough", ["auto", "off"])
def test_a_kvd_that_is_killed_while_a_window_slides_has_the_right_bytes_afterwards(passthrough: str) -> None:
    with start_kvd({"fuse": {"passthrough": passthrough}}) as mounted:
        sealed, growing = mounted.root / "sealed", mounted.root / "growing"
        for path in (sealed, growing):
            path.write_bytes(tokens(200))
            say(path)
            wait_slid(path, 200)
        mounted.kvd.kvctl("sync", str(growing))
        writer = os.open(growing, os.O_RDWR)
        os.pwrite(writer, tokens(LAST - 200, first=200), 200 * TOKEN)
        wait_slid(growing, LAST)
        mounted.kvd.kill()
        os.close(writer)
        mounted.kvd.start()
        assert slid(sealed, 200)
        assert slid(growing, 200)
        for path in (sealed, growing):
            check(path.read_bytes(), 200)
