"""What becomes of objects by the policy of their namespace: dropped or written, early or late, EIO or a miss.

*Admission*: an object that DDR must let go is written to NVMe only if it earned that. With ``admit = "reused"`` one that was
never opened for reading, and whose name was never stored before, is dropped: a miss, as if it had never been stored. *Dropped* is never
what was fsynced or is pinned or in use. *Durability*: with ``through`` an object is copied out right after its seal, so that letting it
go is free. *On fault*: with ``miss`` the names of a quarantined object go, and so it is stored anew by whoever misses it.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog
import trio

from kvd.errors import DamagedError, NotFoundError
from kvd.policy.sketch import Sketch, key_of
from kvdriver import Tier

if TYPE_CHECKING:
    from kvd.catalog.catalog import Catalog
    from kvd.catalog.records import Namespace
    from kvd.config import AdmissionConfig
    from kvd.tier.books import Books
    from kvd.tier.ddr import DdrStore
    from kvd.tier.live import Live
    from kvd.tier.lives import Lives
    from kvd.tier.moves import Moves
    from kvd.tier.reaping import Reaper

log = structlog.get_logger(__name__)

SKETCH_COUNTERS = 1 << 20
"""Of each row: 2 MiB in all, and names are remembered for some ten million others."""
WORKERS = 2
QUEUE_OBJECTS = 1024
"""Objects that wait to be written through; of more it is only remembered that there are some."""
RESCAN_S = 2.0
LOOKED_AT_ONCE = 256
"""Objects that a search for more looks at before others have their turn."""
RETRY_S = 0.5
LOST_OBJECTS = 256
"""Of those whose names went by a fault so many are remembered, for the opens that were under way."""
COMPLAIN_S = 60.0


@dataclass(slots=True)
class AdmissionCounts:
    """Objects since start that policy wrote to NVMe, and those that it dropped; bytes that so were not written.

    `through` counts the objects that were copied out right after their seal, `evicted` those that a full NVMe has let go,
    with what they held there.
    """

    admitted: int = 0
    dropped: int = 0
    saved_bytes: int = 0
    through: int = 0
    evicted: int = 0
    evicted_bytes: int = 0


class Admission:
    """Follows the policies.

    Parameters
    ----------
    defaults
        For what belongs to no namespace.
    """

    def __init__(
        self,
        catalog: Catalog,
        lives: Lives,
        books: Books,
        ddr: DdrStore,
        moves: Moves,
        reaper: Reaper,
        *,
        defaults: AdmissionConfig,
    ) -> None:
        self._catalog = catalog
        self._namespaces = catalog.namespaces
        self._lives = lives
        self._books = books
        self._ddr = ddr
        self._moves = moves
        self._reaper = reaper
        self._defaults = defaults
        self._sketch = Sketch(SKETCH_COUNTERS)
        self.counts = AdmissionCounts()
        self._send, self._receive = trio.open_memory_channel[int](QUEUE_OBJECTS)
        self._missed = False
        self._complained_s = -COMPLAIN_S
        self._lost: deque[int] = deque(maxlen=LOST_OBJECTS)
        moves.on_damage = self.damaged

    def __repr__(self) -> str:
        return f"<Admission {self.counts} {self._sketch!r}>"

    # -- admission -----------------------------------------------------------------------------------------------

    def gone(self, parent: int, name: bytes) -> None:
        """Take note that a name was removed or replaced: stored again, it is in use."""
        namespace = self._namespaces.of(parent)
        if (namespace or self._defaults).admit == "reused":
            self._remember(self._namespaces.relative(parent, name))

    def opened_for_writing(self, ino: int) -> None:
        """Take note that an object is written anew, if it was sealed."""
        if self._of(ino).admit != "reused":
            return
        live = self._lives.peek(ino)
        if live.sealed if live is not None else self._catalog.placements.get(ino).sealed:
            self._remember(self._namespaces.relative(ino))

    def _remember(self, place: tuple[int, bytes] | None) -> None:
        if place is not None:
            self._sketch.add(key_of(*place))

    def refuses(self, live: Live) -> bool:
        """Whether an object that DDR lets go is not worth NVMe."""
        dead = self._namespaces.is_dead(live.ino)
        # Somebody wanted it, or its bytes durably, if not these ones.
        wanted = live.copy is not None or live.pinned or live.hits or self._of(live.ino).admit != "reused"
        if wanted and not dead:
            return False
        if self._catalog.names.inode(live.ino).nlink > 1:
            return False  # it may have names elsewhere, with another policy
        place = self._namespaces.relative(live.ino)
        return dead or (place is not None and self._sketch.estimate(key_of(*place)) == 0)

    def _may_drop(self, live: Live) -> bool:
        """Whether an object that is not worth writing may be lost: nobody was promised its bytes, and NVMe has not got them."""
        if live.copy is not None or live.pinned or self._of(live.ino).durability == "through":
            return False
        return self._catalog.names.inode(live.ino).nlink <= 1

    async def let_go(self, live: Live, *, drop: bool = False) -> None:
        """Take a sealed, unleased object out of DDR: to NVMe, or away. The caller holds its lock.

        `drop`: the ageing policy holds it to be worth no writing.

        Raises
        ------
        OSError
            As `Moves.demote`; the object stays in DDR.
        """
        if self.refuses(live) or (drop and self._may_drop(live)):
            await self._drop(live)
            return
        written = not live.clean
        await self._moves.demote(live)
        self.counts.admitted += written

    async def _drop(self, live: Live) -> None:
        assert live.movable
        place = self._namespaces.relative(live.ino)
        await self._vanish(live)
        self._remember(place)
        self.counts.dropped += 1
        self.counts.saved_bytes += live.size

    async def evict(self, live: Live) -> None:
        """Let a cold object that nobody uses go for good: its names at once, then its bytes. The caller holds its lock."""
        place = self._namespaces.relative(live.ino) if self._of(live.ino).admit == "reused" else None
        size = live.copy.size if live.copy is not None else 0
        await self._vanish(live)
        self._remember(place)
        self.counts.evicted += 1
        self.counts.evicted_bytes += size

    async def _vanish(self, live: Live) -> None:
        with self._catalog.db.transaction():
            names = self._namespaces.unname(live.ino, time.time_ns())
            self._catalog.names.remove(live.ino)
        with trio.CancelScope(shield=True):
            for parent, name in names:
                self._reaper.keeper.forget_name(parent, name)
            was, live.tier = live.tier, Tier.NONE
            await self._books.destroy(self._lives.sessions.pop(live.ino))
            if was is Tier.DDR:
                await self._ddr.remove(live.ino, used=False)
            await self._moves.forget_copy(live)

    # -- durability ----------------------------------------------------------------------------------------------

    def sealed(self, live: Live) -> None:
        """Take note of a seal; waits for nothing."""
        if self._of(live.ino).durability != "through" or live.clean:
            return
        try:
            self._send.send_nowait(live.ino)
        except trio.WouldBlock:
            self._missed = True

    async def run(self) -> None:
        """Write through, for ever; and begin with what a start has found."""
        self.policies_changed()
        async with trio.open_nursery() as nursery:
            for _ in range(WORKERS):
                nursery.start_soon(self._work, self._receive.clone())
            while True:
                if self._missed:
                    self._missed = False
                    for number, ino in enumerate(list(self._lives.census.dirty)):
                        if number % LOOKED_AT_ONCE == 0:
                            await trio.lowlevel.checkpoint()
                        live = self._lives.peek(ino)
                        if live is not None and self._waits(live):
                            await self._send.send(ino)
                await trio.sleep(RESCAN_S)

    def _waits(self, live: Live) -> bool:
        dirty = live.tier is Tier.DDR and live.sealed and not live.clean and not live.damaged
        return dirty and self._of(live.ino).durability == "through" and not self._namespaces.is_dead(live.ino)

    async def _work(self, inos: trio.MemoryReceiveChannel[int]) -> None:
        async for ino in inos:
            try:
                async with self._lives.hold(ino) as live:
                    if not self._waits(live):
                        continue
                    await self._moves.copy_out(live)
                self.counts.through += 1
                if not inos.statistics().current_buffer_used:
                    await self._catalog.db.sync()
            except NotFoundError:
                continue  # removed meanwhile
            except OSError as error:
                self._missed = True
                self._complain(error)
                await trio.sleep(RETRY_S)

    def _complain(self, error: OSError) -> None:
        now_s = trio.current_time()
        if now_s - self._complained_s >= COMPLAIN_S:
            self._complained_s = now_s
            log.warning("objects can't be written through now", errno=error.errno, error=str(error))

    # -- faults --------------------------------------------------------------------------------------------------

    def damaged(self, ino: int) -> bool:
        """Follow the policy for a quarantined object; whether its names are gone."""
        if self._of(ino).on_fault != "miss":
            return False
        try:
            names = self._namespaces.unname(ino, time.time_ns())
        except OSError as error:
            log.warning("names of a quarantined object stay", ino=ino, errno=error.errno, error=str(error))
            return False
        for parent, name in names:
            self._reaper.keeper.forget_name(parent, name)
        self._lost.append(ino)
        self._reaper.unnamed(ino)
        return True

    def policies_changed(self) -> None:
        """Follow policies also for what was sealed or quarantined before they were made."""
        self._missed = True
        for ino in self._catalog.placements.damaged():
            self.damaged(ino)

    def answer(self, ino: int, error: DamagedError) -> DamagedError | NotFoundError:
        """Return what an open that met `error` ends in: that, or a miss."""
        if ino not in self._lost:
            if self._of(ino).on_fault != "miss":
                return error
            if self._catalog.placements.get(ino).damaged:  # otherwise it can't be read now, and later it may be
                self.damaged(ino)
        return NotFoundError(f"object {ino} is a miss: {error}")

    def _of(self, ino: int) -> AdmissionConfig | Namespace:
        return self._namespaces.of(ino) or self._defaults
