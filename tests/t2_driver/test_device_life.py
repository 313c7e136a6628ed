"""The commands that follow a session's life: states, windows, ages. Each device must do the same."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pytest

from kvdriver import (
    AgeCursor,
    AgeScan,
    EngineError,
    Event,
    Flush,
    Map,
    MapRun,
    QuerySession,
    SessionCreate,
    State,
    Status,
    Tier,
    Touch,
    Translate,
    WindowAdvance,
)
from kvdriver import SessionTransition as Transition
from kvdriver.abi import NEXT_STATE

if TYPE_CHECKING:
    from kvdriver import Command, Device

PAGE_BYTES = 65536


async def create(device: Device, key: int = 1) -> int:
    return (await device.run(SessionCreate(key=key))).value


async def refusal(device: Device, command: Command) -> tuple[Status, int]:
    [completion] = await device.submit([command])
    return completion.status, completion.value


async def state(device: Device, session: int) -> State:
    info = (await device.run(QuerySession(session=session))).session
    assert info is not None
    return info.state


async def test_a_life(device: Device) -> None:
    session = await create(device)
    assert await state(device, session) is State.NEW
    now = State.NEW
    for event in (Event.WRITE, Event.SEAL, Event.CLOSE, Event.TICK, Event.DEMOTED, Event.WARM, Event.PROMOTED):
        now = NEXT_STATE[now][event]
        assert (await device.run(Transition(session=session, event=event))).value == now
        assert await state(device, session) is now


async def test_event_that_cannot_happen(device: Device) -> None:
    session = await create(device)
    refused = await refusal(device, Transition(session=session, event=Event.DEMOTED))
    assert refused == (Status.BAD_TRANSITION, State.NEW)
    assert await state(device, session) is State.NEW
    assert device.statistics().refused_transitions == 1
    with pytest.raises(EngineError, match="BAD_TRANSITION"):
        await device.run(Transition(session=session, event=Event.PROMOTED))


async def test_window(device: Device) -> None:
    session = await create(device)
    await device.run(Map(session=session, slot=2, tier=Tier.DDR, runs=(MapRun(first_page=0, count=16, blocks=16),)))
    window = WindowAdvance(
        session=session,
        slot=2,
        planes=2,
        plane_bytes=8 * PAGE_BYTES,
        token_bytes=PAGE_BYTES // 4,
        tokens=32,
        window_tokens=8,
        sink_tokens=4,
    )
    small = dataclasses.replace(window, runs_max=1)
    assert await refusal(device, small) == (Status.BUFFER_SMALL, 2)
    done = await device.run(window)
    assert (done.value, done.second) == (2, 10)
    assert [(run.first_page, run.count) for run in done.runs] == [(1, 5), (9, 5)]
    left = (await device.run(Translate(session=session, slot=2))).runs
    assert [(run.first_page, run.count) for run in left] == [(0, 1), (6, 3), (14, 2)]
    info = (await device.run(QuerySession(session=session))).session
    assert info is not None
    assert info.window_start == (0, 0, 24, 0, 0, 0, 0, 0)
    assert info.mapped_pages[Tier.DDR] == 6


async def test_ages(device: Device) -> None:
    session = await create(device)
    await device.run(Map(session=session, slot=0, tier=Tier.NVME, runs=(MapRun(first_page=7, count=9, blocks=1),)))
    scan = AgeScan(count=1 << 30, least_age=1, tier=Tier.NVME, advance=True)
    assert [(run.count, run.age) for run in (await device.run(scan)).cold] == [(9, 1)]
    assert (await device.run(Touch(session=session, slot=0, first_page=10, count=2))).value == 2
    done = await device.run(scan)
    assert [(run.first_page, run.count, run.age) for run in done.cold] == [(7, 3, 2), (12, 4, 2)]
    assert {run.session for run in done.cold} == {session}
    assert done.cursor is not None
    assert done.cursor.done
    # By parts: the cursor leads on, and a new generation begins only at the beginning.
    part = await device.run(dataclasses.replace(scan, count=10, advance=False))
    assert part.cursor is not None
    assert not part.cursor.done
    assert part.second <= 10
    middle = dataclasses.replace(scan, cursor=part.cursor)
    assert await refusal(device, middle) == (Status.BAD_ARGUMENT, 0)
    assert (await device.run(dataclasses.replace(middle, advance=False))).cursor == dataclasses.replace(
        done.cursor, generation=part.cursor.generation
    )
    assert await refusal(device, dataclasses.replace(scan, cursor=AgeCursor(done=True))) == (Status.BAD_ARGUMENT, 0)
    assert await refusal(device, dataclasses.replace(scan, runs_max=0)) == (Status.BUFFER_SMALL, 1)


async def test_flush_counts_commands(device: Device) -> None:
    before = (await device.run(Flush())).value
    await create(device)
    assert (await device.run(Flush())).value == before + 2
