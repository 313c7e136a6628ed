"""Pack the guest's root file system: busybox, kernel modules, this machine's Python, the tests."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from vm import closure, modules
from vm.cpio import Archive

if TYPE_CHECKING:
    from collections.abc import Iterator

    from vm.bed import Bed

MODULES = ("vfio", "vfio_iommu_type1", "vfio_pci")
"""Container, IOMMU back end and the driver that hands a PCI device to user space; the rest follows from these."""
BUSYBOX = "/usr/bin/busybox"
TESTS_LEFT_OUT = frozenset({"__pycache__", "bench", "c"})
ETC = {
    "/etc/passwd": "root:x:0:0:root:/root:/bin/sh\n",
    "/etc/group": "root:x:0:\n",
    "/etc/hosts": "127.0.0.1 localhost\n",
}
APPLETS_S_MAX = 10.0


def pack(bed: Bed, root: Path, compiled: Path, image: Path) -> int:
    """Write the file system for a guest that tests the checkout at `root`; return the bytes that it unpacks to.

    Parameters
    ----------
    bed
        Kernel modules and busybox.
    root
        The checkout.
    compiled
        A Python cache prefix (``PYTHONPYCACHEPREFIX``), used and filled.
    image
        The file to write.
    """
    with Archive(image) as archive:
        _base(archive, bed)
        _modules(archive, bed)
        for name, source in closure.files(compiled):
            archive.host_file(source, name)
        for path in tests(root):
            archive.host_file(path)
            if path.suffix == ".py":
                for name, source in closure.compiled_forms(path, compiled):
                    archive.host_file(source, name)
        guest = root / "tests/vm/guest"
        archive.file("/init", (guest / "init.sh").read_bytes(), mode=0o755)
        archive.file("/etc/kvd-vm", f"ROOT={root}\nPYTHON={sys.executable}\n".encode())
        return archive.content_bytes


def _base(archive: Archive, bed: Bed) -> None:
    for name in ("dev", "proc", "sys", "run", "root", "usr/sbin"):
        archive.directory(f"/{name}")
    for name in ("tmp", "var/tmp"):
        archive.directory(f"/{name}", 0o1777)
    for name in ("bin", "sbin", "lib", "lib64"):
        archive.link(f"/{name}", f"usr/{name}")
    archive.file(BUSYBOX, bed.busybox.read_bytes(), mode=0o755)
    listed = subprocess.run(
        [str(bed.busybox), "--list"], capture_output=True, text=True, check=True, timeout=APPLETS_S_MAX
    )
    for applet in listed.stdout.split():
        archive.link(f"/usr/bin/{applet}", BUSYBOX)
    for name, text in ETC.items():
        archive.file(name, text.encode())
    # For libraries that are opened by name: ctypes asks ldconfig where they are.
    for path in (Path("/sbin/ldconfig"), Path("/etc/ld.so.conf"), *Path("/etc/ld.so.conf.d").glob("*.conf")):
        if path.exists():
            archive.host_file(path)


def _modules(archive: Archive, bed: Bed) -> None:
    order = modules.load_order(bed.modules, MODULES)
    for name, content in order:
        archive.file(f"/modules/{name}.ko", content)
    archive.file("/modules/order", "".join(f"{name}\n" for name, _ in order).encode())


def tests(root: Path) -> Iterator[Path]:
    """Yield what a test needs of a checkout: never kvd's own sources, as the guest tests what is installed."""
    yield root / "pyproject.toml"
    yield from sorted((root / "scripts").glob("*.py"))
    yield from _tree(root / "tests")


def _tree(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        if path.name in TESTS_LEFT_OUT:
            continue
        if path.is_dir():
            yield from _tree(path)
        else:
            yield path
