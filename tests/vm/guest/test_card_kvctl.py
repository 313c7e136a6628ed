"""The card by `kvctl device`: list, bind, info, selftest, on the kernel's own vfio-pci. Leaves it bound."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import card
import vfio_device

from kvctl.exits import Exit
from kvdriver.abi import PCI_DEVICE_ID_RESET, PCI_VENDOR_ID_RESET
from kvdriver.vfio import VfioTransport

if TYPE_CHECKING:
    import pytest

HOST_BRIDGE = "0000:00:00.0"
NEW_ID = vfio_device.DRIVERS / card.FORMER / "new_id"


def listed(capsys: pytest.CaptureFixture[str], *options: str) -> list[dict[str, object]]:
    assert card.kvctl("device", "list", "--json", *options) == Exit.OK
    found: list[dict[str, object]] = json.loads(card.output(capsys))["devices"]
    return found


def test_it_is_discovered(capsys: pytest.CaptureFixture[str]):
    NEW_ID.write_text(f"{PCI_VENDOR_ID_RESET:x} {PCI_DEVICE_ID_RESET:x}")
    where = card.slot()
    [found] = listed(capsys)
    assert (found["slot"], found["driver"], found["card"]) == (where, card.FORMER, True)
    assert (found["vendor"], found["device"]) == (PCI_VENDOR_ID_RESET, PCI_DEVICE_ID_RESET)
    assert isinstance(found["group"], int)
    assert found["neighbours"] == []
    every = {device["slot"] for device in listed(capsys, "--all")}
    assert every == {path.name for path in vfio_device.DEVICES.iterdir()}


def test_it_is_bound(capsys: pytest.CaptureFixture[str]):
    where = card.slot()
    assert card.kvctl("device", "bind", where, "--json") == Exit.OK
    assert json.loads(card.output(capsys))["device"]["driver"] == "vfio-pci"
    assert card.driver(where) == "vfio-pci"


def test_what_is_no_card_is_not_bound(capsys: pytest.CaptureFixture[str]):
    assert card.kvctl("device", "bind", HOST_BRIDGE) == Exit.USAGE
    assert "no kvd card" in capsys.readouterr().err


def test_info(capsys: pytest.CaptureFixture[str]):
    where = str(card.address())
    assert card.kvctl("device", "info", where, "--json") == Exit.OK
    told = json.loads(card.output(capsys))
    assert (told["address"], told["transport"], told["fault"]) == (where, "vfio", "")
    assert "SCATTER" in told["operations"]


def test_who_has_it_open_is_told(capsys: pytest.CaptureFixture[str]):
    """An unbind would wait in the kernel, beyond any signal, until the device is closed."""
    where = card.slot()
    transport = VfioTransport.open(card.address())
    try:
        assert card.kvctl("device", "unbind", where) == Exit.BUSY
        assert "in use by" in capsys.readouterr().err
        assert card.driver(where) == "vfio-pci"
        assert card.kvctl("device", "info", str(card.address())) == Exit.FAILED
        assert "Another process uses the group" in capsys.readouterr().err
    finally:
        transport.close()


def test_unbind_gives_it_back_and_bind_takes_it_again(capsys: pytest.CaptureFixture[str]):
    where = card.slot()
    assert card.kvctl("device", "unbind", where, "--json") == Exit.OK
    assert json.loads(card.output(capsys))["device"]["driver"] == card.FORMER
    assert card.driver(where) == card.FORMER
    assert card.kvctl("device", "unbind", where) != Exit.OK
    assert "not bound by kvctl" in capsys.readouterr().err
    assert card.kvctl("device", "bind", where) == Exit.OK
    assert card.driver(where) == "vfio-pci"
