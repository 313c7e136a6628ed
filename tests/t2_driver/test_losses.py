"""Losses come from the repair of the tables to whoever mends the objects, each once, however many they are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from kvdriver import Loss, Lost, Map, MapRun, Repair, SessionCreate, Tier, Translate
from kvdriver.losses import LOSSES_MAX, SESSIONS_MAX, LostSessions
from support.fake_card import Script
from support.tables import damage
from t2_driver.test_faults import Bench

if TYPE_CHECKING:
    from collections.abc import Callable


def loss(session: int) -> Loss:
    return Loss(session=session, slot=0, first_page=0, count=1, told="told")


@pytest.mark.parametrize("damaged", [1, 3, LOSSES_MAX + 20])
async def test_damaged_entries_are_named(damaged: int, claim_log: Callable[[str], None]) -> None:
    claim_log("the engine goes on in process")
    claim_log("lost when the tables were repaired")
    bench = Bench(Script())
    device = await bench.open()
    tables = device._tables
    assert tables is not None
    session = (await device.run(SessionCreate(key=7))).value
    runs = (MapRun(first_page=100, count=2 * damaged, blocks=1),)
    await device.run(Map(session=session, slot=2, tier=Tier.NVME, runs=runs))
    [run] = (await device.run(Translate(session=session, slot=2))).runs
    bench.cards[0].die()
    pages = [
        run.first_page + 1 + 2 * number for number in range(damaged)
    ]  # not beside each other, or they were one loss
    for page in pages:
        damage(tables.memory, run, page=page)
    left = (await device.run(Translate(session=session, slot=2))).runs
    assert [each.first_page for each in left] == [page - 1 for page in pages]
    assert device.state.losses_count == damaged
    assert device.state.losses[0 if damaged < 100 else -1].startswith(
        f"session {session:x}, slot 2: pages 101 to 101 are lost" if damaged < 100 else "and 20 more losses"
    )
    every = damaged > LOSSES_MAX
    with trio.fail_after(5):
        assert await device.lost() == Lost(sessions=frozenset() if every else frozenset({session}), every=every)
    with trio.move_on_after(0.01) as scope:
        await device.lost()
    assert scope.cancelled_caught, "each loss is told once"
    device.close()


async def test_losses_wait_for_who_asks_late_and_come_together() -> None:
    lost = LostSessions()
    lost.add(Repair())
    lost.add(Repair(losses=(loss(0),)))  # of no session, so there is nothing to mend
    told = []

    async def take() -> None:
        told.append(await lost.take())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(take)
        await wait_all_tasks_blocked()
        assert told == []
        lost.add(Repair(losses=(loss(1), loss(2), loss(1))))
        lost.add(Repair(losses=(loss(3),)))
    assert told == [Lost(sessions=frozenset({1, 2, 3}))]


async def test_more_sessions_than_are_kept_are_every_one() -> None:
    lost = LostSessions()
    for first in range(0, SESSIONS_MAX + 1, LOSSES_MAX):
        lost.add(Repair(losses=tuple(loss(1 + session) for session in range(first, first + LOSSES_MAX))))
    assert await lost.take() == Lost(sessions=frozenset(), every=True)
