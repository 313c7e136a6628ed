"""Each refusal of the table of commands in docs/device.md; a refused command has changed no page and no book.

What can't be said through the driver (flags that are not known, buffers that are no buffers) is in tests/c, as is a full
table of anything but sessions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from kvdriver import (
    AgeCursor,
    AgeScan,
    Command,
    Device,
    Gather,
    Lease,
    Map,
    MapRun,
    PrefixInsert,
    PrefixMatch,
    PrefixRemove,
    QuerySession,
    QueryTier,
    Remap,
    Reserve,
    Resize,
    Scatter,
    SessionCreate,
    SessionDestroy,
    SessionTransition,
    Share,
    Status,
    Tier,
    Touch,
    Transfer,
    Translate,
    TranslateList,
    Unmap,
    Unshare,
    WindowAdvance,
)
from kvdriver.abi import Event, Op

ABSENT = 12345
END = 1 << 47
BAD_SLOT = 8
BLOCKS = 16
LIVE, COPY, EMPTY, FORKED = range(4)
HASHES = (b"a" * 16,)
PLANES_MAX = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """What the commands find: `a` has pages and a fork of some in `child`, `leased` has a page and a lease."""

    a: int
    child: int
    leased: int


async def make_world(device: Device) -> World:
    made = await device.submit([SessionCreate(key=key) for key in range(3)])
    world = World(a=made[0].value, child=made[1].value, leased=made[2].value)
    for command in (
        pages(world.a, LIVE, 0, 8),
        pages(world.a, COPY, 1, 1, tier=Tier.NVME),
        pages(world.a, FORKED, 0, 4),
        Share(session=world.child, slot=FORKED, source=world.a, source_slot=FORKED),
        pages(world.leased, LIVE, 0, 1),
        Lease(session=world.leased, delta=1),
        PrefixInsert(session=world.a, namespace=1, hashes=HASHES),
        # Room for one page is left, of which a reservation takes the most.
        Reserve(session=world.a, tier=Tier.DDR, blocks=4096 - 13 * BLOCKS - 2),
    ):
        await device.run(command)
    return world


def pages(session: int, slot: int, first: int, count: int, *, blocks: int = BLOCKS, tier: Tier = Tier.DDR) -> Map:
    return Map(session=session, slot=slot, tier=tier, runs=(MapRun(first_page=first, count=count, blocks=blocks),))


async def books(device: Device, world: World) -> list[object]:
    """Return all that a refused command must not have changed; PTEs with them."""
    sessions = (world.a, world.child, world.leased)
    commands: list[Command] = [QueryTier(tier=Tier.DDR), QueryTier(tier=Tier.NVME)]
    commands += [QuerySession(session=session) for session in sessions]
    commands += [
        TranslateList(session=session, slot=slot, pages=tuple(range(9)))
        for session in sessions
        for slot in (LIVE, COPY, EMPTY, FORKED)
    ]
    commands.append(PrefixMatch(namespace=1, hashes=HASHES))
    return list(await device.submit(commands))


def window(world: World, **other: int) -> WindowAdvance:
    shape = {"token_bytes": 65536, "tokens": 8, "window_tokens": 2} | other
    return WindowAdvance(**({"session": world.a, "slot": LIVE} | shape))


def transfer(**other: int) -> Transfer:
    return Transfer(**({"host": 4096, "host_bytes": 8} | other))


Case = tuple[Status, Callable[[World], Command]]
BAD, NO_SESSION, SPACE = Status.BAD_ARGUMENT, Status.NO_SESSION, Status.NO_SPACE


def ranged(kind: type[Unmap | Translate | Touch | Unshare]) -> list[Case]:
    """Return what every command for a range of a slot is refused with."""
    return [
        (BAD, lambda w: kind(session=w.a, slot=BAD_SLOT)),
        (BAD, lambda w: kind(session=w.a, slot=LIVE, first_page=END)),
        (BAD, lambda _: kind(session=ABSENT, slot=BAD_SLOT)),
        (NO_SESSION, lambda _: kind(session=ABSENT, slot=LIVE, first_page=END)),
        (NO_SESSION, lambda _: kind(session=0, slot=LIVE)),
    ]


CASES: dict[Op, list[Case]] = {
    Op.SESSION_CREATE: [(Status.EXISTS, lambda _: SessionCreate(key=2))],
    Op.SESSION_TRANSITION: [
        (BAD, lambda w: SessionTransition(session=w.a, event=len(Event))),  # type: ignore[arg-type]
        (Status.BAD_TRANSITION, lambda w: SessionTransition(session=w.a, event=Event.DEMOTED)),
        (NO_SESSION, lambda _: SessionTransition(session=ABSENT, event=len(Event))),  # type: ignore[arg-type]
    ],
    Op.SESSION_DESTROY: [
        (Status.LEASED, lambda w: SessionDestroy(session=w.leased)),
        (NO_SESSION, lambda _: SessionDestroy(session=ABSENT)),
    ],
    Op.LEASE: [
        (BAD, lambda w: Lease(session=w.leased, delta=-2)),
        (BAD, lambda w: Lease(session=w.leased, delta=(1 << 63) - 1)),
        (NO_SESSION, lambda _: Lease(session=ABSENT, delta=-1)),
    ],
    Op.RESERVE: [
        (SPACE, lambda w: Reserve(session=w.child, tier=Tier.DDR, blocks=3)),
        (SPACE, lambda w: Reserve(session=w.child, tier=Tier.DDR, blocks=(1 << 64) - 1)),
        (BAD, lambda _: Reserve(session=ABSENT, tier=Tier.CARD, blocks=1)),
        (NO_SESSION, lambda _: Reserve(session=ABSENT, tier=Tier.DDR, blocks=1)),
    ],
    Op.RESIZE: [
        (BAD, lambda _: Resize(tier=Tier.DDR, blocks=(1 << 52) + 1)),
        (BAD, lambda _: Resize(tier=Tier.NONE, blocks=1)),
    ],
    Op.MAP: [
        (BAD, lambda w: pages(w.a, LIVE, 0, 1, blocks=BLOCKS + 1)),
        (BAD, lambda w: pages(w.a, LIVE, END - 1, 2)),
        (BAD, lambda w: pages(w.a, LIVE, 0, 1, tier=Tier.POOL)),
        (SPACE, lambda w: pages(w.a, LIVE, 7, 2)),
        (Status.ALREADY_MAPPED, lambda w: pages(w.a, LIVE, 7, 2, blocks=1)),
        (NO_SESSION, lambda _: pages(ABSENT, LIVE, 0, 1, blocks=0)),
    ],
    Op.UNMAP: ranged(Unmap),
    Op.TRANSLATE: [
        *ranged(Translate),
        (BAD, lambda w: TranslateList(session=w.a, slot=BAD_SLOT, pages=(1,))),
        (NO_SESSION, lambda _: TranslateList(session=ABSENT, slot=LIVE, pages=(1,))),
    ],
    Op.REMAP: [
        (BAD, lambda w: Remap(session=w.leased, slot=LIVE, tier=Tier.NVME, other_slot=LIVE, keep=True)),
        (BAD, lambda w: Remap(session=w.a, slot=LIVE, tier=Tier.NVME, other_slot=BAD_SLOT, take=True)),
        (BAD, lambda w: Remap(session=w.a, slot=LIVE, tier=Tier.CARD)),
        (Status.LEASED, lambda w: Remap(session=w.leased, slot=LIVE, tier=Tier.NVME)),
        (Status.SHARED, lambda w: Remap(session=w.a, slot=FORKED, tier=Tier.NVME, other_slot=EMPTY, take=True)),
        (Status.NOT_MAPPED, lambda w: Remap(session=w.a, slot=LIVE, tier=Tier.NVME, other_slot=COPY, take=True)),
        (Status.ALREADY_MAPPED, lambda w: Remap(session=w.a, slot=LIVE, tier=Tier.NVME, other_slot=COPY, keep=True)),
        (SPACE, lambda w: Remap(session=w.a, slot=COPY, tier=Tier.DDR)),
        (NO_SESSION, lambda _: Remap(session=ABSENT, slot=LIVE, tier=Tier.NVME, first_page=END)),
    ],
    Op.SHARE: [
        (BAD, lambda w: Share(session=w.child, slot=LIVE, source=ABSENT, source_slot=BAD_SLOT)),
        (BAD, lambda w: Share(session=w.a, slot=EMPTY, source=w.a, source_slot=EMPTY)),
        (NO_SESSION, lambda w: Share(session=w.a, slot=LIVE, source=ABSENT, source_slot=LIVE)),
        (NO_SESSION, lambda w: Share(session=ABSENT, slot=LIVE, source=w.a, source_slot=LIVE)),
        (Status.ALREADY_MAPPED, lambda w: Share(session=w.a, slot=COPY, source=w.a, source_slot=LIVE)),
    ],
    Op.UNSHARE: [
        *ranged(Unshare),
        (SPACE, lambda w: Unshare(session=w.child, slot=FORKED)),
        (SPACE, lambda w: Unshare(session=w.child, slot=FORKED, copies_max=0)),
    ],
    Op.WINDOW_ADVANCE: [
        (Status.BUFFER_SMALL, lambda w: window(w, runs_max=0)),
        (BAD, lambda w: window(w, planes=0, runs_max=0)),
        (BAD, lambda w: window(w, planes=PLANES_MAX + 1, plane_bytes=8 * 65536)),
        (BAD, lambda w: window(w, planes=2, plane_bytes=8 * 65536 - 1)),
        (BAD, lambda w: window(w, token_bytes=0)),
        (BAD, lambda w: window(w, tokens=1 << 60)),
        (BAD, lambda w: window(w, base=(1 << 64) - 65536)),
        (BAD, lambda w: window(w, base=(1 << 63) - 65536)),
        (BAD, lambda w: window(w, session=ABSENT, slot=BAD_SLOT)),
        (NO_SESSION, lambda w: window(w, session=ABSENT, planes=0)),
    ],
    Op.TOUCH: ranged(Touch),
    Op.AGE_SCAN: [
        (BAD, lambda _: AgeScan(count=9, least_age=128, runs_max=0)),
        (BAD, lambda _: AgeScan(count=9, least_age=0, tier=Tier.CARD)),
        (BAD, lambda _: AgeScan(count=9, least_age=0, cursor=AgeCursor(done=True))),
        (BAD, lambda _: AgeScan(count=9, least_age=0, advance=True, cursor=AgeCursor(page=1))),
        (Status.BUFFER_SMALL, lambda _: AgeScan(count=9, least_age=0, runs_max=0, cursor=AgeCursor(done=True))),
    ],
    Op.GATHER: [
        (BAD, lambda w: Gather(session=w.a, slot=LIVE, first_page=END, transfer=transfer())),
        (BAD, lambda w: Gather(session=w.a, slot=LIVE, count=1, transfer=transfer(page_offset=65536 - 4))),
        (NO_SESSION, lambda _: Gather(session=ABSENT, slot=LIVE, transfer=transfer())),
    ],
    Op.SCATTER: [
        (BAD, lambda w: Scatter(session=w.a, slot=BAD_SLOT, transfer=transfer())),
        (BAD, lambda w: Scatter(session=w.a, slot=LIVE, count=1, transfer=transfer(host_bytes=65537))),
        (NO_SESSION, lambda _: Scatter(session=ABSENT, slot=LIVE, transfer=transfer())),
    ],
    Op.PREFIX_INSERT: [
        (BAD, lambda w: PrefixInsert(session=w.a, namespace=1, hashes=(b"odd",))),
        (BAD, lambda w: PrefixInsert(session=w.a, namespace=1, hashes=HASHES * 1025)),
        (BAD, lambda w: PrefixInsert(session=w.a, namespace=1, hashes=HASHES * 2, first=END - 1)),
        (NO_SESSION, lambda _: PrefixInsert(session=ABSENT, namespace=1, hashes=(b"odd",))),
    ],
    Op.PREFIX_MATCH: [
        (BAD, lambda _: PrefixMatch(namespace=1, hashes=(b"a" * 40,))),
        (BAD, lambda _: PrefixMatch(namespace=1, hashes=HASHES, first=END)),
    ],
    Op.PREFIX_REMOVE: [
        (BAD, lambda _: PrefixRemove(namespace=1, hashes=(b"odd",), session=ABSENT)),
        (NO_SESSION, lambda _: PrefixRemove(namespace=1, hashes=HASHES, session=ABSENT)),
    ],
    Op.QUERY_TIER: [(BAD, lambda _: QueryTier(tier=Tier.POOL)), (BAD, lambda _: QueryTier(tier=Tier.NONE))],
    Op.QUERY_SESSION: [(NO_SESSION, lambda _: QuerySession(session=ABSENT))],
}


async def test_table_is_walked_whole(device: Device) -> None:
    """FLUSH alone is never refused."""
    assert CASES.keys() == set(Op) - {Op.FLUSH}
    assert await device.check() == []


@pytest.mark.parametrize("op", CASES, ids=lambda op: op.name.lower())
async def test_refusals(device: Device, op: Op) -> None:
    world = await make_world(device)
    before = await books(device, world)
    refused = device.statistics().refused
    commands = [make(world) for _, make in CASES[op]]
    completions = await device.submit(commands)
    told = [(command, completion.status) for command, completion in zip(commands, completions, strict=True)]
    assert told == [(command, status) for command, (status, _) in zip(commands, CASES[op], strict=True)]
    assert device.statistics().refused == refused + len(commands)
    assert await books(device, world) == before
