"""The FUSE mount, the private tmpfs, and the dead mounts of an earlier life.

A mount is known by its name in mountinfo, never by asking it. Only what carries this daemon's name is ever unmounted.
"""

from __future__ import annotations

import contextlib
import errno
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvd import log, mountinfo
from kvd.api.backend import FeatureOff
from kvd.config_schema import fault
from kvd.config_units import size_text
from kvd.errors import UnavailableError
from kvd.mount_system import (
    MNT_DETACH,
    MNT_FORCE,
    MS_NODEV,
    MS_NOEXEC,
    MS_NOSUID,
    MS_REMOUNT,
    FusermountError,
    System,
)
from kvd.mountinfo import FUSE_FSTYPE, source_name

if TYPE_CHECKING:
    from pathlib import Path

    from kvd.config import Config
    from kvd.mountinfo import MountEntry

__all__ = [
    "Mounted",
    "System",
    "abort_dead",
    "detach_dead",
    "mount_fuse",
    "mount_tmpfs",
    "source_name",
    "unmount",
    "unmount_tmpfs",
]

logger = log.get(__name__)

READ_BYTES_MAX = 1 << 20
STACK_MAX = 64
"""Dead mounts at one place; more than a crash loop of an hour leaves."""

TMPFS_SOURCE = "kvd-ddr"
HUGE = "huge=within_size"
"""Large folios, but none that reaches past a file's end: what `always` gives large objects (docs/decisions/003), without
2 MiB for a file of 4 KiB."""
TMPFS_FLAGS = MS_NOSUID | MS_NODEV | MS_NOEXEC
NEEDS_ADMIN = "needs CAP_SYS_ADMIN: run kvd as root or as the systemd service"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mounted:
    """The kernel's end of a mount: its /dev/fuse descriptor, owned by the caller, and what it does without."""

    fd: int
    features_off: tuple[FeatureOff, ...]


def mount_fuse(system: System, config: Config) -> Mounted:
    """Mount at the configured place; the mount answers nobody until something reads the descriptor.

    Raises
    ------
    UnavailableError
        If this machine does not let kvd mount; says what to do.
    """
    if system.is_admin():
        return _mount_as_admin(system, config)
    return _mount_by_helper(system, config)


def _mount_as_admin(system: System, config: Config) -> Mounted:
    try:
        fd = system.open_fuse()
    except OSError as error:
        raise _no_device(error) from error
    user, group = system.ids()
    options = [f"fd={fd}", "rootmode=40000", f"user_id={user}", f"group_id={group}", "default_permissions"]
    if config.fuse.allow_other:
        options.append("allow_other")
    options.append(f"max_read={READ_BYTES_MAX}")
    source, target = source_name(config.daemon.state), config.daemon.mount
    try:
        system.mount(source, target, FUSE_FSTYPE, MS_NOSUID | MS_NODEV, ",".join(options))
    except OSError as error:
        system.close(fd)
        raise UnavailableError(
            f"can't mount at {target}: {error.strerror}; in a container allow CAP_SYS_ADMIN and mount(2)"
        ) from error
    logger.info("mounted", mount=target, fd=fd)
    return Mounted(fd=fd, features_off=())


def _no_device(error: OSError) -> UnavailableError:
    if error.errno in {errno.ENOENT, errno.ENODEV, errno.ENXIO}:
        mend = "load it (modprobe fuse), or give the container the device (--device /dev/fuse)"
        return UnavailableError(f"/dev/fuse is not there; {mend}")
    mend = "let kvd's user open it, or allow the device in the container"
    return UnavailableError(f"can't open /dev/fuse: {error.strerror}; {mend}")


