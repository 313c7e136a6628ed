"""What a repair of the engine's tables had to give up is put right from the catalogue and the files."""

import random

import pytest
import trio

from kvd.errors import DamagedError
from kvd.tier.live import COPY_SLOTS, LIVE_SLOT
from kvdriver import (
    Lease,
    Lost,
    QuerySession,
    ResilientDevice,
    SessionCreate,
    SessionDestroy,
    Tier,
    Translate,
    Unmap,
)
from kvdriver.card import Card
from kvdriver.tables import Tables
from support.fake_card import FakeCard, Script
from support.tables import damage
from support.tiers import PAGE_BYTES, tiers_at

SIZE = 5 * PAGE_BYTES + 123
WAIT_S = 20.0


class Losses:
    """Tells of losses as a device does."""

    def __init__(self):
        self.send, self._receive = trio.open_memory_channel(4)

    async def lost(self):
        return await self._receive.receive()


def content(seed):
    return random.Random(seed).randbytes(SIZE)


async def books_of(tiers, ino):
    """Return all that the engine says of an object, but where its frames are."""
    session = tiers.objects.lives.sessions[ino]
    info = (await tiers.device.run(QuerySession(session=session))).session
    runs = [
        [(run.first_page, run.count, run.tier) for run in completion.runs]
        for completion in await tiers.device.submit([Translate(session=session, slot=slot) for slot in range(3)])
    ]
    return info.key, info.leases, info.mapped_blocks, info.reserved_blocks, runs


async def tiers_say(tiers):
    infos = [await tiers.books.tier(tier) for tier in (Tier.DDR, Tier.NVME)]
    return [(info.used_blocks, info.reserved_blocks) for info in infos]


async def unmap(tiers, session):
    """Lose some pages of each slot."""
    for slot in (LIVE_SLOT, *COPY_SLOTS):
        await tiers.device.run(Unmap(session=session, slot=slot, first_page=1, count=2))


async def destroy(tiers, session):
    info = (await tiers.device.run(QuerySession(session=session))).session
    await tiers.device.run(Lease(session=session, delta=-info.leases))
    await tiers.device.run(SessionDestroy(session=session))


async def make(tiers, how):
    ino = await tiers.make(how.encode(), content(1))
    if how in ("copied", "open"):
        await tiers.objects.fsync(ino)
    if how == "cold":
        await tiers.objects.demote(ino)
    if how == "open":
        await tiers.objects.open(ino, write=False)
    return ino


@pytest.mark.parametrize("lose", [unmap, destroy])
@pytest.mark.parametrize("how", ["dirty", "copied", "open", "cold"])
async def test_books_are_made_anew(root, how, lose):
    async with tiers_at(root) as tiers:
        ino, other = await make(tiers, how), await tiers.make(b"other", content(2))
        session = tiers.objects.lives.sessions[ino]
        before = await books_of(tiers, ino), await tiers_say(tiers), await books_of(tiers, other)
        limits = dict(tiers.plane.limits)
        await lose(tiers, session)
        assert await tiers_say(tiers) != before[1]
        losses = Losses()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(tiers.objects.mending.run, losses)
            await losses.send.send(Lost(sessions=frozenset({session, 0xDEAD})))
            with trio.fail_after(WAIT_S):
                while not tiers.objects.mending.counts.mended:
                    await trio.sleep(0.001)
            nursery.cancel_scope.cancel()
        assert (await books_of(tiers, ino), await tiers_say(tiers), await books_of(tiers, other)) == before
        assert tiers.plane.limits == limits
        assert (tiers.objects.lives.sessions[ino] == session) == (lose is unmap)
        if how == "open":
            assert tiers.see(ino) == content(1)
            await tiers.objects.release(ino, write=False)
        await tiers.objects.demote(ino)
        assert await tiers.read(ino) == content(1)
        assert tiers.catalog.placements.faults(1) == []
        await tiers.objects.discard(ino)


@pytest.mark.parametrize("lose", [unmap, destroy])
async def test_writer_goes_on(root, lose):
    """What it may hold stays what it was, and its seal finds a context."""
    async with tiers_at(root) as tiers:
        ino = await tiers.begin(b"a")
        tiers.write(ino, content(1))
        live = tiers.objects.lives.by_ino[ino]
        may_hold = live.mapped_blocks + live.reserved_blocks
        assert may_hold
        await lose(tiers, live.session)
        await tiers.objects.mending.mend(Lost(sessions=frozenset({live.session})))
        assert live.mapped_blocks + live.reserved_blocks == may_hold
        assert tiers.plane.limits[ino] == may_hold * 4096
        _, leases, _, reserved, _ = await books_of(tiers, ino)
        assert (leases, reserved[Tier.DDR]) == (1, live.reserved_blocks)
        tiers.write(ino, content(2))
        await tiers.objects.release(ino, write=True)
        await tiers.objects.demote(ino)
        assert await tiers.read(ino) == content(2)


