from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import pytest

from kvdriver import Device, InProcessDevice, Tier

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

PAGE_BLOCKS = 16
SESSIONS_MAX = 16
CAPACITY_BLOCKS = {Tier.DDR: 4096, Tier.NVME: 65536}


class Opener(Protocol):
    """Opens a fresh device of one implementation."""

    def __call__(self, *, page_bytes: int, capacity_blocks: Mapping[Tier, int], sessions_max: int) -> Device: ...


# Each implementation of the interface runs the whole suite.
DEVICES: dict[str, Opener] = {"in-process": InProcessDevice.open}


@pytest.fixture(params=DEVICES)
async def device(request: pytest.FixtureRequest) -> AsyncIterator[Device]:
    """A device that must be consistent when the test ends; the test may close it."""
    device = DEVICES[request.param](
        page_bytes=PAGE_BLOCKS * 4096, capacity_blocks=CAPACITY_BLOCKS, sessions_max=SESSIONS_MAX
    )
    yield device
    try:
        faults = await device.check()
    except ValueError:
        return
    device.close()
    assert faults == []
