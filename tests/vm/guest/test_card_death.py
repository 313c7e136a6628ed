"""The card dies while it works: SIGKILL of the model, on the host. The last that a guest sees of it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import card
import host_port
import trio
import vfio_device

from kvdriver import Map, MapRun, SessionCreate, Status, Tier, Translate
from t2_driver.conformance.test_model import Player

if TYPE_CHECKING:
    from collections.abc import Callable

PAGES = 2000
KILL_AFTER = 100
CLOSE_S_MAX = 20.0
"""With the kernel waiting for the reset of a dead device it would be 70 s."""


async def test_nothing_is_lost_when_it_dies(claim_log: Callable[[str], None]):
    claim_log("the engine goes on in process")
    where = card.slot()
    methods = vfio_device.DEVICES / where / "reset_method"
    before = methods.read_text()
    assert before.strip()
    device = await card.open_resilient()
    player = Player(device, 11)
    await player.play(5)
    session = (await device.run(SessionCreate(key=1 << 20))).value
    batch = [
        Map(session=session, slot=0, tier=Tier.NVME, runs=(MapRun(first_page=2 * page, count=1, blocks=1),))
        for page in range(PAGES)
    ]
    sequence = device._tables.local.sequence
    start = sequence()
    started_s = time.monotonic()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_kill_in_the_middle, sequence, start + KILL_AFTER)
        done = await device.submit(batch)
        if not device.state.degraded:  # it was quicker than the kill
            done += await device.submit([Translate(session=session, slot=0)])
    took_s = time.monotonic() - started_s
    assert {completion.status for completion in done} == {Status.OK}
    with trio.fail_after(card.DEADLINE_S):
        while not device.state.degraded:
            await device.submit([Translate(session=session, slot=0)])
    assert (device.state.transport, set(device.state.faults), device.state.losses) == ("in-process", {"gone"}, ())
    assert "all ones" in device.state.reason
    assert took_s < CLOSE_S_MAX + card.DEADLINE_S
    runs = (await device.run(Translate(session=session, slot=0))).runs
    assert [run.first_page for run in runs if run.count == 1] == [2 * page for page in range(PAGES)]
    assert methods.read_text() == before
    await player.compare_all()
    assert await device.check() == []
    started_s = time.monotonic()
    device.close()
    assert time.monotonic() - started_s < CLOSE_S_MAX


async def _kill_in_the_middle(sequence: Callable[[], int], target: int) -> None:
    end_s = trio.current_time() + card.DEADLINE_S
    while sequence() < target:
        assert trio.current_time() < end_s
        await trio.sleep(0)
    await trio.to_thread.run_sync(host_port.ask, "kill card")
