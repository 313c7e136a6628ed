"""The driver over vfio-user against the program `kvd-card`, with each fault that it can be told to have."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest
import trio

from kvdriver import DeviceAddress, FaultKind, ResilientDevice
from kvdriver.opening import card_preparer
from kvdriver.ringbench import measure
from kvdriver.selftest import Step, inspect, selftest
from kvdriver.tables import Tables
from support import card_program
from t2_driver.conformance.test_model import CAPACITY, Player

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.skipif(card_program.program() is None, reason="kvd-card is not installed")

DEADLINE_S = 0.5

NAMED = {
    "all-ones": {FaultKind.GONE},
    "unknown-id": {FaultKind.BAD_COMPLETION},
    "unknown-status": {FaultKind.BAD_COMPLETION},
    "never-completes": {FaultKind.TIMEOUT},
    "dead-bar": {FaultKind.GONE},
    "remove": {FaultKind.REMOVED},
    "die": {FaultKind.GONE},
    "die-within": {FaultKind.GONE},
    "die-after": {FaultKind.GONE},
}


@pytest.fixture
def socket(scratch: Path) -> Path:
    return scratch / "card.sock"


def address_of(socket: Path) -> DeviceAddress:
    return DeviceAddress.parse(f"vfio-user:{socket}")


async def open_resilient(socket: Path) -> ResilientDevice:
    tables = Tables.make(page_bytes=65536, capacity_blocks=CAPACITY, sessions_max=16)
    return await ResilientDevice.open(tables, card_preparer(address_of(socket)), wanted="it", deadline_s=DEADLINE_S)


@pytest.mark.parametrize("at", [1, 100, 137])
@pytest.mark.parametrize("fault", NAMED)
async def test_fault_loses_nothing(fault: str, at: int, socket: Path, claim_log: Callable[[str], None]) -> None:
    claim_log("the engine goes on in process")
    process = card_program.start(socket, "--fault", f"{fault}={at}", "--grace", "100")
    device = await open_resilient(socket)
    try:
        assert device.state.transport == "vfio-user"
        async with trio.open_nursery() as nursery:
            nursery.start_soon(device.tend)
            player = Player(device, at)
            await player.play(30)
            with trio.fail_after(10):
                while not device.state.faults:
                    await player.play(1)
            nursery.cancel_scope.cancel()
        assert set(device.state.faults) <= {kind.value for kind in NAMED[fault]}
        assert device.state.losses == ()
        await player.play(10)
        await player.compare_all()
        assert await device.check() == []
        card_program.stop(process)
        process = card_program.start(socket)
        await device.take_back()
        assert (device.state.transport, device.state.degraded) == ("vfio-user", False)
        await player.play(10)
        await player.compare_all()
        assert await device.check() == []
    finally:
        device.close()
        card_program.stop(process)


async def test_lying_phase_is_named_or_harmless(socket: Path, claim_log: Callable[[str], None]) -> None:
    """The lie stands until the next completion is written over it, which may be before anybody looks."""
    claim_log("the engine goes on in process")
    faults = [word for number in range(8) for word in ("--fault", f"lying-phase={10 + 7 * number}")]
    with card_program.running(socket, *faults):
        device = await open_resilient(socket)
        player = Player(device, 12)
        await player.play(60)
        await player.compare_all()
        assert device.state.faults in ({}, {"bad-completion": 1})
        assert await device.check() == []
        device.close()


async def test_reset_in_the_middle_of_a_batch_is_replayed_on_the_card(
    socket: Path, claim_log: Callable[[str], None]
) -> None:
    claim_log("the card begins anew")
    with card_program.running(socket, "--fault", "reset-mid-batch=100"):
        device = await open_resilient(socket)
        player = Player(device, 8)
        await player.play(30)
        await player.compare_all()
        assert (device.state.transport, device.state.faults) == ("vfio-user", {"reset": 1})
        assert await device.check() == []
        device.close()


async def test_interrupt_that_never_comes_is_no_fault(socket: Path) -> None:
    with card_program.running(socket, "--fault", "no-interrupt=10"):
        device = await open_resilient(socket)
        player = Player(device, 9)
        await player.play(30)
        await player.compare_all()
        assert not device.state.degraded
        device.close()


async def test_killed_card(socket: Path, claim_log: Callable[[str], None]) -> None:
    """SIGKILL at any moment, again and again."""
    claim_log("the engine goes on in process")
    device = None
    for life in range(6):
        process = card_program.start(socket)
        try:
            if device is None:
                device = await open_resilient(socket)
                player = Player(device, 10)
            else:
                await device.take_back()
            assert device.state.transport == "vfio-user"
            async with trio.open_nursery() as nursery:

                async def kill(after_s: float) -> None:
                    await trio.sleep(after_s)
                    process.send_signal(signal.SIGKILL)  # noqa: B023

                nursery.start_soon(kill, 0.005 + 0.01 * life)
                while not device.state.degraded:
                    await player.play(1)
            await player.compare_all()
            assert await device.check() == []
        finally:
            card_program.stop(process)
    assert device is not None
    assert device.state.losses == ()
    device.close()


async def test_stopped_card_that_wakes_up_writes_to_nobodys_tables(
    socket: Path, claim_log: Callable[[str], None]
) -> None:
    claim_log("the engine goes on in process")
    claim_log("going on in a copy")
    with card_program.running(socket) as process:
        device = await open_resilient(socket)
        player = Player(device, 13)
        await player.play(20)
        file = os.fstat(device._tables.memory.fd).st_ino  # type: ignore[union-attr]
        process.send_signal(signal.SIGSTOP)
        try:
            await player.play(1)
            assert device.state.faults == {"timeout": 1}
            assert device.state.losses == ()
            assert os.fstat(device._tables.memory.fd).st_ino != file  # type: ignore[union-attr]
            await player.play(20)
        finally:
            process.send_signal(signal.SIGCONT)
        with trio.fail_after(10):
            while (await device.take_back()).degraded:
                await player.play(1)
        await player.play(10)
        await player.compare_all()
        assert await device.check() == []
        device.close()


async def test_selftest_and_description(socket: Path) -> None:
    with card_program.running(socket):
        told = inspect(address_of(socket))
        assert (told["vendor"], told["device"], told["transport"]) == ("1234", "6b76", "vfio-user")
        assert "MAP" in told["operations"]
        steps: list[Step] = []
        await selftest(address_of(socket), steps.append)
        assert [step.told for step in steps if not step.passed] == []
        assert steps[-1].name == "tables"


async def test_selftest_names_the_step_that_fails(socket: Path) -> None:
    steps: list[Step] = []
    await selftest(address_of(socket), steps.append)
    assert [(step.name, step.passed) for step in steps] == [("open", False)]
    assert str(socket) in steps[0].told
    with card_program.running(socket, "--fault", "unknown-status=2"):
        await selftest(address_of(socket), steps.append)
    assert (steps[-1].name, steps[-1].passed) == ("map", False)
    assert "status" in steps[-1].told


async def test_speed_is_measured(socket: Path) -> None:
    with card_program.running(socket):
        speed = await measure(address_of(socket), rounds=200, commands=2000)
    assert 0 < speed.rtt_us < 1_000_000
    assert speed.mcmds > 0
