"""Resets in the middle of a batch. The card is told to go wrong after so many commands, so these tests come first.

kvd-card --fault reset-mid-batch=50 --fault never-completes=600
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import card
import trio
import vfio_device

from kvdriver import Map, MapRun, SessionCreate, Status, Tier, Translate, Unmap
from t2_driver.conformance.test_model import Player

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvdriver import Command, ResilientDevice

PAGES = 1000
"""More commands than the ring has entries."""
BACK_S_MAX = 60.0


def maps(session: int) -> list[Command]:
    """Return commands that are refused if they are executed twice."""
    return [
        Map(session=session, slot=0, tier=Tier.DDR, runs=(MapRun(first_page=2 * page, count=1, blocks=1),))
        for page in range(PAGES)
    ]


async def mapped(device: ResilientDevice, session: int) -> list[int]:
    runs = (await device.run(Translate(session=session, slot=0))).runs
    return [run.first_page + at for run in runs for at in range(run.count)]


async def test_a_card_that_resets_itself_begins_anew(claim_log: Callable[[str], None]):
    claim_log("the card begins anew")
    device = await card.open_resilient()
    try:
        session = (await device.run(SessionCreate(key=1))).value
        done = await device.submit(maps(session)[:300])
        assert {completion.status for completion in done} == {Status.OK}
        assert device.state.faults == {"reset": 1}
        assert (device.state.transport, device.state.degraded, device.state.losses) == ("vfio", False, ())
        assert device.state.replayed > 0
        assert await mapped(device, session) == [2 * page for page in range(300)]
        assert await device.check() == []
    finally:
        device.close()


async def test_function_level_reset_while_it_works(claim_log: Callable[[str], None]):
    """The kernel resets the function below the driver; whatever it sees of that, each command is executed once."""
    claim_log("the card begins anew")
    claim_log("the engine goes on in process")
    device = await card.open_resilient()
    sequence = device._tables.local.sequence
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(device.tend)
            session = (await device.run(SessionCreate(key=1))).value
            async with trio.open_nursery() as work:
                work.start_soon(_reset_when_it_hangs, sequence, sequence() + PAGES)
                done = await device.submit(maps(session))
            assert {completion.status for completion in done} == {Status.OK}
            assert set(device.state.faults) <= {"reset", "gone"}
            assert device.state.faults
            assert device.state.replayed > 0
            assert device.state.losses == ()
            with trio.fail_after(BACK_S_MAX):
                while device.state.degraded:
                    await trio.sleep(0.1)
            assert device.state.transport == "vfio"
            assert await mapped(device, session) == [2 * page for page in range(PAGES)]
            freed = (await device.run(Unmap(session=session, slot=0))).value
            assert freed == PAGES
            nursery.cancel_scope.cancel()
        assert await device.check() == []
    finally:
        device.close()


async def _reset_when_it_hangs(sequence: Callable[[], int], target: int) -> None:
    at = await trio.to_thread.run_sync(card.until_still, sequence, target)
    logging.getLogger(__name__).info("hangs after %d commands", at)
    reset = vfio_device.DEVICES / card.slot() / "reset"
    await trio.to_thread.run_sync(reset.write_text, "1\n")


async def test_reset_on_demand_keeps_what_is_there():
    """What `kvctl device reset` makes the daemon do, between batches held against a model."""
    device = await card.open_resilient()
    try:
        player = Player(device, 7)
        for _ in range(3):
            await player.play(3)
            assert not (await device.take_back()).degraded
            await player.compare_all()
        assert device.state.losses == ()
        assert await device.check() == []
    finally:
        device.close()
