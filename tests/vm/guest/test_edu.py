"""The VFIO layer on a device that is not ours: registers, interrupts, DMA both ways, what must fault, reset."""

from __future__ import annotations

import errno
import math
import os
from contextlib import closing
from typing import TYPE_CHECKING

import edu as device
import pytest
import vfio_device
from edu import Edu
from vfio_device import KernelLog, Memory, bound, open_kernel

from kvdriver._vfio import ffi, lib

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE_BYTES = 4096
MEMORY_BYTES = 64 * PAGE_BYTES


@pytest.fixture(scope="module")
def slot() -> Iterator[str]:
    where = vfio_device.slot(device.VENDOR, device.DEVICE)
    with bound(where):
        yield where


@pytest.fixture
def edu(slot: str) -> Iterator[Edu]:
    with closing(Edu(slot)) as opened:
        yield opened


@pytest.fixture
def kernel_log() -> Iterator[KernelLog]:
    log = KernelLog()
    yield log
    log.close()


@pytest.fixture
def memory() -> Memory:
    made = Memory(MEMORY_BYTES)
    made[:] = os.urandom(MEMORY_BYTES)
    return made


def test_it_says_what_it_is(edu: Edu):
    info = edu.info
    assert (info.vendor, info.device) == (device.VENDOR, device.DEVICE)
    assert info.class_code == 0x00FF00
    assert ffi.string(info.transport) in {b"vfio", b"iommufd"}
    bar = info.regions[lib.KVD_VFIO_BAR0]
    assert (bar.bytes, bool(bar.readable), bool(bar.writable), bool(bar.mappable)) == (1 << 20, True, True, True)
    assert info.regions[lib.KVD_VFIO_BAR2].bytes == 0
    assert info.irqs[lib.KVD_VFIO_IRQ_MSI] == 1
    assert info.irqs[lib.KVD_VFIO_IRQ_MSIX] == 0
    assert info.irqs[lib.KVD_VFIO_IRQ_REQUEST] == 1
    assert info.can_reset
    assert info.iova_page_bytes == PAGE_BYTES
    assert info.mappings_max > 0
    assert info.iova_first % PAGE_BYTES == 0
    assert info.iova_last - info.iova_first >= vfio_device.APART


def test_it_is_not_gone(edu: Edu):
    assert lib.kvd_vfio_is_gone(edu.handle) == 0


def test_its_bar_reads_the_same_mapped_and_not(edu: Edu):
    ident = edu.load(device.IDENT)
    assert ident & 0xFF == 0xED
    assert edu.read(lib.KVD_VFIO_BAR0, device.IDENT, 4) == ident.to_bytes(4, "little")


def test_liveness_mapped_and_not(edu: Edu):
    edu.store(device.LIVENESS, 0x12345678)
    assert edu.load(device.LIVENESS) == 0xEDCBA987
    edu.write(lib.KVD_VFIO_BAR0, device.LIVENESS, bytes.fromhex("ff00aa55"))
    assert edu.read(lib.KVD_VFIO_BAR0, device.LIVENESS, 4) == bytes.fromhex("00ff55aa")


def test_configuration_space(edu: Edu):
    head = edu.read(lib.KVD_VFIO_CONFIG, 0, 16)
    assert head[:4] == device.VENDOR.to_bytes(2, "little") + device.DEVICE.to_bytes(2, "little")
    assert edu.read(lib.KVD_VFIO_CONFIG, 8, 4) == head[8:12]


@pytest.mark.parametrize("number", [0, 1, 5, 12])
def test_factorial_by_looking(edu: Edu, number: int):
    edu.store(device.STATUS, 0)
    edu.store(device.FACTORIAL, number)
    vfio_device.wait_until(lambda: not edu.load(device.STATUS) & device.STATUS_COMPUTING, "factorial")
    assert edu.load(device.FACTORIAL) == math.factorial(number)


def test_factorial_by_interrupt(edu: Edu):
    interrupt = edu.msi()
    edu.store(device.STATUS, device.STATUS_INTERRUPT)
    edu.store(device.FACTORIAL, 10)
    assert interrupt.fired() == 1
    assert edu.acknowledge() == 1
    assert edu.load(device.FACTORIAL) == math.factorial(10)
    edu.store(device.STATUS, 0)


def test_an_interrupt_comes_once_each_and_not_when_off(edu: Edu):
    interrupt = edu.msi()
    for value in (1, 0x80):
        edu.store(device.IRQ_RAISE, value)
        assert interrupt.fired() == 1
        assert edu.acknowledge() == value
    assert lib.kvd_vfio_irqs(edu.handle, lib.KVD_VFIO_IRQ_MSI, 0, 0, ffi.NULL) == 0
    edu.store(device.IRQ_RAISE, 1)
    assert interrupt.fired(device.QUIET_S) == 0
    assert edu.acknowledge() == 1


