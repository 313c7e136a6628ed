"""A card that comes back, or does not: nobody waits for its opening, and a failure on the way costs nothing."""

from __future__ import annotations

import signal
import threading
from typing import TYPE_CHECKING

import pytest
import trio

from kvdriver import DeviceAddress, FaultKind, ResilientDevice
from kvdriver.opening import card_preparer
from support import card_program
from support.fake_card import Script
from t2_driver.conformance.test_model import Player
from t2_driver.test_faults import DEADLINE_S, Bench, make_tables

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

WAIT_S = 10.0
GIVE_S = 0.2
SUBMITS_MIN = 50

FAILS_WITH_THE_TABLES = {
    "memory": FaultKind.UNUSABLE,
    "deaf": FaultKind.TIMEOUT,
    "refuses": FaultKind.FAULTED,
    "stuck": FaultKind.TIMEOUT,
}


async def open_without_card(bench: Bench, *, prepare_s: float = WAIT_S) -> tuple[ResilientDevice, Player]:
    """Return a device that could not have its card, with some pages."""
    bench.script.openings.insert(0, "magic")
    device = await ResilientDevice.open(
        make_tables(), bench.prepare, wanted="it", deadline_s=DEADLINE_S, prepare_s=prepare_s, give_s=GIVE_S
    )
    assert device.state.faults == {"unusable": 1}
    player = Player(device, 1)
    await player.play(5)
    return device, player


async def until(condition: Callable[[], bool]) -> None:
    with trio.fail_after(WAIT_S):
        while not condition():
            await trio.sleep(0.005)


async def test_submits_go_on_while_the_card_hangs_in_its_opening(claim_log: Callable[[str], None]) -> None:
    claim_log("the engine goes on in process")
    bench = Bench(Script())
    device, player = await open_without_card(bench)
    bench.script.hold = threading.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(device.take_back)
        await until(lambda: bench.script.held == 1)
        with trio.fail_after(WAIT_S):
            await player.play(SUBMITS_MIN)
        assert bench.script.held == 1
        assert device.state.degraded
        bench.script.hold.set()
    assert (device.state.transport, device.state.taken_back) == ("fake", 1)
    await player.play(5)
    await player.compare_all()
    assert await device.check() == []
    device.close()


async def test_opening_that_takes_too_long_is_given_up_and_its_card_closed(claim_log: Callable[[str], None]) -> None:
    claim_log("the engine goes on in process")
    bench = Bench(Script())
    device, player = await open_without_card(bench, prepare_s=0.05)
    bench.script.hold = threading.Event()
    assert "did not open" in (await device.take_back()).reason
    assert "still being opened" in (await device.take_back()).reason
    assert device.state.faults == {"unusable": 1, "timeout": 2}
    assert bench.script.held == 1, "one thread waits, however often it is tried"
    with trio.CancelScope() as scope:
        scope.cancel()
        await device.take_back()
    assert scope.cancelled_caught
    bench.script.hold.set()
    await until(lambda: len(bench.cards) == 2 and bench.cards[1].closed)
    assert device.state.degraded
    await until(lambda: "idle" in repr(device._preparer))
    assert (await device.take_back()).transport == "fake"
    await player.play(5)
    await player.compare_all()
    device.close()


async def test_cancelled_opening_is_not_waited_for(claim_log: Callable[[str], None]) -> None:
    claim_log("the engine goes on in process")
    bench = Bench(Script())
    device, _ = await open_without_card(bench)
    bench.script.hold = threading.Event()
    with trio.fail_after(WAIT_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(device.take_back)
            await until(lambda: bench.script.held == 1)
            nursery.cancel_scope.cancel()
    assert bench.script.held == 1
    device.close()
    bench.script.hold.set()
    await until(lambda: len(bench.cards) == 2 and bench.cards[1].closed)


async def test_device_that_is_closed_while_its_card_opens(claim_log: Callable[[str], None]) -> None:
    claim_log("the engine goes on in process")
    bench = Bench(Script())
    device, _ = await open_without_card(bench)
    bench.script.hold = threading.Event()

    async def take_back() -> None:
        with pytest.raises(ValueError, match="closed"):
            await device.take_back()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(take_back)
        await until(lambda: bench.script.held == 1)
        device.close()
        bench.script.hold.set()
    assert bench.cards[1].closed


@pytest.mark.parametrize("wrong", FAILS_WITH_THE_TABLES)
async def test_failure_with_the_tables_gives_them_back(wrong: str, claim_log: Callable[[str], None]) -> None:
    claim_log("the engine goes on in process")
    if wrong == "deaf":  # it may yet do what it was told
        claim_log("going on in a copy")
    bench = Bench(Script())
    device, player = await open_without_card(bench)
    bench.script.openings.append(wrong)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(device.take_back)
        with trio.fail_after(WAIT_S):
            await until(lambda: len(bench.cards) == 2)
            await player.play(SUBMITS_MIN)
    named = FAILS_WITH_THE_TABLES[wrong].value
    assert device.state.faults == ({"unusable": 2} if named == "unusable" else {"unusable": 1, named: 1})
    assert (device.state.degraded, device.state.losses, device.state.taken_back) == (True, (), 0)
    assert bench.cards[1].closed
    assert await device.check() == []
    await player.compare_all()
    assert (await device.take_back()).transport == "fake"
    await player.play(5)
    await player.compare_all()
    assert await device.check() == []
    device.close()


@pytest.mark.skipif(card_program.program() is None, reason="kvd-card is not installed")
async def test_stopped_card_holds_up_nobody(scratch: Path, claim_log: Callable[[str], None]) -> None:
    claim_log("the engine goes on in process")
    socket = scratch / "card.sock"
    address = DeviceAddress.parse(f"vfio-user:{socket}")
    with card_program.running(socket) as process:
        process.send_signal(signal.SIGSTOP)
        try:
            device = await ResilientDevice.open(make_tables(), card_preparer(address), wanted="it")
            assert device.state.degraded
            player = Player(device, 2)
            ended = False

            async def take_back() -> None:
                nonlocal ended
                await device.take_back()
                ended = True

            meanwhile = 0
            async with trio.open_nursery() as nursery:
                nursery.start_soon(take_back)
                while not ended:
                    await player.play(1)
                    await trio.lowlevel.checkpoint()
                    meanwhile += not ended
            assert meanwhile >= SUBMITS_MIN
            assert device.state.degraded
        finally:
            process.send_signal(signal.SIGCONT)
        with trio.fail_after(WAIT_S):
            while (await device.take_back()).degraded:
                await player.play(1)
        await player.play(5)
        await player.compare_all()
        assert await device.check() == []
        device.close()
