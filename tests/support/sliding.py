"""Files of tokens that are appended, and what is seen of them: for tests of windows."""

from __future__ import annotations

import os
import random
from functools import cache
from typing import TYPE_CHECKING

from kvd.fs.xattrs import Xattrs

if TYPE_CHECKING:
    from pathlib import Path

    from support.session_space import Space

PAGE = 65536
TOKEN = 4096
"""Bytes of a token: 16 tokens a page."""
WINDOW, SINK = 40, 3


@cache
def token(number: int) -> bytes:
    return random.Random(number).randbytes(TOKEN)


def tokens(count: int, *, first: int = 0) -> bytes:
    """Return tokens, each with its own bytes."""
    return b"".join(map(token, range(first, first + count)))


def kept(count: int, *, sink: int = SINK, window: int = WINDOW) -> list[tuple[int, int]]:
    """Return the tokens that are there when a window has slid over `count`: those needed, and what shares a page with them."""
    a_page = PAGE // TOKEN
    start, end = -(-sink // a_page) * a_page, (count - window) // a_page * a_page
    return [(0, count)] if end <= start else [(0, start), (end, count)] if start else [(end, count)]


def check(content: bytes, count: int, **said: int) -> None:
    """See that the kept tokens are what they were and the others zeroes."""
    whole = tokens(count)
    at = 0
    for start, end in [*kept(count, **said), (count, count)]:
        assert not any(content[at * TOKEN : start * TOKEN])
        assert content[start * TOKEN : end * TOKEN] == whole[start * TOKEN : end * TOKEN]
        at = end
    assert len(content) == len(whole)


def told(ranges: list[tuple[int, int]]) -> bytes:
    return " ".join(f"{start}-{end}" for start, end in ranges).encode()


def data_bytes(path: Path) -> int:
    """Return what a file holds."""
    return path.stat().st_blocks * 512


async def say(space: Space, ino: int, *, window: int = WINDOW, sink: int = SINK, token_bytes: int = TOKEN) -> None:
    """Say of a file what clients say by attributes."""
    xattrs = Xattrs(space.tiers.catalog, space.tiers.objects, space.verbs)
    inode = space.tiers.catalog.names.inode(ino)
    if token_bytes:
        await xattrs.set(inode, b"user.kvd.bytes_per_token", b"%d" % token_bytes)
    await xattrs.set(inode, b"user.kvd.sink", b"%d" % sink)
    await xattrs.set(inode, b"user.kvd.window", b"%d" % window)


async def valid(space: Space, ino: int) -> bytes:
    xattrs = Xattrs(space.tiers.catalog, space.tiers.objects, space.verbs)
    return await xattrs.find(space.tiers.catalog.names.inode(ino), b"user.kvd.valid")


def append(space: Space, ino: int, count: int, *, first: int) -> None:
    """Write tokens as the kernel does in passthrough."""
    os.pwrite(space.tiers.plane.objects[ino].fd, tokens(count, first=first), first * TOKEN)


def ddr_file(space: Space, ino: int) -> Path:
    return space.tiers.config.ddr.path / f"{ino:x}"


def nvme_files(space: Space, ino: int) -> list[Path]:
    copy = space.tiers.catalog.placements.copy(ino)
    assert copy is not None
    return [space.tiers.nvme.file(index, ino, copy.gen) for index in copy.dirs]
