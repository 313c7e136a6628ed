"""Every fault of a card: named, nothing lost, the engine goes on in process, and the card is taken back."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import trio

from kvdriver import (
    CardDevice,
    DeviceFault,
    FaultKind,
    Gather,
    Map,
    MapRun,
    ResilientDevice,
    Scatter,
    SessionCreate,
    Status,
    Tier,
    Transfer,
    Translate,
)
from kvdriver.card import Card
from kvdriver.memory import SharedMemory
from kvdriver.tables import Tables
from support.fake_card import FakeCard, Script, Trick
from t2_driver.conformance.test_model import CAPACITY, Player

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvdriver import Command, Completion

PAGE_BYTES = 65536
SESSIONS_MAX = 16
DEADLINE_S = 0.3


def make_tables() -> Tables:
    return Tables.make(page_bytes=PAGE_BYTES, capacity_blocks=CAPACITY, sessions_max=SESSIONS_MAX)


class Bench:
    """A device that falls back, on cards that follow a script."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.cards: list[FakeCard] = []

    def prepare(self) -> Card:
        transport = FakeCard(self.script)
        self.cards.append(transport)
        return Card.prepare(transport)

    async def open(self) -> ResilientDevice:
        return await ResilientDevice.open(make_tables(), self.prepare, wanted="fake:card", deadline_s=DEADLINE_S)


AT = 100
"""The command at which the trick is played: in the middle of a batch, as most are."""

NAMED = {
    Trick.ALL_ONES: FaultKind.GONE,
    Trick.DEAD_BAR: FaultKind.GONE,
    Trick.UNKNOWN_ID: FaultKind.BAD_COMPLETION,
    Trick.LYING_PHASE: FaultKind.BAD_COMPLETION,
    Trick.UNKNOWN_STATUS: FaultKind.BAD_COMPLETION,
    Trick.NEVER_COMPLETES: FaultKind.TIMEOUT,
    Trick.NEVER_EXECUTES: FaultKind.TIMEOUT,
    Trick.REMOVAL: FaultKind.REMOVED,
    Trick.FAULT: FaultKind.FAULTED,
    Trick.DIE_BEFORE: FaultKind.GONE,
    Trick.DIE_AFTER: FaultKind.GONE,
    Trick.DEAF: FaultKind.TIMEOUT,
}

DEAD = {Trick.ALL_ONES, Trick.DEAD_BAR, Trick.DIE_BEFORE, Trick.DIE_AFTER, Trick.DEAF}
"""After which nothing is asked of the card any more, and nobody waits for its reset."""


@pytest.mark.parametrize("gone", [False, True])
async def test_death_that_only_the_close_notices(gone: bool) -> None:
    bench = Bench(Script())
    device = await bench.open()
    if gone:
        bench.cards[0].vanish()
    device.close()
    assert bench.cards[0].closed_as_dead == gone


@pytest.mark.parametrize("at", [0, 1, AT, AT + 1, AT + 37])
@pytest.mark.parametrize("trick", NAMED, ids=lambda trick: trick.name.lower())
async def test_fault_loses_nothing(trick: Trick, at: int, claim_log: Callable[[str], None]) -> None:
    claim_log("the engine goes on in process")
    bench = Bench(Script(tricks={at: trick}))
    device = await bench.open()
    assert device.state.transport == "fake"
    async with trio.open_nursery() as nursery:
        nursery.start_soon(device.tend)
        player = Player(device, at)
        await player.play(30)
        with trio.fail_after(5):
            while not device.state.degraded:
                await player.play(1)
        state = device.state
        assert (state.transport, state.wanted) == ("in-process", "fake:card")
        assert state.faults == {NAMED[trick].value: 1}
        assert state.reason
        assert state.losses == ()
        assert bench.cards[0].closed
        assert bench.cards[0].closed_as_dead == (trick in DEAD)
        assert await device.check() == []
        await player.play(10)
        await player.compare_all()
        assert (await device.take_back()).transport == "fake"
        assert not device.state.degraded
        await player.play(10)
        await player.compare_all()
        assert (device.state.taken_back, len(bench.cards)) == (1, 2)
        assert await device.check() == []
        nursery.cancel_scope.cancel()
    device.close()


