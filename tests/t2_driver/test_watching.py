"""Whoever looks after a card while others use it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from kvdriver import ResilientDevice, SessionCreate
from support.fake_card import Script, Trick
from t2_driver.test_faults import Bench, make_tables

if TYPE_CHECKING:
    from collections.abc import Callable

WAIT_S = 30.0


async def test_reset_that_a_submission_met_is_no_second_fault(claim_log: Callable[[str], None]) -> None:
    """The card hangs and is reset by somebody else; its health is asked for meanwhile and answered after it began anew."""
    claim_log("the card begins anew")
    bench = Bench(Script(tricks={3: Trick.NEVER_EXECUTES}))
    device = await ResilientDevice.open(make_tables(), bench.prepare, wanted="it", deadline_s=WAIT_S)
    card = device._card
    assert card is not None
    with trio.fail_after(WAIT_S):
        async with trio.open_nursery() as watching:
            watching.start_soon(device.tend)
            async with trio.open_nursery() as submitting:
                submitting.start_soon(device.submit, [SessionCreate(key=key) for key in range(6)])
                while not card._lock.statistics().tasks_waiting:
                    await trio.lowlevel.checkpoint()
                bench.cards[0].reset()
            assert device.state.faults == {"reset": 1}
            assert device.statistics().sessions == 6
            watching.cancel_scope.cancel()
    assert device.state.faults == {"reset": 1}  # also when a second beginning was on its way
    assert await device.check() == []
    device.close()