def test_an_interrupt_that_it_does_not_have_is_refused(edu: Edu):
    with pytest.raises(OSError, match="Invalid") as caught:
        edu.interrupt(lib.KVD_VFIO_IRQ_MSIX)
    assert caught.value.errno == errno.EINVAL


@pytest.mark.parametrize("size", [4, 1000, device.BUFFER_BYTES])
def test_dma_both_ways_moves_these_bytes_and_no_others(edu: Edu, memory: Memory, size: int):
    edu.map_memory(memory, edu.iova)
    interrupt = edu.msi()
    before = memory[:]
    source, target = 3 * PAGE_BYTES, 40 * PAGE_BYTES
    edu.copy(edu.iova + source, device.BUFFER, size, to_memory=False, interrupt=interrupt)
    assert memory[:] == before
    edu.copy(device.BUFFER, edu.iova + target, size, to_memory=True, interrupt=interrupt)
    assert memory[:] == before[:target] + before[source : source + size] + before[target + size :]


def test_dma_reaches_each_of_many_mappings(edu: Edu):
    pieces = [Memory(PAGE_BYTES) for _ in range(8)]
    interrupt = edu.msi()
    for number, piece in enumerate(pieces):
        piece[:] = bytes([number + 1]) * PAGE_BYTES
        edu.map_memory(piece, edu.iova + number * 2 * PAGE_BYTES)
    for number in range(7):
        edu.copy(edu.iova + number * 2 * PAGE_BYTES, device.BUFFER, PAGE_BYTES, to_memory=False, interrupt=interrupt)
        edu.copy(device.BUFFER, edu.iova + 14 * PAGE_BYTES, PAGE_BYTES, to_memory=True, interrupt=interrupt)
        assert pieces[7][:] == bytes([number + 1]) * PAGE_BYTES


def test_a_write_to_an_unmapped_address_faults(edu: Edu, memory: Memory, kernel_log: KernelLog):
    edu.map_memory(memory, edu.iova)
    interrupt = edu.msi()
    before = memory[:]
    edu.copy(device.BUFFER, edu.elsewhere, PAGE_BYTES, to_memory=True, interrupt=interrupt)
    kernel_log.wait_for("DMAR", "DMA Write", f"{edu.elsewhere:#x}")
    assert memory[:] == before


def test_a_read_from_an_unmapped_address_faults(edu: Edu, memory: Memory, kernel_log: KernelLog):
    edu.map_memory(memory, edu.iova)
    interrupt = edu.msi()
    edu.copy(edu.elsewhere + PAGE_BYTES, device.BUFFER, PAGE_BYTES, to_memory=False, interrupt=interrupt)
    kernel_log.wait_for("DMAR", "DMA Read", f"{edu.elsewhere + PAGE_BYTES:#x}")


def test_nothing_is_reached_after_unmap(edu: Edu, memory: Memory, kernel_log: KernelLog):
    edu.map_memory(memory, edu.iova)
    interrupt = edu.msi()
    edu.copy(edu.iova, device.BUFFER, PAGE_BYTES, to_memory=False, interrupt=interrupt)
    edu.unmap_memory(edu.iova, MEMORY_BYTES)
    memory[:] = bytes(MEMORY_BYTES)
    edu.copy(device.BUFFER, edu.iova + PAGE_BYTES, PAGE_BYTES, to_memory=True, interrupt=interrupt)
    kernel_log.wait_for("DMAR", "DMA Write", f"{edu.iova + PAGE_BYTES:#x}")
    assert memory[:] == bytes(MEMORY_BYTES)


def test_a_mapping_to_read_is_not_written(edu: Edu, memory: Memory, kernel_log: KernelLog):
    edu.map_memory(memory, edu.iova, writable=False)
    interrupt = edu.msi()
    before = memory[:]
    edu.copy(edu.iova, device.BUFFER, PAGE_BYTES, to_memory=False, interrupt=interrupt)
    edu.copy(device.BUFFER, edu.iova + 2 * PAGE_BYTES, PAGE_BYTES, to_memory=True, interrupt=interrupt)
    kernel_log.wait_for("DMAR", "DMA Write", f"{edu.iova + 2 * PAGE_BYTES:#x}")
    assert memory[:] == before


