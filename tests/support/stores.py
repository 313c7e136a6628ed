"""Stores of NVMe directories for tests without a mount, and what is waited for there."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import trio

from kvd.tier.health import ProbeBegan, ProbePassed, TimedOut
from kvd.tier.nvme import NvmeStore

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from kvd.tier.directory import Directory
    from support.tiers import Tiers

DEADLINE_S = 1.0
WAIT_S = 20.0
POLL_S = 0.005


async def until(condition: Callable[[], object]) -> None:
    """Poll until something is so."""
    with trio.fail_after(WAIT_S):
        while not condition():
            await trio.sleep(POLL_S)


@asynccontextmanager
async def store_at(root: Path, *, dirs: int = 1, **more: Any) -> AsyncIterator[NvmeStore]:
    """Make a store on folders of its own, with a short deadline."""
    paths = tuple(root / f"nvme{index}" for index in range(dirs))
    for path in paths:
        path.mkdir()
    store = NvmeStore(paths, uuid="u", reserve_bytes=0, direct=False, deadline_s=DEADLINE_S, **more)
    await store.start()
    yield store


@asynccontextmanager
async def tended(tiers: Tiers) -> AsyncIterator[None]:
    """Look after the directories of the tiers meanwhile."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(tiers.objects.tending.run)
        yield
        nursery.cancel_scope.cancel()


def offline(directory: Directory) -> None:
    """Turn a directory offline."""
    directory.meet(TimedOut(why="a test says so"))


def back(directory: Directory) -> None:
    """Bring a directory back, without a probe."""
    directory.meet(ProbeBegan())
    directory.meet(ProbePassed())
