"""Namespaces with quotas over the tiers, and objects in them, without a mount."""

from __future__ import annotations

import os
from contextlib import asynccontextmanager

from kvd.catalog.schema import ROOT_INO
from kvdriver import BLOCK_BYTES, Tier
from support.tiers import MIB, tiers_at

BLOCKS = MIB // BLOCK_BYTES


class Spaces:
    """Two namespaces and the tiers; objects of 1 MiB each, whose content tells which one they are."""

    def __init__(self, tiers) -> None:
        self.tiers = tiers
        self.names = tiers.catalog.names
        self.quotas = tiers.objects.quotas
        self.folders: dict[bytes, int] = {}
        self.contents: dict[int, bytes] = {}

    async def make(self, name: bytes, **policies) -> int:
        made = await self.tiers.objects.namespacing.create(
            name, fingerprint={}, policies=policies, mode=0o755, uid=0, gid=0
        )
        self.folders[name] = made.ino
        return made.ino

    async def store(self, space: bytes, name: bytes, mib: int = 1) -> int:
        """Store an object as a writer does whose writes the split holds up."""
        folder = self.folders.get(space, ROOT_INO)
        with self.tiers.catalog.db.transaction():
            ino = self.names.make(folder, name, mode=0o100644, uid=0, gid=0, now_ns=1).ino
            self.tiers.catalog.placements.add(ino)
        await self.tiers.objects.create(ino, folder)
        try:
            for at in range(mib):
                await self.tiers.objects.grow(ino, (at + 1) * MIB)
                self.contents[ino] = self.contents.get(ino, b"") + os.urandom(MIB)
                self.tiers.write(ino, self.contents[ino][-MIB:], at * MIB)
        finally:
            await self.tiers.objects.release(ino, write=True)
        return ino

    async def flood(self, space: bytes, count: int) -> list[int]:
        return [await self.store(space, b"%d" % number) for number in range(count)]

    def in_ddr(self, inos: list[int]) -> int:
        return sum(self.tiers.catalog.placements.get(ino).tier == Tier.DDR for ino in inos)

    def present(self, inos: list[int]) -> list[int]:
        return [ino for ino in inos if ino in self.tiers.objects.lives.sessions]

    async def check(self) -> None:
        """Compare what is counted with what is there."""
        catalog, lives = self.tiers.catalog, self.tiers.objects.lives
        info = await self.tiers.books.tier(Tier.DDR)
        assert sum(lives.census.blocks.values()) == info.used_blocks + info.reserved_blocks
        for folder in self.folders.values():
            below = [entry.inode.ino for entry in self.names.listing(folder)]
            held = sum(lives.by_ino[ino].ddr_blocks for ino in below if ino in lives.by_ino)
            assert self.quotas.used(Tier.DDR, folder) == held
            assert self.quotas.used(Tier.NVME, folder) == sum(map(catalog.placements.copy_blocks, below))

    async def read_all(self) -> None:
        for ino, content in self.contents.items():
            assert await self.tiers.read(ino) == content


@asynccontextmanager
async def spaces_at(root, **settings):
    async with tiers_at(root, **settings) as tiers:
        spaces = Spaces(tiers)
        yield spaces
        await spaces.check()


def mib(**sizes: int) -> dict[str, int]:
    return {f"{name}_bytes": size * MIB for name, size in sizes.items()}
