"""What tests of the mover move: a sparse object, its files, and a device that does not answer."""

from __future__ import annotations

import os
import random
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import trio

from kvd.tier.mover import Kind, Mover, Part

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PAGE = 65536
RUNS = ((0, 3), (5, 6))
SIZE = 10 * PAGE + 77
MOVED = 8 * PAGE + 77
PATIENCE_S = 60.0


@contextmanager
def memory_file(content: bytes = b"") -> Iterator[int]:
    fd = os.memfd_create("kvd-test")
    try:
        os.write(fd, content)
        yield fd
    finally:
        os.close(fd)


@contextmanager
def nvme_file(path: Path) -> Iterator[int]:
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        yield fd
    finally:
        os.close(fd)


@contextmanager
def silent_pipe() -> Iterator[int]:
    """Reading blocks, as a disk that doesn't answer."""
    ends = os.pipe()
    try:
        yield ends[0]
    finally:
        os.close(ends[0])
        os.close(ends[1])


def whole(fd: int, dir_fd: int | None = None) -> Part:
    return Part(fd=fd, device=0, direct=False, dir_fd=dir_fd)


@dataclass(frozen=True)
class Verify:
    """A verification that blocks."""

    mover: Mover
    fd: int
    device: int = 0

    async def __call__(self) -> None:
        await self.mover.verify(
            parts=[Part(fd=self.fd, device=self.device, direct=False)], size_bytes=PAGE, runs=[(0, 1)], sums=bytes(4)
        )


def sparse_content() -> bytes:
    content = bytearray(random.Random(1).randbytes(SIZE))
    content[3 * PAGE : 5 * PAGE] = bytes(2 * PAGE)
    return bytes(content)


async def demoted(mover: Mover, path: Path, fd: int, content: bytes) -> bytes:
    dir_fd = os.open(path.parent, os.O_RDONLY)
    try:
        with memory_file(content) as ddr:
            result, sums = await mover.demote(ddr_fd=ddr, parts=[whole(fd, dir_fd)], size_bytes=SIZE, runs=RUNS)
    finally:
        os.close(dir_fd)
    assert result.moved_bytes == MOVED
    assert result.duration_s > 0
    return sums


async def until_queued(mover: Mover, count: int) -> None:
    with trio.fail_after(PATIENCE_S):
        while mover.statistics()[Kind.VERIFY].queued != count:
            await trio.lowlevel.checkpoint()
