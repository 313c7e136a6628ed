"""GATHER and SCATTER: bytes through the page table, between memory of the host and the frames of a tier."""

from __future__ import annotations

import random
import struct
from typing import TYPE_CHECKING

import pytest

from kvdriver import (
    Device,
    Format,
    Gather,
    Map,
    MapRun,
    Scaling,
    Scatter,
    SessionCreate,
    Status,
    Tier,
    Transfer,
)
from kvdriver.memory import SharedMemory

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

PAGE_BYTES = 65536
PAGES = (7, 3, 5, 4, 6)
"""In the order in which they get their frames: neighbours in the table are none in memory."""
TOKENS, CHANNELS = 100, 24
BLOCK_TOKENS = 64


class Rig:
    """A session with pages, memory of its tier, and memory of the host."""

    def __init__(self, device: Device, session: int, tier: SharedMemory, host: SharedMemory) -> None:
        self.device = device
        self.session = session
        self.tier = tier
        self.host = host

    def place(self) -> dict[str, int]:
        return {"session": self.session, "slot": 0, "first_page": min(PAGES), "count": len(PAGES)}

    def raw(self, at: int, count: int, offset: int) -> Transfer:
        return Transfer(host=self.host.address + at, host_bytes=count, page_offset=offset)


@pytest.fixture
async def rig(device: Device) -> AsyncIterator[Rig]:
    tier, host = SharedMemory("kvd-tier", 4 << 20), SharedMemory("kvd-host", 2 << 20)
    for memory in (tier, host):
        await device.map_memory(memory)
    await device.tier_memory(Tier.DDR, tier)
    session = (await device.run(SessionCreate(key=1))).value
    for page in PAGES:
        run = MapRun(first_page=page, count=1, blocks=16)
        await device.run(Map(session=session, slot=0, tier=Tier.DDR, runs=(run,)))
    yield Rig(device, session, tier, host)
    for memory in (tier, host):
        await device.unmap_memory(memory)
        memory.close()


@pytest.mark.parametrize(("offset", "count"), [(0, len(PAGES) * PAGE_BYTES), (12345, 200_000), (65535, 2), (8, 1)])
async def test_bytes_come_back_as_they_went(rig: Rig, offset: int, count: int) -> None:
    sent = random.Random(count).randbytes(count)
    rig.host.view[64 : 64 + count] = sent
    done = await rig.device.run(Scatter(**rig.place(), transfer=rig.raw(64, count, offset)))
    assert done.value == count
    frames = sorted(range(len(PAGES)), key=PAGES.__getitem__)
    laid = b"".join(rig.tier.view[frame * PAGE_BYTES : (frame + 1) * PAGE_BYTES] for frame in frames)
    assert laid[offset : offset + count] == sent
    back = 1 << 20
    await rig.device.run(Gather(**rig.place(), transfer=rig.raw(back, count, offset)))
    assert rig.host.view[back : back + count] == sent
    assert rig.host.view[back + count : back + count + 64] == bytes(64)


async def test_halves_become_bytes_and_halves_again(rig: Rig) -> None:
    count = TOKENS * CHANNELS
    values = [random.Random(number).uniform(-3, 3) for number in range(count)]
    halves = struct.pack(f"<{count}e", *values)
    rig.host.view[: len(halves)] = halves
    scales_at = 1 << 19
    blocks = -(-TOKENS // BLOCK_TOKENS)
    narrowing = Transfer(
        host=rig.host.address,
        host_bytes=len(halves),
        page_offset=PAGE_BYTES - 100,
        host_format=Format.FP16,
        page_format=Format.INT8,
        tokens=TOKENS,
        channels=CHANNELS,
        scaling=Scaling.FP32_BLOCKS,
        scales=rig.host.address + scales_at,
        scales_bytes=blocks * CHANNELS * 4,
    )
    await rig.device.run(Scatter(**rig.place(), transfer=narrowing))
    scales = struct.unpack_from(f"<{blocks * CHANNELS}f", rig.host.view, scales_at)
    assert all(0 < scale <= 3 / 127 + 1e-6 for scale in scales)
    rig.host.view[: len(halves)] = bytes(len(halves))
    await rig.device.run(Gather(**rig.place(), transfer=narrowing))
    found = struct.unpack_from(f"<{count}e", rig.host.view, 0)
    assert max(abs(a - b) for a, b in zip(values, found, strict=True)) <= max(scales)


async def test_a_hole_is_refused_and_nothing_moves(rig: Rig) -> None:
    before = bytes(rig.host.view[:PAGE_BYTES])
    place = rig.place() | {"count": len(PAGES) + 1}
    transfer = rig.raw(0, (len(PAGES) + 1) * PAGE_BYTES, 0)
    [completion] = await rig.device.submit([Gather(**place, transfer=transfer)])
    assert completion.status is Status.NOT_MAPPED
    assert rig.host.view[:PAGE_BYTES] == before


async def test_tier_without_memory(rig: Rig) -> None:
    run = MapRun(first_page=100, count=1, blocks=16)
    await rig.device.run(Map(session=rig.session, slot=1, tier=Tier.NVME, runs=(run,)))
    command = Gather(session=rig.session, slot=1, first_page=100, count=1, transfer=rig.raw(0, 4096, 0))
    [completion] = await rig.device.submit([command])
    assert completion.status is Status.NO_MEMORY
