"""The card of the guest: `kvd-card` on the host, attached by QEMU, driven by the guest's own vfio-pci."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import vfio_device

from kvctl.commands import run
from kvdriver import DeviceAddress, ResilientDevice
from kvdriver.abi import PCI_DEVICE_ID_RESET, PCI_VENDOR_ID_RESET
from kvdriver.opening import card_preparer
from kvdriver.tables import Tables
from t2_driver.conformance.test_model import CAPACITY

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

FORMER = "pci-stub"
"""What drives the card before kvd: a driver of the kernel's that does nothing with it."""
PAGE_BYTES = 65536
SESSIONS_MAX = 64
DEADLINE_S = 60.0
"""Of a command: emulation is slow, and the machine below may have other work."""
STILL_S = 1.0
"""A card that has executed nothing for so long, with commands in its queue, hangs."""


def slot() -> str:
    return vfio_device.slot(PCI_VENDOR_ID_RESET, PCI_DEVICE_ID_RESET)


def address() -> DeviceAddress:
    return DeviceAddress.parse(f"vfio:{slot()}")


def driver(where: str) -> str:
    return (vfio_device.DEVICES / where / "driver").resolve().name


def kvctl(*arguments: str) -> int:
    """Run kvctl as its program does; what it prints is for `capsys`."""
    return run(list(arguments))


async def open_resilient() -> ResilientDevice:
    """Open the card as the daemon does, with a deadline for emulation; it must have been had."""
    tables = Tables.make(page_bytes=PAGE_BYTES, capacity_blocks=CAPACITY, sessions_max=SESSIONS_MAX)
    device = await ResilientDevice.open(
        tables, card_preparer(address()), wanted=str(address()), deadline_s=DEADLINE_S, give_s=DEADLINE_S
    )
    assert not device.state.degraded, device.state.reason
    return device


def until_still(sequence: Callable[[], int], target: int) -> int:
    """Wait, in a thread, until commands are executed no more; return how many have been. Never after `target`."""
    end_s = time.monotonic() + DEADLINE_S / 2
    last, since_s = -1, time.monotonic()
    while time.monotonic() - since_s < STILL_S:
        now = sequence()
        assert now < target, "the card has executed all, so it did not hang"
        assert time.monotonic() < end_s, "the card goes on and on"
        if now != last:
            last, since_s = now, time.monotonic()
        time.sleep(STILL_S / 100)
    return last


def output(capsys: pytest.CaptureFixture[str]) -> str:
    """Return what was printed; standard error must be empty."""
    told = capsys.readouterr()
    assert told.err == ""
    return told.out
