"""The tiers with a namespace that has a ladder of formats, without a mount."""

from __future__ import annotations

import os
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvd.catalog.records import Namespace
from kvd.catalog.schema import ROOT_INO
from kvdriver import Tier
from support.tiers import Tiers, tiers_at

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from kvd.catalog.records import Copy

NAME = b"ns"


@dataclass
class Space:
    """A namespace and the tiers."""

    tiers: Tiers
    ino: int

    def set(self, format: str, layout: str = "") -> None:  # noqa: A002
        self.tiers.catalog.namespaces.put(
            Namespace(self.ino, "", "all", "back", "eio", 1, "file", format=format, layout=layout)
        )

    async def make(self, name: bytes, content: bytes) -> int:
        ino = await self.begin(name)
        self.tiers.write(ino, content)
        await self.tiers.objects.release(ino, write=True)
        return ino

    async def begin(self, name: bytes) -> int:
        catalog = self.tiers.catalog
        with catalog.db.transaction():
            inode = catalog.names.make(self.ino, name, mode=0o100644, uid=0, gid=0, now_ns=1)
            catalog.placements.add(inode.ino)
        await self.tiers.objects.create(inode.ino, self.ino)
        return inode.ino

    def copy(self, ino: int) -> Copy:
        found = self.tiers.catalog.placements.copy(ino)
        assert found is not None
        return found

    def tier(self, ino: int) -> Tier:
        return Tier(self.tiers.catalog.placements.get(ino).tier)

    def age(self, ino: int, age_s: float) -> None:
        """Let an object in memory be unused for so long."""
        live = self.tiers.objects.lives.peek(ino)
        assert live is not None
        live.last_use_s -= age_s

    def file(self, ino: int, part: int = 0) -> Path:
        """Return the file of a part of an object's copy."""
        copy = self.copy(ino)
        return self.tiers.nvme.file(copy.dirs[part], ino, copy.gen)

    def ddr_names(self) -> list[str]:
        return sorted(name for name in os.listdir(self.tiers.config.ddr.path) if not name.startswith("kvd-"))


@asynccontextmanager
async def ladder_at(root: Path, format: str, layout: str = "", **settings: object) -> AsyncIterator[Space]:  # noqa: A002
    """Have a life of the tiers with the namespace, which a later life finds again."""
    async with tiers_at(root, **settings) as tiers:  # type: ignore[arg-type]
        names = tiers.catalog.names
        found = names.lookup(ROOT_INO, NAME)
        if found is None:
            found = names.make(ROOT_INO, NAME, mode=0o40755, uid=0, gid=0, now_ns=1)
        space = Space(tiers, found.ino)
        space.set(format, layout)
        yield space
