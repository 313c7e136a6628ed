"""The wrapper of the hot table, on a split whose kernel and peer are sockets."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import socket
import stat
import struct
from typing import TYPE_CHECKING

import pytest

from kvd.fs import attributes
from kvd.fs._split import lib
from kvd.fs.hot_table import HOT_FH, FolderState, HotAttr, HotBounds, HotGone, HotUse
from kvd.fs.split import EventKind, Split
from kvd.tier.plane import Mode, PlaneObject

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

_IN = struct.Struct("=IIQQIIIHH")
_OUT = struct.Struct("=IiQ")
LOOKUP, OPEN, RELEASE, READDIR = 1, 14, 18, 28
FOLDER = 2
DEADLINE_S = 10.0


def attr(node: int, size: int = 1) -> HotAttr:
    return HotAttr(
        node=node,
        size=size,
        held_bytes=4096,
        atime_ns=1,
        mtime_ns=2,
        ctime_ns=3,
        mode=stat.S_IFREG | 0o644,
        nlink=1,
        uid=4,
        gid=5,
        rdev=0,
        entry_timeout_ms=6,
        attr_timeout_ms=7,
    )


@dataclasses.dataclass
class Kernel:
    split: Split
    socket: socket.socket
    unique: int = 0

    def ask(self, opcode: int, node: int, body: bytes) -> bytes:
        """Return the body of the answer that C makes."""
        self.unique += 2
        self.socket.send(_IN.pack(_IN.size + len(body), opcode, self.unique, node, 0, 0, 0, 0, 0) + body)
        answer = self.socket.recv(1 << 16)
        length, error, unique = _OUT.unpack_from(answer)
        assert (length, error, unique) == (len(answer), 0, self.unique)
        return answer[_OUT.size :]

    def open(self, node: int) -> int:
        fh, _, _ = struct.unpack("=QII", self.ask(OPEN, node, struct.pack("=II", os.O_RDONLY, 0)))
        return int(fh)


@contextlib.asynccontextmanager
async def started(bounds: HotBounds | None) -> AsyncIterator[Kernel]:
    kernel, fuse = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    peer, ours = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    kernel.settimeout(DEADLINE_S)
    with kernel, fuse, peer, ours:
        async with Split.open(fuse_fd=fuse.fileno(), peer_fd=ours.fileno(), hot=bounds) as split:
            yield Kernel(split, kernel)


BOUNDS = HotBounds(inodes_max=64, names_max=64, absent_ms=1000)


def test_numbers_are_those_of_c() -> None:
    assert lib.KVD_HOT_BLKSIZE_BYTES == attributes.ST_BLKSIZE
    assert lib.KVD_HOT_PARTIAL == FolderState.PARTIAL
    assert lib.KVD_HOT_COMPLETE == FolderState.COMPLETE
    assert lib.KVD_EVENT_FREED == EventKind.FREED


async def test_names_and_listings() -> None:
    async with started(BOUNDS) as kernel:
        hot = kernel.split.hot
        hot.fill(FOLDER, [(1, b"a", attr(10)), (2, b"bb", attr(11, size=77)), (3, b"c", attr(12))])
        hot.folder(FOLDER, FolderState.COMPLETE)
        hot.folder_parent(FOLDER, 1)
        entry = kernel.ask(LOOKUP, FOLDER, b"bb\0")
        assert struct.unpack_from("=Q", entry)[0] == 11
        assert struct.unpack_from("=Q", entry, 48)[0] == 77
        assert struct.unpack_from("=Q", kernel.ask(LOOKUP, FOLDER, b"none\0"))[0] == 0
        hot.name_unsure(FOLDER, b"a")
        hot.name_gone(FOLDER, b"a")
        hot.name(FOLDER, b"c", cookie=9, node=10)
        listing = kernel.ask(READDIR, FOLDER, struct.pack("=QQIIQII", FOLDER, 2, 4096, 0, 0, 0, 0))
        assert listing[24:26] == b"bb"
        assert len(listing) == 64
        assert hot.folder_uses(FOLDER) == 3
        assert hot.unsure(11)
        assert not hot.unsure(99)
        hot.put(attr(11, size=78))
        assert struct.unpack_from("=Q", kernel.ask(LOOKUP, FOLDER, b"bb\0"), 48)[0] == 78
        assert hot.drop(11) == HotGone(lookups=2, leases=0, opens=0)
        assert hot.drop(11) is None
        assert hot.forget_folder(FOLDER)
        assert not hot.forget_folder(FOLDER)
        hot.name_absent(FOLDER, b"none")
        assert struct.unpack_from("=Q", kernel.ask(LOOKUP, FOLDER, b"none\0"))[0] == 0
        stats = kernel.split.statistics()
        assert (stats.hot_lookups, stats.hot_negatives, stats.hot_readdirs) == (2, 2, 1)
        assert (stats.hot_inodes, stats.hot_names, stats.hot_folders) == (2, 1, 1)


async def test_leases() -> None:
    async with started(BOUNDS) as kernel:
        split, hot = kernel.split, kernel.split.hot
        hot.put(attr(10))
        with pytest.raises(FileNotFoundError, match="share 10"):
            hot.share(10)
        fd = os.memfd_create("kvd-test")
        split.object_add(PlaneObject(node=10, mode=Mode.DIRECT, fd=fd))
        os.close(fd)
        hot.share(10)
        assert [kernel.open(10), kernel.open(10)] == [HOT_FH | 10] * 2
        assert hot.used() == [HotUse(node=10, opens=2, leases=2)]
        assert hot.used() == []
        for busy in (lambda: hot.shut(10, only_idle=True), None):
            with pytest.raises(OSError, match=r"10") as caught:
                busy() if busy else await split.object_remove(10)
            assert caught.value.errno == errno.EBUSY
        hot.watch()
        for _ in range(2):
            kernel.ask(RELEASE, 10, struct.pack("=QIIQ", HOT_FH | 10, 0, 0, 0))
        async for event in split.events():
            assert event.kind is EventKind.FREED
            break
        kernel.open(10)
        assert hot.shut(10) == HotGone(lookups=0, leases=1, opens=1)
        assert hot.shut(11) is None
        await split.object_remove(10)


async def test_without_a_table() -> None:
    async with started(None) as kernel:
        with pytest.raises(OSError, match="put 10") as caught:
            kernel.split.hot.put(attr(10))
        assert caught.value.errno == errno.ENOSPC
        assert not kernel.split.hot.unsure(10)
        assert kernel.split.hot.used() == []
