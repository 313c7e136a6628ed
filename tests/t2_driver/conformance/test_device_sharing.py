"""Lists of pages, shared frames and prefixes, as each device must have them."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pytest

from kvdriver import (
    Map,
    MapRun,
    PrefixInsert,
    PrefixMatch,
    PrefixRemove,
    Remap,
    SessionCreate,
    SessionDestroy,
    Share,
    Status,
    Tier,
    Translate,
    TranslateList,
    Unmap,
    Unshare,
)
from kvdriver.abi import PTE_FRAME_MASK, PTE_FRAME_SHIFT, PTE_TIER_MASK, PTE_TIER_SHIFT, PTE_VALID_MASK

if TYPE_CHECKING:
    from kvdriver import Command, Device, Run

HASHES = tuple(bytes([number]) * 16 for number in range(6))


async def create(device: Device, key: int = 1) -> int:
    return (await device.run(SessionCreate(key=key))).value


async def status(device: Device, command: Command) -> Status:
    [completion] = await device.submit([command])
    return completion.status


async def runs(device: Device, session: int) -> tuple[Run, ...]:
    return (await device.run(Translate(session=session, slot=0))).runs


async def filled(device: Device, key: int, count: int = 8) -> int:
    session = await create(device, key)
    run = MapRun(first_page=100, count=count, blocks=3)
    await device.run(Map(session=session, slot=0, tier=Tier.DDR, runs=(run,)))
    return session


async def test_list_of_pages(device: Device) -> None:
    session = await filled(device, 1)
    [run] = await runs(device, session)
    done = await device.run(TranslateList(session=session, slot=0, pages=(107, 99, 100, 2**47 - 1, 107)))
    assert done.value == 5
    assert [bool(entry & PTE_VALID_MASK) for entry in done.entries] == [True, False, True, False, True]
    assert done.entries[1] == 0
    frames = [(entry & PTE_FRAME_MASK) >> PTE_FRAME_SHIFT for entry in done.entries]
    assert (frames[0], frames[2], frames[4]) == (run.first_frame + 7, run.first_frame, run.first_frame + 7)
    assert (done.entries[0] & PTE_TIER_MASK) >> PTE_TIER_SHIFT == Tier.DDR
    assert (await device.run(TranslateList(session=session, slot=0, pages=()))).entries == ()
    with pytest.raises(ValueError, match="does not fit"):
        await device.submit([TranslateList(session=session, slot=0, pages=(2**64,))])


async def test_fork_and_copy_on_write(device: Device) -> None:
    parent = await filled(device, 1)
    child = await create(device, 2)
    fork = Share(session=child, slot=0, source=parent, source_slot=0)
    assert (await device.run(fork)).value == 8
    assert await status(device, fork) is Status.ALREADY_MAPPED
    assert await runs(device, child) == await runs(device, parent)
    assert await status(device, Remap(session=child, slot=0, tier=Tier.NVME)) is Status.SHARED
    write = Unshare(session=child, slot=0, first_page=102, count=3)
    done = await device.run(write)
    assert (done.value, done.second) == (len(done.copies), 3)
    [copy] = done.copies
    [whole] = await runs(device, parent)
    assert (copy.first_page, copy.count, copy.tier, copy.blocks) == (102, 3, Tier.DDR, 3)
    assert copy.old_frame == whole.first_frame + 2
    moved = (await device.run(Translate(session=child, slot=0, first_page=102, count=3))).runs
    assert [(run.first_frame, run.count) for run in moved] == [(copy.new_frame, 3)]
    # What is alone already stays where it is.
    assert (await device.run(write)).copies == ()
    assert (await device.run(SessionDestroy(session=parent))).value == 8
    assert (await device.run(Unmap(session=child, slot=0))).value == 8


async def test_room_for_copies(device: Device) -> None:
    parent = await filled(device, 1)
    child = await create(device, 2)
    await device.run(Share(session=child, slot=0, source=parent, source_slot=0))
    assert await status(device, Unshare(session=child, slot=0, copies_max=0)) is Status.BUFFER_SMALL
    assert await runs(device, child) == await runs(device, parent)


async def test_prefix(device: Device) -> None:
    session = await create(device)
    assert (await device.run(PrefixInsert(session=session, namespace=7, hashes=HASHES[:5]))).value == 5
    found = await device.run(PrefixMatch(namespace=7, hashes=HASHES))
    assert (found.value, found.second) == (5, session)
    assert (await device.run(PrefixMatch(namespace=8, hashes=HASHES))).value == 0
    assert (await device.run(PrefixMatch(namespace=7, hashes=HASHES[3:], first=3))).value == 2
    # Without its middle a chain ends there.
    other = await create(device, 2)
    middle = PrefixRemove(namespace=7, hashes=HASHES[2:3], first=2, session=other)
    assert (await device.run(middle)).value == 0
    assert (await device.run(dataclasses.replace(middle, session=session))).value == 1
    assert (await device.run(PrefixMatch(namespace=7, hashes=HASHES))).value == 2
    again = PrefixInsert(session=other, namespace=7, hashes=HASHES[2:3], first=2)
    assert (await device.run(again)).value == 1
    found = await device.run(PrefixMatch(namespace=7, hashes=HASHES[:3]))
    assert (found.value, found.second) == (3, other)
    await device.run(SessionDestroy(session=session))
    assert (await device.run(PrefixMatch(namespace=7, hashes=HASHES))).value == 0
    with pytest.raises(ValueError, match="one length"):
        await device.submit([PrefixMatch(namespace=7, hashes=(b"a" * 8, b"b" * 16))])
