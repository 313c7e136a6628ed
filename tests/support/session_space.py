"""Tiers with namespaces of both kinds, a clock that a test can set, and a keeper that remembers what it was told to forget."""

from __future__ import annotations

import os
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import trio

from kvd.catalog.records import Namespace
from kvd.catalog.schema import ROOT_INO
from support.tiers import Tiers, tiers_at

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from kvd.session.verbs import SessionVerbs
    from kvdriver.abi import State

WAIT_S = 20.0
NS = 1_000_000_000
START_NS = 1_800_000_000 * NS
CONTENT = os.urandom(65536)


@dataclass
class Clock:
    """The time since the epoch; a test moves it on."""

    ns: int = START_NS

    def __call__(self) -> int:
        return self.ns

    def on(self, seconds: float) -> None:
        self.ns += int(seconds * NS)


@dataclass
class Keeper:
    """Remembers what it was told to forget."""

    tiers: Tiers
    told: list[tuple[int, bytes]] = field(default_factory=list)
    trees: list[tuple[int, bytes]] = field(default_factory=list)

    def forget_name(self, parent: int, name: bytes) -> None:
        self.told.append((parent, name))

    async def forget_names(self, names) -> None:
        await trio.lowlevel.checkpoint()
        self.told += names

    async def forget_tree(self, parent: int, name: bytes) -> None:
        await trio.lowlevel.checkpoint()
        self.trees.append((parent, name))

    async def discard(self, ino: int) -> None:
        """Delete what has no name and nobody has open, as a mount does at the last FORGET."""
        try:
            inode = self.tiers.catalog.names.inode(ino)
        except OSError:
            return
        live = self.tiers.objects.lives.peek(ino)
        if inode.nlink or (live is not None and self.tiers.objects.sharing.opens(live)):
            return
        if inode.is_file:
            await self.tiers.objects.discard(ino)
        else:
            self.tiers.catalog.names.remove(ino)


@dataclass
class Space:
    """A namespace ``files`` whose sessions are files, ``dirs`` whose sessions are directories, and ``dirs/s``, a session."""

    tiers: Tiers
    clock: Clock
    keeper: Keeper
    files: int
    dirs: int
    folder: int

    @property
    def verbs(self) -> SessionVerbs:
        return self.tiers.sessions

    async def store(self, name: bytes, parent: int | None = None, content: bytes = CONTENT) -> int:
        """Make a sealed object, in ``files`` if nothing is said."""
        ino = await self.begin(name, parent)
        self.tiers.write(ino, content)
        await self.tiers.objects.release(ino, write=True)
        return ino

    async def begin(self, name: bytes, parent: int | None = None) -> int:
        folder = self.files if parent is None else parent
        names = self.tiers.catalog.names
        with self.tiers.catalog.db.transaction():
            inode = names.make(folder, name, mode=0o100644, uid=0, gid=0, now_ns=1)
            self.tiers.catalog.placements.add(inode.ino)
        await self.tiers.objects.create(inode.ino, folder)
        return inode.ino

    def has(self, name: bytes, parent: int | None = None) -> bool:
        folder = self.files if parent is None else parent
        namespaces = self.tiers.catalog.namespaces
        return not namespaces.is_dead(folder) and self.tiers.catalog.names.lookup(folder, name) is not None

    def state(self, ino: int) -> State:
        return self.verbs.parts.state(ino)

    async def pass_time(self, seconds: float) -> None:
        """Let the clock go on and what is due end."""
        self.clock.on(seconds)
        while await self.verbs.lifetimes.step():
            pass

    async def reap(self) -> None:
        with trio.fail_after(WAIT_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.tiers.objects.reaper.run)
                await self.tiers.objects.reaper.idle()
                nursery.cancel_scope.cancel()


@asynccontextmanager
async def space_at(root: Path, **settings: object) -> AsyncIterator[Space]:
    clock = Clock()
    async with tiers_at(root, now_ns=clock, **settings) as tiers:
        names, namespaces = tiers.catalog.names, tiers.catalog.namespaces
        keeper = tiers.objects.reaper.keeper = Keeper(tiers)
        made = []
        for name, session in ((b"files", "file"), (b"dirs", "directory")):
            found = names.lookup(ROOT_INO, name)
            if found is None:
                found = names.make(ROOT_INO, name, mode=0o40755, uid=0, gid=0, now_ns=1)
                namespaces.put(
                    Namespace(
                        ino=found.ino,
                        fingerprint="",
                        admit="all",
                        durability="back",
                        on_fault="eio",
                        created_ns=1,
                        session=session,
                    )
                )
            made.append(found.ino)
        folder = names.lookup(made[1], b"s") or names.make(made[1], b"s", mode=0o40755, uid=0, gid=0, now_ns=1)
        yield Space(tiers, clock, keeper, *made, folder.ino)


async def until(condition: Callable[[], object]) -> None:
    with trio.fail_after(WAIT_S):
        while not condition():
            await trio.sleep(0.005)
