"""A real mount: kernel, split, pyfuse3. The daemon is this file run as a program: a process must not touch its own mount."""

from __future__ import annotations

import ctypes
import errno
import json
import mmap
import os
import select
import signal
import socket
import stat
import subprocess
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyfuse3
import pytest
import trio

from kvd.fs.split import (
    ASK_GROW,
    TMPFILE_NAME,
    Event,
    EventKind,
    Feature,
    GrowAsk,
    Opcode,
    Split,
    parse_ask,
)
from kvd.tier.plane import Mode, PlaneObject, Sums
from support.needs import go_without, need_fuse

if TYPE_CHECKING:
    from collections.abc import Iterator

MS_NOSUID, MS_NODEV, MNT_DETACH = 2, 4, 2
MIB = 1 << 20
DEADLINE_S = 20

libc = ctypes.CDLL(None, use_errno=True)


def check_libc(result: int, what: str) -> None:
    if result:
        raise OSError(ctypes.get_errno(), what)


class TinyOperations(pyfuse3.Operations):
    """One directory of tier files; a name that ends in ``.direct`` is served by the split, others by the kernel."""

    def __init__(self, store: Path) -> None:
        super().__init__()
        self.split: Split
        self.store = store
        self.nodes: dict[bytes, int] = {}
        self.opens: dict[int, int] = {}
        self.backing: dict[int, int] = {}
        self.asks: list[int] = []
        self.unmounted = trio.Event()
        self.opening = trio.Lock()
        self.next_node = 2

    def entry(self, node: int) -> pyfuse3.EntryAttributes:
        st = os.stat(self.store if node == pyfuse3.ROOT_INODE else self.store / str(node))
        entry = pyfuse3.EntryAttributes()
        entry.st_ino, entry.st_mode, entry.st_size, entry.st_blocks = node, st.st_mode, st.st_size, st.st_blocks
        entry.st_nlink, entry.attr_timeout, entry.entry_timeout = 1, 0, 0
        return entry

    async def getattr(self, inode: int, ctx: Any = None) -> pyfuse3.EntryAttributes:
        return self.entry(inode)

    async def lookup(self, parent_inode: int, name: bytes, ctx: Any = None) -> pyfuse3.EntryAttributes:
        if name not in self.nodes:
            raise pyfuse3.FUSEError(errno.ENOENT)
        return self.entry(self.nodes[name])

    async def forget(self, inode_list: Any) -> None:
        pass

    def add(self, node: int, name: bytes) -> None:
        passes = Feature.PASSTHROUGH in self.split.features and not name.endswith(b".direct")
        mode = Mode.PASSTHROUGH if passes else Mode.DIRECT
        fd = os.open(self.store / str(node), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            if mode is Mode.PASSTHROUGH:
                self.backing[node] = self.split.backing_open(fd)
            self.split.object_add(
                PlaneObject(node=node, mode=mode, fd=fd, backing_id=self.backing.get(node, 0), writable=True)
            )
        finally:
            os.close(fd)

    async def create(self, parent_inode: int, name: bytes, mode: int, flags: int, ctx: Any) -> Any:
        node, self.next_node = self.next_node, self.next_node + 1
        if name != TMPFILE_NAME:
            self.nodes[name] = node
        self.add(node, name)
        self.opens[node] = 1
        return pyfuse3.FileInfo(fh=node), self.entry(node)

    async def open(self, inode: int, flags: int, ctx: Any) -> pyfuse3.FileInfo:
        async with self.opening:
            if not self.opens.get(inode):
                names = {node: name for name, node in self.nodes.items()}
                self.add(inode, names[inode])
            self.opens[inode] = self.opens.get(inode, 0) + 1
        return pyfuse3.FileInfo(fh=inode)

    async def release(self, fh: int) -> None:
        async with self.opening:
            self.opens[fh] -= 1
            if not self.opens[fh]:
                await self.split.object_remove(fh)
                if fh in self.backing:
                    self.split.backing_close(self.backing.pop(fh))
        say(event="RELEASED")

    async def setxattr(self, inode: int, name: bytes, value: bytes, ctx: Any) -> None:
        if name != ASK_GROW:
            raise pyfuse3.FUSEError(errno.EOPNOTSUPP)
        ask = parse_ask(value)
        self.asks.append(ask.need_bytes)
        if inode == self.nodes.get(b"stuck.direct"):
            say(event="STUCK")
            # Its writer is killed, and the last release takes the object away.
            await self.unmounted.wait()
            raise pyfuse3.FUSEError(errno.EINTR)
        if ask.need_bytes > 8 * MIB:
            raise pyfuse3.FUSEError(errno.ENOSPC)
        self.split.object_limit(inode, ask.need_bytes)


def say(**what: Any) -> None:
    print(json.dumps(what), flush=True)


async def daemon(mountpoint: str, store: str) -> None:
    operations = TinyOperations(Path(store))
    async with AsyncExitStack() as stack:
        fuse_fd = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        stack.callback(os.close, fuse_fd)
        options = f"fd={fuse_fd},rootmode=40000,user_id=0,group_id=0,allow_other,default_permissions".encode()
        mounted = libc.mount(b"kvd-test", mountpoint.encode(), b"fuse", MS_NOSUID | MS_NODEV, options)
        check_libc(mounted, "mount")
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        stack.callback(ours.close)
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * MIB)
        pyfuse3.init(operations, f"/dev/fd/{theirs.fileno()}", set())
        theirs.detach()
        stack.callback(pyfuse3.close, unmount=False)
        split = operations.split = await stack.enter_async_context(Split.open(fuse_fd=fuse_fd, peer_fd=ours.fileno()))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(pyfuse3.main)
            async for event in split.events():
                say(event=event.kind.name, features=int(split.features))
                if event.kind is EventKind.UNMOUNTED:
                    operations.unmounted.set()
                    pyfuse3.terminate()
                    break
        stats = split.statistics()
        say(
            reads=stats.reads,
            writes=stats.writes,
            objects=stats.objects,
            asks=operations.asks,
            interrupted=stats.interrupted,
            repr=repr(split),
        )


