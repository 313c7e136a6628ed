"""The card dies while it works: SIGKILL of the model, on the host. The last that a guest sees of it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import card
import host_port
import trio
import vfio_device

from kvctl.exits import Exit
from kvdriver import Map, MapRun, Resize, SessionCreate, Tier, Unmap
from t2_driver.conformance.test_model import CAPACITY, KEYS, Player

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvdriver import Command

COMMANDS = 250
PAGES = 5000
FAIL_S_MAX = 20.0
"""From the death to the end of its batch, the device closed. With the kernel waiting for the reset of a dead device it
would be 70 s."""


async def test_nothing_is_lost_when_it_dies(claim_log: Callable[[str], None]):
    claim_log("the engine goes on in process")
    where = card.slot()
    methods = vfio_device.DEVICES / where / "reset_method"
    before = methods.read_text()
    assert before.strip()
    device = await card.open_resilient()
    player = Player(device, 11)
    await player.play(5)
    first: list[Command] = [Resize(tier=Tier.NVME, blocks=CAPACITY[Tier.NVME]), SessionCreate(key=KEYS)]
    player.compare(first, await device.submit(first))
    session = player.handles[KEYS]
    longest_s = 0.0
    with trio.fail_after(card.DEADLINE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.to_thread.run_sync, host_port.ask, "kill card")
            while not device.state.degraded:
                batch = [_command(player, session) for _ in range(COMMANDS)]
                started_s = time.monotonic()
                done = await device.submit(batch)
                longest_s = max(longest_s, time.monotonic() - started_s)
                player.compare(batch, done)
    assert longest_s < FAIL_S_MAX
    assert (device.state.transport, set(device.state.faults), device.state.losses) == ("in-process", {"gone"}, ())
    assert "all ones" in device.state.reason
    assert methods.read_text() == before
    await player.play(5)
    await player.compare_all()
    assert await device.check() == []
    # It is asked for again, is not there, and that too takes no longer.
    started_s = time.monotonic()
    assert (await device.take_back()).degraded
    assert time.monotonic() - started_s < FAIL_S_MAX
    assert methods.read_text() == before
    await player.compare_all()
    device.close()
    # And the slot can be given back all the same.
    started_s = time.monotonic()
    assert card.kvctl("device", "unbind", where) == Exit.OK
    assert card.driver(where) == card.FORMER
    assert time.monotonic() - started_s < FAIL_S_MAX


def _command(player: Player, session: int) -> Command:
    """Return a command whose answer tells whether those before it were executed, and once."""
    page = player.random.randrange(PAGES)
    if player.random.random() < 0.3:
        return Unmap(session=session, slot=0, first_page=page, count=player.random.randrange(1, 10))
    return Map(session=session, slot=0, tier=Tier.NVME, runs=(MapRun(first_page=page, count=1, blocks=1),))
