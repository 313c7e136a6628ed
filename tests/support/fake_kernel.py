"""A kernel for handlers without a mount: asks the hot table first, as the split does, and counts what it was given."""

from __future__ import annotations

import collections
import os
import stat
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pyfuse3

from kvd.catalog.schema import ROOT_INO
from kvd.fs.hot_table import HOT_FH
from kvd.fs.operations import Operations
from kvd.fs.virtual import Virtual

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.tiers import Tiers

CTX = SimpleNamespace(uid=0, gid=0, pid=0, umask=0o022)
OBJECTS_MAX = 1000


class Kernel:
    """What a client's calls come to; its methods return an inode number, 0 for what is not there, or raise `OSError`.

    Attributes
    ----------
    forwarded
        Requests that the table did not answer, by name.
    """

    def __init__(self, tiers: Tiers) -> None:
        self.tiers = tiers
        self.table = tiers.plane.hot
        virtual = Virtual(None, list, lambda: None)  # type: ignore[arg-type]
        self.operations = Operations(
            tiers.catalog, tiers.objects, tiers.sessions, virtual, tiers.hot, objects_max=OBJECTS_MAX
        )
        self.lookups: collections.Counter[int] = collections.Counter()
        self.opens: list[int] = []
        self.forwarded: collections.Counter[str] = collections.Counter()

    async def _ask(self, request: str, *arguments: Any) -> Any:
        self.forwarded[request] += 1
        try:
            return await getattr(self.operations, request)(*arguments)
        except pyfuse3.FUSEError as error:
            raise OSError(error.errno, request) from error

    def _entered(self, entry: pyfuse3.EntryAttributes) -> int:
        if entry.st_ino:
            self.lookups[entry.st_ino] += 1
        return int(entry.st_ino)

    async def lookup(self, name: bytes, parent: int = ROOT_INO) -> int:
        answer = self.table.lookup(parent, name)
        if answer is None:
            return self._entered(await self._ask("lookup", parent, name, CTX))
        if isinstance(answer, int):
            return 0
        self.lookups[answer.node] += 1
        return answer.node

    async def size(self, ino: int) -> int:
        answer = self.table.getattr(ino)
        return answer.size if answer is not None else (await self._ask("getattr", ino, CTX)).st_size

    async def mkdir(self, name: bytes, parent: int = ROOT_INO) -> int:
        return self._entered(await self._ask("mkdir", parent, name, 0o755, CTX))

    async def link(self, ino: int, name: bytes, parent: int = ROOT_INO) -> int:
        return self._entered(await self._ask("link", ino, parent, name, CTX))

    async def unlink(self, name: bytes, parent: int = ROOT_INO) -> None:
        await self._ask("unlink", parent, name, CTX)

    async def rmdir(self, name: bytes, parent: int = ROOT_INO) -> None:
        await self._ask("rmdir", parent, name, CTX)

    async def rename(
        self, old: bytes, new: bytes, *, parents: tuple[int, int] = (ROOT_INO, ROOT_INO), flags: int = 0
    ) -> None:
        await self._ask("rename", parents[0], old, parents[1], new, flags, CTX)

    async def chmod(self, ino: int, mode: int) -> None:
        attributes = pyfuse3.EntryAttributes()
        attributes.st_mode = stat.S_IFREG | mode
        await self._ask("setattr", ino, attributes, _fields("update_mode"), None, CTX)

    async def truncate(self, ino: int, size: int) -> None:
        attributes = pyfuse3.EntryAttributes()
        attributes.st_size = size
        await self._ask("setattr", ino, attributes, _fields("update_size"), None, CTX)

    async def setxattr(self, ino: int, name: bytes, value: bytes) -> None:
        await self._ask("setxattr", ino, name, value, CTX)

    async def write(self, name: bytes, content: bytes, parent: int = ROOT_INO) -> int:
        """Make an object, write it and close it."""
        info, entry = await self._ask("create", parent, name, 0o644, os.O_WRONLY, CTX)
        ino = self._entered(entry)
        self.tiers.write(ino, content)
        await self._ask("release", info.fh)
        return ino

    async def open(self, ino: int, flags: int = os.O_RDONLY) -> int:
        if flags == os.O_RDONLY and self.table.open(ino):
            fh = HOT_FH | ino
        else:
            fh = (await self._ask("open", ino, flags, CTX)).fh
        self.opens.append(fh)
        return fh

    async def release(self, fh: int) -> None:
        self.opens.remove(fh)
        if not (fh & HOT_FH and self.table.release(fh ^ HOT_FH)):
            await self._ask("release", fh)

    async def forget(self, ino: int) -> None:
        count = self.lookups.pop(ino, 0)
        left = self.table.forget(ino, count)
        if left:
            await self.operations.forget([(ino, left)])

    async def forget_all(self) -> None:
        """Close and forget everything, as an unmount does."""
        for fh in list(self.opens):
            await self.release(fh)
        for ino in list(self.lookups):
            await self.forget(ino)


def _fields(*names: str) -> Any:
    every = ("mode", "uid", "gid", "atime", "mtime", "size")
    return SimpleNamespace(**{f"update_{each}": f"update_{each}" in names for each in every})


async def refused(code: int, call: Callable[..., Any], *arguments: Any) -> bool:
    """Whether a call fails with an errno; other failures are raised."""
    try:
        await call(*arguments)
    except OSError as error:
        if error.errno != code:
            raise
        return True
    return False
