"""``kvctl device``, as a user runs it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from support import card_program
from support.kvctl_runs import daemon, document, kvctl

if TYPE_CHECKING:
    from pathlib import Path

NOWHERE = "vfio-user:/nowhere/card.sock"


def test_list_needs_no_daemon() -> None:
    slots = sorted(os.listdir("/sys/bus/pci/devices"))
    found = document(kvctl(None, "--json", "device", "list", "--all"))["devices"]
    assert [device["slot"] for device in found] == slots
    done = kvctl(None, "device", "list", "--all")
    assert (done.returncode, done.stderr) == (0, "")
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["SLOT", *slots]
    if not any(device["card"] for device in found):
        assert kvctl(None, "device", "list").stdout == "no kvd card; see kvctl device list --all\n"
        assert document(kvctl(None, "--json", "device", "list")) == {"devices": []}


@pytest.mark.parametrize(
    ("arguments", "status", "told"),
    [
        (["bind", "nonsense"], 4, "'nonsense' is no slot; write it as in 0000:01:00.0"),
        (["bind", "ffff:ff:1f.7"], 4, "there is no PCI device ffff:ff:1f.7"),
        (["unbind", "ffff:ff:1f.7"], 4, "there is no PCI device ffff:ff:1f.7"),
        (["info", "fpga"], 2, '"fpga" is no device: write "in-process", "vfio-user:/path.sock" or "vfio:0000:01:00.0"'),
        (["info", "in-process"], 2, "the in-process engine is no card"),
        (["info", NOWHERE], 1, "Nobody answers at /nowhere/card.sock"),
        (["selftest", "vfio:1"], 2, '"vfio:1" names no slot'),
    ],
)
def test_what_can_not_be_done_is_one_sentence(arguments: list[str], status: int, told: str) -> None:
    done = kvctl(None, "device", *arguments)
    assert (done.returncode, done.stdout) == (status, "")
    assert done.stderr.startswith("kvctl: ")
    assert told in done.stderr
    assert done.stderr.count("\n") == 1
    assert told in document(kvctl(None, "--json", "device", *arguments))["error"]["message"]


def test_a_device_that_is_no_card_is_left_alone(tmp_path: Path) -> None:
    found = document(kvctl(None, "--json", "device", "list", "--all"))["devices"]
    other = next((device for device in found if not device["card"]), None)
    if other is None:
        pytest.skip("this machine has no PCI device")
    done = kvctl(None, "device", "bind", other["slot"], "--run", str(tmp_path))
    assert done.returncode == 2
    assert f"{other['vendor']:04x}:{other['device']:04x}, which is no kvd card" in done.stderr
    done = kvctl(None, "device", "unbind", other["slot"], "--run", str(tmp_path))
    assert done.returncode == 1
    assert "was not bound by kvctl" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_reset_tells_how_it_went() -> None:
    with daemon() as fake:
        done = kvctl(fake.path, "device", "reset")
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout == "vfio-user (vfio-user:/run/card.sock); faults: 1 timeout; 3 commands replayed\n"
        told = document(kvctl(fake.path, "--json", "device", "reset"))
        assert (told["state"], told["taken_back"]) == ("ok", 3)
    assert kvctl(fake.path, "device", "reset").returncode == 3


@pytest.mark.skipif(card_program.program() is None, reason="kvd-card is not installed")
def test_info_and_selftest_of_a_card(scratch: Path) -> None:
    socket = scratch / "card.sock"
    with card_program.running(socket):
        told = kvctl(None, "device", "info", f"vfio-user:{socket}")
        assert (told.returncode, told.stderr) == (0, "")
        assert "transport" in told.stdout
        for line in ("session-create, ", "card 256 MiB", "4.0 KiB, ", "raw, fp16, "):
            assert line in told.stdout
        info = document(kvctl(None, "--json", "device", "info", f"vfio-user:{socket}"))
        assert (info["vendor"], info["device"], info["version"]) == ("1234", "6b76", "1.0")
        done = kvctl(None, "device", "selftest", f"vfio-user:{socket}")
        assert (done.returncode, done.stderr) == (0, "")
        lines = done.stdout.splitlines()
        assert all(line.startswith("ok     ") for line in lines)
        assert lines[-1] == "ok     tables: consistent, nothing left"
    failed = kvctl(None, "--json", "device", "selftest", f"vfio-user:{socket}")
    assert failed.returncode == 1
    told_steps = document(failed)
    assert told_steps["passed"] is False
    assert told_steps["steps"][-1]["name"] == "open"
