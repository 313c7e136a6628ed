"""Many commands of one kind as one sequence are the same commands, packed in another way."""

from __future__ import annotations

import pytest

from kvdriver import Creates, InProcessDevice, Map, MapRun, Maps, QuerySession, SessionCreate, Status, Tier, Translate
from kvdriver.bulk import Bulk

PAGE_BYTES = 65536
COUNT = 300
CHARGES = [(0, 3, 16), (7, 1, 5), (900, 2, 1)]


@pytest.fixture
def devices():
    made = [
        InProcessDevice.open(
            page_bytes=PAGE_BYTES, capacity_blocks={Tier.DDR: 1 << 20, Tier.NVME: 1 << 20}, sessions_max=COUNT + 1
        )
        for _ in range(2)
    ]
    yield made
    for device in made:
        device.close()


def creates():
    return Creates(range(1, COUNT + 1))


def maps(sessions):
    places = [(session, CHARGES[: number % (len(CHARGES) + 1)]) for number, session in enumerate(sessions)]
    return Maps(1, Tier.NVME, places)


def test_a_bulk_is_a_sequence_of_commands():
    made = creates()
    assert len(made) == COUNT
    assert made[0] == SessionCreate(key=1)
    assert made[-1] == SessionCreate(key=COUNT)
    assert list(made[10:12]) == [SessionCreate(key=11), SessionCreate(key=12)]
    assert isinstance(made[10:12], Bulk)
    with pytest.raises(IndexError):
        made[COUNT]
    placed = maps([5, 6])
    assert list(placed) == [
        Map(session=5, slot=1, tier=Tier.NVME, runs=()),
        Map(session=6, slot=1, tier=Tier.NVME, runs=(MapRun(first_page=0, count=3, blocks=16),)),
    ]
    assert list(placed[1:]) == [placed[1]]


async def test_a_bulk_does_what_its_commands_do_one_by_one(devices):
    one, other = devices
    made = await one.submit(creates())
    assert made == await other.submit(list(creates()))
    sessions = [completion.value for completion in made]
    mapped = await one.submit(maps(sessions))
    assert mapped == await other.submit(list(maps(sessions)))
    assert {completion.status for completion in mapped} == {Status.OK}
    for session in sessions:
        look = [QuerySession(session=session), Translate(session=session, slot=1)]
        assert await one.submit(look) == await other.submit(look)
    assert await one.check() == []
    assert one.statistics() == other.statistics()


async def test_a_refused_command_of_a_bulk_stops_none_of_the_others(devices):
    device = devices[0]
    await device.run(SessionCreate(key=COUNT))
    made = await device.submit(creates())
    assert [completion.status for completion in made[-2:]] == [Status.OK, Status.EXISTS]
    sessions = [completion.value for completion in made]
    sessions[7] = 0
    mapped = await device.submit(maps(sessions))
    assert [number for number, completion in enumerate(mapped) if completion.status is not Status.OK] == [7]


async def test_a_number_that_does_not_fit_stops_the_whole_bulk(devices):
    device = devices[0]
    before = device.statistics().commands
    with pytest.raises(ValueError, match="does not fit"):
        await device.submit(Creates([1, 1 << 64]))
    with pytest.raises(ValueError, match="does not fit"):
        await device.submit(Maps(1, Tier.NVME, [(1, [(0, -1, 16)])]))
    assert device.statistics().commands == before
    assert await device.submit(Creates([])) == []
