"""Set up QEMU, the guest's kernel and its busybox in `build/vm/bed`, once.

Usage: ``python -m vm.bed FOLDER`` with `scripts` in PYTHONPATH.
"""

from __future__ import annotations

import fcntl
import json
import shutil
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from vm import sources
from vm.error import BedError, disk_errors
from vm.packages import Apt, Package

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

FORMAT = 1
"""Raise it when the folder's content changes its meaning: folders of another format are set up anew."""
RELEASE = "trixie"
BACKPORTS = "trixie-backports"
PROGRAMS = ("qemu-system-x86", "busybox-static")
"""From backports: the QEMU of Debian 12 and 13 has no vfio-user-pci."""
KERNEL = "linux-image-amd64"
UNPACKED_RATIO = 4
"""Unpacked packages need about so many times their size, with the packages beside them."""
UNPACK_S_MAX = 300.0
STAMP = "stamp.json"


@dataclass(frozen=True, slots=True)
class Bed:
    """The folder where everything for the virtual machine is unpacked."""

    folder: Path

    @property
    def tree(self) -> Path:
        """A Debian tree with QEMU and all its libraries."""
        return self.folder / "tree"

    @property
    def busybox(self) -> Path:
        """A busybox without shared libraries, for the guest."""
        return self.tree / "usr/bin/busybox"

    @property
    def kernel(self) -> Path:
        """The guest's kernel."""
        return _only(self.folder / "kernel", "boot/vmlinuz-*")

    @property
    def modules(self) -> Path:
        """The folder of the guest kernel's modules."""
        return _only(self.folder / "kernel", "usr/lib/modules/*")

    @property
    def qemu(self) -> list[str]:
        """The command that runs QEMU with the libraries of its own tree, without chroot or mounts."""
        share = self.tree / "usr/share"
        firmware = [flag for name in ("qemu", "seabios", "ipxe/qemu") for flag in ("-L", str(share / name))]
        return [
            str(self.tree / "usr/lib64/ld-linux-x86-64.so.2"),
            "--library-path",
            str(self.tree / "usr/lib/x86_64-linux-gnu"),
            str(self.tree / "usr/bin/qemu-system-x86_64"),
            *firmware,
        ]

    def versions(self) -> dict[str, str]:
        """Return package versions by name, as stamped."""
        packages: list[str] = json.loads((self.folder / STAMP).read_text())["packages"]
        return {name: version for name, version, _ in (file.split("_", 2) for file in packages)}


def _only(folder: Path, pattern: str) -> Path:
    found = list(folder.glob(pattern))
    if len(found) != 1:
        raise BedError(
            f"{folder} has {len(found)} {pattern} instead of one", f"remove {folder.parent} and run it again"
        )
    return found[0]


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep `folder` for this process.

    Raises
    ------
    BedError
        Another process has it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BedError(f"another vm-test uses {folder}", "wait for it") from None
        yield


def set_up(folder: Path, say: Callable[[str], object]) -> Bed:
    """Return the bed in `folder`, set up if it is not there or was made by another recipe.

    Raises
    ------
    BedError
        It cannot be: no mirror, no network, a bad signature, a full disk. Nothing is left then.
    """
    folder = folder.absolute()
    bed = Bed(folder / "bed")
    if _stamped(bed.folder) == _recipe():
        return bed
    started = time.monotonic()
    try:
        with disk_errors():
            _make(folder, bed, say)
    finally:
        _clear(folder)
    versions = bed.versions()
    say(
        f"bed ready in {time.monotonic() - started:.0f} s: QEMU {versions['qemu-system-x86']}, "
        f"kernel {bed.modules.name}"
    )
    return bed


def _recipe() -> dict[str, object]:
    return {"format": FORMAT, "suites": [RELEASE, BACKPORTS], "wanted": [*PROGRAMS, KERNEL]}


def _stamped(folder: Path) -> object:
    try:
        return json.loads((folder / STAMP).read_text())["recipe"]
    except (OSError, ValueError, KeyError):
        return None


def _make(folder: Path, bed: Bed, say: Callable[[str], object]) -> None:
    # All or nothing: the folder gets its name when it is whole.
    shutil.rmtree(bed.folder, ignore_errors=True)
    work = Bed(folder / "bed.new")
    _clear(folder)
    apt = Apt(folder / "apt", sources.mirror(Path("/")), [RELEASE, BACKPORTS], say)
    say("reading the package indexes (10 MB)")
    apt.update()
    programs = apt.plan(PROGRAMS, release=BACKPORTS)
    # What a kernel needs to boot a disk is of no use here: only the image itself.
    kernel = [package for package in apt.plan([KERNEL], release=RELEASE) if package.name.startswith("linux-image-6")]
    if len(kernel) != 1:
        raise BedError(f"{KERNEL} stands for {kernel}", "the release has changed: see KERNEL in scripts/vm/bed.py")
    _check_room(folder, [*programs, *kernel])
    say(f"fetching {len(programs) + 1} packages")
    files = apt.download([*programs, *kernel])
    say("unpacking")
    for file in files[:-1]:
        _unpack(file, work.tree)
    _unpack(files[-1], work.folder / "kernel")
    (work.folder / STAMP).write_text(
        json.dumps({"recipe": _recipe(), "packages": [package.file for package in [*programs, *kernel]]}, indent=1)
    )
    work.folder.rename(bed.folder)


def _clear(folder: Path) -> None:
    """Remove what only a set-up needs."""
    for name in ("bed.new", "apt"):
        shutil.rmtree(folder / name, ignore_errors=True)


def _check_room(folder: Path, packages: Sequence[Package]) -> None:
    needed = UNPACKED_RATIO * sum(package.size_bytes for package in packages)
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise BedError(
            f"{folder} has {free >> 20} MiB free, the bed needs {needed >> 20} MiB",
            "make room, or put the checkout elsewhere",
        )


def _unpack(package: Path, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        ["dpkg-deb", "-x", str(package), str(folder)],
        capture_output=True,
        text=True,
        check=False,
        timeout=UNPACK_S_MAX,
    )
    if done.returncode:
        full = "No space left" in done.stderr
        mend = "make room, or put the checkout elsewhere" if full else f"remove {package.parent} and run it again"
        raise BedError(f"{package.name} cannot be unpacked: {done.stderr.strip()}", mend)


def main(folder: Path) -> int:
    """Set up the bed in `folder`."""
    try:
        with locked(folder):
            set_up(folder, lambda line: sys.stderr.write(f"vm-test: {line}\n"))
    except BedError as error:
        sys.stderr.write(f"vm-test: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
