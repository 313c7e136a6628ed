"""An object's dealings with the engine: every reservation, mapping and move, in one place.

A method either does all it says or raises and leaves the books as they were. One at a time is under way, and none is cut
short by a cancellation: between two commands of a dealing nobody else's come, also where the engine is a card that answers
later. What it waits for is bounded: a card that does not answer in time is given up.
"""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from typing import TYPE_CHECKING

import structlog
import trio

from kvd.tier.beside import Beside
from kvd.tier.dealing import alone
from kvd.tier.extents import total_blocks
from kvd.tier.live import COPY_SLOTS, LIVE_SLOT
from kvdriver import (
    Creates,
    EngineError,
    Lease,
    Map,
    MapRun,
    Maps,
    QuerySession,
    QueryTier,
    Remap,
    Reserve,
    Resize,
    SessionCreate,
    SessionDestroy,
    Status,
    Tier,
    TierInfo,
    Unmap,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvd.tier.found import Found
    from kvd.tier.live import Live
    from kvd.tier.spares import Spares
    from kvdriver import Command, Device

log = structlog.get_logger(__name__)

_FULL = (Status.NO_SPACE, Status.NO_TABLE)


class Books:
    """The engine's books as objects use them."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self.lock = trio.Lock()
        self.page_bytes = device.capabilities.page_bytes
        self.beside = Beside()
        self.unadopted_blocks = 0  # what NVMe holds of objects that the engine does not know yet (`kvd.tier.index`)
        self.spares: Spares | None = None  # give way to what is reserved here

    def __repr__(self) -> str:
        return f"<Books on {self._device!r}>"

    @alone
    async def tier(self, tier: Tier) -> TierInfo:
        """Return a tier's books."""
        return await self._tier(tier)

    async def _tier(self, tier: Tier) -> TierInfo:
        info = (await self._device.run(QueryTier(tier=tier))).tier
        assert info is not None
        if tier is Tier.NVME and self.unadopted_blocks:
            return replace(
                info,
                capacity_blocks=info.capacity_blocks + self.unadopted_blocks,
                used_blocks=info.used_blocks + self.unadopted_blocks,
            )
        return info

    async def _resize(self, tier: Tier, blocks: int) -> None:
        if tier is Tier.NVME:
            blocks = max(0, blocks - self.unadopted_blocks)
        await self._device.run(Resize(tier=tier, blocks=blocks))

    @alone
    async def keep_budget(self, budget_blocks: int) -> TierInfo:
        """Bring DDR's capacity back from the burst reserve as far as what it holds allows; return its books before."""
        info = await self._tier(Tier.DDR)
        if info.capacity_blocks > budget_blocks:
            held = info.used_blocks + info.reserved_blocks
            await self._device.run(Resize(tier=Tier.DDR, blocks=max(budget_blocks, held)))
        return info

    @alone
    async def resize(self, tier: Tier, blocks: int) -> None:
        """Set a tier's capacity."""
        await self._resize(tier, blocks)

    @alone
    async def session(self, ino: int) -> int:
        """Make an object's session context."""
        return (await self._device.run(SessionCreate(key=ino))).value

    @alone
    async def destroy(self, session: int) -> None:
        """Free an object's session context and all its frames; a repair of the tables may have given it up already."""
        try:
            await self._device.run(SessionDestroy(session=session))
        except EngineError as error:
            if error.status is not Status.NO_SESSION:
                raise
        self.beside.drop(session)

    @alone
    async def lease(self, live: Live, delta: int) -> None:
        """Note that an object is in use (+1) or no longer (-1)."""
        await self._device.run(Lease(session=live.session, delta=delta))

    # -- DDR -----------------------------------------------------------------------------------------------------

    @alone
    async def reserve(self, live: Live, blocks: int) -> bool:
        """Set an object's reservation in DDR; False, and no change, if the tier can't give it."""
        return await self._reserve(live, blocks)

    async def _reserve(self, live: Live, blocks: int) -> bool:
        try:
            await self._device.run(Reserve(session=live.session, tier=Tier.DDR, blocks=blocks))
        except EngineError as error:
            if error.status not in _FULL:
                raise
            return False
        live.reserved_blocks = blocks
        if self.spares is not None and self.spares.kept:
            await self.spares.fit((await self._tier(Tier.DDR)).held_blocks)
        return True

    @alone
    async def settle(self, live: Live, charges: tuple[MapRun, ...]) -> None:
        """Map what an object really holds in DDR and give the rest of its reservation back.

        What is there is there: if a writer outran its reservation, the capacity grows into the burst reserve until
        demotions have made up for it (`kvd.tier.room`).
        """
        await self._device.run(Unmap(session=live.session, slot=LIVE_SLOT))
        live.mapped_blocks = 0
        place = Map(session=live.session, slot=LIVE_SLOT, tier=Tier.DDR, runs=charges, reserved=True)
        need = total_blocks(charges)
        if charges and await self._refused(place) is Status.NO_SPACE:
            info = await self._tier(Tier.DDR)
            others = info.reserved_blocks - live.reserved_blocks
            await self._device.run(Resize(tier=Tier.DDR, blocks=info.used_blocks + others + need))
            log.info("writer outran its reservation", ino=live.ino, blocks=need, reserved=live.reserved_blocks)
            if await self._refused(place) is not None:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "ddr tier")
        live.mapped_blocks = need
        await self._reserve(live, 0)

    async def _refused(self, place: Map) -> Status | None:
        """Map; return why the engine has no room for it, or None when it is done."""
        try:
            await self._device.run(place)
        except EngineError as error:
            if error.status is Status.NO_TABLE:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "engine tables") from error
            if error.status is not Status.NO_SPACE:
                raise
            return error.status
        return None

    @alone
    async def drop(self, live: Live) -> None:
        """Free the frames of the live pages and of the copy."""
        for slot in (LIVE_SLOT, live.copy_slot):
            await self._device.run(Unmap(session=live.session, slot=slot))
        live.mapped_blocks = 0
        self.beside.put(live.session, live.copy_slot, 0)

    @alone
    async def to_ddr(self, live: Live) -> None:
        """Move the live pages to DDR, out of the reservation; the NVMe frames stay as the copy's."""
        await self._remap(live, Tier.DDR, keep=True, reserved=True)
        self.beside.put(live.session, live.copy_slot, live.mapped_blocks)
        live.tier = Tier.DDR

    @alone
    async def unfold(self, live: Live, charges: tuple[MapRun, ...], copy: tuple[MapRun, ...]) -> None:
        """Move an object to DDR, out of the reservation, where it has other pages than its stored file, whose are `copy`."""
        await self._device.run(Unmap(session=live.session, slot=LIVE_SLOT))
        for slot, tier, runs in ((live.copy_slot, Tier.NVME, copy), (LIVE_SLOT, Tier.DDR, charges)):
            if runs:
                await self._place(Map(session=live.session, slot=slot, tier=tier, runs=runs, reserved=tier is Tier.DDR))
        self.beside.put(live.session, live.copy_slot, total_blocks(copy))
        live.mapped_blocks = total_blocks(charges)
        live.tier = Tier.DDR

    async def _remap(self, live: Live, tier: Tier, **how: bool) -> int:
        """Move the live pages, also under a reader's lease: its caller exchanges the file behind the reader.

        Returns how many pages were moved.
        """
        leases = int(live.attached)
        if leases:
            await self._device.run(Lease(session=live.session, delta=-1))
        try:
            command = Remap(session=live.session, slot=LIVE_SLOT, tier=tier, other_slot=live.copy_slot, **how)
            return (await self._device.run(command)).value
        finally:
            if leases:
                await self._device.run(Lease(session=live.session, delta=1))

    # -- NVMe ----------------------------------------------------------------------------------------------------

    @alone
    async def copy_map(self, live: Live, charges: tuple[MapRun, ...]) -> None:
        """Allocate frames for a new copy, or for more of it; ENOSPC if the tier is full."""
        if not charges:
            return
        try:
            await self._device.run(Map(session=live.session, slot=live.next_slot, tier=Tier.NVME, runs=charges))
        except EngineError as error:
            if error.status not in _FULL:
                raise
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "nvme tier") from error
        self.beside.add(live.session, live.next_slot, total_blocks(charges))

    @alone
    async def copy_abort(self, live: Live) -> None:
        """Free the frames of a copy that did not come to be."""
        await self._device.run(Unmap(session=live.session, slot=live.next_slot))
        self.beside.put(live.session, live.next_slot, 0)

    @alone
    async def copy_commit(self, live: Live) -> None:
        """Make the new copy's frames the copy's; free the old ones."""
        await self._device.run(Unmap(session=live.session, slot=live.copy_slot))
        self.beside.put(live.session, live.copy_slot, 0)
        live.copy_slot = live.next_slot

    @alone
    async def to_nvme(self, live: Live, charges: tuple[MapRun, ...]) -> None:
        """Move the live pages to the frames of the copy; the DDR frames are free.

        The copy may be of other pages than the live ones, where a reader's mapping gave holes memory before or after
        it was made: then its frames are mapped anew, in one batch.
        """
        try:
            same = await self._remap(live, Tier.NVME, take=True) == sum(charge.count for charge in charges)
        except EngineError as error:
            if error.status is not Status.NOT_MAPPED:
                raise
            same = False
        if not same:
            batch: list[Command] = [Unmap(session=live.session, slot=slot) for slot in (LIVE_SLOT, live.copy_slot)]
            if charges:
                batch.append(Map(session=live.session, slot=LIVE_SLOT, tier=Tier.NVME, runs=charges))
            for command, completion in zip(batch, await self._device.submit(batch), strict=True):
                if completion.status is not Status.OK:
                    raise EngineError(completion.status, command)
        self.beside.put(live.session, live.copy_slot, 0)
        live.tier = Tier.NVME
        live.mapped_blocks = total_blocks(charges)

    # -- what is found at start ----------------------------------------------------------------------------------

    @alone
    async def adopt(self, found: Sequence[Found], *, of_unadopted: bool = False) -> list[int]:
        """Give objects their sessions, and map what they hold, by a few batches for all; return the sessions.

        Parameters
        ----------
        found
            Some hundred objects: their commands are one batch, and nobody else is served meanwhile.
        of_unadopted
            What they hold is in `unadopted_blocks` until then.

        Raises
        ------
        OSError
            ENOSPC if the engine's tables have no room for all of them; then it has none of them.
        """
        if of_unadopted:
            info = await self._tier(Tier.NVME)
            held = sum([count * blocks for each in found for _, count, blocks in each.charges])
            self.unadopted_blocks -= held
            await self._resize(Tier.NVME, info.capacity_blocks)
        made = await self._device.submit(Creates([each.ino for each in found]))
        sessions = [each.value for each in made if each.status is Status.OK]
        try:
            if len(sessions) < len(found):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "engine sessions")  # noqa: TRY301 (undone below)
            pairs = list(zip(sessions, found, strict=True))
            for tier in (Tier.DDR, Tier.NVME):
                places = [(one, each.charges) for one, each in pairs if each.tier is tier and each.charges]
                await self._map_all(Maps(LIVE_SLOT, tier, places))
            copies = [(one, each.copy) for one, each in pairs if each.copy]
            await self._map_all(Maps(COPY_SLOTS[0], Tier.NVME, copies))
            for session, charges in copies:
                self.beside.put(session, COPY_SLOTS[0], sum([count * blocks for _, count, blocks in charges]))
        except BaseException:
            for session in sessions:
                await self._device.run(SessionDestroy(session=session))
                self.beside.drop(session)
            if of_unadopted:
                self.unadopted_blocks += held
            raise
        return sessions

    async def _map_all(self, maps: Maps) -> None:
        """Map what is there, also beyond the tier's capacity."""
        for number, completion in enumerate(await self._device.submit(maps) if maps else ()):
            if completion.status is not Status.OK:
                place = maps[number]
                assert isinstance(place, Map)
                await self._place(place)

    # -- after a loss --------------------------------------------------------------------------------------------

    @alone
    async def remake(self, live: Live, charges: tuple[MapRun, ...], copy: tuple[MapRun, ...]) -> int | None:
        """Make all that the engine knows of an object anew, whatever it knows now; nobody works on the object meanwhile.

        What is there is there: where a tier has no room for it, its capacity grows, as in `settle`.

        Parameters
        ----------
        live
            The object; gets its session, and a reservation that leaves what it may hold as it was.
        charges
            Of its present pages, in its tier.
        copy
            Of its copy's pages while its present ones are in DDR.

        Returns
        -------
        int, optional
            A session that had this object's key though it was not its own, and is no more.
        """
        taken = await self._context(live)
        may_hold = live.mapped_blocks + live.reserved_blocks
        info = (await self._device.run(QuerySession(session=live.session))).session
        assert info is not None
        await self._device.run(Lease(session=live.session, delta=int(live.attached) - info.leases))
        for slot in (LIVE_SLOT, *COPY_SLOTS):
            await self._device.run(Unmap(session=live.session, slot=slot))
        self.beside.drop(live.session)
        live.mapped_blocks = 0
        await self._reserve(live, 0)
        if charges:
            await self._place(Map(session=live.session, slot=LIVE_SLOT, tier=live.tier, runs=charges))
        live.mapped_blocks = total_blocks(charges)
        if copy:
            await self._place(Map(session=live.session, slot=live.copy_slot, tier=Tier.NVME, runs=copy))
            self.beside.put(live.session, live.copy_slot, total_blocks(copy))
        if (live.tier is Tier.DDR and live.attached) or live.streaming is not None:
            await self._reserve(live, max(0, may_hold - live.mapped_blocks))
        return taken

    async def _context(self, live: Live) -> int | None:
        """Give an object a session context with its key; return the one that had to go for it."""
        query = QuerySession(session=live.session)
        [found] = await self._device.submit([query])
        if found.status is Status.OK:
            assert found.session is not None
            if found.session.key == live.ino:
                return None
            await self._drop_context(live.session)
        [made] = await self._device.submit([SessionCreate(key=live.ino)])
        taken = None
        if made.status is Status.EXISTS:
            taken = made.value
            await self._drop_context(taken)
            made = await self._device.run(SessionCreate(key=live.ino))
        elif made.status is not Status.OK:
            raise EngineError(made.status, SessionCreate(key=live.ino))
        live.session = made.value
        return taken

    async def _drop_context(self, session: int) -> None:
        info = (await self._device.run(QuerySession(session=session))).session
        assert info is not None
        if info.leases:
            await self._device.run(Lease(session=session, delta=-info.leases))
        await self._device.run(SessionDestroy(session=session))
        self.beside.drop(session)

    async def _place(self, place: Map) -> None:
        """Map what is there, also beyond the tier's capacity."""
        if await self._refused(place) is None:
            return
        info = await self._tier(place.tier)
        held = info.used_blocks + info.reserved_blocks + total_blocks(place.runs)
        await self._resize(place.tier, max(info.capacity_blocks, held))
        if await self._refused(place) is not None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), f"{place.tier.name.lower()} tier")
