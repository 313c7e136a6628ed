"""Memory that a card reaches: addresses, mappings, buffers of batches."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import pytest

from kvdriver import CardDevice, Map, MapRun, SessionCreate, Tier, Translate
from kvdriver.card import REGION_BYTES, Card
from kvdriver.memory import FIRST_ADDRESS, HUGE_BYTES, AddressSpace, FileMemory, Scratch, SharedMemory
from kvdriver.tables import Tables, tables_bytes
from support.fake_card import FakeCard, Script

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def transport() -> Iterator[FakeCard]:
    card = FakeCard(Script())
    yield card
    card.close()


def test_shared_memory_is_what_its_file_holds() -> None:
    memory = SharedMemory("kvd-test", 1000)
    assert memory.bytes == HUGE_BYTES
    memory.view[5:10] = b"hello"
    assert os.pread(memory.fd, 5, 5) == b"hello"
    again = FileMemory(memory.fd, memory.bytes)
    assert again.address != memory.address
    again.close()
    memory.close()
    memory.close()
    assert memory.fd == -1


def test_addresses_do_not_overlap_and_are_used_again(transport: FakeCard) -> None:
    space = AddressSpace(transport)
    memories = [SharedMemory("kvd-test", HUGE_BYTES * pages) for pages in (1, 3, 2)]
    first, second, third = (space.map(memory) for memory in memories)
    assert first >= FIRST_ADDRESS
    assert (second - first, third - second) == (HUGE_BYTES, 3 * HUGE_BYTES)
    assert space.of(memories[1].address + 77, 100) == second + 77
    assert space.of(memories[1].address + memories[1].bytes - 50, 100) == memories[1].address + memories[1].bytes - 50
    space.unmap(memories[1])
    space.unmap(memories[1])  # not known any more
    small = SharedMemory("kvd-test", HUGE_BYTES)
    assert space.map(small) == second
    for memory in (*memories, small):
        memory.close()


def test_limits_are_kept(transport: FakeCard) -> None:
    memory = SharedMemory("kvd-test", HUGE_BYTES)
    space = AddressSpace(transport, last=2 * FIRST_ADDRESS + HUGE_BYTES)
    many = [memory] * transport.info.mappings_max
    for each in many:
        space.map(each)
    with pytest.raises(OSError, match="mappings") as raised:
        space.map(memory)
    assert raised.value.errno == errno.ENOSPC
    low = AddressSpace(FakeCard(Script()), last=4 * HUGE_BYTES - 1)  # a card that reaches only a little
    assert low.map(memory) == HUGE_BYTES
    low.map(memory)
    low.map(memory)
    with pytest.raises(OSError, match="last address") as raised:
        low.map(memory)
    assert raised.value.errno == errno.ENOSPC
    memory.close()


def test_scratch_is_zeroed_and_larger_memory_is_mapped_for_a_while(transport: FakeCard) -> None:
    space = AddressSpace(transport)
    memory = SharedMemory("kvd-test", HUGE_BYTES)
    scratch = Scratch(space, memory.view, space.map(memory))
    view, address = scratch.take(4096)
    view[:] = b"x" * 4096
    _, second = scratch.take(4096)
    assert second == address + 4096
    large, far = scratch.take(2 * HUGE_BYTES)
    assert (large.nbytes, far >= address + HUGE_BYTES) == (2 * HUGE_BYTES, True)
    assert "2 of 8 mappings" in repr(space)
    del large
    scratch.give_back()
    assert "1 of 8 mappings" in repr(space)
    again, same = scratch.take(4096)
    assert (bytes(again), same) == (bytes(4096), address)
    with pytest.raises(OSError, match="MiB") as raised:
        scratch.take(1 << 40)
    assert raised.value.errno == errno.ENOMEM
    del view, again
    memory.close()


def test_locked_memory_limit_is_told(transport: FakeCard, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    monkeypatch.setattr(transport, "dma_map", refuse)
    memory = SharedMemory("kvd-test", HUGE_BYTES)
    with pytest.raises(OSError, match="2048 KiB more can't be locked: raise the limit") as raised:
        AddressSpace(transport).map(memory)
    assert raised.value.errno == errno.ENOMEM
    memory.close()


async def test_batch_larger_than_the_memory_that_is_mapped() -> None:
    tables = Tables.make(page_bytes=65536, capacity_blocks={Tier.DDR: 1 << 20}, sessions_max=4)
    tables.local.leave()
    device = CardDevice(Card.open(FakeCard(Script()), tables.memory), tables.local)
    session = (await device.run(SessionCreate(key=1))).value
    count = REGION_BYTES // 16
    runs = tuple(MapRun(first_page=2 * number, count=1, blocks=1) for number in range(count))
    assert (await device.run(Map(session=session, slot=0, tier=Tier.DDR, runs=runs))).value == count
    found = (await device.run(Translate(session=session, slot=0))).runs
    assert [run.first_page for run in found] == [run.first_page for run in runs]
    assert "2 of 8 mappings" in repr(device._card.space)  # type: ignore[union-attr]
    assert await device.check() == []
    device.close()
    tables.close()


@pytest.mark.parametrize(("blocks", "sessions_max"), [(16, 1), (1 << 20, 1 << 20), (1 << 24, 1000)])
def test_tables_are_large_enough(blocks: int, sessions_max: int) -> None:
    capacity = {Tier.DDR: blocks, Tier.NVME: 4 * blocks}
    assert tables_bytes(65536, capacity, sessions_max) % HUGE_BYTES == 0
    Tables.make(page_bytes=65536, capacity_blocks=capacity, sessions_max=sessions_max).close()
