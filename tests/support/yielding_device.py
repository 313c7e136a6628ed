"""A device that lets every other task run before and after each batch, as a card does that answers later."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from kvdriver import Device

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvdriver import Capabilities, Command, Completion, DeviceStatistics


class YieldingDevice(Device):
    """Everything else is the device's behind it."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self.batches = 0

    @property
    def capabilities(self) -> Capabilities:
        return self._device.capabilities

    async def submit(self, commands: Sequence[Command]) -> list[Completion]:
        self.batches += 1
        await trio.lowlevel.checkpoint()
        completions = await self._device.submit(commands)
        await trio.lowlevel.checkpoint()
        return completions

    async def check(self) -> list[str]:
        await trio.lowlevel.checkpoint()
        return await self._device.check()

    async def reset(self) -> None:
        await self._device.reset()

    def statistics(self) -> DeviceStatistics:
        return self._device.statistics()

    def close(self) -> None:
        self._device.close()
