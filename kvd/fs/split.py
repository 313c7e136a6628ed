"""The FUSE split (csrc/fuse/split.h) for the daemon.

How pyfuse3 is set up behind it (``tests/t3_ops/test_split_mount.py`` runs this):

1. Open ``/dev/fuse`` and ``mount(2)`` it with
   ``fd=N,rootmode=40000,user_id=0,group_id=0,allow_other,default_permissions``. The kernel sends INIT at once; it waits.
2. ``ours, theirs = socket.socketpair(AF_UNIX, SOCK_SEQPACKET)``, both blocking. Raise SO_SNDBUF of *theirs* (libfuse
   writes a whole reply as one message).
3. ``async with Split.open(fuse_fd=..., peer_fd=ours.fileno(), ...)``.
4. ``pyfuse3.init(operations, f"/dev/fd/{theirs.fileno()}", options)``: libfuse takes the number as it is, so it must
   stay open until ``pyfuse3.close``, which closes it: let go of it with ``theirs.detach()`` right after init. Mount options
   belong to step 1; of *options* only ``debug`` has an effect.
5. ``nursery.start_soon(pyfuse3.main)``. An event INIT tells which features the kernel gave; nothing is served before.

The end: on UNMOUNTED call ``pyfuse3.terminate()``; when ``main`` has returned leave the ``async with`` of the split, then
``pyfuse3.close(unmount=False)``, then close *ours* and the fuse descriptor. To end while mounted, unmount first (or keep
the fuse descriptor), ``terminate``, and go on likewise. ``terminate`` must come before *ours* is closed: libfuse takes the
end of the socket for an error. An unmount does not wait for RELEASE and drops those under way: what objects and backing
files are left then are the daemon's to remove.

While a request is in a handler: add the object before ``open`` or ``create`` returns; remove it when the last ``release``
came, under a lock of the node that ``open`` takes too, as removing waits. The answer to ``ASK_GROW`` is ``object_limit`` before ``setxattr`` returns, or a ``FUSEError``; its writer may have been
killed meanwhile and the object be gone (``object_limit`` raises ENOENT). Each ask costs a round trip: grant more.
"""

from __future__ import annotations

import collections
import contextlib
import enum
import errno
import os
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import trio

from kvd.fs._split import ffi, lib
from kvd.fs.hot_table import HotBounds, HotTable
from kvd.fs.split_object import object_to_c
from kvd.tier.plane import Mode

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from typing import Self

    from kvd.tier.plane import PlaneObject

ASK_GROW: Final = b"/kvd.grow"
"""Name of the xattr by which the split asks for more storage (KVD_ASK_GROW)."""
TMPFILE_NAME: Final = b"/kvd.tmpfile"
"""Name with which FUSE_TMPFILE comes to ``create`` (KVD_NAME_TMPFILE)."""

_ASK: Final = struct.Struct("=QQQII")
_EVENTS_AT_ONCE: Final = 64
_MS_PER_S: Final = 1000
_READAHEAD_BYTES: Final = 8 << 20


class Feature(enum.IntFlag):
    """What the kernel can give; the numbers are ``enum kvd_split_feature``."""

    PASSTHROUGH = 1
    DIRECT_MMAP = 2
    READDIRPLUS = 4
    ATOMIC_TRUNC = 8


ALL_FEATURES: Final = Feature.PASSTHROUGH | Feature.DIRECT_MMAP | Feature.READDIRPLUS | Feature.ATOMIC_TRUNC


class EventKind(enum.IntEnum):
    """What happened; the numbers are ``enum kvd_split_event_kind``."""

    INIT = 1
    UNMOUNTED = 2
    PEER_GONE = 3
    BAD_PAGE = 4
    IO_ERROR = 5
    REFUSED = 6
    FREED = 7


class Opcode(enum.IntEnum):
    """The requests that ask for storage."""

    WRITE = 16
    FALLOCATE = 43
    GATE = 22
    """GETXATTR: the kernel is about to write by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that the daemon has to know.

    Attributes
    ----------
    node
        Of BAD_PAGE and IO_ERROR.
    device
        Number of the NVMe directory that an IO_ERROR is of, if one is to blame.
    value
        INIT: features; UNMOUNTED and IO_ERROR: errno; BAD_PAGE: the page; REFUSED: the kernel's minor version.
    """

    kind: EventKind
    node: int
    value: int
    device: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GrowAsk:
    """The value of an ASK_GROW: a writer needs its object to hold *need_bytes* of storage."""

    need_bytes: int
    offset: int
    length: int
    opcode: Opcode
    mode: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitStatistics:
    """Counters since the start.

    Of now are *pending*, *objects*, *waiting* (reads that wait for a promotion), *cold_reading* (reads from NVMe), *cold_given_up*
    (those that a drive keeps though nobody waits for them any more) and what comes from *hot_inodes* on.
    """

    requests: int
    forwarded: int
    reads: int
    read_bytes: int
    writes: int
    write_bytes: int
    asks: int
    interrupted: int
    late_replies: int
    errors: int
    pending: int
    objects: int
    waiting: int
    waited: int
    cold_reading: int
    cold_given_up: int
    hot_lookups: int
    hot_negatives: int
    hot_getattrs: int
    hot_opens: int
    hot_releases: int
    hot_readdirs: int
    hot_inodes: int
    hot_names: int
    hot_folders: int
    hot_shared: int
    hot_leases: int


