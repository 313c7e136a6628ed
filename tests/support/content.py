"""Contents for tests of the mount, the ways to read them back, and the files behind a name."""

from __future__ import annotations

import hashlib
import mmap
import os
import random
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
    return [file for top in kvd.nvme_dirs for file in (top / "objects").rglob(f"{ino:x}.*")]


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


def file_bytes(top: Path) -> int:
    """Return what the objects' files below a folder hold, in bytes."""
    return sum(path.stat().st_blocks * 512 for path in top.rglob("*") if path.is_file() and path.suffix != ".json")
