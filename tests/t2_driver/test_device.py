"""The Device interface: what each implementation must do (the `device` fixture names them)."""

from __future__ import annotations

from typing import TYPE_CHECKING, get_args

import pytest

from kvdriver import (
    Command,
    Completion,
    EngineError,
    Event,
    Lease,
    Map,
    MapRun,
    QuerySession,
    QueryTier,
    Remap,
    Reserve,
    Resize,
    Run,
    SessionCreate,
    SessionDestroy,
    Status,
    Tier,
    Transfer,
    Translate,
    Unmap,
)
from kvdriver.abi import Op

if TYPE_CHECKING:
    from kvdriver import Device, SessionInfo, TierInfo

LIVE = 0
COPY = 1


async def create(device: Device, key: int = 1) -> int:
    return (await device.run(SessionCreate(key=key))).value


async def status(device: Device, command: Command) -> Status:
    [completion] = await device.submit([command])
    return completion.status


async def tier(device: Device, which: Tier) -> TierInfo:
    info = (await device.run(QueryTier(tier=which))).tier
    assert info is not None
    return info


async def session_info(device: Device, session: int) -> SessionInfo:
    info = (await device.run(QuerySession(session=session))).session
    assert info is not None
    return info


async def runs(device: Device, session: int, slot: int = LIVE) -> tuple[Run, ...]:
    completion = await device.run(Translate(session=session, slot=slot))
    assert completion.value == len(completion.runs)
    return completion.runs


def map_pages(
    session: int, first: int, count: int, *, blocks: int = 16, where: Tier = Tier.DDR, slot: int = LIVE
) -> Map:
    return Map(session=session, slot=slot, tier=where, runs=(MapRun(first_page=first, count=count, blocks=blocks),))


async def test_capabilities(device: Device) -> None:
    told = device.capabilities
    assert told.page_bytes == 65536
    assert told.tiers == (Tier.DDR, Tier.NVME)
    assert told.sessions_max == 16
    assert told.slots_max >= 8
    assert told.transport


async def test_empty_batch(device: Device) -> None:
    assert await device.submit([]) == []


async def test_session_has_one_handle_for_a_key(device: Device) -> None:
    session = await create(device, 2**64 - 1)
    assert await device.submit([SessionCreate(key=2**64 - 1)]) == [Completion(status=Status.EXISTS, value=session)]
    assert (await session_info(device, session)).key == 2**64 - 1
    assert await create(device, 0) != session


async def test_sessions_run_out(device: Device) -> None:
    made = [await create(device, key) for key in range(device.capabilities.sessions_max)]
    assert await status(device, SessionCreate(key=99)) is Status.NO_TABLE
    await device.run(SessionDestroy(session=made[7]))
    assert await create(device, 99) not in made


async def test_destroy_frees_all(device: Device) -> None:
    session = await create(device)
    await device.run(map_pages(session, 5, 10))
    await device.run(map_pages(session, 0, 3, where=Tier.NVME, slot=COPY))
    await device.run(Reserve(session=session, tier=Tier.DDR, blocks=7))
    assert (await device.run(SessionDestroy(session=session))).value == 13
    for which in (Tier.DDR, Tier.NVME):
        info = await tier(device, which)
        assert (info.used_blocks, info.used_frames, info.reserved_blocks) == (0, 0, 0)
    assert await status(device, QuerySession(session=session)) is Status.NO_SESSION


async def test_lease_keeps_a_session(device: Device) -> None:
    session = await create(device)
    await device.run(map_pages(session, 0, 1))
    assert (await device.run(Lease(session=session, delta=2))).value == 2
    assert await status(device, SessionDestroy(session=session)) is Status.LEASED
    assert await status(device, Remap(session=session, slot=LIVE, tier=Tier.NVME)) is Status.LEASED
    assert await status(device, Lease(session=session, delta=-3)) is Status.BAD_ARGUMENT
    assert (await session_info(device, session)).leases == 2
    assert (await device.run(Lease(session=session, delta=-2))).value == 0
    await device.run(SessionDestroy(session=session))


