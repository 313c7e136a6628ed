"""Where a benchmark runs: a scratch folder on a disk, a plain tmpfs of its own, a private kvd or a mount that is there."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kvctl import names, units
from kvctl.client import Client
from kvctl.exits import CtlError, Exit, UsageError
from kvctl.private import FILE_SYSTEM, PrivateKvd, signals_held
from kvd import mountinfo

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

SEALED: Final = b"sealed"
WAIT_S: Final = 120.0
"""Whatever kvd does behind a client's back (sealing, moving, removing) is done after so long, or it is a failure."""
POLL_S: Final = 0.01
DROP_PAGE_CACHE: Final = "1"
NOT_A_DISK: Final = frozenset({"tmpfs", "ramfs", "devtmpfs", "overlay"})


def until(condition: Callable[[], bool], what: str, wait_s: float = WAIT_S) -> None:
    """Poll until something is so.

    Raises
    ------
    CtlError
        If it is not in time.
    """
    deadline_s = time.monotonic() + wait_s
    while not condition():
        if time.monotonic() > deadline_s:
            raise CtlError(f"not within {wait_s:g} s: {what}", Exit.FAILED, "ETIMEDOUT")
        time.sleep(POLL_S)


def until_checked(socket: Path, objects: int, wait_s: float) -> None:
    """Wait until a daemon that has started has looked at all of its many objects."""
    with Client(socket) as client:
        until(
            lambda: client.get("status")["index"]["state"] == "checked",
            f"the index of {objects:,} objects is checked",
            wait_s,
        )


def drop_page_cache() -> None:
    """Make the next read of a disk's file a cold one."""
    os.sync()
    Path("/proc/sys/vm/drop_caches").write_text(DROP_PAGE_CACHE)


def fstype_of(path: Path) -> str:
    """Return the type of the file system that a folder is on."""
    where = Path(os.path.realpath(path))
    found = ""
    for entry in sorted(mountinfo.read(), key=lambda entry: len(entry.mount_point.parts)):
        if where.is_relative_to(entry.mount_point):
            found = entry.fstype
    return found


@contextmanager
def scratch(wanted: Path | None) -> Iterator[Path]:
    """Make a folder on a disk; at the end unmount what is mounted below it, and remove it.

    Parameters
    ----------
    wanted
        Where; None: where TMPDIR says, if that is on a disk, else /var/tmp.

    Raises
    ------
    UsageError
        If there is no folder on a disk.
    """
    parent = wanted or _default_parent()
    if not parent.is_dir():
        raise UsageError(f"--scratch {parent}: there is no such folder")
    if (fstype := fstype_of(parent)) in NOT_A_DISK:
        raise UsageError(f"{parent} is on {fstype}: name a folder on a disk with --scratch")
    with ExitStack() as stack:
        with signals_held():
            folder = Path(tempfile.mkdtemp(prefix="kvd-bench-", dir=parent)).resolve()
            stack.callback(_clear, folder)
        yield folder


def _default_parent() -> Path:
    named = Path(os.environ.get("TMPDIR") or FILE_SYSTEM)
    return named if named.is_dir() and fstype_of(named) not in NOT_A_DISK else Path(FILE_SYSTEM)