def _mount_by_helper(system: System, config: Config) -> Mounted:
    off = [FeatureOff(feature="passthrough", reason=NEEDS_ADMIN)]
    # The helper splits at commas; a backslash quotes.
    source = source_name(config.daemon.state).replace("\\", "\\\\").replace(",", "\\,")
    options = [f"fsname={source}", "subtype=kvd", "default_permissions", f"max_read={READ_BYTES_MAX}"]
    if config.fuse.allow_other:
        if system.user_allow_other():
            options.append("allow_other")
        else:
            reason = "/etc/fuse.conf has no line user_allow_other: add it, or run kvd as root"
            off.append(FeatureOff(feature="allow_other", reason=reason))
    target = config.daemon.mount
    try:
        fd = system.fusermount(target, ",".join(options))
    except FileNotFoundError as error:
        mend = "install the package fuse3, or run kvd as root"
        raise UnavailableError(f"fusermount3 is not installed; {mend}") from error
    except (OSError, FusermountError) as error:
        mend = "own the mount point and let fusermount3 use /dev/fuse, or run kvd as root"
        raise UnavailableError(f"fusermount3 can't mount at {target}: {error}; {mend}") from error
    logger.info("mounted by fusermount3", mount=target, fd=fd, off=[each.feature for each in off])
    return Mounted(fd=fd, features_off=tuple(off))


def detach_dead(system: System, config: Config) -> int:
    """Detach the mounts that an earlier life of this daemon left; return how many.

    The caller holds the lock of the state directory, so whatever carries this daemon's name is dead.

    Raises
    ------
    ConfigError
        If somebody else's mount is there (also below a dead one of ours).
    UnavailableError
        If a dead mount can't be detached.
    """
    detached = 0
    while stack := mountinfo.stack_at(system.mounts(), config.daemon.mount):
        top = stack[-1]
        if not mountinfo.is_ours(top, config.daemon.state):
            what = f"{config.daemon.mount} has a mount that is not this kvd's: {mountinfo.describe(top)}"
            raise fault("daemon", "mount", what, "unmount it, or set an empty directory")
        if detached == STACK_MAX:
            raise UnavailableError(
                f"{config.daemon.mount} has more than {STACK_MAX} dead mounts; unmount them (umount -l)"
            )
        _detach(system, config.daemon.mount)
        detached += 1
        logger.info("detached a dead mount of an earlier kvd", mount=top.mount_point, device=top.device)
    return detached


def abort_dead(system: System, config: Config) -> None:
    """Have the kernel answer what the clients of a killed daemon's mount wait for, so that the daemon's threads can end.

    Where it was killed while it told the kernel of a name that it took away, and a client was making a file in that directory, the
    client waits for the daemon and the daemon's thread for the client's lock. The caller knows that the daemon is dying.
    """
    stack = mountinfo.stack_at(system.mounts(), config.daemon.mount)
    if not stack or not mountinfo.is_ours(stack[-1], config.daemon.state) or not system.is_admin():
        return
    logger.info("aborting the mount of a killed kvd", mount=config.daemon.mount)
    with contextlib.suppress(OSError):  # EBUSY: it is aborted, and stays mounted while somebody uses it
        system.umount(config.daemon.mount, MNT_FORCE)


def unmount(system: System, config: Config) -> bool:
    """Take this daemon's mount away; clients that still have files open keep them until the descriptor closes.

    Returns
    -------
    bool
        False if it was gone already (``umount`` by the operator), or is below somebody else's mount.

    Raises
    ------
    UnavailableError
        If it can't be unmounted.
    """
    stack = mountinfo.stack_at(system.mounts(), config.daemon.mount)
    if not stack or not mountinfo.is_ours(stack[-1], config.daemon.state):
        return False
    _detach(system, config.daemon.mount)
    logger.info("unmounted", mount=config.daemon.mount)
    return True


def _detach(system: System, target: Path) -> None:
    try:
        if system.is_admin():
            system.umount(target, MNT_DETACH)
        else:
            system.fusermount_unmount(target)
    except (OSError, FusermountError) as error:
        raise UnavailableError(f"can't unmount {target}: {error}; unmount it (umount -l {target})") from error