@pytest.mark.parametrize(
    "trick", [Trick.DIE_BEFORE, Trick.DIE_AFTER, Trick.RESET], ids=lambda trick: trick.name.lower()
)
@pytest.mark.parametrize("at", range(2, 6))
async def test_bytes_that_were_on_their_way(trick: Trick, at: int, claim_log: Callable[[str], None]) -> None:
    """What a card was to move is moved by another, which knows the memory by other addresses."""
    claim_log("the engine goes on in process")
    claim_log("the card begins anew")
    bench = Bench(Script(tricks={at: trick}))
    device = await bench.open()
    tier, host = SharedMemory("kvd-tier", 2 << 20), SharedMemory("kvd-host", 2 << 20)
    for memory in (tier, host):
        await device.map_memory(memory)
    await device.tier_memory(Tier.DDR, tier)
    session = (await device.run(SessionCreate(key=1))).value
    runs = (MapRun(first_page=0, count=4, blocks=16),)
    await device.run(Map(session=session, slot=0, tier=Tier.DDR, runs=runs))
    sent = random.Random(at).randbytes(100_000)
    host.view[: len(sent)] = sent
    batch: list[Command] = []
    for place in range(2):
        there = Transfer(host=host.address, host_bytes=len(sent), page_offset=place * 70_000)
        back = replace(there, host=host.address + (1 + place) * 300_000)
        batch += [
            Scatter(session=session, slot=0, count=4, transfer=there),
            Gather(session=session, slot=0, count=4, transfer=back),
        ]
    assert [each.value for each in await device.submit(batch)] == [len(sent)] * 4
    for place in range(2):
        assert host.view[(1 + place) * 300_000 :][: len(sent)] == sent
    assert sum(device.state.faults.values()) == 1
    assert device.state.degraded == (trick is not Trick.RESET)
    if device.state.degraded:
        await device.take_back()
        host.view[300_000:1_000_000] = bytes(700_000)
        assert [each.value for each in await device.submit(batch)] == [len(sent)] * 4
        assert host.view[600_000:][: len(sent)] == sent
    for memory in (tier, host):
        await device.unmap_memory(memory)
    device.close()
    for memory in (tier, host):
        memory.close()


async def test_reset_in_the_middle_of_a_batch_is_replayed_on_the_card(claim_log: Callable[[str], None]) -> None:
    claim_log("the card begins anew")
    for at in range(AT, AT + 40, 7):
        bench = Bench(Script(tricks={at: Trick.RESET}))
        device = await bench.open()
        player = Player(device, at)
        await player.play(40)
        await player.compare_all()
        assert device.state.faults == {"reset": 1}
        assert (device.state.transport, device.state.degraded) == ("fake", False)
        assert device.state.replayed > 0
        assert len(bench.cards) == 1
        assert await device.check() == []
        device.close()


async def test_card_that_is_reset_again_and_again_is_given_up(claim_log: Callable[[str], None]) -> None:
    claim_log("the card begins anew")
    claim_log("the engine goes on in process")
    bench = Bench(Script(tricks=dict.fromkeys(range(AT, AT + 50), Trick.RESET)))
    device = await bench.open()
    player = Player(device, 5)
    await player.play(60)
    await player.compare_all()
    assert device.state.degraded
    assert device.state.faults == {"reset": 2}
    device.close()


async def test_lost_interrupts_are_no_fault() -> None:
    bench = Bench(Script(tricks={3: Trick.NO_INTERRUPT}))
    device = await bench.open()
    card: Any = device._card
    card._spin_ns = 0  # so that the interrupt is waited for
    player = Player(device, 1)
    with trio.fail_after(20):
        await player.play(30)
    await player.compare_all()
    assert not device.state.degraded
    assert card.counts.lost_interrupts == 3
    assert card.counts.polled
    assert card.counts.interrupts > 0
    device.close()


async def test_removal_of_an_idle_card(claim_log: Callable[[str], None]) -> None:
    claim_log("the engine goes on in process")
    bench = Bench(Script())
    device = await bench.open()
    player = Player(device, 2)
    await player.play(5)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(device.tend)
        bench.cards[0].ask_for_removal()
        with trio.fail_after(2):
            while not bench.cards[0].closed:
                await trio.sleep(0.01)
        assert bench.cards[0].quiesced
        nursery.cancel_scope.cancel()
    assert device.state.faults == {"removed": 1}
    await player.play(5)
    await player.compare_all()
    device.close()


async def test_death_of_an_idle_card_is_noticed(claim_log: Callable[[str], None]) -> None:
    claim_log("the engine goes on in process")
    bench = Bench(Script())
    device = await bench.open()
    player = Player(device, 3)
    await player.play(5)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(device.tend)
        bench.cards[0].die()
        with trio.fail_after(2):
            while not device.state.degraded:
                await trio.sleep(0.01)
        nursery.cancel_scope.cancel()
    await player.play(5)
    await player.compare_all()
    device.close()