def test_mappings_that_overlap_or_are_not_there(edu: Edu, memory: Memory):
    edu.map_memory(memory, edu.iova)
    other = Memory(2 * PAGE_BYTES)
    for iova in (edu.iova, edu.iova + MEMORY_BYTES - PAGE_BYTES, edu.iova - PAGE_BYTES):
        with pytest.raises(OSError, match="exists") as caught:
            edu.map_memory(other, iova)
        assert caught.value.errno == errno.EEXIST
    for iova, size in ((edu.iova, PAGE_BYTES), (edu.iova + PAGE_BYTES, PAGE_BYTES), (edu.elsewhere, PAGE_BYTES)):
        with pytest.raises(OSError, match="No such") as caught:
            edu.unmap_memory(iova, size)
        assert caught.value.errno == errno.ENOENT
    # What was refused has changed nothing.
    interrupt = edu.msi()
    before = memory[:]
    edu.copy(edu.iova, device.BUFFER, PAGE_BYTES, to_memory=False, interrupt=interrupt)
    edu.copy(device.BUFFER, edu.iova + PAGE_BYTES, PAGE_BYTES, to_memory=True, interrupt=interrupt)
    assert memory[: 2 * PAGE_BYTES] == before[:PAGE_BYTES] * 2
    edu.unmap_memory(edu.iova, MEMORY_BYTES)
    edu.map_memory(other, edu.iova)


@pytest.mark.parametrize(
    ("offset", "size", "iova_offset"),
    [(0, PAGE_BYTES, 1), (0, PAGE_BYTES - 1, 0), (0, 0, 0), (8, PAGE_BYTES, 0), (0, PAGE_BYTES, -2 * PAGE_BYTES)],
    ids=["iova", "size", "nothing", "address", "outside"],
)
def test_a_crooked_mapping_is_refused(edu: Edu, memory: Memory, offset: int, size: int, iova_offset: int):
    iova = edu.info.iova_first + iova_offset
    assert lib.kvd_vfio_dma_map(edu.handle, memory.view + offset, size, iova, -1, 0, 1) == -errno.EINVAL


def test_what_is_outside_a_region_is_refused(edu: Edu):
    data = ffi.new("uint8_t[]", 8)
    out = ffi.new("void **")
    size = edu.info.regions[lib.KVD_VFIO_BAR0].bytes
    assert lib.kvd_vfio_read(edu.handle, lib.KVD_VFIO_BAR0, size, data, 4) == -errno.EINVAL
    assert lib.kvd_vfio_write(edu.handle, lib.KVD_VFIO_BAR0, size - 4, data, 8) == -errno.EINVAL
    assert lib.kvd_vfio_read(edu.handle, lib.KVD_VFIO_BAR2, 0, data, 4) == -errno.EINVAL
    assert lib.kvd_vfio_read(edu.handle, 99, 0, data, 4) == -errno.EINVAL
    assert lib.kvd_vfio_region_map(edu.handle, lib.KVD_VFIO_BAR0, 0, size + PAGE_BYTES, out) == -errno.EINVAL
    assert lib.kvd_vfio_region_map(edu.handle, lib.KVD_VFIO_CONFIG, 0, PAGE_BYTES, out) == -errno.EINVAL


def test_after_reset_mappings_stay_and_interrupts_are_off(edu: Edu, memory: Memory):
    edu.map_memory(memory, edu.iova)
    interrupt = edu.msi()
    assert lib.kvd_vfio_reset(edu.handle) == 0
    edu.store(device.LIVENESS, 1)
    assert edu.load(device.LIVENESS) == 0xFFFFFFFE
    edu.store(device.IRQ_RAISE, 1)
    assert interrupt.fired(device.QUIET_S) == 0
    edu.acknowledge()
    again = edu.msi()
    before = memory[:]
    edu.copy(edu.iova, device.BUFFER, PAGE_BYTES, to_memory=False, interrupt=again)
    edu.copy(device.BUFFER, edu.iova + PAGE_BYTES, PAGE_BYTES, to_memory=True, interrupt=again)
    assert memory[: 2 * PAGE_BYTES] == before[:PAGE_BYTES] * 2


def test_a_second_open_is_refused_with_the_reason(edu: Edu, slot: str):
    result, why, _ = open_kernel(slot)
    assert result == -errno.EBUSY
    assert why
    assert edu.load(device.IDENT) & 0xFF == 0xED


def test_close_gives_everything_back(slot: str, memory: Memory):
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with closing(Edu(slot)) as opened:
            opened.map_memory(memory, opened.iova)
            opened.msi()
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("where", ["0000:00:04.0", "0000:7f:00.0", "nonsense", "../../etc", ""])
def test_what_cannot_be_opened_is_named(where: str):
    result, why, handle = open_kernel(where)
    assert result < 0
    assert where in why
    assert len(why) > 20
    assert handle == ffi.NULL
