"""Tiers that stream: a cold object, and what must be so when its promotion has ended."""

from __future__ import annotations

import random
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import trio

from kvdriver import BLOCK_BYTES, Tier
from support.tiers import MIB, PAGE_BYTES, Tiers, tiers_at

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

SIZE = MIB + 777
DATA = random.Random(7).randbytes(SIZE)
BLOCKS = -(-SIZE // BLOCK_BYTES)


@asynccontextmanager
async def streaming(root: Path, **settings: Any) -> AsyncIterator[tuple[Tiers, int]]:
    """Tiers that stream what is larger than a few pages, with a cold object of `DATA`."""
    async with tiers_at(root, **settings) as tiers:
        tiers.objects.streaming.bytes_min = 3 * PAGE_BYTES
        async with trio.open_nursery() as nursery:
            nursery.start_soon(tiers.objects.streaming.run)
            ino = await tiers.make(b"a", DATA)
            await tiers.objects.demote(ino)
            yield tiers, ino
            nursery.cancel_scope.cancel()


async def settled(tiers: Tiers, ino: int) -> None:
    """Wait until no promotion runs."""
    with trio.fail_after(10):
        async with tiers.objects.streaming.hold(ino):
            pass


async def in_ddr_alone(tiers: Tiers, ino: int) -> None:
    """Nothing is reserved or open any more, and the object is in DDR as any other."""
    live = tiers.objects.lives.by_ino[ino]
    assert (live.tier, live.streaming, live.ddr_fd, live.opens) == (Tier.DDR, None, -1, 0)
    assert tiers.catalog.placements.get(ino).tier == Tier.DDR
    info = await tiers.books.tier(Tier.DDR)
    assert (info.used_blocks, info.reserved_blocks) == (BLOCKS, 0)
    assert tiers.plane.objects == {}


async def cold_alone(tiers: Tiers, ino: int) -> None:
    """Nothing is left of the promotion."""
    assert ino not in tiers.objects.lives.by_ino
    assert tiers.catalog.placements.get(ino).tier == Tier.NVME
    info = await tiers.books.tier(Tier.DDR)
    assert (info.used_blocks, info.reserved_blocks) == (0, 0)
    assert not (tiers.config.ddr.path / f"{ino:x}").exists()
    assert tiers.plane.objects == {}


def copy_file(tiers: Tiers) -> Path:
    """Return the only file on NVMe."""
    (path,) = copy_files(tiers)
    return path


def copy_files(tiers: Tiers) -> list[Path]:
    """Return the files on NVMe."""
    return list((tiers.config.nvme.dirs[0] / "objects").rglob("*.*"))