def _clear(folder: Path) -> None:
    points = [entry.mount_point for entry in mountinfo.read() if entry.mount_point.is_relative_to(folder)]
    for point in reversed(points):
        subprocess.run(["umount", "-l", str(point)], check=False, capture_output=True)
    shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def plain_tmpfs(folder: Path, size_bytes: int) -> Iterator[Path]:
    """Mount the peer of what is in memory: a tmpfs as most machines have it, with pages of 4 KiB.

    Raises
    ------
    CtlError
        If it can't be mounted.
    """
    point = folder / "plain"
    point.mkdir(exist_ok=True)
    options = f"size={size_bytes},mode=700"
    # A kernel without huge pages for tmpfs does not know the word, and needs it as little.
    for words in (f"{options},huge=never", options):
        command = ["mount", "-t", "tmpfs", "-o", words, "kvd-bench", str(point)]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if not done.returncode:
            break
    else:
        raise CtlError(f"can't mount a tmpfs to measure against: {done.stderr.strip()}", Exit.FAILED, "EPERM")
    try:
        yield point
    finally:
        subprocess.run(["umount", "-l", str(point)], check=False, capture_output=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """A kvd to measure.

    Attributes
    ----------
    folder
        In the mount; everything of the benchmark is below it.
    mount
        The mount point.
    client
        Its daemon.
    disk
        A folder on a disk, for the peers.
    private
        The daemon, where it is one of the benchmark's own.
    """

    folder: Path
    mount: Path
    client: Client
    disk: Path
    private: PrivateKvd | None = None

    def inside(self, path: Path) -> bytes:
        """Return a path as the daemon names it."""
        return names.inside(path, str(self.mount))

    def make(self, name: str, count: int) -> list[Path]:
        """Make a folder in the mount; return the names of so many files in it, which are not there yet."""
        return _named(self.folder / name, count)

    def remove(self, name: str) -> None:
        """Remove a folder that `make` has made, and what is in it."""
        shutil.rmtree(self.folder / name)

    def status(self) -> dict[str, Any]:
        """Ask the daemon."""
        return self.client.get("status")

    def tier(self, name: str) -> dict[str, Any]:
        """Return the books of a tier."""
        found: dict[str, Any] = next(tier for tier in self.status()["tiers"] if tier["tier"] == name)
        return found

    def until_sealed(self, paths: Sequence[Path]) -> None:
        """Wait until objects are sealed: the kernel tells of a close after close(2) has returned."""
        for path in paths:
            until(lambda path=path: os.getxattr(path, "user.kvd.state") == SEALED, f"seal of {path}")  # type: ignore[misc]

    def demote(self, path: Path) -> None:
        """Move all objects at or below a path to NVMe.

        Raises
        ------
        CtlError
            If one of them can't be moved.
        """
        failed: list[dict[str, Any]] = []

        def moved() -> bool:
            steps = self.client.operate("demote", [self.inside(path)])
            failed[:] = [step for step in steps if step["error"] is not None]
            for step in failed:
                if step["code"] != "EBUSY":
                    raise CtlError(f"{step['path']}: {step['error']}", Exit.FAILED, step["code"])
            return not failed

        # A reader's last close may be on its way yet.
        until(moved, "objects that nobody uses are moved to NVMe")

    def backing(self, paths: Sequence[Path]) -> list[Path] | None:
        """Return the files on NVMe in which the daemon keeps objects, if they can be told."""
        if self.private is None or len(self.private.nvme_dirs) != 1:
            return None
        found: dict[str, Path] = {}
        for file in self.private.nvme_dirs[0].glob("objects/*/*/*"):
            number, _, generation = file.name.partition(".")
            if generation and "." not in generation:
                found[number] = file
        files = [found.get(f"{path.stat().st_ino:x}") for path in paths]
        whole = [
            file
            for file, path in zip(files, paths, strict=True)
            if file is not None and file.stat().st_size == path.stat().st_size
        ]
        return whole if len(whole) == len(paths) else None


def _named(folder: Path, count: int) -> list[Path]:
    folder.mkdir()
    return [folder / f"{index:06d}" for index in range(count)]


def on_peer(parent: Path, name: str, count: int) -> list[Path]:
    """Make a folder of a peer; return the names of so many files in it."""
    return _named(parent / name, count)


@contextmanager
def private(folder: Path, settings: Mapping[str, Mapping[str, Any]]) -> Iterator[Ground]:
    """Run a kvd of one's own below a scratch folder.

    Raises
    ------
    KvdFailedError
        If it does not start.
    """
    with PrivateKvd(settings, parent=folder) as kvd:
        kvd.start()
        with Client(kvd.socket) as client:
            yield Ground(folder=kvd.mount, mount=kvd.mount, client=client, disk=folder, private=kvd)


@contextmanager
def mounted(place: Path, folder: Path, client: Client) -> Iterator[Ground]:
    """Use a kvd that runs: a folder in its mount, which is removed at the end.

    Raises
    ------
    CtlError
        If it does not answer, or the place is not in its mount.
    """
    mount = Path(client.mount())
    names.inside(place, str(mount))
    if not place.is_dir():
        raise UsageError(f"--mount {place}: is no folder")
    with ExitStack() as stack:
        with signals_held():
            here = Path(tempfile.mkdtemp(prefix="kvd-bench-", dir=place)).resolve()
            stack.callback(shutil.rmtree, here, ignore_errors=True)
        yield Ground(folder=here, mount=mount, client=client, disk=folder)


def tmpfs_used_bytes(tier: Mapping[str, Any]) -> int:
    """Return what the file system of the DDR tier really holds."""
    found = os.statvfs(tier["path"])
    return (found.f_blocks - found.f_bfree) * found.f_frsize


def need_space(folder: Path, needed_bytes: int) -> None:
    """Check that a disk has room.

    Raises
    ------
    CtlError
        If it has not.
    """
    found = os.statvfs(folder)
    free_bytes = found.f_bavail * found.f_frsize
    if free_bytes < needed_bytes:
        told = f"needs {units.size(needed_bytes)}, has {units.size(free_bytes)}"
        raise CtlError(f"{folder}: {told}; use a smaller --size", Exit.NO_SPACE, "ENOSPC")