async def test_memory_that_the_card_can_not_have_costs_the_card_not_the_batch(claim_log: Callable[[str], None]) -> None:
    claim_log("the engine goes on in process")
    bench = Bench(Script())
    device = await bench.open()
    session = (await device.run(SessionCreate(key=1))).value
    runs = tuple(MapRun(first_page=2 * number, count=1, blocks=1) for number in range(60_000))
    place = Map(session=session, slot=0, tier=Tier.NVME, runs=runs)

    async def without_mappings(batch: list[Command]) -> list[Completion]:
        card: Any = device._card
        card._card.space._mappings_max = 2
        completions = await device.submit(batch)
        assert device.state.degraded
        await device.take_back()
        assert not device.state.degraded
        return completions

    # Of the first nothing is executed; of the second all but the longer list of the last TRANSLATE.
    [mapped, *others] = await without_mappings([place] * 4)
    assert [mapped.status, *(each.status for each in others)] == [Status.OK, *[Status.NO_SPACE] * 3]
    *found, made = await without_mappings([*[Translate(session=session, slot=0)] * 3, SessionCreate(key=2)])
    assert [len(each.runs) for each in found] == [60_000] * 3
    assert made.status is Status.OK
    assert device.state.faults == {"unusable": 2}
    assert (await device.submit([SessionCreate(key=2)]))[0].status is Status.EXISTS
    assert await device.check() == []
    device.close()


@pytest.mark.parametrize("wrong", ["gone", "magic", "version", "loop", "long", "queues"])
async def test_card_that_can_not_be_used(wrong: str, claim_log: Callable[[str], None]) -> None:
    claim_log("the engine goes on in process")
    bench = Bench(Script(openings=[wrong]))
    device = await bench.open()
    named = FaultKind.GONE if wrong == "gone" else FaultKind.UNUSABLE
    assert device.state.faults == {named.value: 1}
    assert bench.cards[0].closed
    player = Player(device, 4)
    await player.play(5)
    await device.take_back()
    assert not device.state.degraded
    await player.play(5)
    await player.compare_all()
    device.close()


async def test_card_is_tried_again_ever_more_rarely(
    claim_log: Callable[[str], None], autojump_clock: trio.testing.MockClock
) -> None:
    claim_log("the engine goes on in process")
    autojump_clock.autojump_threshold = 0.05  # cards are opened in threads, which the clock must not overtake
    bench = Bench(Script(openings=["magic"] * 5))
    device = await bench.open()
    begin_s = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(device.tend)
        while device.state.degraded:
            await trio.sleep(1)
        nursery.cancel_scope.cancel()
    assert len(bench.cards) == 6
    assert trio.current_time() - begin_s >= 1 + 2 + 4 + 8 + 16
    device.close()


async def test_cancelled_submit_is_whole_or_not_begun() -> None:
    tables = make_tables()
    tables.local.leave()
    script = Script()
    device = CardDevice(Card.open(FakeCard(script), tables.memory), tables.local, deadline_s=DEADLINE_S)
    for key in range(8):
        with trio.CancelScope() as scope:
            scope.cancel()
            await device.submit([SessionCreate(key=key)])
    assert script.executed == 0
    done = []
    async with trio.open_nursery() as nursery:

        async def submit(key: int) -> None:
            done.extend(await device.submit([SessionCreate(key=key) for key in range(key, key + 4)]))

        for key in range(0, 12, 4):
            nursery.start_soon(submit, key)
        await trio.lowlevel.checkpoint()
        await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
    assert script.executed % 4 == 0
    assert len(done) == script.executed
    assert (await device.submit([SessionCreate(key=100)]))[0].status is Status.OK
    device.close()
    tables.close()


async def test_failed_card_says_so_to_everybody() -> None:
    tables = make_tables()
    tables.local.leave()
    device = CardDevice(
        Card.open(FakeCard(Script(tricks={1: Trick.UNKNOWN_STATUS})), tables.memory),
        tables.local,
        deadline_s=DEADLINE_S,
    )
    with pytest.raises(DeviceFault, match="status") as raised:
        await device.submit([SessionCreate(key=1), SessionCreate(key=2), SessionCreate(key=3)])
    assert raised.value.interrupted is not None
    for call in (device.submit([]), device.check(), device.reset()):
        with pytest.raises(DeviceFault, match="status"):
            await call
    assert "bad-completion" in repr(device)
    device.close()
    with pytest.raises(ValueError, match="closed"):
        await device.submit([])
    tables.close()


async def test_reset_of_the_device_drops_all() -> None:
    bench = Bench(Script())
    device = await bench.open()
    before = Player(device, 6)
    await before.play(10)
    await device.reset()
    assert device.statistics().sessions == 0
    assert device.state.transport == "fake"
    player = Player(device, 7)
    player.model.capacity = {tier: (await player.capacity(tier)) for tier in CAPACITY}
    player.model.generation = before.model.generation
    await player.play(10)
    await player.compare_all()
    device.close()