async def test_reservation_is_exact(device: Device) -> None:
    a, b = await create(device, 1), await create(device, 2)
    await device.run(Reserve(session=a, tier=Tier.DDR, blocks=4000))
    assert await status(device, Reserve(session=b, tier=Tier.DDR, blocks=97)) is Status.NO_SPACE
    await device.run(Reserve(session=b, tier=Tier.DDR, blocks=96))
    assert (await tier(device, Tier.DDR)).free_blocks == 0
    await device.run(Reserve(session=a, tier=Tier.DDR, blocks=10))
    assert (await tier(device, Tier.DDR)).reserved_blocks == 106
    assert (await session_info(device, a)).reserved_blocks[Tier.DDR] == 10
    assert await status(device, Reserve(session=a, tier=Tier.CARD, blocks=1)) is Status.BAD_ARGUMENT


async def test_map_keeps_the_books(device: Device) -> None:
    session = await create(device)
    two = (MapRun(first_page=0, count=4, blocks=16), MapRun(first_page=4, count=1, blocks=3))
    assert (await device.run(Map(session=session, slot=LIVE, tier=Tier.DDR, runs=two))).value == 5
    info = await tier(device, Tier.DDR)
    assert (info.used_blocks, info.used_frames) == (67, 5)
    told = await session_info(device, session)
    assert told.mapped_pages == {Tier.DDR: 5, Tier.CARD: 0, Tier.NVME: 0, Tier.POOL: 0}
    assert told.mapped_blocks[Tier.DDR] == 67
    first, last = await runs(device, session)
    assert (first.first_page, first.count, first.tier, first.blocks) == (0, 4, Tier.DDR, 16)
    assert (last.first_page, last.count, last.blocks) == (4, 1, 3)


async def test_map_is_all_or_nothing(device: Device) -> None:
    session = await create(device)
    await device.run(map_pages(session, 1000, 1))
    before = await runs(device, session)
    assert await status(device, map_pages(session, 900, 101)) is Status.ALREADY_MAPPED
    assert await status(device, map_pages(session, 0, 256)) is Status.NO_SPACE
    assert await runs(device, session) == before
    assert (await tier(device, Tier.DDR)).used_frames == 1


async def test_map_of_nothing_is_fine(device: Device) -> None:
    session = await create(device)
    assert (await device.run(Map(session=session, slot=LIVE, tier=Tier.DDR, runs=()))).value == 0


@pytest.mark.parametrize(
    ("first", "count", "blocks"), [(0, 0, 1), (0, 1, 0), (0, 1, 17), (1 << 47, 1, 1), ((1 << 47) - 1, 2, 1)]
)
async def test_map_refuses_nonsense(device: Device, first: int, count: int, blocks: int) -> None:
    session = await create(device)
    assert await status(device, map_pages(session, first, count, blocks=blocks)) is Status.BAD_ARGUMENT
    assert await runs(device, session) == ()


async def test_map_charges_the_reservation(device: Device) -> None:
    a, b = await create(device, 1), await create(device, 2)
    await device.run(Reserve(session=a, tier=Tier.DDR, blocks=4090))
    assert await status(device, map_pages(a, 0, 1)) is Status.NO_SPACE
    assert await status(device, map_pages(b, 0, 1)) is Status.NO_SPACE
    run = MapRun(first_page=0, count=1, blocks=16)
    await device.run(Map(session=a, slot=LIVE, tier=Tier.DDR, runs=(run,), reserved=True))
    assert (await session_info(device, a)).reserved_blocks[Tier.DDR] == 4074
    assert (await tier(device, Tier.DDR)).free_blocks == 6


async def test_pages_are_numbered_far(device: Device) -> None:
    session = await create(device)
    far = (0, 511, 513, 1 << 30, 1 << 46, (1 << 47) - 1)
    for page in far:
        await device.run(map_pages(session, page, 1, blocks=1))
    assert tuple(run.first_page for run in await runs(device, session)) == far
    assert (await device.run(Unmap(session=session, slot=LIVE, first_page=514))).value == 3
    assert await status(device, Unmap(session=session, slot=LIVE, first_page=1 << 47)) is Status.BAD_ARGUMENT
    assert await status(device, Translate(session=session, slot=LIVE, first_page=1 << 47)) is Status.BAD_ARGUMENT


async def test_unmap_passes_over_holes(device: Device) -> None:
    session = await create(device)
    await device.run(map_pages(session, 10, 2))
    await device.run(map_pages(session, 20, 2))
    assert (await device.run(Unmap(session=session, slot=LIVE, first_page=11, count=10))).value == 2
    assert [run.first_page for run in await runs(device, session)] == [10, 21]
    assert (await device.run(Unmap(session=session, slot=LIVE, count=0))).value == 0


