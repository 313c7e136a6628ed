"""What tests of forks share: a session with blocks, its forks, and what is left of one that failed."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from kvd.api.sessions import ForkPoint
from kvd.catalog.schema import ROOT_INO
from kvdriver import Tier
from support.tiers import PAGE_BYTES

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from support.session_space import Space

ALL = ForkPoint()
BLOCKS = {b"b%d" % number: os.urandom(PAGE_BYTES + 100 * number) for number in range(4)}


async def fill(space: Space, blocks: dict[bytes, bytes] | None = None) -> dict[bytes, int]:
    return {
        name: await space.store(name, space.folder, content)
        for name, content in (BLOCKS if blocks is None else blocks).items()
    }


async def fork(space: Space, path: str = "/dirs/s", new: str = "/dirs/f", at: ForkPoint = ALL) -> int:
    return (await space.verbs.fork_session(path.encode(), new.encode(), at)).ino


async def content(space: Space, folder: int) -> dict[bytes, bytes]:
    """Read a directory's files, by name, in the order of the listing."""
    return {
        each.name: await space.tiers.read(each.inode.ino)
        for each in space.tiers.catalog.names.listing(folder)
        if each.inode.is_file
    }


async def write(space: Space, ino: int, data: bytes, *, truncate: bool = False) -> None:
    await space.tiers.objects.open(ino, write=True, truncate=truncate)
    space.tiers.write(ino, data)
    await space.tiers.objects.release(ino, write=True)


async def nothing_is_left(space: Space, ddr_blocks: int, nvme_blocks: int) -> None:
    """Hold the tiers to what they had before a fork that failed."""
    await space.reap()
    tiers = space.tiers
    assert not tiers.catalog.namespaces.graves
    assert tiers.catalog.db.scalar("SELECT count(*) FROM meta WHERE key GLOB 'grave:*'") == 0
    for table in ("inode", "object"):
        orphans = f"SELECT count(*) FROM {table} WHERE ino NOT IN (SELECT ino FROM dentry) AND ino<>?"
        assert tiers.catalog.db.scalar(orphans, (ROOT_INO,)) == 0
    assert (await tiers.used_blocks(Tier.DDR), await tiers.used_blocks(Tier.NVME)) == (ddr_blocks, nvme_blocks)
    known = {(index, copy.ino, copy.gen) for copy in tiers.catalog.placements.copies() for index in copy.dirs}
    assert set((await tiers.nvme.files())[0]) == known
    assert not tiers.nvme.making


def during(space: Space, act: Callable[[], Awaitable[object]]) -> None:
    """Let something happen once, when the first block's bytes have just been copied."""
    demote = space.tiers.mover.demote
    done = False

    async def demoted(**job: object) -> object:
        nonlocal done
        result = await demote(**job)
        if not done:
            done = True
            await act()
        return result

    space.tiers.mover.demote = demoted
