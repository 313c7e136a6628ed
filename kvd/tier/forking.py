"""New objects with the bytes of others, for forks of sessions (docs/decisions/032-forks.md).

An object that is whole in the fork is made on NVMe, cold: from the DDR file of its origin by the mover, from a cold origin's copy
within the file system. From then on the two have nothing in common, so whatever becomes of the one is nothing to the other. One
that is cut is made in DDR, like any that is written, and then made durable.
"""

from __future__ import annotations

import os
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import trio

from kvd.errors import BusyError, DamagedError, NoSpaceError, VanishedError
from kvd.tier.cloning import PIECE_BYTES, copy_ranges, pieces
from kvd.tier.extents import data_extents
from kvd.tier.found import Found
from kvdriver import BLOCK_BYTES, Tier

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from kvd.catalog.catalog import Catalog
    from kvd.tier.books import Books
    from kvd.tier.live import Live
    from kvd.tier.objects import Objects

TRIES = 4
"""Times that an origin is brought to DDR for one that is cut, where others push it out again at once."""


class Forking:
    """Makes them."""

    def __init__(self, catalog: Catalog, objects: Objects, books: Books) -> None:
        self._catalog = catalog
        self._objects = objects
        self._books = books
        self._watching: list[tuple[frozenset[int], set[int]]] = []
        catalog.placements.filling = self._filling

    def __repr__(self) -> str:
        return f"<Forking {len(self._watching)} under way>"

    @contextmanager
    def watching(self, inos: Iterable[int]) -> Iterator[set[int]]:
        """Yield the set to which those of some objects are added that get a writer."""
        written: set[int] = set()
        watch = (frozenset(inos), written)
        self._watching.append(watch)
        try:
            yield written
        finally:
            self._watching = [each for each in self._watching if each is not watch]

    def _filling(self, ino: int) -> None:
        for inos, written in self._watching:
            if ino in inos:
                written.add(ino)

    async def announce(self, inos: list[int]) -> None:
        """Let the engine know of new objects whose rows are there; where it has no room for all, they are taken back.

        Raises
        ------
        OSError
            ENOSPC.
        """
        try:
            sessions = await self._books.adopt([Found(ino, Tier.NVME, ()) for ino in inos])
        except BaseException:
            self._catalog.forks.unmake(inos, time.time_ns())
            raise
        self._objects.lives.sessions.update(zip(inos, sessions, strict=True))

    async def whole(self, origin: int, ino: int) -> int:
        """Give a new object, which the engine knows, all bytes of another, on NVMe; return how many.

        Raises
        ------
        BusyError
            The other has a writer, or is gone.
        DamagedError
            It is quarantined.
        OSError
            ENOSPC if NVMe is full, or what a directory said.
        """
        lives, moves = self._objects.lives, self._objects.moves
        # Nobody else knows the new one, so that waiting for the other's lock under its lock makes no circle.
        async with lives.hold(ino) as new, lives.hold(origin) as old:
            self._check(old)
            if old.size != new.size:
                raise BusyError("written meanwhile")
            if old.tier is Tier.DDR:
                shares = old.copy is not None and moves.stored(old)
                if shares and old.copy is not None and await moves.clone(new, old.copy, share_only=True):
                    return old.size
                fd = self._objects.ddr.open(origin)
                try:
                    await moves.twin(new, fd)
                finally:
                    os.close(fd)
            else:
                assert old.copy is not None
                moves.check_reachable(old)
                await moves.clone(new, old.copy)
            return old.size

    async def part(self, origin: int, ino: int, size: int) -> None:
        """Give a new object, whose rows are there, the first `size` bytes of another, durably.

        Raises
        ------
        BusyError, DamagedError
            As of `whole`; also where the other can't be brought to DDR since it is read from NVMe.
        NoSpaceError, OSError
            There is no room in DDR for one of them, or none on NVMe.
        """
        objects = self._objects
        try:
            await objects.create(ino, 0)
        except BaseException:
            with trio.CancelScope(shield=True):
                self._catalog.forks.unmake([ino], time.time_ns())
                await objects.abandon(ino)
            raise
        try:
            granted = 0
            for _ in range(TRIES):
                await objects.promote(origin)
                need = await self._copy_part(origin, ino, size, granted)
                if need <= granted:
                    break
                await objects.grow(ino, need * BLOCK_BYTES)
                granted = need
            else:
                raise NoSpaceError("no room in DDR for both")
        finally:
            with trio.CancelScope(shield=True):
                await objects.release(ino, write=True)
        await objects.sync(ino)

    async def _copy_part(self, origin: int, ino: int, size: int, granted: int) -> int:
        """Copy what an object in DDR begins with; return the blocks that takes, more than `granted` where nothing was copied."""
        async with self._objects.lives.hold(origin) as old:  # which keeps its file what it is, and where
            self._check(old)
            if size > old.size:
                raise BusyError("written meanwhile")
            if old.tier is not Tier.DDR:
                return granted + 1
            fd = self._objects.ddr.open(origin)
            try:
                extents = data_extents(fd, size)
                need = sum(-(-end // BLOCK_BYTES) - start // BLOCK_BYTES for start, end in extents)
                if need > granted:
                    return need
                to_fd = self._objects.lives.by_ino[ino].ddr_fd  # nobody else has it open, so it stays
                for piece in pieces(extents, PIECE_BYTES):
                    await trio.to_thread.run_sync(copy_ranges, fd, to_fd, piece)
                os.ftruncate(to_fd, size)
                self._catalog.given.cut(ino, size)
            finally:
                os.close(fd)
        return need

    @staticmethod
    def _check(old: Live) -> None:
        if old.damaged:
            raise DamagedError("quarantined")
        if not old.sealed or old.writers:
            raise BusyError("open for writing")
        if old.tier is Tier.NONE or (old.tier is Tier.NVME and old.copy is None):
            raise VanishedError("its bytes are nowhere")
