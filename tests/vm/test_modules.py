"""The order in which kernel modules are loaded."""

from __future__ import annotations

import lzma
from typing import TYPE_CHECKING

import pytest

from vm import modules
from vm.error import BedError

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    drivers = tmp_path / "kernel/drivers"
    drivers.mkdir(parents=True)

    def write(name: str, needs: str | None) -> None:
        info = b"\x7fELF...\0license=GPL\0" + (b"" if needs is None else b"depends=" + needs.encode() + b"\0")
        content = info + b"vermagic=6\0"
        packed = name.endswith(".xz")
        (drivers / name).write_bytes(lzma.compress(content) if packed else content)

    write("vfio-pci.ko.xz", "vfio-pci-core,vfio")
    write("vfio-pci-core.ko.xz", "vfio,irqbypass")
    write("vfio.ko", "")
    write("irqbypass.ko.xz", None)
    write("lost.ko", "nowhere")
    (drivers / "vfio.ko.txt").write_text("no module")
    return tmp_path


def test_what_is_needed_comes_first_and_once(folder: Path):
    order = modules.load_order(folder, ["vfio", "vfio_pci"])
    assert [name for name, _ in order] == ["vfio", "irqbypass", "vfio_pci_core", "vfio_pci"]
    assert all(content.startswith(b"\x7fELF") for _, content in order)


@pytest.mark.parametrize("name", ["nothing", "lost"])
def test_a_module_that_is_not_there_is_named(folder: Path, name: str):
    with pytest.raises(BedError, match=r"no module (nothing|nowhere)"):
        modules.load_order(folder, [name])