class Mount:
    def __init__(self, path: Path, process: subprocess.Popen[bytes]) -> None:
        self.path = path
        self.process = process
        self.said = b""
        self.features = Feature(0)

    def next_line(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        while b"\n" not in self.said:
            readable, _, _ = select.select([self.process.stdout], [], [], DEADLINE_S)
            assert readable, "the daemon says nothing"
            chunk = os.read(self.process.stdout.fileno(), 65536)
            assert chunk, "the daemon ended"
            self.said += chunk
        line, self.said = self.said.split(b"\n", 1)
        said = json.loads(line)
        assert isinstance(said, dict)
        return said

    def wait_for(self, event: str) -> dict[str, Any]:
        while (line := self.next_line()).get("event") != event:
            pass
        return line

    def unmount(self, releases: int) -> dict[str, Any]:
        """Unmount once so many releases came: the kernel does not wait for them, and drops those under way."""
        for _ in range(releases):
            self.wait_for("RELEASED")
        check_libc(libc.umount2(os.fsencode(self.path), 0), "umount")
        self.wait_for("UNMOUNTED")
        last = self.next_line()
        assert self.process.wait(DEADLINE_S) == 0
        return last


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Mount]:
    need_fuse(root=True)
    path, store = tmp_path / "mnt", Path(f"/dev/shm/kvd-test-{os.getpid()}")
    path.mkdir()
    store.mkdir()
    check_libc(libc.mount(b"kvd-test", os.fsencode(store), b"tmpfs", MS_NOSUID | MS_NODEV, b"size=64m"), "mount tmpfs")
    process = subprocess.Popen(
        [sys.executable, __file__, path, store],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    try:
        mount = Mount(path, process)
        mount.features = Feature(mount.wait_for("INIT")["features"])
        yield mount
    finally:
        libc.umount2(os.fsencode(path), MNT_DETACH)
        try:
            process.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        assert process.stdout is not None
        process.stdout.close()
        libc.umount2(os.fsencode(store), MNT_DETACH)
        store.rmdir()


def random_pages(count: int) -> mmap.mmap:
    """Return random bytes at the start of a page, so that the kernel cuts a write at each MiB of them."""
    data = mmap.mmap(-1, count)
    data[:] = os.urandom(count)
    return data


def write_and_read(path: Path, data: mmap.mmap) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        assert os.fstat(file.fileno()).st_size == len(data)
    assert path.stat().st_size == len(data)
    with path.open("rb") as file:
        assert file.read() == data[:]
        with mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapping:
            assert mapping[:] == data[:]


def test_passed_through_file(mounted: Mount) -> None:
    if Feature.PASSTHROUGH not in mounted.features:
        go_without("this kernel has no FUSE passthrough (Linux 6.9 has)")
    data = random_pages(3 * MIB + 17)
    write_and_read(mounted.path / "file", data)
    with pytest.raises(FileNotFoundError):
        (mounted.path / "other").stat()
    fd = os.open(mounted.path / "file", os.O_RDWR)
    os.posix_fallocate(fd, 0, 4 * MIB)
    assert os.fstat(fd).st_size == 4 * MIB
    os.close(fd)
    last = mounted.unmount(releases=3)
    assert (last["reads"], last["writes"], last["objects"]) == (0, 0, 0)
    # Nothing was granted to begin with, so the kernel's writes were held up, too.
    assert last["asks"] == [4096, 3 * MIB + 4096, 4 * MIB]


def test_direct_file_asks(mounted: Mount) -> None:
    data = random_pages(3 * MIB + 17)
    write_and_read(mounted.path / "file.direct", data)
    with (mounted.path / "big.direct").open("wb", buffering=0) as file:
        file.write(data)
        file.write(data)
        # One request fits; then the ask is refused, and write(2) tells of what it wrote.
        assert file.write(data) == MIB
        with pytest.raises(OSError, match="No space left"):
            file.write(data)
    assert (mounted.path / "big.direct").stat().st_size == 2 * len(data) + MIB
    with pytest.raises(OSError, match="not supported"):
        os.setxattr(mounted.path / "file.direct", ASK_GROW, b"")
    last = mounted.unmount(releases=3)
    assert last["reads"] >= 3
    assert last["writes"] >= 9
    assert last["asks"][:4] == [MIB, 2 * MIB, 3 * MIB, 3 * MIB + 4096]
    assert last["objects"] == 0


def test_writer_is_killed_while_it_waits(mounted: Mount) -> None:
    path = mounted.path / "stuck.direct"
    writer = subprocess.Popen([sys.executable, "-c", f"open({str(path)!r}, 'wb', buffering=0).write(b'x')"])
    mounted.wait_for("STUCK")
    writer.terminate()
    assert writer.wait(DEADLINE_S) == -signal.SIGTERM
    assert path.stat().st_size == 0
    assert mounted.unmount(releases=1)["interrupted"] == 1


def test_unnamed_file(mounted: Mount) -> None:
    fd = os.open(mounted.path, os.O_TMPFILE | os.O_RDWR, 0o600)
    assert os.write(fd, b"unnamed") == 7
    assert os.pread(fd, 9, 0) == b"unnamed"
    assert stat.S_ISREG(os.fstat(fd).st_mode)
    os.close(fd)
    mounted.unmount(releases=1)


def test_parse_ask() -> None:
    value = bytes.fromhex("0010000000000000080000000000000004000000000000001000000000000000")
    assert parse_ask(value) == GrowAsk(need_bytes=4096, offset=8, length=4, opcode=Opcode.WRITE, mode=0)
    with pytest.raises(ValueError, match="32 bytes"):
        parse_ask(value[:-1])


async def test_wrapper_without_a_kernel() -> None:
    kernel, fuse = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    peer, ours = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    fd = os.memfd_create("kvd-test")
    os.write(fd, b"x" * 8192)
    with kernel, fuse, peer, ours:
        async with Split.open(fuse_fd=fuse.fileno(), peer_fd=ours.fileno()) as split:
            runs, crc = ((0, 2),), b"\0" * 8
            item = PlaneObject(node=5, mode=Mode.CACHED, fd=fd, sums=Sums(page_bytes=4096, runs=runs, crc=crc))
            split.object_add(item)
            with pytest.raises(FileExistsError, match="object 5 add"):
                split.object_add(item)
            with pytest.raises(ValueError, match="2 pages have 1 sums"):
                split.object_add(
                    PlaneObject(node=6, mode=Mode.CACHED, fd=fd, sums=Sums(page_bytes=4096, runs=runs, crc=crc[:4]))
                )
            await split.object_switch(item)
            assert split.statistics().objects == 1
            assert split.features == Feature(0)
            assert "objects=1" in repr(split)
            await split.object_remove(5)
            with pytest.raises(FileNotFoundError):
                await split.object_remove(5)
            with pytest.raises(OSError, match="backing open"):
                split.backing_open(fd)
            kernel.close()
            async for event in split.events():
                assert event == Event(kind=EventKind.UNMOUNTED, node=0, value=errno.ENODEV)
                break
            assert split.pending_events() == []
        assert "closed" in repr(split)
        with pytest.raises(OSError, match="closed"):
            split.statistics()
    os.close(fd)


if __name__ == "__main__":
    trio.run(daemon, *sys.argv[1:])
