"""Extended attributes: stored ones, and `user.kvd.*`, which tell and steer an object."""

from __future__ import annotations

import errno
import time
from typing import TYPE_CHECKING

from kvd.catalog.names import fail
from kvdriver import Tier

if TYPE_CHECKING:
    from kvd.catalog.catalog import Catalog
    from kvd.catalog.records import Inode
    from kvd.tier.objects import Objects

OWN = b"user.kvd."
STORED = (b"user.", b"trusted.", b"security.")
"""Namespaces that a client may set; POSIX ACLs (`system.`) are refused, since the kernel does not enforce them here."""
PIN = b"user.kvd.pin"
TOLD = (b"user.kvd.tier", b"user.kvd.state", b"user.kvd.hits", b"user.kvd.clean", PIN)


class Xattrs:
    """The attributes of every inode."""

    def __init__(self, catalog: Catalog, objects: Objects) -> None:
        self._catalog = catalog
        self._objects = objects

    def get(self, inode: Inode, name: bytes) -> bytes:
        """Return a value; ENODATA if there is none."""
        if not name.startswith(OWN):
            return self._catalog.names.xattr(inode.ino, name)
        if not inode.is_file or name not in TOLD:
            raise fail(errno.ENODATA, name)
        return self._tell(inode.ino, name)

    def _tell(self, ino: int, name: bytes) -> bytes:
        placement = self._catalog.placements.get(ino)
        live = self._objects.lives.peek(ino)
        match name.removeprefix(OWN):
            case b"tier":
                return Tier(placement.tier).name.lower().encode()
            case b"state":
                return b"faulted" if placement.damaged else b"sealed" if placement.sealed else b"filling"
            case b"hits":
                return str(live.hits if live else placement.hits).encode()
            case b"clean":
                copy = self._catalog.placements.copy(ino)
                return b"1" if copy is not None and copy.current else b"0"
            case _:
                return b"1" if placement.pinned else b"0"

    def list(self, inode: Inode) -> list[bytes]:
        """Return the names of an inode's stored attributes; what kvd tells by itself would be copied by `cp -a`."""
        return self._catalog.names.xattrs(inode.ino)

    async def set(self, inode: Inode, name: bytes, value: bytes) -> None:
        """Set a value; EOPNOTSUPP for a namespace that is not kept, EINVAL for a value that kvd can't follow."""
        if name.startswith(OWN):
            if name != PIN or not inode.is_file:
                raise fail(errno.EPERM if name in TOLD else errno.EOPNOTSUPP, name)
            if value not in (b"0", b"1"):
                raise fail(errno.EINVAL, name)
            await self._objects.pin(inode.ino, pinned=value == b"1")
            return
        if name in STORED:
            raise fail(errno.EINVAL, name)
        if not name.startswith(STORED):
            raise fail(errno.EOPNOTSUPP, name)
        self._catalog.names.set_xattr(inode.ino, name, value, time.time_ns())

    async def remove(self, inode: Inode, name: bytes) -> None:
        """Remove a value; ENODATA if there is none."""
        if name == PIN and inode.is_file:
            await self._objects.pin(inode.ino, pinned=False)
            return
        if name.startswith(OWN):
            raise fail(errno.ENODATA, name)
        self._catalog.names.remove_xattr(inode.ino, name, time.time_ns())
