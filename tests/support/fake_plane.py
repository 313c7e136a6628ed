"""A data plane in memory: keeps what it was told, and holds it to the rules that the kernel has."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from typing import TYPE_CHECKING

from support.fake_hot import FakeHot

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
        self.switch_failure: OSError | None = None
        self.down: set[int] = set()
        """Devices that must not be asked."""
        self.hot = FakeHot(self.objects)

    def close(self) -> None:
        for spec in self.objects.values():
            os.close(spec.fd)

    @staticmethod
    def _check(spec: PlaneObject) -> None:
        os.fstat(spec.fd)
        if spec.stream_address:
            assert spec.mode.name != "PASSTHROUGH"
            assert not spec.writable
            assert spec.sums is not None

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
        self._check(spec)
        assert (spec.backing_id in self.backings) == (spec.mode.name == "PASSTHROUGH")
        self.objects[spec.node] = replace(spec, fd=os.dup(spec.fd))
        self.limits[spec.node] = spec.limit_bytes

    async def object_switch(self, spec: PlaneObject) -> None:
        assert self.objects[spec.node].mode is spec.mode
        assert spec.mode.name != "PASSTHROUGH", "the kernel keeps one backing file from first open to last release"
        if self.switch_failure is not None:
            raise self.switch_failure
        self._check(spec)
        os.close(self.objects[spec.node].fd)
        self.objects[spec.node] = replace(spec, fd=os.dup(spec.fd))

    def object_limit(self, node: int, limit_bytes: int) -> None:
        self.limits[node] = limit_bytes

    def device_usable(self, device: int, *, usable: bool) -> None:
        (self.down.discard if usable else self.down.add)(device)

    async def object_remove(self, node: int) -> None:
        if self.hot.leases(node):
            raise OSError(errno.EBUSY, "leases of", node)
        os.close(self.objects.pop(node).fd)
