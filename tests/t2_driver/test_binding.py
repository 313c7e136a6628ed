"""Discovery and binding, on device trees in a folder."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

import pytest

from kvdriver.binding import Binder, BindingError, Refusal
from kvdriver.discovery import Neighbour, cards, find
from kvdriver.sysfs import Sysfs
from kvdriver.vfio import without_reset
from support.fake_sysfs import NIC, FakeSysfs

if TYPE_CHECKING:
    from pathlib import Path

SLOT = "0000:01:00.0"
OTHER = "0000:01:00.1"


@pytest.fixture
def machine(tmp_path: Path) -> FakeSysfs:
    sysfs = FakeSysfs(tmp_path)
    for name in ("vfio-pci", "kvd-old", "e1000e"):
        sysfs.add_driver(name)
    return sysfs


def binder(machine: FakeSysfs) -> Binder:
    return Binder(machine, machine.sys.parent / "state")


def refusal(machine: FakeSysfs, slot: str = SLOT, *, memlock_bytes: int = 0, force_id: bool = False) -> BindingError:
    with pytest.raises(BindingError) as raised:
        binder(machine).bind(slot, memlock_bytes=memlock_bytes, force_id=force_id)
    return raised.value


def test_cards_are_found_among_all_devices(machine: FakeSysfs) -> None:
    machine.add(SLOT, group=7, driver="kvd-old", node=1)
    machine.add(OTHER, NIC, group=7, driver="e1000e", node=-1)
    machine.add("0000:02:00.0", NIC, group=None)
    [card] = cards(machine)
    assert (card.slot, card.vendor, card.device, card.numa_node, card.group) == (SLOT, 0x1234, 0x6B76, 1, 7)
    assert card.driver == "kvd-old"
    assert card.neighbours == (Neighbour(slot=OTHER, driver="e1000e"),)
    assert not card.neighbours[0].viable
    every = cards(machine, every=True)
    assert [device.slot for device in every] == [SLOT, OTHER, "0000:02:00.0"]
    assert (every[2].group, every[2].driver, every[2].neighbours) == (None, None, ())
    assert every[1].numa_node is None


def test_this_machine_can_be_listed() -> None:
    sysfs = Sysfs()
    assert [device.slot for device in cards(sysfs, every=True)] == sysfs.names(sysfs.sys / "bus/pci/devices")


@pytest.mark.parametrize("former", ["kvd-old", None])
def test_bind_and_unbind_restore(machine: FakeSysfs, former: str | None) -> None:
    machine.add(SLOT, driver=former)
    assert binder(machine).bind(SLOT, memlock_bytes=0).driver == "vfio-pci"
    assert binder(machine).bind(SLOT, memlock_bytes=0).driver == "vfio-pci"  # once more changes nothing
    assert binder(machine).unbind(SLOT).driver == former
    assert machine.read(machine.device(SLOT) / "driver_override") == "(null)"
    with pytest.raises(BindingError) as raised:
        binder(machine).unbind(SLOT)
    assert raised.value.refusal is Refusal.NOT_OURS


def test_no_such_device(machine: FakeSysfs) -> None:
    assert refusal(machine).refusal is Refusal.NO_DEVICE
    error = refusal(machine, "1:0")
    assert error.refusal is Refusal.NO_DEVICE
    assert "0000:01:00.0" in str(error)


def test_only_cards_unless_forced(machine: FakeSysfs) -> None:
    machine.add(SLOT, NIC, driver="e1000e")
    error = refusal(machine)
    assert error.refusal is Refusal.NOT_A_CARD
    assert "8086:10d3" in str(error)
    assert "--force-id" in str(error)
    assert binder(machine).bind(SLOT, memlock_bytes=0, force_id=True).driver == "vfio-pci"


@pytest.mark.parametrize(
    ("cpu", "mend"), [("GenuineIntel", "intel_iommu=on"), ("AuthenticAMD", "amd_iommu"), ("", "IOMMU")]
)
def test_iommu_off(tmp_path: Path, cpu: str, mend: str) -> None:
    machine = FakeSysfs(tmp_path, cpu=cpu)
    machine.add(SLOT, group=None)
    error = refusal(machine)
    assert error.refusal is Refusal.IOMMU_OFF
    assert mend in str(error)


def test_group_not_viable_names_the_others(machine: FakeSysfs) -> None:
    machine.add(SLOT, driver="kvd-old")
    machine.add(OTHER, NIC, driver="e1000e")
    machine.add("0000:01:00.2", NIC, driver="vfio-pci")
    machine.add("0000:01:00.3", NIC)
    error = refusal(machine)
    assert error.refusal is Refusal.NOT_VIABLE
    assert f"{OTHER} (e1000e)" in str(error)
    assert "01:00.2" not in str(error)
    assert machine.driver_of(SLOT) == "kvd-old"


def test_group_busy_names_who(machine: FakeSysfs) -> None:
    machine.add(SLOT)
    machine.open_by(42, "qemu", machine.dev / "vfio" / "7")
    machine.open_by(43, "other", machine.dev / "vfio" / "8")
    error = refusal(machine)
    assert error.refusal is Refusal.GROUP_BUSY
    assert "qemu (process 42)" in str(error)
    assert "other" not in str(error)


@pytest.mark.parametrize("node", ["7", "devices/vfio3"])
def test_busy_device_is_not_unbound(machine: FakeSysfs, node: str) -> None:
    """Its unbind would wait in the kernel, beyond any signal."""
    machine.add(SLOT, driver="kvd-old")
    binder(machine).bind(SLOT, memlock_bytes=0)
    (machine.device(SLOT) / "vfio-dev/vfio3").mkdir(parents=True)
    machine.open_by(42, "kvd", machine.dev / "vfio" / node)
    with pytest.raises(BindingError) as raised:
        binder(machine).unbind(SLOT)
    assert raised.value.refusal is Refusal.GROUP_BUSY
    assert machine.driver_of(SLOT) == "vfio-pci"


def test_memlock_says_how_much(machine: FakeSysfs) -> None:
    machine.add(SLOT)
    machine.limit_bytes = 64 << 10
    error = refusal(machine, memlock_bytes=8 << 20)
    assert error.refusal is Refusal.MEMLOCK
    assert "8192 KiB" in str(error)
    assert "64 KiB" in str(error)
    machine.limit_bytes = 8 << 20
    assert binder(machine).bind(SLOT, memlock_bytes=8 << 20).driver == "vfio-pci"


def test_kernel_without_vfio(tmp_path: Path) -> None:
    machine = FakeSysfs(tmp_path)
    machine.add(SLOT)
    error = refusal(machine)
    assert error.refusal is Refusal.NO_VFIO
    assert "modprobe vfio-pci" in str(error)


@pytest.mark.parametrize("at", ["driver_override", "unbind", "drivers_probe"])
@pytest.mark.parametrize(
    ("code", "named"), [(errno.EACCES, Refusal.NO_PERMISSION), (errno.ENODEV, Refusal.FAILED)], ids=["EACCES", "ENODEV"]
)
def test_failure_half_way_leaves_the_former_driver(machine: FakeSysfs, at: str, code: int, named: Refusal) -> None:
    machine.add(SLOT, driver="kvd-old")
    machine.refuse[at] = code
    error = refusal(machine)
    assert error.refusal is named
    assert SLOT in str(error)
    assert machine.driver_of(SLOT) == "kvd-old"
    machine.refuse.clear()
    assert binder(machine).bind(SLOT, memlock_bytes=0).driver == "vfio-pci"


def test_driver_that_does_not_take_it(machine: FakeSysfs) -> None:
    machine.add(SLOT, driver="kvd-old")
    machine.deaf.add("vfio-pci")
    error = refusal(machine)
    assert error.refusal is Refusal.FAILED
    assert "dmesg" in str(error)
    assert machine.driver_of(SLOT) == "kvd-old"


def test_former_driver_that_has_gone_is_told(machine: FakeSysfs) -> None:
    machine.add(SLOT, driver="kvd-old")
    binder(machine).bind(SLOT, memlock_bytes=0)
    machine.deaf.add("kvd-old")
    with pytest.raises(BindingError) as raised:
        binder(machine).unbind(SLOT)
    assert raised.value.refusal is Refusal.FAILED
    assert "kvd-old" in str(raised.value)
    machine.deaf.clear()
    assert binder(machine).unbind(SLOT).driver == "kvd-old"  # it was not forgotten


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"former": 3}'])
def test_state_that_is_damaged_counts_as_none(machine: FakeSysfs, text: str) -> None:
    machine.add(SLOT)
    binder(machine).bind(SLOT, memlock_bytes=0)
    (machine.sys.parent / "state" / f"bound-{SLOT}.json").write_text(text)
    with pytest.raises(BindingError) as raised:
        binder(machine).unbind(SLOT)
    assert raised.value.refusal is Refusal.NOT_OURS


def test_state_folder_that_can_not_be_made(machine: FakeSysfs) -> None:
    machine.add(SLOT, driver="kvd-old")
    (machine.sys.parent / "state").write_text("a file")
    assert refusal(machine).refusal is Refusal.FAILED
    assert machine.driver_of(SLOT) == "kvd-old"


def test_memlock_of_this_process() -> None:
    limit_bytes = Sysfs().memlock_bytes()
    assert limit_bytes is None or limit_bytes > 0


def test_dead_device_is_closed_without_its_reset(machine: FakeSysfs) -> None:
    machine.add(SLOT, driver="vfio-pci")
    method = machine.device(SLOT) / "reset_method"
    with without_reset(machine, SLOT):  # a kernel that has no such thing
        assert not method.exists()
    method.write_text("flr bus\n")
    with without_reset(machine, SLOT):
        assert machine.read(method) == ""
    assert machine.read(method) == "flr bus"
    machine.refuse["reset_method"] = errno.EACCES
    with without_reset(machine, SLOT):
        assert machine.read(method) == "flr bus"


def test_slot_with_nobody_in_it(machine: FakeSysfs) -> None:
    assert machine.answers(SLOT)  # who opens it is told that there is none
    machine.add(SLOT, driver="vfio-pci")
    config = machine.device(SLOT) / "config"
    head = bytes.fromhex("3412766b")
    config.write_bytes(head + bytes.fromhex("06041000") + bytes(248))
    assert machine.answers(SLOT)
    config.write_bytes(b"\xff" * 256)
    assert not machine.answers(SLOT)
    config.write_bytes(head + b"\xff" * 252)  # somebody on the way answers for it
    assert not machine.answers(SLOT)


def test_find_says_none(machine: FakeSysfs) -> None:
    assert find(machine, SLOT) is None
