"""What is particular to the in-process device: how it is opened and where its tables are."""

from __future__ import annotations

import errno
import os

import pytest

from kvdriver import InProcessDevice, Map, MapRun, SessionCreate, Tier


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
