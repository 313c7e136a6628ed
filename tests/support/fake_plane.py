"""A data plane in memory: keeps what it was told, and holds it to the rules that the kernel has."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvd.tier.plane import PlaneObject


class FakePlane:
    """See `kvd.tier.plane.DataPlane`."""

    def __init__(self, *, passthrough: bool = True, direct_mmap: bool = True) -> None:
        self.passthrough = passthrough
        self.direct_mmap = direct_mmap
        self.objects: dict[int, PlaneObject] = {}
        self.limits: dict[int, int] = {}
        self.backings: dict[int, int] = {}
        self._next_id = 1

    def backing_open(self, fd: int) -> int:
        os.fstat(fd)
        self.backings[self._next_id] = fd
        self._next_id += 1
        return self._next_id - 1

    def backing_close(self, backing_id: int) -> None:
        del self.backings[backing_id]

    def object_add(self, spec: PlaneObject) -> None:
        if spec.node in self.objects:
            raise OSError(errno.EEXIST, "object", spec.node)
        os.fstat(spec.fd)
        assert (spec.backing_id in self.backings) == (spec.mode.name == "PASSTHROUGH")
        self.objects[spec.node] = spec
        self.limits[spec.node] = spec.limit_bytes

    async def object_switch(self, spec: PlaneObject) -> None:
        assert self.objects[spec.node].mode is spec.mode
        assert spec.mode.name != "PASSTHROUGH", "the kernel keeps one backing file from first open to last release"
        self.objects[spec.node] = spec

    def object_limit(self, node: int, limit_bytes: int) -> None:
        self.limits[node] = limit_bytes

    async def object_remove(self, node: int) -> None:
        del self.objects[node]
