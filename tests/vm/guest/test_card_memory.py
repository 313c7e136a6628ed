"""Bytes between the host's memory and the card's own (BAR4), compared at both ends; tables compared with what the card says."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import card
import pytest

from kvdriver import Gather, Map, MapRun, Scatter, SessionCreate, Tier, Transfer, Translate
from kvdriver._vfio import ffi
from kvdriver.memory import SharedMemory
from kvdriver.opening import BareCard, open_bare
from kvdriver.transport import Region

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

PAGE_BYTES = card.PAGE_BYTES
BLOCKS = PAGE_BYTES // 4096
PAGES = (9, 2, 5, 3, 30, 4)
COUNT = 3 * PAGE_BYTES - 4321
OFFSET = 1234
"""In the first of the pages 2 to 5."""


@pytest.fixture
async def device() -> AsyncIterator[BareCard]:
    device = await open_bare(
        card.address(), page_bytes=PAGE_BYTES, capacity_blocks={Tier.DDR: 4096, Tier.CARD: 1024}, sessions_max=4
    )
    assert isinstance(device, BareCard)
    yield device
    assert await device.check() == []
    device.close()


def bar4(device: BareCard, count: int) -> memoryview:
    """Return the card's memory as this process sees it."""
    at = device._opened().transport.map(Region.MEMORY, 0, count)
    return memoryview(ffi.buffer(ffi.cast("uint8_t *", at), count))


async def test_card_memory_and_host_memory(device: BareCard):
    host = SharedMemory("kvd-host", 1 << 20)
    await device.map_memory(host)
    session = (await device.run(SessionCreate(key=1))).value
    for page in PAGES:
        run = MapRun(first_page=page, count=1, blocks=BLOCKS)
        await device.run(Map(session=session, slot=0, tier=Tier.CARD, runs=(run,)))
    asked = Translate(session=session, slot=0)
    said = (await device.run(asked)).runs
    assert said == await device.tables_say(asked)
    frames = {run.first_page + at: run.first_frame + at for run in said for at in range(run.count)}
    assert sorted(frames) == sorted(PAGES)
    memory = bar4(device, (max(frames.values()) + 1) * PAGE_BYTES)
    memory[:] = bytes(len(memory))

    def laid() -> bytes:
        return b"".join(
            memory[frames[page] * PAGE_BYTES : (frames[page] + 1) * PAGE_BYTES].tobytes() for page in range(2, 6)
        )

    sent = random.Random(4).randbytes(COUNT)
    host.view[64 : 64 + COUNT] = sent
    place = {"session": session, "slot": 0, "first_page": 2, "count": 4}
    there = Transfer(host=host.address + 64, host_bytes=COUNT, page_offset=OFFSET)
    assert (await device.run(Scatter(**place, transfer=there))).value == COUNT
    assert laid() == bytes(OFFSET) + sent + bytes(4 * PAGE_BYTES - OFFSET - COUNT)
    assert not any(memory[frames[9] * PAGE_BYTES : (frames[9] + 1) * PAGE_BYTES])
    # And what this process writes into the card's memory is what the card gathers.
    written = random.Random(5).randbytes(PAGE_BYTES)
    memory[frames[3] * PAGE_BYTES : (frames[3] + 1) * PAGE_BYTES] = written
    back = Transfer(host=host.address + (1 << 19), host_bytes=2 * PAGE_BYTES, page_offset=PAGE_BYTES // 2)
    await device.run(Gather(**place, transfer=back))
    half = PAGE_BYTES // 2
    gathered = bytes(host.view[1 << 19 : (1 << 19) + 2 * PAGE_BYTES])
    expected = laid()[half : half + 2 * PAGE_BYTES]
    assert gathered == expected
    assert gathered[half : half + PAGE_BYTES] == written
    await device.unmap_memory(host)
    host.close()


async def test_tables_hold_what_the_card_says(device: BareCard):
    """The card writes the tables by DMA; this process reads the same bytes."""
    pick = random.Random(6)
    session = (await device.run(SessionCreate(key=1))).value
    pages = pick.sample(range(0, 1 << 20, 2), 1000)
    commands = [
        Map(
            session=session,
            slot=slot,
            tier=pick.choice([Tier.DDR, Tier.CARD]) if slot else Tier.DDR,
            runs=tuple(MapRun(first_page=page, count=1, blocks=1) for page in pages[slot * 500 : slot * 500 + 500]),
        )
        for slot in (0, 1)
    ]
    assert [completion.value for completion in await device.submit(commands)] == [500, 500]
    for slot in (0, 1):
        asked = Translate(session=session, slot=slot)
        said = (await device.run(asked)).runs
        assert said == await device.tables_say(asked)
        assert sorted(run.first_page for run in said) == sorted(pages[slot * 500 : slot * 500 + 500])
