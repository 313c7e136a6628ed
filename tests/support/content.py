"""Contents for tests of the mount, the ways to read them back, and the files behind a name."""

from __future__ import annotations

import hashlib
import mmap
import os
import random
import tempfile
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from private_kvd import PrivateKvd

MIB = 1 << 20
SIZES = (0, 1, 4095, 4096, 65536, 65537, 20 * MIB)
DEADLINE_S = 30.0
POLL_S = 0.02
SPARE = "kvd-spare-"
BESIDE = (".json", ".sums")
"""Files that hold no object's bytes."""


def fill(path: Path, size: int, seed: int = 0) -> str:
    """Write random bytes; return their digest."""
    data = random.Random(seed * 1_000_003 + size).randbytes(size)
    path.write_bytes(data)
    return hashlib.sha256(data).hexdigest()


def fill_sparse(path: Path) -> str:
    """Write a few bytes far apart; return the digest of the whole."""
    with path.open("wb") as file:
        for at in (0, 70_001, 3 * MIB + 17, 5 * MIB):
            file.seek(at)
            file.write(b"here")
        file.truncate(6 * MIB + 1)
    return digest(path)


def digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digest_mapped(path: Path) -> str:
    """Read through a shared mapping."""
    with path.open("rb") as file:
        if not os.fstat(file.fileno()).st_size:
            return hashlib.sha256().hexdigest()
        with mmap.mmap(file.fileno(), 0, mmap.MAP_SHARED, mmap.PROT_READ) as mapped:
            return hashlib.sha256(mapped).hexdigest()


def digest_direct(path: Path) -> str:
    """Read with O_DIRECT into aligned memory."""
    found = hashlib.sha256()
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    try:
        with mmap.mmap(-1, MIB) as buffer:
            while count := os.readv(fd, [buffer]):
                found.update(buffer[:count])
                if count % 4096:
                    break
    finally:
        os.close(fd)
    return found.hexdigest()


WAYS: tuple[Callable[[Path], str], ...] = (digest, digest_mapped, digest_direct)


def copy_files(kvd: PrivateKvd, path: Path) -> list[Path]:
    """Return the files on NVMe of an object."""
    ino = path.stat().st_ino
    return [file for top in kvd.nvme_dirs for file in (top / "objects").rglob(f"{ino:x}.*") if file.suffix != ".sums"]


def wait_until(what: Callable[[], bool], why: str) -> None:
    """Poll until something is so; fail after a deadline."""
    deadline = time.monotonic() + DEADLINE_S
    while not what():
        assert time.monotonic() < deadline, why
        time.sleep(POLL_S)


def usage(kvd: PrivateKvd, tier: str) -> dict[str, int]:
    """Return a tier's line of ``kvctl status``."""
    (line,) = [line for line in kvd.status()["tiers"] if line["tier"] == tier]
    return line


def ddr_bytes(kvd: PrivateKvd) -> int:
    """Return what the tmpfs holds, as its file system counts."""
    info = os.statvfs(kvd.ddr)
    return (info.f_blocks - info.f_bfree) * info.f_frsize


def data_blocks(path: Path) -> int:
    """Return the blocks of 4 KiB that a tier's file holds, without the one that its description has on some file systems."""
    blocks = path.stat().st_blocks * 512 // 4096
    try:
        described = bool(os.getxattr(path, "user.kvd"))
    except OSError:
        described = False
    return blocks - (described and attribute_blocks(path.parent))


def attribute_blocks(folder: Path) -> int:
    """Return how many blocks an extended attribute of a description's size has beside a file's data."""
    with tempfile.NamedTemporaryFile(dir=folder, prefix="probe-") as probe:
        os.setxattr(probe.name, "user.kvd", bytes(1000))
        return os.stat(probe.name).st_blocks * 512 // 4096


def spare_bytes(kvd: PrivateKvd) -> int:
    """Return what spares hold; they come and go while this looks."""
    held = 0
    for entry in os.scandir(kvd.ddr):
        if entry.name.startswith(SPARE):
            try:
                held += entry.stat().st_blocks * 512
            except FileNotFoundError:
                continue
    return held


def file_bytes(top: Path) -> int:
    """Return what the objects' files below a folder hold, in bytes."""
    files = (path for path in top.rglob("*") if path.is_file() and not path.name.startswith(SPARE))
    return 4096 * sum(data_blocks(path) for path in files if path.suffix not in BESIDE)
