"""Writers for the crash tests: contents that say by themselves whether they are whole, and which version they are.

As a program, ``generations.py FOLDER SEED`` writes temporary files and renames them over a few names, for ever; after
each step that makes a promise it prints a line: ``sealed NAME GENERATION`` or ``synced NAME GENERATION``.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import sys
from pathlib import Path

HEAD_BYTES = 64
SIZES = (0, 100, 4096, 65536, 70_001, 300_000, 1_500_000)
NAMES = 5


def content(generation: int, size: int) -> bytes:
    """Return a digest of what follows, the generation, and as many bytes."""
    body = random.Random(generation).randbytes(size)
    numbers = generation.to_bytes(8, "little") + size.to_bytes(8, "little")
    return hashlib.sha256(numbers + body).digest() + numbers + bytes(16) + body


def generation_of(data: bytes) -> int:
    """Return the generation of whole content; raise AssertionError if it is not whole."""
    numbers, body = data[32:48], data[HEAD_BYTES:]
    assert hashlib.sha256(numbers + body).digest() == data[:32], f"{len(data)} bytes that are not whole"
    return int.from_bytes(numbers[:8], "little")


def write(folder: Path, seed: int) -> None:
    """Write for ever."""
    choose = random.Random(seed)
    generation = seed * 1_000_000
    while True:
        generation += 1
        name = f"w{seed % 100}-{choose.randrange(NAMES)}"
        synced = choose.random() < 0.4
        temporary = folder / f"{name}.tmp"
        data = content(generation, choose.choice(SIZES))
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for at in range(0, len(data), 1 << 18):
            os.write(fd, data[at : at + (1 << 18)])
        if synced:
            os.fsync(fd)
        os.close(fd)
        print("renaming", name, generation, flush=True)
        temporary.rename(folder / name)
        if synced:
            folder_fd = os.open(folder, os.O_RDONLY)
            os.fsync(folder_fd)
            os.close(folder_fd)
        print("synced" if synced else "sealed", name, generation, flush=True)


if __name__ == "__main__":
    with contextlib.suppress(OSError):  # the mount has gone
        write(Path(sys.argv[1]), int(sys.argv[2]))
