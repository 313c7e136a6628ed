"""The bed itself: what the other steps take for granted."""

from __future__ import annotations

import sys
from pathlib import Path

import host_port
import pytest

import kvdriver

DEVICES = Path("/sys/bus/pci/devices")
EDU = ("0x1234", "0x11e8")


def test_python_is_the_virtual_environment_of_the_checkout():
    assert sys.prefix != sys.base_prefix
    assert Path(kvdriver.__file__).is_relative_to(sys.prefix)


def test_each_pci_function_behind_the_iommu_has_a_group():
    assert [path for path in DEVICES.iterdir() if not (path / "iommu_group").exists()] == []


def test_edu_is_alone_in_its_group():
    found = [path for path in DEVICES.iterdir() if _id(path) == EDU]
    assert len(found) == 1
    assert [path.name for path in (found[0] / "iommu_group/devices").iterdir()] == [found[0].name]


def _id(device: Path) -> tuple[str, str]:
    return (device / "vendor").read_text().strip(), (device / "device").read_text().strip()


def test_vfio_is_there():
    assert Path("/dev/vfio/vfio").is_char_device()
    assert Path("/sys/bus/pci/drivers/vfio-pci/bind").exists()


def test_the_host_answers():
    host_port.ask("ping")
    host_port.ask("ping")


@pytest.mark.parametrize("request_text", ["dance", "kill nobody", ""])
def test_the_host_refuses_what_it_does_not_know(request_text: str):
    with pytest.raises(host_port.HostRefusedError, match=r"unknown request|no helper"):
        host_port.ask(request_text)
