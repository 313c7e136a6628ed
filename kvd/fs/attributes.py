"""From the catalogue's inodes to what the kernel is told."""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING

import pyfuse3

from kvd.catalog.names import NAME_BYTES_MAX
from kvd.catalog.records import NS
from kvd.tier.extents import STAT_BLOCK_BYTES
from kvdriver import BLOCK_BYTES

if TYPE_CHECKING:
    import os

    from kvd.catalog.records import Inode

CACHE_S = 60.0
"""How long the kernel may keep names and attributes: every change comes through this one kernel, and what the daemon
takes away by itself answers ESTALE, on which the kernel looks the name up again."""
ST_BLKSIZE = 65536
TIME_NS_MIN, TIME_NS_MAX = -(1 << 63), (1 << 63) - 1
"""What the catalogue keeps: the years 1677 to 2262; times beyond become the nearest, as on any file system."""


def time_ns(told_ns: int) -> int:
    """Return a time as the catalogue keeps it; libfuse takes seconds before 1970 for very many."""
    seconds, ns = divmod(told_ns, NS)
    if seconds >= 1 << 63:
        seconds -= 1 << 64
    return min(max(seconds * NS + ns, TIME_NS_MIN), TIME_NS_MAX)


def changes(attributes: pyfuse3.EntryAttributes, fields: pyfuse3.SetattrFields) -> dict[str, int]:
    """Return what the kernel wants changed, as the catalogue names it; the length is not the catalogue's."""
    values: dict[str, int] = {}
    if fields.update_mode:
        values["mode"] = attributes.st_mode
    if fields.update_uid:
        values["uid"] = attributes.st_uid
    if fields.update_gid:
        values["gid"] = attributes.st_gid
    if fields.update_atime:
        values["atime_ns"] = time_ns(attributes.st_atime_ns)
    if fields.update_mtime:
        values["mtime_ns"] = time_ns(attributes.st_mtime_ns)
    return values


def without_set_id(mode: int) -> int:
    """Return a file's mode as a write by somebody without privileges leaves it."""
    mode &= ~stat.S_ISUID
    return mode & ~stat.S_ISGID if mode & stat.S_IXGRP else mode


def attr_timeout_s(mode: int) -> float:
    """Return how long the kernel may keep attributes: opening with O_TRUNC clears set-id bits, and it does not look."""
    return 0.0 if stat.S_ISREG(mode) and mode & (stat.S_ISUID | stat.S_ISGID) else CACHE_S


def entry(inode: Inode, *, held_bytes: int, written: os.stat_result | None = None) -> pyfuse3.EntryAttributes:
    """Return an inode's attributes.

    Parameters
    ----------
    held_bytes
        Storage that a regular file's bytes take.
    written
        For an object that has a writer: its DDR file, which knows size and times first.
    """
    attributes = pyfuse3.EntryAttributes()
    attributes.st_ino = inode.ino
    attributes.generation = 0
    attributes.entry_timeout = CACHE_S
    attributes.attr_timeout = attr_timeout_s(inode.mode)
    attributes.st_mode = inode.mode
    attributes.st_nlink = inode.nlink
    attributes.st_uid = inode.uid
    attributes.st_gid = inode.gid
    attributes.st_rdev = inode.rdev
    attributes.st_blksize = ST_BLKSIZE
    attributes.st_blocks = held_bytes // STAT_BLOCK_BYTES
    attributes.st_atime_ns = inode.atime_ns
    if written is None:
        attributes.st_size = inode.size
        attributes.st_mtime_ns = inode.mtime_ns
        attributes.st_ctime_ns = inode.ctime_ns
    else:
        attributes.st_size = written.st_size
        attributes.st_mtime_ns = written.st_mtime_ns
        attributes.st_ctime_ns = max(written.st_ctime_ns, inode.ctime_ns)
    return attributes


def negative() -> pyfuse3.EntryAttributes:
    """Return the answer to a look-up of a name that is not there; the kernel remembers it."""
    attributes = pyfuse3.EntryAttributes()
    attributes.st_ino = 0
    attributes.entry_timeout = CACHE_S
    return attributes


def capacity(space: tuple[int, int], *, objects: int, objects_max: int) -> pyfuse3.StatvfsData:
    """Return what all tiers together can hold, and what of that (blocks, of which in use) is free."""
    blocks, used = space
    data = pyfuse3.StatvfsData()
    data.f_bsize = data.f_frsize = BLOCK_BYTES
    data.f_blocks = blocks
    data.f_bfree = data.f_bavail = max(0, blocks - used)
    data.f_files = objects_max
    data.f_ffree = data.f_favail = max(0, objects_max - objects)
    data.f_namemax = NAME_BYTES_MAX
    return data
