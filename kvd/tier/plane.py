"""What the tiers ask of the data plane: which file stands behind an open inode, and how much it may grow.

`kvd.fs.split.Split` is the real one; tests of the tiers have a fake twin.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence


class Mode(enum.IntEnum):
    """How the kernel reaches an open inode's bytes; the numbers are `enum kvd_split_mode`."""

    PASSTHROUGH = 1
    DIRECT = 2
    CACHED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Sums:
    """Checksums of a file that is read page by page.

    Attributes
    ----------
    runs
        ``(first page, count)`` of what holds data.
    crc
        u32 little-endian for each page of the runs, in order; nothing where nobody checks.
    """

    page_bytes: int
    runs: tuple[tuple[int, int], ...]
    crc: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaneObject:
    """The file behind an open inode; `limit_bytes` bounds its storage, `size_max_bytes` its length.

    `part_fds` are all files of one that is striped, `fd` being the first; `stripe_bytes` as `kvd.catalog.records.Copy` has it.
    `devices` are the numbers of the NVMe directories that the parts are in.
    Of a writer in passthrough, what may make the file grow asks while its file system has less than `gate_free_bytes` free.
    `stream_address` is that of a `kvd.tier.stream.Stream`: the file is still being filled, and of `sums` only the runs count.
    """

    node: int
    mode: Mode
    fd: int
    writable: bool = False
    backing_id: int = 0
    limit_bytes: int = 0
    size_max_bytes: int = (1 << 63) - 1
    sums: Sums | None = None
    part_fds: tuple[int, ...] = ()
    stripe_bytes: int = 0
    devices: tuple[int, ...] = ()
    stream_address: int = 0
    gate_free_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """How often the data plane opened an object since it was asked last."""

    node: int
    opens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Gone:
    """What the data plane had counted of a node that it gives back, and is the caller's from now on.

    Attributes
    ----------
    lookups
        Entries that it gave the kernel and that are not forgotten.
    leases
        Opens that are not released; their releases come to the control plane.
    opens
        Opens since `used` told last.
    """

    lookups: int = 0
    leases: int = 0
    opens: int = 0


class Leases(Protocol):
    """The opens of objects that the data plane answers by itself (`kvd.fs.hot.Hot`). Nothing here waits."""

    def share(self, node: int) -> bool:
        """Let the data plane answer opens for reading of an object that it serves; whether it will."""
        ...

    def shut(self, node: int, *, only_idle: bool = False) -> Gone | None:
        """Take an object back; None, and no change, with `only_idle` while somebody has it open."""
        ...

    def used(self) -> list[Use]:
        """Return which objects were opened since the last call."""
        ...

    def leases(self, node: int) -> int:
        """Return how many opens of an object the data plane counts now."""
        ...

    def watch(self) -> None:
        """Ask to be told (`Room.changed`) of the next release that leaves an object without leases."""
        ...


class DataPlane(Protocol):
    """The objects of the data plane. Failures are `OSError`."""

    @property
    def passthrough(self) -> bool:
        """Whether the kernel can be given backing files."""
        ...

    @property
    def direct_mmap(self) -> bool:
        """Whether a direct-I/O file can be mapped shared."""
        ...

    def backing_open(self, fd: int) -> int:
        """Register a backing file; return its id."""
        ...

    def backing_close(self, backing_id: int) -> None:
        """Forget a backing file; after the last release."""
        ...

    def object_add(self, spec: PlaneObject) -> None:
        """Serve an inode's bytes."""
        ...

    async def object_switch(self, spec: PlaneObject) -> None:
        """Exchange the file behind a direct or cached object."""
        ...

    def object_limit(self, node: int, limit_bytes: int) -> None:
        """Raise or lower what an object may hold."""
        ...

    async def object_remove(self, node: int) -> None:
        """Stop serving an inode's bytes; after the last release."""
        ...

    def device_usable(self, device: int, *, usable: bool) -> None:
        """Let reads of what is cold ask an NVMe directory, or fail at once, also those that are under way. Waits for nothing."""
        ...


class NameKeeper(Protocol):
    """Who remembers names besides the catalogue: the kernel, and tables that answer it.

    The daemon's is `kvd.fs.remembered.Remembered`; without a mount nobody remembers anything.
    """

    def forget_name(self, parent: int, name: bytes) -> None:
        """Forget one name soon; waits for nothing, so that it may be called while requests are answered."""
        ...

    async def forget_names(self, names: Sequence[tuple[int, bytes]]) -> None:
        """Forget names, given with their directories. Never from within a handler."""
        ...

    async def forget_tree(self, parent: int, name: bytes) -> None:
        """Forget a directory and all below it; when this returns nobody tells any of those names any more.

        Never from within a handler.
        """
        ...

    async def discard(self, ino: int) -> None:
        """Delete what has no name any more, unless somebody still holds on to it; whoever does deletes it then."""
        ...
