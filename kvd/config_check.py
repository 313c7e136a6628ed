"""Whether this machine lets kvd use its configuration: directories, the mount point, the socket's place and group."""

from __future__ import annotations

import grp
import os
import stat
from typing import TYPE_CHECKING

from kvd import mountinfo
from kvd.config import DRIVE_LOOK_S
from kvd.config_schema import default_of, fault
from kvd.errors import DRIVE_ERRORS
from kvd.patience import within

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from kvd.config import Config
    from kvd.mountinfo import MountEntry

_DIRECTORY_MODES = {("daemon", "state"): 0o700, ("ddr", "path"): 0o700, ("nvme", "dirs"): 0o700}
_DIRECTORY_MODE = 0o755


def check(config: Config, mounts: Sequence[MountEntry]) -> None:
    """Check the mount point, the socket's place and group, and every directory; changes nothing.

    Raises
    ------
    ConfigError
        With one line that names the key and the mend.
    """
    _check_mount_point(config, mounts)
    _check_socket(config.daemon.socket)
    _check_group(config.daemon.socket_group)
    planned: set[Path] = set()
    for table, key, path in _directories(config):
        _asking(table, lambda table=table, key=key, path=path: _check_directory(table, key, path, planned))  # type: ignore[misc]
        planned.add(path)


def make_directories(config: Config) -> None:
    """Make what `check` found makeable.

    Raises
    ------
    ConfigError
        If a directory can't be made after all.
    """
    for table, key, path in _directories(config):
        mode = _DIRECTORY_MODES.get((table, key), _DIRECTORY_MODE)
        try:
            _asking(table, lambda path=path, mode=mode: path.mkdir(mode=mode, exist_ok=True))  # type: ignore[misc]
        except OSError as error:
            raise fault(table, key, f"can't make {path}: {error.strerror}", "set a directory kvd can make") from error


def _asking(table: str, action: Callable[[], None]) -> None:
    """Do something with a directory; of a drive that does not answer or fails the daemon will say more, and go on."""
    if table != "nvme":
        action()
        return
    try:
        within(DRIVE_LOOK_S, action)
    except OSError as error:
        if not isinstance(error, TimeoutError) and error.errno not in DRIVE_ERRORS:
            raise


def _directories(config: Config) -> list[tuple[str, str, Path]]:
    """Return the directories that kvd uses, a parent before what is in it."""
    paths = [
        ("daemon", "state", config.daemon.state),
        ("daemon", "socket", config.daemon.socket.parent),
        ("ddr", "path", config.ddr.path),
        *(("nvme", "dirs", directory) for directory in config.nvme.dirs),
    ]
    return sorted(paths, key=lambda item: len(item[2].parts))


def _check_directory(table: str, key: str, path: Path, planned: set[Path]) -> None:
    """Check that `path` is a directory that kvd can write, or can be made in a parent that it can write."""
    if path in planned:
        return
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        if path.parent in planned:
            return
        if not path.parent.is_dir():
            raise fault(table, key, f"{path.parent} is not there", f"make it, or set {key} elsewhere") from None
        if not _writable(path.parent):
            raise fault(
                table, key, f"{path} is not there and can't be made", f"make it, or set {key} elsewhere"
            ) from None
        return
    except OSError as error:
        if table == "nvme" and error.errno in DRIVE_ERRORS:
            raise
        raise fault(table, key, f"{path}: {error.strerror}", f"set {key} elsewhere") from error
    if not stat.S_ISDIR(mode):
        raise fault(table, key, f"{path} is not a directory", f"set {key} to a path that is one")
    if not _writable(path):
        raise fault(table, key, f"{path} is not writable", f"run kvd as its owner, or set {key} elsewhere")


def _writable(path: Path) -> bool:
    return os.access(path, os.W_OK | os.X_OK, effective_ids=True)


def _check_socket(path: Path) -> None:
    """Check that nothing but a socket lies where the socket goes; whether a daemon listens is the start's to see."""
    try:
        mode = path.lstat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        raise fault("daemon", "socket", f"{path}: {error.strerror}", "choose another path") from error
    if not stat.S_ISSOCK(mode):
        raise fault("daemon", "socket", f"{path} is there and is not a socket", "remove it or choose another path")


def _check_group(group: str) -> None:
    """Check that the group exists; the default one may be missing, the socket then stays with the daemon's user."""
    if group in ("", default_of("daemon", "socket_group")):
        return
    try:
        grp.getgrnam(group)
    except (KeyError, ValueError):
        what, mend = f'there is no group "{group}"', f"make it (groupadd {group}), or set one that is there"
        raise fault("daemon", "socket_group", what, mend) from None


def _check_mount_point(config: Config, mounts: Sequence[MountEntry]) -> None:
    """Look at the mount point itself only when nothing is mounted there: a dead mount answers nobody."""
    path = config.daemon.mount
    stack = mountinfo.stack_at(mounts, path)
    if stack:
        if not mountinfo.is_ours(stack[-1], config.daemon.state):
            what = f"{path} has a mount that is not this kvd's: {mountinfo.describe(stack[-1])}"
            raise fault("daemon", "mount", what, "unmount it, or set an empty directory")
        return
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        raise fault("daemon", "mount", f"{path} is not there", f"make it (mkdir -p {path}), or set another") from None
    except OSError as error:
        raise fault("daemon", "mount", f"{path}: {error.strerror}", "set an empty directory") from error
    if not stat.S_ISDIR(mode):
        raise fault("daemon", "mount", f"{path} is not a directory", "set an empty directory")
    try:
        with os.scandir(path) as names:
            occupied = next(names, None) is not None
    except OSError as error:
        raise fault("daemon", "mount", f"{path}: {error.strerror}", "set an empty directory") from error
    if occupied:
        raise fault("daemon", "mount", f"{path} is not empty", "empty it, or set an empty directory")
