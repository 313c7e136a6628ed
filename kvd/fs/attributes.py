"""From the catalogue's inodes to what the kernel is told."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyfuse3

if TYPE_CHECKING:
    import os

    from kvd.catalog.records import Inode

CACHE_S = 60.0
"""How long the kernel may keep names and attributes: every change comes through this one kernel, and what the daemon
changes by itself it invalidates."""
ST_BLKSIZE = 65536
STAT_BLOCK_BYTES = 512


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
    attributes.attr_timeout = CACHE_S
    attributes.st_mode = inode.mode
    attributes.st_nlink = inode.nlink
    attributes.st_uid = inode.uid
    attributes.st_gid = inode.gid
    attributes.st_rdev = inode.rdev
    attributes.st_blksize = ST_BLKSIZE
    attributes.st_atime_ns = inode.atime_ns
    if written is None:
        attributes.st_size = inode.size
        attributes.st_blocks = held_bytes // STAT_BLOCK_BYTES
        attributes.st_mtime_ns = inode.mtime_ns
        attributes.st_ctime_ns = inode.ctime_ns
    else:
        attributes.st_size = written.st_size
        attributes.st_blocks = written.st_blocks
        attributes.st_mtime_ns = written.st_mtime_ns
        attributes.st_ctime_ns = max(written.st_ctime_ns, inode.ctime_ns)
    return attributes


def negative() -> pyfuse3.EntryAttributes:
    """Return the answer to a look-up of a name that is not there; the kernel remembers it."""
    attributes = pyfuse3.EntryAttributes()
    attributes.st_ino = 0
    attributes.entry_timeout = CACHE_S
    return attributes