def parse_ask(value: bytes) -> GrowAsk:
    """Read the value of an ASK_GROW; `ValueError` if it is none."""
    if len(value) != _ASK.size:
        raise ValueError(f"an ask has {_ASK.size} bytes, not {len(value)}")
    need_bytes, offset, length, opcode, mode = _ASK.unpack(value)
    return GrowAsk(need_bytes=need_bytes, offset=offset, length=length, opcode=Opcode(opcode), mode=mode)


def _check(result: int, what: str) -> int:
    if result < 0:
        raise OSError(-result, f"{what}: {os.strerror(-result)}")
    return result


class Split:
    """A running split. Every method raises `OSError` with the errno of what failed.

    Methods that wait for I/O of the split or for the kernel are async and work in a thread; the others are quick.
    """

    def __init__(self, pointer: Any, fuse_fd: int, peer_fd: int) -> None:
        self._pointer: Any = pointer
        self._fuse_fd = fuse_fd
        self._peer_fd = peer_fd
        self._modes: dict[int, Mode] = {}
        self.hot = HotTable(self._live)
        """What is answered without Python."""

    @classmethod
    @contextlib.asynccontextmanager
    async def open(  # noqa: PLR0913
        cls,
        *,
        fuse_fd: int,
        peer_fd: int,
        readers: int = 2,
        io_bytes_max: int = 1 << 20,
        background: int = 64,
        pending_max: int = 4096,
        read_wait_s: float = 30.0,
        device_wait_s: float = 30.0,
        features: Feature = ALL_FEATURES,
        hot: HotBounds | None = None,
    ) -> AsyncIterator[Split]:
        """Start a split, and stop it at the end: requests in the peer's hands are answered ENOTCONN.

        Parameters
        ----------
        fuse_fd, peer_fd
            Not owned. *fuse_fd* becomes non-blocking.
        readers
            Threads that serve the kernel.
        read_wait_s
            What a read waits for the pages of an object that is being promoted, or for its turn with a drive, before it is EIO.
        device_wait_s
            What a drive may take for one read.
        hot
            Bounds of the hot table; without them there is none.
        """
        bounds = hot or HotBounds(inodes_max=0, names_max=0, absent_ms=0)
        config = ffi.new(
            "struct kvd_split_config *",
            {
                "fuse_fd": fuse_fd,
                "peer_fd": peer_fd,
                "readers": readers,
                "io_bytes_max": io_bytes_max,
                "readahead_bytes": _READAHEAD_BYTES,
                "background": background,
                "pending_max": pending_max,
                "features": features,
                "read_wait_ms": max(1, round(read_wait_s * _MS_PER_S)),
                "device_wait_ms": max(1, round(device_wait_s * _MS_PER_S)),
                "hot_inodes_max": bounds.inodes_max,
                "hot_names_max": bounds.names_max,
                "hot_absent_ms": bounds.absent_ms,
            },
        )
        out = ffi.new("kvd_split **")
        _check(lib.kvd_split_init(config, out), "split init")
        split = cls(out[0], fuse_fd, peer_fd)
        try:
            _check(lib.kvd_split_start(split._pointer), "split start")
            yield split
        finally:
            with trio.CancelScope(shield=True):
                await split._close()

    async def _close(self) -> None:
        pointer = self._live()
        trio.lowlevel.notify_closing(lib.kvd_split_eventfd(pointer))
        await trio.to_thread.run_sync(lib.kvd_split_stop, pointer, abandon_on_cancel=False)
        self._pointer = None
        lib.kvd_split_fini(pointer)

    def _live(self) -> Any:
        if self._pointer is None:
            raise OSError(errno.EBADF, "the split is closed")
        return self._pointer

    @property
    def features(self) -> Feature:
        """What was negotiated; nothing before the event INIT."""
        return Feature(lib.kvd_split_features(self._live()))

    @property
    def passthrough(self) -> bool:
        """Whether the kernel can be given backing files."""
        return Feature.PASSTHROUGH in self.features

    @property
    def direct_mmap(self) -> bool:
        """Whether a direct-I/O file can be mapped shared."""
        return Feature.DIRECT_MMAP in self.features

    def backing_open(self, fd: int) -> int:
        """Register a backing file with the kernel and return its id."""
        return _check(lib.kvd_split_backing_open(self._live(), fd), "backing open")

    def backing_close(self, backing_id: int) -> None:
        """Give a backing id back; opens that have it keep the file."""
        _check(lib.kvd_split_backing_close(self._live(), backing_id), "backing close")

    def object_add(self, item: PlaneObject) -> None:
        """Serve a node from a file. EEXIST: it has one; EBADMSG: the file is shorter than its sums say."""
        c_object, _alive = object_to_c(item)
        _check(lib.kvd_split_object_add(self._live(), c_object), f"object {item.node} add")
        self._modes[item.node] = item.mode

    async def object_switch(self, item: PlaneObject) -> None:
        """Exchange the file behind a DIRECT or CACHED object, once I/O on the old one has ended."""
        c_object, _alive = object_to_c(item)
        result = await trio.to_thread.run_sync(lib.kvd_split_object_switch, self._live(), c_object)
        _check(result, f"object {item.node} switch")

    def object_limit(self, node: int, limit_bytes: int) -> None:
        """Let a file hold *limit_bytes* of storage."""
        _check(lib.kvd_split_object_limit(self._live(), node, limit_bytes), f"object {node} limit")

    def device_usable(self, device: int, *, usable: bool) -> None:
        """Let READs of cold objects ask a drive, or answer them EIO at once; nothing is to be told after the close."""
        if self._pointer is not None:
            _check(lib.kvd_split_device(self._pointer, device, usable), f"device {device}")

    async def object_remove(self, node: int) -> None:
        """Forget the object of a node, once I/O on it has ended; READs that a drive keeps are answered EIO. EBUSY: the hot table has leases on it."""
        mode = self._modes.pop(node, None)
        if mode is Mode.PASSTHROUGH:
            # The kernel does its I/O: there is nothing to wait for, and no thread is spent on each release.
            result = lib.kvd_split_object_remove(self._live(), node)
            await trio.lowlevel.checkpoint()
        else:
            result = await trio.to_thread.run_sync(lib.kvd_split_object_remove, self._live(), node)
        if result == -errno.EBUSY and mode is not None:
            self._modes[node] = mode
        _check(result, f"object {node} remove")

    async def invalidate(self, node: int) -> None:
        """Make the kernel forget data and attributes of a node. Never from within a handler for that node."""
        _check(await trio.to_thread.run_sync(lib.kvd_split_invalidate, self._live(), node), f"invalidate {node}")

    def forget_soon(self, parent: int, name: bytes) -> None:
        """Make the kernel forget a name, in the background. ENOBUFS: too many such words wait to be said."""
        _check(lib.kvd_split_forget(self._live(), parent, name, len(name), 0), f"forget a name in {parent}")

    async def forget_now(self, names: Sequence[tuple[int, bytes]]) -> None:
        """Make the kernel forget names, given with their directories. Never from within a handler: it may wait for those."""
        await trio.to_thread.run_sync(_forget, self._live(), names)

    def forget_all(self) -> bool:
        """Make the kernel look up every name again; False if it can't (before Linux 6.16)."""
        done = lib.kvd_split_forget_all(self._live())  # waits for nothing
        return done != -errno.EINVAL and _check(done, "forget all names") == 0

    def pending_events(self) -> list[Event]:
        """Return what happened since the last call."""
        out = ffi.new("struct kvd_split_event[]", _EVENTS_AT_ONCE)
        events: list[Event] = []
        while count := lib.kvd_split_events(self._live(), out, _EVENTS_AT_ONCE):
            events += [_event(each) for each in out[0:count]]
        return events

    def events(self) -> SplitEvents:
        """Return an iterator over events as they come, which ends when the split is closed. For one task at a time."""
        return SplitEvents(self, lib.kvd_split_eventfd(self._live()))

    def statistics(self) -> SplitStatistics:
        """Return the counters."""
        out = ffi.new("struct kvd_split_stats *")
        lib.kvd_split_stats(self._live(), out)
        return SplitStatistics(**{name: getattr(out, name) for name in SplitStatistics.__slots__})

    def __repr__(self) -> str:
        where = f"fuse_fd={self._fuse_fd} peer_fd={self._peer_fd}"
        if self._pointer is None:
            return f"<Split {where} closed>"
        stats = self.statistics()
        return f"<Split {where} {self.features!r} objects={stats.objects} pending={stats.pending}>"


def _event(c_event: Any) -> Event:
    device = c_event.device - 1 if c_event.device else None
    return Event(kind=EventKind(c_event.kind), node=c_event.node, value=c_event.value, device=device)


def _forget(pointer: Any, names: Sequence[tuple[int, bytes]]) -> None:
    for parent, name in names:
        _check(lib.kvd_split_forget(pointer, parent, name, len(name), 1), "forget a name")


class SplitEvents:
    """Events of a split, to iterate over; it may be left and come back to."""

    def __init__(self, split: Split, eventfd: int) -> None:
        self._split = split
        self._eventfd = eventfd
        self._waiting: collections.deque[Event] = collections.deque()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        while not self._waiting:
            try:
                await trio.lowlevel.wait_readable(self._eventfd)
            except trio.ClosedResourceError:
                raise StopAsyncIteration from None
            os.eventfd_read(self._eventfd)
            self._waiting.extend(self._split.pending_events())
        return self._waiting.popleft()

    def __repr__(self) -> str:
        return f"<SplitEvents of {self._split!r} waiting={len(self._waiting)}>"
