"""What is particular to the in-process device: how it is opened and where its tables are."""

from __future__ import annotations

import dataclasses
import errno
import os

import numpy as np
import pytest

from kvdriver import (
    EngineError,
    Format,
    Gather,
    InProcessDevice,
    Map,
    MapRun,
    Scaling,
    Scatter,
    SessionCreate,
    Tier,
    Transfer,
)


@pytest.mark.parametrize(
    "wrong",
    [
        {"page_bytes": 65537},
        {"capacity_blocks": {}},
        {"capacity_blocks": {Tier.NONE: 5}},
        {"sessions_max": 0},
        {"arena_bytes": 4096},
    ],
)
def test_bad_configuration_is_refused(wrong: dict[str, object]) -> None:
    good: dict[str, object] = {"page_bytes": 65536, "capacity_blocks": {Tier.DDR: 16}}
    with pytest.raises(OSError, match="page-table engine") as raised:
        InProcessDevice.open(**(good | wrong))  # type: ignore[arg-type]
    assert raised.value.errno == errno.EINVAL


@pytest.mark.parametrize("wrong", [{"page_bytes": -1}, {"sessions_max": 2**64}, {"capacity_blocks": {Tier.DDR: -1}}])
def test_number_that_does_not_fit_is_refused(wrong: dict[str, object]) -> None:
    good: dict[str, object] = {"page_bytes": 65536, "capacity_blocks": {Tier.DDR: 16}}
    with pytest.raises(ValueError, match="page-table engine"):
        InProcessDevice.open(**(good | wrong))  # type: ignore[arg-type]


async def test_tables_live_in_the_given_file() -> None:
    fd = os.memfd_create("arena")
    device = InProcessDevice.open(
        page_bytes=65536, capacity_blocks={Tier.DDR: 1000}, sessions_max=4, arena_bytes=1 << 20, arena_fd=fd
    )
    empty = os.pread(fd, 1 << 20, 0)
    assert len(empty) == 1 << 20
    session = (await device.run(SessionCreate(key=1))).value
    run = MapRun(first_page=0, count=100, blocks=1)
    await device.run(Map(session=session, slot=0, tier=Tier.DDR, runs=(run,)))
    assert os.pread(fd, 1 << 20, 0) != empty
    await device.reset()
    assert device.statistics().mapped_pages == 0
    device.close()
    os.close(fd)


def test_bad_descriptor_is_named() -> None:
    with pytest.raises(OSError, match="page-table engine") as raised:
        InProcessDevice.open(page_bytes=65536, capacity_blocks={Tier.DDR: 16}, arena_fd=10_000)
    assert raised.value.errno == errno.EBADF


async def test_bytes_go_through_the_page_table() -> None:
    """Halves to INT8 and back; the pages and the host's arrays are numpy's."""
    device = InProcessDevice.open(page_bytes=4096, capacity_blocks={Tier.DDR: 64}, sessions_max=4, arena_bytes=8 << 20)
    memory = np.zeros(64 * 4096, np.uint8)
    device.give_memory(Tier.DDR, address=memory.ctypes.data, size_bytes=memory.nbytes)
    session = (await device.run(SessionCreate(key=1))).value
    for page in (5, 3, 4):
        run = MapRun(first_page=page, count=1, blocks=1)
        await device.run(Map(session=session, slot=0, tier=Tier.DDR, runs=(run,)))
    values = np.random.default_rng(1).normal(size=(100, 70)).astype(np.float16)
    scales = np.zeros((2, 70), np.float32)
    narrowing = Transfer(
        host=values.ctypes.data,
        host_bytes=values.nbytes,
        page_offset=3000,
        host_format=Format.FP16,
        page_format=Format.INT8,
        tokens=100,
        channels=70,
        scaling=Scaling.FP32_BLOCKS,
        scales=scales.ctypes.data,
        scales_bytes=scales.nbytes,
    )
    done = await device.run(Scatter(session=session, slot=0, first_page=3, count=3, transfer=narrowing))
    assert done.value == values.nbytes
    codes = np.concatenate([memory[4096:12288], memory[:4096]])[3000:10000].view(np.int8).reshape(100, 70)
    expected = np.abs(values.astype(np.float32)).reshape(-1, 70)
    assert np.allclose(scales, [expected[:64].max(0) / 127, expected[64:].max(0) / 127])
    assert np.array_equal(codes, np.rint(values / np.repeat(scales, [64, 36], 0)).astype(np.int8))
    back = np.zeros_like(values)
    widening = dataclasses.replace(narrowing, host=back.ctypes.data)
    await device.run(Gather(session=session, slot=0, first_page=3, count=3, transfer=widening))
    assert np.allclose(back, values, atol=float(scales.max()))
    with pytest.raises(EngineError, match="NOT_MAPPED"):
        await device.run(Gather(session=session, slot=0, first_page=4, count=3, transfer=widening))
    with pytest.raises(OSError, match="memory of NONE"):
        device.give_memory(Tier.NONE, address=8, size_bytes=8)
    assert await device.check() == []
    device.close()