async def test_room_that_others_took_meanwhile_is_no_reason(root):
    async with tiers_at(root, ddr_mib=1) as tiers:
        ino = await tiers.make(b"a", content(1))
        before = await tiers_say(tiers)
        session = tiers.objects.lives.sessions[ino]
        await tiers.device.run(Unmap(session=session, slot=LIVE_SLOT))
        taker = await tiers.begin(b"b")
        free = (await tiers.books.tier(Tier.DDR)).free_blocks
        live = tiers.objects.lives.by_ino[taker]
        assert await tiers.books.reserve(live, live.reserved_blocks + free)
        await tiers.objects.mending.mend(Lost(sessions=frozenset({session})))
        assert (await tiers.books.tier(Tier.DDR)).used_blocks == before[0][0]
        await tiers.objects.release(taker, write=True)
        assert await tiers.read(ino) == content(1)


async def test_two_objects_that_got_one_context_are_told_apart(root):
    """A damaged key was that of another session: one context went, the other one answers to the wrong name."""
    async with tiers_at(root) as tiers:
        a, b = await tiers.make(b"a", content(1)), await tiers.make(b"b", content(2))
        before = await books_of(tiers, a), await books_of(tiers, b), await tiers_say(tiers)
        sessions = tiers.objects.lives.sessions
        lost = sessions[b]
        for ino in (a, b):
            await tiers.device.run(SessionDestroy(session=sessions[ino]))
        sessions[a] = tiers.objects.lives.by_ino[a].session = (await tiers.device.run(SessionCreate(key=b))).value
        await tiers.objects.mending.mend(Lost(sessions=frozenset({lost})))
        assert (await books_of(tiers, a), await books_of(tiers, b), await tiers_say(tiers)) == before
        assert tiers.objects.mending.counts.mended == 2


async def test_object_that_goes_before_it_is_mended(root):
    async with tiers_at(root) as tiers:
        ino = await tiers.make(b"a", content(1))
        session = tiers.objects.lives.sessions[ino]
        await destroy(tiers, session)
        await tiers.objects.discard(ino)
        await tiers.objects.mending.mend(Lost(sessions=frozenset({session})))
        assert await tiers_say(tiers) == [(0, 0), (0, 0)]
        assert not (tiers.config.ddr.path / f"{ino:x}").exists()


async def test_losses_that_nobody_counted_are_anybodys(root):
    async with tiers_at(root) as tiers:
        inos = [await make(tiers, how) for how in ("dirty", "copied", "cold")]
        before = [await books_of(tiers, ino) for ino in inos], await tiers_say(tiers)
        for ino in inos:
            await unmap(tiers, tiers.objects.lives.sessions[ino])
        await tiers.objects.mending.mend(Lost(sessions=frozenset(), every=True))
        assert ([await books_of(tiers, ino) for ino in inos], await tiers_say(tiers)) == before


async def test_object_that_can_not_be_mended_is_quarantined(root, claim_log):
    claim_log("object quarantined")
    async with tiers_at(root) as tiers:
        ino, gone = await tiers.make(b"a", content(1)), await tiers.make(b"gone", content(2))
        lost = Lost(sessions=frozenset(tiers.objects.lives.sessions[each] for each in (ino, gone)))
        (tiers.config.ddr.path / f"{ino:x}").unlink()
        await tiers.objects.discard(gone)
        await tiers.objects.mending.mend(lost)
        assert (tiers.objects.mending.counts.mended, tiers.objects.mending.counts.damaged) == (0, 1)
        with pytest.raises(DamagedError):
            await tiers.objects.open(ino, write=False)
        [fault] = tiers.catalog.placements.faults(2)
        assert fault.path == b"/a"


async def test_tables_that_were_damaged_when_the_card_died(root, claim_log):
    """A real engine: entries are overwritten between the card's death and the recovery; every object is whole after."""
    claim_log("the engine goes on in process")
    claim_log("lost when the tables were repaired")
    cards, made = [], []

    def prepare():
        cards.append(FakeCard(Script()))
        return Card.prepare(cards[-1])

    async def open_device(capacity):
        tables = Tables.make(page_bytes=PAGE_BYTES, capacity_blocks=capacity, sessions_max=4096)
        made.append(await ResilientDevice.open(tables, prepare, wanted="it", deadline_s=2.0))
        return made[-1]

    async with tiers_at(root, open_device=open_device) as tiers, trio.open_nursery() as nursery:
        device = made[0]
        assert not device.state.degraded
        nursery.start_soon(tiers.objects.mending.run, device)
        inos = [await make(tiers, how) for how in ("dirty", "copied", "cold")]
        before = [await books_of(tiers, ino) for ino in inos], await tiers_say(tiers)
        tables = device._tables
        translate = [Translate(session=tiers.objects.lives.sessions[ino], slot=LIVE_SLOT) for ino in inos]
        runs = [completion.runs[0] for completion in await device.submit(translate)]
        cards[0].die()
        for run in runs:
            damage(tables.memory, run, page=run.first_page + 1)
        await tiers.books.tier(Tier.DDR)
        with trio.fail_after(WAIT_S):
            while tiers.objects.mending.counts.mended < len(inos):
                await trio.sleep(0.001)
        assert device.state.degraded
        assert device.state.losses_count == len(inos)
        assert await device.check() == []
        assert ([await books_of(tiers, ino) for ino in inos], await tiers_say(tiers)) == before
        assert (await device.take_back()).transport == "fake"
        for ino in inos:
            assert await tiers.read(ino) == content(1)
            await tiers.objects.demote(ino)
            assert await tiers.read(ino) == content(1)
        assert tiers.catalog.placements.faults(1) == []
        nursery.cancel_scope.cancel()