async def test_translate_finds_more_runs_than_it_had_room_for(device: Device) -> None:
    session = await create(device)
    scattered = tuple(MapRun(first_page=2 * i, count=1, blocks=1) for i in range(1000))
    await device.run(Map(session=session, slot=LIVE, tier=Tier.DDR, runs=scattered))
    assert [run.first_page for run in await runs(device, session)] == list(range(0, 2000, 2))


async def test_translate_sees_its_place_in_the_batch(device: Device) -> None:
    session = await create(device)
    scattered = tuple(MapRun(first_page=2 * i, count=1, blocks=1) for i in range(200))
    translate = Translate(session=session, slot=LIVE)
    _, full, _, part, _, none = await device.submit(
        [
            Map(session=session, slot=LIVE, tier=Tier.DDR, runs=scattered),
            translate,
            Unmap(session=session, slot=LIVE, count=100),
            translate,
            SessionDestroy(session=session),
            translate,
        ]
    )
    assert (len(full.runs), len(part.runs), none.status) == (200, 150, Status.NO_SESSION)
    assert device.statistics().commands == 7


async def test_refusal_does_not_stop_the_batch(device: Device) -> None:
    session = await create(device)
    page = map_pages(session, 0, 1)
    assert [c.status for c in await device.submit([page, page, Unmap(session=session, slot=LIVE), page])] == [
        Status.OK,
        Status.ALREADY_MAPPED,
        Status.OK,
        Status.OK,
    ]


async def test_promote_keeps_the_copy_and_demote_takes_it(device: Device) -> None:
    session = await create(device)
    await device.run(map_pages(session, 0, 700, blocks=2, where=Tier.NVME))
    [cold] = await runs(device, session)
    promote = Remap(session=session, slot=LIVE, tier=Tier.DDR, other_slot=COPY, keep=True, reserved=True)
    await device.run(Reserve(session=session, tier=Tier.DDR, blocks=1400))
    assert (await device.run(promote)).value == 700
    assert (await runs(device, session))[0].tier is Tier.DDR
    assert await runs(device, session, COPY) == (cold,)
    assert (await tier(device, Tier.DDR)).reserved_blocks == 0
    demote = Remap(session=session, slot=LIVE, tier=Tier.NVME, other_slot=COPY, take=True)
    assert (await device.run(demote)).value == 700
    assert await runs(device, session) == (cold,)
    assert await runs(device, session, COPY) == ()
    assert (await tier(device, Tier.DDR)).used_frames == 0
    assert (await device.run(demote)).value == 0


async def test_remap_is_all_or_nothing(device: Device) -> None:
    session = await create(device)
    await device.run(map_pages(session, 0, 300, where=Tier.NVME))
    before = await runs(device, session)
    promote = Remap(session=session, slot=LIVE, tier=Tier.DDR, other_slot=COPY, keep=True, count=10)
    assert await status(device, Remap(session=session, slot=LIVE, tier=Tier.DDR)) is Status.NO_SPACE
    take = Remap(session=session, slot=LIVE, tier=Tier.DDR, other_slot=COPY, take=True)
    assert await status(device, take) is Status.NOT_MAPPED
    await device.run(map_pages(session, 9, 1, slot=COPY))
    assert await status(device, promote) is Status.ALREADY_MAPPED
    same = Remap(session=session, slot=LIVE, tier=Tier.DDR, other_slot=LIVE, keep=True)
    assert await status(device, same) is Status.BAD_ARGUMENT
    assert await runs(device, session) == before


async def test_resize_refuses_more_but_keeps_promises(device: Device) -> None:
    session = await create(device)
    await device.run(map_pages(session, 0, 1))
    await device.run(Reserve(session=session, tier=Tier.DDR, blocks=16))
    await device.run(Resize(tier=Tier.DDR, blocks=0))
    assert (await tier(device, Tier.DDR)).free_blocks == 0
    assert await status(device, map_pages(session, 1, 1)) is Status.NO_SPACE
    run = MapRun(first_page=1, count=1, blocks=16)
    await device.run(Map(session=session, slot=LIVE, tier=Tier.DDR, runs=(run,), reserved=True))
    await device.run(Resize(tier=Tier.DDR, blocks=48))
    await device.run(map_pages(session, 2, 1))
    assert await status(device, Resize(tier=Tier.POOL, blocks=1)) is Status.BAD_ARGUMENT


