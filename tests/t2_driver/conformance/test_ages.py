"""AGE_SCAN and TOUCH, and every event in every state, as each device must have them."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pytest

from kvdriver import (
    AgeCursor,
    AgeScan,
    Command,
    Event,
    Map,
    MapRun,
    QuerySession,
    Remap,
    SessionCreate,
    SessionDestroy,
    SessionTransition,
    State,
    Status,
    Tier,
    Touch,
    TranslateList,
)
from kvdriver.abi import NEXT_STATE, PTE_ACCESSED_MASK, PTE_DIRTY_MASK
from support.engine_compare import scan_in_parts

if TYPE_CHECKING:
    from kvdriver import Device

WHOLE = AgeScan(count=1 << 40, least_age=0, advance=True)
AGE_MAX = 127


async def with_pages(device: Device, key: int, count: int, *, tier: Tier = Tier.DDR) -> int:
    session = (await device.run(SessionCreate(key=key))).value
    await device.run(Map(session=session, slot=0, tier=tier, runs=(MapRun(first_page=0, count=count, blocks=1),)))
    return session


async def ages(device: Device, scan: AgeScan = WHOLE) -> dict[int, int]:
    """Return the ages of pages by their number."""
    found = await scan_in_parts(device, scan)
    return {page: age for (_, _, page), (_, _, age) in found.items()}


def paths() -> dict[State, tuple[Event, ...]]:
    """Return for each state events that lead there from NEW."""
    found: dict[State, tuple[Event, ...]] = {State.NEW: ()}
    for state in (queue := [State.NEW]):
        for event, after in NEXT_STATE[state].items():
            if after not in found:
                found[after] = (*found[state], event)
                queue.append(after)
    return found


async def test_every_state_can_be_reached(device: Device) -> None:
    assert paths().keys() == set(State)
    assert device.capabilities.sessions_max >= len(Event)


@pytest.mark.parametrize("state", State, ids=lambda state: state.name.lower())
async def test_every_event(device: Device, state: State) -> None:
    made = await device.submit([SessionCreate(key=event) for event in Event])
    sessions = [completion.value for completion in made]
    path: list[Command] = [SessionTransition(session=one, event=event) for one in sessions for event in paths()[state]]
    assert {completion.status for completion in await device.submit(path)} <= {Status.OK}
    done = await device.submit(
        [SessionTransition(session=one, event=event) for one, event in zip(sessions, Event, strict=True)]
    )
    expected = [NEXT_STATE[state].get(event) for event in Event]
    assert [(one.status, one.value) for one in done] == [
        (Status.BAD_TRANSITION, state) if after is None else (Status.OK, after) for after in expected
    ]
    told = await device.submit([QuerySession(session=one) for one in sessions])
    assert [one.session and one.session.state for one in told] == [
        state if after is None else after for after in expected
    ]
    assert device.statistics().refused_transitions == expected.count(None)


async def test_touch_marks_what_it_names(device: Device) -> None:
    session = await with_pages(device, 1, 6)
    assert (await device.run(Touch(session=session, slot=0, first_page=1, count=2))).value == 2
    assert (await device.run(Touch(session=session, slot=0, first_page=4, count=99, dirty=True))).value == 2
    assert (await device.run(Touch(session=session, slot=1))).value == 0
    bits = PTE_ACCESSED_MASK | PTE_DIRTY_MASK
    look = TranslateList(session=session, slot=0, pages=tuple(range(6)))
    used, written = PTE_ACCESSED_MASK, bits
    assert [entry & bits for entry in (await device.run(look)).entries] == [0, used, used, 0, written, written]
    # A scan takes accessed away and leaves dirty; a new place holds the bytes as they are.
    assert await ages(device) == {0: 1, 1: 0, 2: 0, 3: 1, 4: 0, 5: 0}
    assert [entry & bits for entry in (await device.run(look)).entries] == [0, 0, 0, 0, *[PTE_DIRTY_MASK] * 2]
    await device.run(Remap(session=session, slot=0, tier=Tier.NVME))
    assert [entry & bits for entry in (await device.run(look)).entries] == [0] * 6


@pytest.mark.parametrize(("count", "runs_max"), [(1, 64), (7, 64), (1000, 1), (7, 1)])
async def test_scan_in_parts_is_a_whole_scan(device: Device, count: int, runs_max: int) -> None:
    session = await with_pages(device, 1, 20)
    await with_pages(device, 2, 5, tier=Tier.NVME)
    await device.run(WHOLE)
    await device.submit([Touch(session=session, slot=0, first_page=page, count=1) for page in (3, 4, 9, 15)])
    part = dataclasses.replace(WHOLE, count=count, runs_max=runs_max)
    found = await scan_in_parts(device, part)
    assert found == await scan_in_parts(device, dataclasses.replace(WHOLE, advance=False))
    assert [age for _, _, age in found.values()].count(0) == 4
    assert len(found) == 25


async def test_scan_goes_on_when_sessions_come_and_go(device: Device) -> None:
    first, last = await with_pages(device, 1, 9), await with_pages(device, 2, 9)
    part = await device.run(dataclasses.replace(WHOLE, count=4))
    assert part.cursor is not None
    assert sum(run.count for run in part.cold) <= 4
    await device.run(SessionDestroy(session=first))
    new = await with_pages(device, 3, 2)
    rest = await scan_in_parts(device, dataclasses.replace(WHOLE, advance=False, cursor=part.cursor))
    assert {page for session, _, page in rest if session == last} == set(range(9))
    assert {age for (session, _, _), (_, _, age) in rest.items() if session == last} == {1}
    assert {session for session, _, _ in rest} <= {last, new}


async def test_scan_of_one_tier_and_age(device: Device) -> None:
    session = await with_pages(device, 1, 4, tier=Tier.NVME)
    await device.run(WHOLE)
    await device.run(Map(session=session, slot=1, tier=Tier.DDR, runs=(MapRun(first_page=10, count=2, blocks=1),)))
    assert await ages(device) == dict.fromkeys(range(4), 2) | {10: 1, 11: 1}
    still = dataclasses.replace(WHOLE, advance=False)
    assert await ages(device, dataclasses.replace(still, tier=Tier.DDR)) == {10: 1, 11: 1}
    assert await ages(device, dataclasses.replace(still, least_age=2)) == dict.fromkeys(range(4), 2)
    # A page that moves keeps its age.
    await device.run(Remap(session=session, slot=0, tier=Tier.DDR, first_page=3))
    assert await ages(device, dataclasses.replace(still, tier=Tier.DDR)) == {3: 2, 10: 1, 11: 1}


async def test_age_is_held(device: Device) -> None:
    session = await with_pages(device, 1, 2)
    for completion in await device.submit([WHOLE] * (2 * AGE_MAX + 10)):
        assert completion.cursor is not None
        assert completion.cursor.done
    await device.run(Touch(session=session, slot=0, first_page=1, count=1))
    assert await ages(device) == {0: AGE_MAX, 1: 0}


async def test_scans_that_never_end_make_no_page_young(device: Device) -> None:
    await with_pages(device, 1, 2)
    await device.submit([dataclasses.replace(WHOLE, count=1)] * (3 * AGE_MAX))
    assert await ages(device, dataclasses.replace(WHOLE, advance=False)) == dict.fromkeys(range(2), AGE_MAX)
    assert await ages(device) == dict.fromkeys(range(2), AGE_MAX)


async def test_reset_begins_with_a_floor(device: Device) -> None:
    """The next scan begins a generation, however many there have been."""
    await device.submit([WHOLE] * (AGE_MAX + 3))
    await device.reset()
    await with_pages(device, 1, 2)
    assert await ages(device) == {0: 1, 1: 1}


async def test_scan_of_nothing(device: Device) -> None:
    done = await device.run(WHOLE)
    assert (done.cold, done.second) == ((), 0)
    await with_pages(device, 1, 1)
    done = await device.run(dataclasses.replace(WHOLE, count=0, advance=False))
    assert (done.cold, done.second) == ((), 0)
    assert done.cursor is not None
    assert done.cursor == AgeCursor(generation=done.cursor.generation)
