"""The process behind `support.bad_disk`: serves a folder through FUSE and misbehaves as its control socket says.

Usage: bad_disk_server.py FOLDER MOUNT_POINT SOCKET. One JSON line a connection sets the rules, one answers with counts.
Nothing is cached by the kernel, so that every operation can be made to fail.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import signal
import stat
import sys
from typing import TYPE_CHECKING, Any

import pyfuse3
import trio

if TYPE_CHECKING:
    from collections.abc import Sequence

REQUESTS_MAX = 1000
LINE_BYTES_MAX = 65536
PR_SET_PDEATHSIG = 1
CHANGES = frozenset({"write", "fsync"})


class Rules:
    """How the drive behaves now."""

    def __init__(self) -> None:
        self.told: dict[str, Any] = {}
        self.waiting = 0
        self.counts: dict[str, int] = {}
        self._changed = trio.Event()

    def set(self, told: dict[str, Any]) -> None:
        """Follow other rules from now on; those who wait look at them anew."""
        self.told = told
        self._changed.set()
        self._changed = trio.Event()

    async def obey(self, kind: str, *, change: bool = False) -> None:
        """Wait, fail or return, as a request of this kind has to."""
        self.counts[kind] = self.counts.get(kind, 0) + 1
        self.waiting += 1
        try:
            while kind in self.told.get("hang", ()):
                await self._changed.wait()
            if kind in ("read", "write", "fsync"):
                await trio.sleep(self.told.get("slow_s", 0))
        finally:
            self.waiting -= 1
        if code := self.told.get("fail", {}).get(kind):
            raise pyfuse3.FUSEError(code)
        if self.told.get("read_only") and (change or kind in CHANGES):
            raise pyfuse3.FUSEError(errno.EROFS)
        if self.told.get("full") and kind == "write":
            raise pyfuse3.FUSEError(errno.ENOSPC)


class Folder(pyfuse3.Operations):  # type: ignore[misc]
    """A folder, passed through; inode numbers are those of the folder's file system."""

    enable_writeback_cache = False

    def __init__(self, top: str, rules: Rules) -> None:
        super().__init__()
        self._rules = rules
        self._paths = {pyfuse3.ROOT_INODE: os.fsencode(top)}
        self._fds: dict[int, int] = {}

    def _path(self, inode: int, name: bytes | None = None) -> bytes:
        path = self._paths[inode]
        return path if name is None else os.path.join(path, name)

    def _attributes(self, path: bytes | int, inode: int | None = None) -> pyfuse3.EntryAttributes:
        info = os.stat(path, follow_symlinks=False) if not isinstance(path, int) else os.fstat(path)
        entry = pyfuse3.EntryAttributes()
        entry.st_ino = inode or info.st_ino
        for field in ("st_mode", "st_nlink", "st_uid", "st_gid", "st_rdev", "st_size"):
            setattr(entry, field, getattr(info, field))
        for field in ("st_atime_ns", "st_mtime_ns", "st_ctime_ns"):
            setattr(entry, field, getattr(info, field))
        entry.st_blksize, entry.st_blocks = 4096, info.st_blocks
        entry.generation, entry.entry_timeout, entry.attr_timeout = 0, 0, 0
        if not isinstance(path, int) and inode is None:
            self._paths[info.st_ino] = path
        return entry

    async def lookup(self, parent: int, name: bytes, ctx: Any) -> pyfuse3.EntryAttributes:
        await self._rules.obey("names")
        return self._try(lambda: self._attributes(self._path(parent, name)))

    async def forget(self, inodes: Sequence[tuple[int, int]]) -> None:
        """Keep everything: a drive of a test has few files."""

    @staticmethod
    def _try(action: Any) -> Any:
        try:
            return action()
        except OSError as error:
            raise pyfuse3.FUSEError(error.errno) from error

    async def getattr(self, inode: int, ctx: Any = None) -> pyfuse3.EntryAttributes:
        await self._rules.obey("names")
        return self._try(lambda: self._attributes(self._path(inode), inode))

    async def setattr(self, inode: int, attr: Any, fields: Any, fh: int | None, ctx: Any) -> pyfuse3.EntryAttributes:
        await self._rules.obey("names", change=True)
        path = self._path(inode)

        def change() -> pyfuse3.EntryAttributes:
            if fields.update_size:
                os.truncate(path if fh is None else self._fds[fh], attr.st_size)
            if fields.update_mode:
                os.chmod(path, stat.S_IMODE(attr.st_mode))
            if fields.update_atime or fields.update_mtime:
                os.utime(path, ns=(attr.st_atime_ns, attr.st_mtime_ns))
            return self._attributes(path, inode)

        return self._try(change)

    async def mkdir(self, parent: int, name: bytes, mode: int, ctx: Any) -> pyfuse3.EntryAttributes:
        await self._rules.obey("names", change=True)
        path = self._path(parent, name)
        self._try(lambda: os.mkdir(path, mode & ~ctx.umask))
        return self._attributes(path)

    async def unlink(self, parent: int, name: bytes, ctx: Any) -> None:
        await self._rules.obey("names", change=True)
        self._try(lambda: os.unlink(self._path(parent, name)))

    async def rmdir(self, parent: int, name: bytes, ctx: Any) -> None:
        await self._rules.obey("names", change=True)
        self._try(lambda: os.rmdir(self._path(parent, name)))

    async def rename(self, parent: int, name: bytes, parent2: int, name2: bytes, flags: int, ctx: Any) -> None:
        await self._rules.obey("names", change=True)
        after = self._path(parent2, name2)
        self._try(lambda: os.rename(self._path(parent, name), after))
        self._attributes(after)

    async def create(
        self, parent: int, name: bytes, mode: int, flags: int, ctx: Any
    ) -> tuple[pyfuse3.FileInfo, pyfuse3.EntryAttributes]:
        await self._rules.obey("names", change=True)
        path = self._path(parent, name)
        fd = self._try(lambda: os.open(path, (flags & ~os.O_DIRECT) | os.O_CREAT, mode & ~ctx.umask))
        self._fds[fd] = fd
        return pyfuse3.FileInfo(fh=fd), self._attributes(path)

    async def open(self, inode: int, flags: int, ctx: Any) -> pyfuse3.FileInfo:
        await self._rules.obey("names")
        fd = self._try(lambda: os.open(self._path(inode), flags & ~(os.O_DIRECT | os.O_CREAT)))
        self._fds[fd] = fd
        return pyfuse3.FileInfo(fh=fd)

    async def read(self, fh: int, offset: int, length: int) -> bytes:
        await self._rules.obey("read")
        data: bytes = self._try(lambda: os.pread(fh, length, offset))
        if self._rules.told.get("flip") and data:
            data = bytes([data[0] ^ 1]) + data[1:]
        return data

    async def write(self, fh: int, offset: int, data: bytes) -> int:
        await self._rules.obey("write")
        return int(self._try(lambda: os.pwrite(fh, data, offset)))

    async def flush(self, fh: int) -> None:
        """A drive hears nothing of a close."""
        raise pyfuse3.FUSEError(errno.ENOSYS)

    async def fsync(self, fh: int, datasync: bool) -> None:
        await self._rules.obey("fsync")

    async def release(self, fh: int) -> None:
        os.close(self._fds.pop(fh))

    async def opendir(self, inode: int, ctx: Any) -> int:
        await self._rules.obey("names")
        return inode

    async def readdir(self, fh: int, start_id: int, token: Any) -> None:
        await self._rules.obey("names")
        names = sorted(os.listdir(self._path(fh)))
        for number, name in enumerate(names[start_id:], start=start_id + 1):
            if not pyfuse3.readdir_reply(token, name, self._attributes(self._path(fh, name)), number):
                break

    async def fsyncdir(self, fh: int, datasync: bool) -> None:
        await self._rules.obey("fsync")

    async def releasedir(self, fh: int) -> None:
        """Nothing was opened."""

    async def statfs(self, ctx: Any) -> pyfuse3.StatvfsData:
        await self._rules.obey("statfs")
        info = os.statvfs(self._path(pyfuse3.ROOT_INODE))
        found = pyfuse3.StatvfsData()
        for field in ("f_bsize", "f_frsize", "f_blocks", "f_bfree", "f_bavail", "f_files", "f_ffree", "f_favail"):
            setattr(found, field, getattr(info, field))
        if self._rules.told.get("full"):
            found.f_bavail = found.f_bfree = 0
        found.f_namemax = info.f_namemax
        return found

    async def setxattr(self, inode: int, name: bytes, value: bytes, ctx: Any) -> None:
        await self._rules.obey("names", change=True)
        self._try(lambda: os.setxattr(self._path(inode), name, value))

    async def getxattr(self, inode: int, name: bytes, ctx: Any) -> bytes:
        await self._rules.obey("names")
        return bytes(self._try(lambda: os.getxattr(self._path(inode), name)))

    async def listxattr(self, inode: int, ctx: Any) -> list[bytes]:
        await self._rules.obey("names")
        return [os.fsencode(name) for name in self._try(lambda: os.listxattr(self._path(inode)))]

    async def removexattr(self, inode: int, name: bytes, ctx: Any) -> None:
        await self._rules.obey("names", change=True)
        self._try(lambda: os.removexattr(self._path(inode), name))


async def control(path: str, rules: Rules) -> None:
    """Take rules from the socket, for ever."""
    with trio.socket.socket(trio.socket.AF_UNIX, trio.socket.SOCK_STREAM) as server:
        await server.bind(path)
        server.listen()
        while True:
            connection, _ = await server.accept()
            with connection:
                told = json.loads(await connection.recv(LINE_BYTES_MAX))
                if not told.pop("keep", False):
                    rules.set(told)
                await connection.send(json.dumps({"waiting": rules.waiting, "counts": rules.counts}).encode() + b"\n")


async def serve(top: str, mount_point: str, control_path: str) -> None:
    """Serve until killed or unmounted."""
    rules = Rules()
    pyfuse3.init(Folder(top, rules), mount_point, {"fsname=bad-disk", "allow_other", "default_permissions", "dev"})
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(control, control_path, rules)
            await pyfuse3.main(1, REQUESTS_MAX)
            nursery.cancel_scope.cancel()
    finally:
        pyfuse3.close()


if __name__ == "__main__":
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # it ends with the test, whatever becomes of that
    trio.run(serve, *sys.argv[1:])