async def test_slots_end(device: Device) -> None:
    session = await create(device)
    last = device.capabilities.slots_max - 1
    await device.run(map_pages(session, 0, 1, slot=last))
    assert await status(device, map_pages(session, 0, 1, slot=last + 1)) is Status.BAD_ARGUMENT
    assert await status(device, Translate(session=session, slot=last + 1)) is Status.BAD_ARGUMENT


async def test_run_raises_what_was_refused(device: Device) -> None:
    command = SessionDestroy(session=12345)
    with pytest.raises(EngineError, match="SessionDestroy refused: NO_SESSION") as raised:
        await device.run(command)
    assert raised.value.status is Status.NO_SESSION
    assert raised.value.command is command


@pytest.mark.parametrize(
    "bad",
    [
        SessionCreate(key=2**64),
        Lease(session=1, delta=2**63),
        Unmap(session=1, slot=-1),
        Translate(session=1, slot=0, first_page=0, count=-1),
        Resize(tier=Tier.DDR, blocks=-1),
        Map(session=1, slot=0, tier=Tier.DDR, runs=(MapRun(first_page=-1, count=1, blocks=1),)),
    ],
)
async def test_number_that_does_not_fit_stops_the_whole_batch(device: Device, bad: Command) -> None:
    with pytest.raises(ValueError, match="does not fit"):
        await device.submit([SessionCreate(key=1), bad])
    assert device.statistics().commands == 0


async def test_reset_drops_all_but_capacities(device: Device) -> None:
    session = await create(device)
    await device.run(map_pages(session, 0, 10))
    await device.run(Lease(session=session, delta=1))
    await device.run(Reserve(session=session, tier=Tier.NVME, blocks=10))
    await device.run(Resize(tier=Tier.DDR, blocks=100))
    await device.reset()
    info = await tier(device, Tier.DDR)
    assert (info.capacity_blocks, info.used_blocks, info.used_frames) == (100, 0, 0)
    assert (await tier(device, Tier.NVME)).reserved_blocks == 0
    again = await create(device)
    assert await status(device, QuerySession(session=session)) is Status.NO_SESSION
    assert await runs(device, again) == ()
    assert device.statistics().sessions == 1


async def test_statistics_count(device: Device) -> None:
    session = await create(device)
    await device.run(map_pages(session, 0, 9))
    await status(device, map_pages(session, 0, 1))
    told = device.statistics()
    assert (told.commands, told.refused, told.sessions, told.mapped_pages) == (3, 1, 1, 9)
    assert told.table_bytes > 0
    assert "9 pages" in repr(device)


async def test_closed_device_raises(device: Device) -> None:
    device.close()
    device.close()
    for call in (device.submit([]), device.run(SessionCreate(key=1)), device.check(), device.reset()):
        with pytest.raises(ValueError, match="closed"):
            await call
    with pytest.raises(ValueError, match="closed"):
        device.statistics()
    with pytest.raises(ValueError, match="closed"):
        _ = device.capabilities
    assert "closed" in repr(device)


async def test_every_command_is_known(device: Device) -> None:
    session = await create(device)
    arguments = {
        "session": session,
        "key": 2,
        "slot": 1,
        "tier": Tier.DDR,
        "runs": (),
        "blocks": 1000,
        "delta": 0,
        "event": Event.OPEN,
        "source": session,
        "source_slot": 0,
        "token_bytes": 1,
        "tokens": 0,
        "window_tokens": 0,
        "count": 1,
        "least_age": 0,
        "transfer": Transfer(host=0, host_bytes=0),
        "pages": (),
        "namespace": 1,
        "hashes": (b"a" * 16,),
    }
    kinds = get_args(Command)
    assert len(kinds) == len(Op) + 1  # a list of pages is a TRANSLATE too
    for kind in sorted(kinds, key=lambda kind: kind is SessionDestroy):
        names = kind.__dataclass_fields__.keys() & arguments.keys()
        command = kind(**{name: arguments[name] for name in names})
        assert await status(device, command) is Status.OK, command
