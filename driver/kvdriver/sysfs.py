"""What the driver reads and writes of /sys, /proc and /dev, and nothing else; tests have a twin (`support/fake_sysfs.py`)."""

from __future__ import annotations

import os
import resource
from dataclasses import dataclass
from pathlib import Path
from typing import Final

CAP_IPC_LOCK: Final = 14
"""Who has it may lock any amount of memory."""
COMMAND_AT: Final = 4
STATUS_END: Final = 8
"""Where in configuration space command and status are: never all ones, as some of their bits are reserved."""
ONES32: Final = b"\xff" * 4


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """A process that has a file open or mapped."""

    pid: int
    name: str


class Sysfs:
    """The machine's device tree.

    Parameters
    ----------
    sys, proc, dev
        Where /sys, /proc and /dev are.
    """

    def __init__(self, *, sys: Path = Path("/sys"), proc: Path = Path("/proc"), dev: Path = Path("/dev")) -> None:
        self.sys = sys
        self.proc = proc
        self.dev = dev

    def __repr__(self) -> str:
        return f"<Sysfs at {self.sys}>"

    def slots(self) -> list[str]:
        """Return the slots of all PCI devices, in order."""
        if self.sys != Path("/sys"):
            return self.names(self.sys / "bus/pci/devices")
        import pyudev  # noqa: PLC0415  it loads libudev, which only listing needs

        return sorted(device.sys_name for device in pyudev.Context().list_devices(subsystem="pci"))

    def device(self, slot: str) -> Path:
        """Return the folder of a PCI device, there or not."""
        return self.sys / "bus/pci/devices" / slot

    def driver(self, name: str) -> Path:
        """Return the folder of a PCI driver, there or not."""
        return self.sys / "bus/pci/drivers" / name

    def read(self, path: Path) -> str | None:
        """Return what an attribute holds, without the newline; None where there is none."""
        try:
            return path.read_text(encoding="ascii", errors="replace").strip()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def answers(self, slot: str) -> bool:
        """Whether there is life in a slot: of a device that is gone the command and status registers read as all ones."""
        try:
            with (self.device(slot) / "config").open("rb", buffering=0) as file:
                return file.read(STATUS_END)[COMMAND_AT:] != ONES32
        except OSError:  # no such device, or not ours to read: who opens it is told why
            return True

    def write(self, path: Path, text: str) -> None:
        """Write an attribute. Failures are `OSError`."""
        fd = os.open(path, os.O_WRONLY)
        try:
            os.write(fd, text.encode("ascii"))
        finally:
            os.close(fd)

    def link(self, path: Path) -> str | None:
        """Return the last name of what a link points to; None where there is none."""
        try:
            return os.path.basename(os.readlink(path))  # noqa: PTH115, PTH119  the link's own text
        except OSError:
            return None

    def names(self, path: Path) -> list[str]:
        """Return the names in a folder, in order; none where there is no folder."""
        try:
            return sorted(entry.name for entry in path.iterdir())
        except (FileNotFoundError, NotADirectoryError):
            return []

    def users(self, path: Path) -> list[User]:
        """Return the processes that have a file open, as far as this process may look."""
        found = []
        for pid in sorted((name for name in self.names(self.proc) if name.isdigit()), key=int):
            folder = self.proc / pid / "fd"
            try:
                opened = any(entry.readlink() == path for entry in folder.iterdir())
            except OSError:  # it has ended, or is somebody else's
                continue
            if opened:
                found.append(User(pid=int(pid), name=self.read(self.proc / pid / "comm") or "?"))
        return found

    def holders(self, file: os.stat_result) -> tuple[list[User], int]:
        """Return the other processes that have a file open or mapped, and how many could not be looked at.

        A file without a name too, which `users` does not tell from others.
        """
        found = []
        unseen = 0
        own = os.getpid()
        for pid in sorted(int(name) for name in self.names(self.proc) if name.isdigit()):
            if pid == own:
                continue
            folder = self.proc / str(pid)
            try:
                if self._opens(folder / "fd", file) or self._maps(folder / "maps", file):
                    found.append(User(pid=pid, name=self.read(folder / "comm") or "?"))
            except PermissionError:
                unseen += 1
            except (FileNotFoundError, ProcessLookupError):  # it has ended
                continue
        return found, unseen

    def _opens(self, folder: Path, file: os.stat_result) -> bool:
        for entry in folder.iterdir():
            try:
                if os.path.samestat(entry.stat(), file):
                    return True
            except PermissionError:
                raise
            except OSError:  # closed since; or on a mount whose server is dead, so not this file
                continue
        return False

    def _maps(self, path: Path, file: os.stat_result) -> bool:
        """Whether a process's list of mappings has the file: ``from-to rights offset MAJOR:MINOR INODE name``."""
        wanted = [f"{os.major(file.st_dev):02x}:{os.minor(file.st_dev):02x}".encode(), str(file.st_ino).encode()]
        with path.open("rb") as lines:
            return any(line.split(maxsplit=5)[3:5] == wanted for line in lines)

    def cpu_vendor(self) -> str:
        """Return the maker of the processors, as /proc/cpuinfo calls it."""
        for line in (self.read(self.proc / "cpuinfo") or "").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "vendor_id":
                return value.strip()
        return ""

    def memlock_bytes(self) -> int | None:
        """Return how much memory this process may lock; None: any amount."""
        for line in (self.read(self.proc / "self/status") or "").splitlines():
            key, _, value = line.partition(":")
            if key == "CapEff" and int(value, 16) >> CAP_IPC_LOCK & 1:
                return None
        soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
        return None if soft == resource.RLIM_INFINITY else soft