def mount_tmpfs(system: System, path: Path, size_bytes: int, *, huge: bool) -> tuple[FeatureOff, ...]:
    """Mount the private tmpfs of the ddr tier, or find it again and fit its size; return what it does without.

    Raises
    ------
    ConfigError
        If somebody else's mount is there, if it holds more than `size_bytes`, or if kvd may not mount and `path` is on
        no tmpfs.
    UnavailableError
        If the kernel refuses.
    """
    if not system.is_admin():
        return _borrow_tmpfs(system, path, size_bytes)
    stack = mountinfo.stack_at(system.mounts(), path)
    if not stack:
        return _set_tmpfs(system, path, size_bytes, flags=TMPFS_FLAGS, huge=huge)
    if not _is_our_tmpfs(stack[-1]):
        what = f"{path} has a mount that is not kvd's: {mountinfo.describe(stack[-1])}"
        raise fault("ddr", "path", what, "unmount it, or set an empty directory")
    usage = system.usage(path)
    if usage.used_bytes > size_bytes:
        used, wanted = size_text(usage.used_bytes), size_text(size_bytes)
        what = f"with burst it is {wanted}, less than the {used} that {path} holds from before"
        raise fault("ddr", "budget", what, "set more, or demote objects first")
    if usage.total_bytes == size_bytes and (HUGE in stack[-1].super_options) == huge:
        logger.info("found the ddr tmpfs", path=path, used_bytes=usage.used_bytes)
        return ()
    return _set_tmpfs(system, path, size_bytes, flags=TMPFS_FLAGS | MS_REMOUNT, huge=huge)


def _is_our_tmpfs(entry: MountEntry) -> bool:
    return (entry.fstype, entry.source) == ("tmpfs", TMPFS_SOURCE)


def _set_tmpfs(system: System, path: Path, size_bytes: int, *, flags: int, huge: bool) -> tuple[FeatureOff, ...]:
    # Names are bounded by the engine's sessions; the kernel's own bound (half of RAM in 4 KiB) would come too early.
    data = f"size={size_bytes},mode=0700,nr_inodes=0"
    off: tuple[FeatureOff, ...] = ()
    try:
        try:
            system.mount(TMPFS_SOURCE, path, "tmpfs", flags, f"{data},{HUGE if huge else 'huge=never'}")
        except OSError as error:
            if not huge or error.errno != errno.EINVAL:
                raise
            system.mount(TMPFS_SOURCE, path, "tmpfs", flags, f"{data},huge=never")
            off = (FeatureOff(feature="huge pages", reason="this kernel has none for tmpfs"),)
    except OSError as error:
        raise UnavailableError(
            f"can't mount a tmpfs at {path}: {error.strerror}; allow mount(2), or set [ddr] path to "
            "a directory on a tmpfs and run kvd without CAP_SYS_ADMIN"
        ) from error
    logger.info("set up the ddr tmpfs", path=path, size_bytes=size_bytes, huge=huge and not off)
    return off


def _borrow_tmpfs(system: System, path: Path, size_bytes: int) -> tuple[FeatureOff, ...]:
    try:
        borrowed, usage = system.is_tmpfs(path), system.usage(path)
    except OSError as error:
        raise fault("ddr", "path", f"{path}: {error.strerror}", "set a directory on a tmpfs") from error
    if not borrowed:
        what = f"{path} is not on a tmpfs, and kvd may not mount one without CAP_SYS_ADMIN"
        raise fault("ddr", "path", what, "set a directory on a tmpfs, such as one below /dev/shm")
    if usage.total_bytes and usage.total_bytes < size_bytes:
        has = size_text(usage.total_bytes)
        what = f"with burst it is {size_text(size_bytes)}, more than the tmpfs of {path} has, {has}"
        raise fault("ddr", "budget", what, "set less")
    return (FeatureOff(feature="private tmpfs", reason=f"{NEEDS_ADMIN}; [ddr] path shares a tmpfs with others"),)


def unmount_tmpfs(system: System, path: Path) -> bool:
    """Take the private tmpfs away with all that it holds; False if there is none of ours."""
    stack = mountinfo.stack_at(system.mounts(), path)
    if not system.is_admin() or not stack or not _is_our_tmpfs(stack[-1]):
        return False
    try:
        system.umount(path, MNT_DETACH)
    except OSError as error:
        raise UnavailableError(f"can't unmount {path}: {error.strerror}; unmount it (umount -l {path})") from error
    return True
