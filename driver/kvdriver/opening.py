"""Opens the device that an address names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import trio

from kvdriver.card import Card
from kvdriver.carddevice import CardDevice
from kvdriver.inprocess import InProcessDevice
from kvdriver.resilient import ResilientDevice
from kvdriver.tables import Tables

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kvdriver.abi import Tier
    from kvdriver.address import DeviceAddress
    from kvdriver.commands import Translate
    from kvdriver.device import Device, Run
    from kvdriver.registers import CardDescription

DEADLINE_S: Final = 5.0


def card_preparer(address: DeviceAddress) -> Callable[[], Card]:
    """Return what opens the card at an address, as far as that goes without tables."""

    def prepare() -> Card:
        from kvdriver.vfio import VfioTransport  # noqa: PLC0415  not needed for a device in process

        return Card.prepare(VfioTransport.open(address))

    return prepare


async def open_resilient(
    address: DeviceAddress, *, page_bytes: int, capacity_blocks: Mapping[Tier, int], sessions_max: int
) -> InProcessDevice | ResilientDevice:
    """Open a device that goes on when its card fails; one in process can't.

    Raises
    ------
    OSError
        If the configuration is refused or memory is not to be had.
    """
    if address.is_in_process:
        return InProcessDevice.open(page_bytes=page_bytes, capacity_blocks=capacity_blocks, sessions_max=sessions_max)
    tables = Tables.make(page_bytes=page_bytes, capacity_blocks=capacity_blocks, sessions_max=sessions_max)
    return await ResilientDevice.open(tables, card_preparer(address), wanted=str(address), deadline_s=DEADLINE_S)


class BareCard(CardDevice):
    """A card with tables of its own and nothing to fall back to: for tests and `kvctl device selftest`."""

    def __init__(self, card: Card, tables: Tables) -> None:
        super().__init__(card, tables.local, deadline_s=DEADLINE_S)
        self.tables = tables

    @property
    def description(self) -> CardDescription:
        """What the card says of itself."""
        return self._opened().description

    @property
    def ring(self) -> Any:
        """The `kvd_ring` of its queue."""
        return self._opened().ring

    async def tables_say(self, command: Translate) -> tuple[Run, ...]:
        """Return the runs of a range as this process reads them in the tables."""
        return self._local.peek(command)

    def close(self) -> None:
        """Release the device and the tables; further calls raise `ValueError`."""
        super().close()
        self.tables.close()


async def open_bare(
    address: DeviceAddress, *, page_bytes: int, capacity_blocks: Mapping[Tier, int], sessions_max: int
) -> Device:
    """Open exactly the device that an address names.

    Raises
    ------
    DeviceFault
        If the card can't be opened.
    OSError
        If the configuration is refused or memory is not to be had.
    """
    if address.is_in_process:
        return InProcessDevice.open(page_bytes=page_bytes, capacity_blocks=capacity_blocks, sessions_max=sessions_max)
    tables = Tables.make(page_bytes=page_bytes, capacity_blocks=capacity_blocks, sessions_max=sessions_max)
    try:
        card = await trio.to_thread.run_sync(card_preparer(address))
        try:
            tables.local.leave()
            await trio.to_thread.run_sync(card.give, tables.memory)
        except BaseException:
            card.close(gone=True)
            raise
    except BaseException:
        tables.close()
        raise
    return BareCard(card, tables)
