"""What is on NVMe and has grown old goes further down its namespace's ladder of formats, in the background.

An object goes down by coming to DDR and leaving it again, under its lock, as if it had been wanted and given up: so it is read
and verified as for a reader, nobody ever sees it half-way, and it does not count as used. That needs room in DDR, for
which nothing is demoted: where there is none, it is tried again in a later round.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import structlog
import trio

from kvd.catalog.records import NS
from kvd.errors import KvdError, NotFoundError
from kvd.policy.formats import formats_of
from kvdriver import Tier

if TYPE_CHECKING:
    from kvd.catalog.catalog import Catalog
    from kvd.tier.books import Books
    from kvd.tier.live import Live
    from kvd.tier.lives import Lives
    from kvd.tier.moves import Moves
    from kvd.tier.room import Room

log = structlog.get_logger(__name__)

ROUND_S = 600.0
"""Between two rounds: a step of a ladder is late by that much at most, and by what the rate makes of it."""
ROWS_AT_ONCE = 128
"""That are looked at before others have their turn: some milliseconds."""
RATE_BYTES = 64 << 20
"""Of objects, a second: NVMe is there for readers and demotions first."""


class Descending:
    """Goes through the objects on NVMe, for ever; `gone_down` counts those that went a step."""

    def __init__(self, catalog: Catalog, lives: Lives, books: Books, moves: Moves, room: Room) -> None:
        self._catalog = catalog
        self._lives = lives
        self._books = books
        self._moves = moves
        self._room = room
        self.gone_down = 0

    def __repr__(self) -> str:
        return f"<Descending {self.gone_down} gone down>"

    async def run(self) -> None:
        """Look again and again."""
        while True:
            await trio.sleep(ROUND_S)
            await self.round()

    async def round(self) -> None:
        """Look at each object once, if any namespace has a ladder."""
        if not any(formats_of(namespace) for _, namespace in self._catalog.namespaces.all()):
            return
        after = 0
        while rows := self._catalog.placements.idle_after(after, Tier.NVME, ROWS_AT_ONCE):
            after = rows[-1][0]
            for ino, used_ns in rows:
                if formats_of(self._catalog.namespaces.of(ino)) is None:
                    continue
                try:
                    size = await self._consider(ino, used_ns)
                except NotFoundError:
                    continue  # removed meanwhile
                except (KvdError, OSError) as error:
                    log.info("object can't go down its ladder now", ino=ino, error=str(error))
                else:
                    await trio.sleep(size / RATE_BYTES)
            await trio.lowlevel.checkpoint()

    async def _consider(self, ino: int, used_ns: int) -> int:
        """Bring an object down, if its age asks for it; return its bytes, 0 if it stays as it is."""
        async with self._lives.hold(ino) as live:
            if live.tier is not Tier.NVME or live.attached or live.streaming is not None or live.damaged:
                return 0
            if live.pinned or live.held:
                return 0
            unused_s = max(0.0, (time.time_ns() - used_ns) / NS)
            live.last_use_s = trio.current_time() - unused_s
            if not self._moves.shrinks(live):
                return 0
            self._moves.check_reachable(live)
            if not await self._books.reserve(live, live.promoted_blocks):
                return 0
            try:
                os.close(await self._moves.promote(live, ahead=True))
            finally:
                with trio.CancelScope(shield=True):
                    if ino in self._lives.sessions:
                        await self._books.reserve(live, 0)
            await self._let_go(live)
            self.gone_down += 1
            return live.size

    async def _let_go(self, live: Live) -> None:
        """Have it leave DDR again, smaller; where it can't be made so, as it was."""
        try:
            await self._moves.demote(live)
        except OSError:
            with trio.CancelScope(shield=True):
                await self._moves.leave(live)
            raise
        finally:
            self._room.changed()
