"""A machine's device tree in a folder, with a kernel that binds and unbinds what is written into it."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

from kvdriver.sysfs import Sysfs

if TYPE_CHECKING:
    from pathlib import Path

CARD = ("0x1234", "0x6b76")
NIC = ("0x8086", "0x10d3")


class FakeSysfs(Sysfs):
    """See `kvdriver.sysfs.Sysfs`; `refuse` makes writes of files with these names fail."""

    def __init__(self, root: Path, *, memlock_bytes: int | None = None, cpu: str = "GenuineIntel") -> None:
        super().__init__(sys=root / "sys", proc=root / "proc", dev=root / "dev")
        for folder in ("bus/pci/devices", "bus/pci/drivers", "kernel/iommu_groups", "devices"):
            (self.sys / folder).mkdir(parents=True)
        self.proc.mkdir()
        (self.proc / "cpuinfo").write_text(f"processor\t: 0\nvendor_id\t: {cpu}\n")
        self.limit_bytes = memlock_bytes
        self.refuse: dict[str, int] = {}
        self.deaf: set[str] = set()
        """Drivers that take no device."""

    def memlock_bytes(self) -> int | None:
        return self.limit_bytes

    def add_driver(self, name: str) -> None:
        folder = self.driver(name)
        folder.mkdir()
        for attribute in ("bind", "unbind"):
            (folder / attribute).write_text("")

    def add(
        self,
        slot: str,
        identity: tuple[str, str] = CARD,
        *,
        group: int | None = 7,
        driver: str | None = None,
        node: int = 0,
    ) -> None:
        folder = self.device(slot)
        folder.mkdir()
        vendor, device = identity
        for name, text in {"vendor": vendor, "device": device, "class": "0x120000", "numa_node": str(node)}.items():
            (folder / name).write_text(text + "\n")
        (folder / "driver_override").write_text("(null)\n")
        (self.sys / "bus/pci/drivers_probe").write_text("")
        if group is not None:
            members = self.sys / "kernel/iommu_groups" / str(group) / "devices"
            members.mkdir(parents=True, exist_ok=True)
            (members / slot).symlink_to(folder)
            (folder / "iommu_group").symlink_to(members.parent)
        if driver is not None:
            self._set(slot, driver)

    def open_by(self, pid: int, name: str, path: Path) -> None:
        folder = self.proc / str(pid) / "fd"
        folder.mkdir(parents=True)
        (self.proc / str(pid) / "comm").write_text(name + "\n")
        (folder / "3").symlink_to(path)

    def driver_of(self, slot: str) -> str | None:
        return self.link(self.device(slot) / "driver")

    def write(self, path: Path, text: str) -> None:
        if path.name in self.refuse:
            code = self.refuse[path.name]
            raise OSError(code, os.strerror(code), str(path))
        super().write(path, text)
        os.truncate(
            path, len(text)
        )  # an attribute holds what was written last, a file would hold what is behind it too
        if path.parent.parent == self.sys / "bus/pci/drivers":
            self._driver_file(path.parent.name, path.name, text)
        elif path.name == "drivers_probe":
            override = self.read(self.device(text) / "driver_override")
            if override and override not in self.deaf and self.driver(override).is_dir():
                self._set(text, override)
        elif path.name == "driver_override" and text == "\n":
            path.write_text("(null)\n")
        elif path.name == "driver_override":
            path.write_text(text + "\n")

    def _driver_file(self, driver: str, what: str, slot: str) -> None:
        bound = self.driver_of(slot) == driver
        if what == "unbind":
            if not bound:
                raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))
            self._set(slot, None)
        else:
            if driver in self.deaf or self.driver_of(slot) is not None:
                raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))
            self._set(slot, driver)

    def _set(self, slot: str, driver: str | None) -> None:
        link = self.device(slot) / "driver"
        link.unlink(missing_ok=True)
        if driver is not None:
            link.symlink_to(self.driver(driver))
