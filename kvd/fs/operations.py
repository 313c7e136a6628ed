"""pyfuse3's Operations over the catalogue and the objects: the tree of names.

Data of objects never comes here: the kernel (passthrough) or the split (READ, WRITE, FALLOCATE, LSEEK) handles it. What
comes are names, attributes, opens and releases, and the split's questions (`KVD_ASK_GROW`).
"""

from __future__ import annotations

import errno
import os
import stat
import time
from typing import TYPE_CHECKING

import pyfuse3
import structlog
import trio

from kvd.catalog.names import BATCH, fail
from kvd.fs import attributes
from kvd.fs.guard import guarded
from kvd.fs.handles import Handles
from kvd.fs.split import ASK_GROW, TMPFILE_NAME, Opcode, parse_ask
from kvd.fs.virtual import FOLDER_INO, is_virtual, refuse_virtual
from kvd.fs.xattrs import Xattrs
from kvdriver import BLOCK_BYTES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvd.catalog.catalog import Catalog
    from kvd.catalog.records import Inode
    from kvd.fs.hot import Hot
    from kvd.fs.virtual import Virtual
    from kvd.session.verbs import SessionVerbs
    from kvd.tier.objects import Objects

log = structlog.get_logger(__name__)

FIRST_COOKIE = 2
"""readdir cookies: 1 is ``.``, 2 is ``..``, then the catalogue's plus this."""


class Operations(pyfuse3.Operations):
    """The request handlers."""

    def __init__(
        self, catalog: Catalog, objects: Objects, sessions: SessionVerbs, virtual: Virtual, hot: Hot, objects_max: int
    ) -> None:
        super().__init__()
        self._catalog = catalog
        self._names = catalog.names
        self._namespaces, self._charges = catalog.namespaces, catalog.charges
        self._objects = objects
        self._virtual = virtual
        self._objects_max = objects_max
        self._xattrs = Xattrs(catalog, objects, sessions)
        self._hot = hot
        self._lookups = hot.lookups
        self._handles = Handles()

    def __repr__(self) -> str:
        return f"<Operations {self._hot!r} {self._handles!r}>"

    # -- finding -------------------------------------------------------------------------------------------------

    @guarded
    async def lookup(self, parent_inode: int, name: bytes, ctx: pyfuse3.RequestContext) -> pyfuse3.EntryAttributes:
        """Find a name."""
        found = self._virtual.lookup(parent_inode, name)
        if found is not None:
            return self._known(found)
        if is_virtual(parent_inode) or self._namespaces.is_dead(parent_inode):
            return attributes.negative()
        found = self._names.lookup(parent_inode, name)
        if found is None:
            self._hot.missed(parent_inode, name)
            return attributes.negative()
        self._hot.found(parent_inode, name)
        return self._known(found)

    @guarded
    async def getattr(self, inode: int, ctx: pyfuse3.RequestContext) -> pyfuse3.EntryAttributes:
        """Return attributes."""
        found = self._inode(inode)
        self._hot.known(inode)
        return self._entry(found)

    async def forget(self, inode_list: Sequence[tuple[int, int]]) -> None:
        """Count the kernel's references down; delete what has neither name nor reference left."""
        for ino, count in inode_list:
            if not self._lookups.forget(ino, count):
                continue
            try:  # nobody waits for an answer, and an error would end the mount; the next start sweeps what stays
                await self._delete_if_unused(ino)
            except pyfuse3.FUSEError as error:
                log.warning("what has no name stays until the next start", ino=ino, errno=error.errno)

    @guarded
    async def _delete_if_unused(self, ino: int) -> None:
        if ino in self._lookups or is_virtual(ino):
            return
        try:
            inode = self._names.inode(ino)
        except OSError as error:
            if error.errno != errno.ESTALE:
                raise
            return
        if inode.nlink == 0:
            if inode.is_file:
                await self._objects.discard(ino)
            else:
                self._names.remove(ino)

    @guarded
    async def readlink(self, inode: int, ctx: pyfuse3.RequestContext) -> bytes:
        """Return a symlink's target."""
        target = self._inode(inode).target
        if target is None:
            raise fail(errno.EINVAL)
        return target

    @guarded
    async def statfs(self, ctx: pyfuse3.RequestContext) -> pyfuse3.StatvfsData:
        """Return the real capacity: what both tiers can hold and what is free in them."""
        space = await self._objects.writing.space()
        return attributes.capacity(space, objects=self._objects.lives.count, objects_max=self._objects_max)

    # -- directories ---------------------------------------------------------------------------------------------

    @guarded
    async def opendir(self, inode: int, ctx: pyfuse3.RequestContext) -> int:
        """Open a directory; its handle is its number."""
        return inode

    @guarded
    async def readdir(self, fh: int, start_id: int, token: pyfuse3.ReaddirToken) -> None:
        """List a directory from a cookie on."""
        self._hot.listed(fh)
        parent = pyfuse3.ROOT_INODE if is_virtual(fh) else self._names.parent(fh)
        for cookie, name, ino in ((1, b".", fh), (FIRST_COOKIE, b"..", parent)):
            if start_id < cookie and not pyfuse3.readdir_reply(token, name, self._entry(self._inode(ino)), cookie):
                return
        after = max(0, start_id - FIRST_COOKIE)
        while batch := self._listing(fh, after):
            for after, name, inode in batch:
                if not pyfuse3.readdir_reply(token, name, self._entry(inode), after + FIRST_COOKIE):
                    return
                self._lookups.add(inode.ino)
            if len(batch) < BATCH:
                return

    def _listing(self, ino: int, after: int) -> list[tuple[int, bytes, Inode]]:
        if ino == FOLDER_INO:
            return [line for line in self._virtual.listing() if line[0] > after]
        found = [] if self._namespaces.is_dead(ino) else self._names.listing(ino, after, BATCH)
        return [(e.cookie, e.name, e.inode) for e in found]

    @guarded
    async def releasedir(self, fh: int) -> None:
        """Close a directory."""

    @guarded
    async def fsyncdir(self, fh: int, datasync: bool) -> None:
        """Make names durable."""
        await self._catalog.db.sync()

    # -- making and removing -------------------------------------------------------------------------------------

    @guarded
    async def mkdir(
        self, parent_inode: int, name: bytes, mode: int, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.EntryAttributes:
        """Make a directory."""
        made = self._make(parent_inode, name, stat.S_IFDIR | stat.S_IMODE(mode), ctx)
        self._hot.made_folder(made.ino, parent_inode)
        return self._known(made)

    @guarded
    async def symlink(
        self, parent_inode: int, name: bytes, target: bytes, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.EntryAttributes:
        """Make a symlink."""
        return self._known(self._make(parent_inode, name, stat.S_IFLNK | 0o777, ctx, target=target))

    @guarded
    async def mknod(
        self, parent_inode: int, name: bytes, mode: int, rdev: int, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.EntryAttributes:
        """Make a file, a pipe, a socket or a device node."""
        inode = self._make(parent_inode, name, mode, ctx, rdev=rdev)
        if inode.is_file:
            await self._create_object(inode, parent_inode)
            await self._objects.release(inode.ino, write=True)
        return self._known(inode)

    @guarded
    async def create(
        self, parent_inode: int, name: bytes, mode: int, flags: int, ctx: pyfuse3.RequestContext
    ) -> tuple[pyfuse3.FileInfo, pyfuse3.EntryAttributes]:
        """Make an object and open it; `TMPFILE_NAME` stands for O_TMPFILE."""
        own_name = None if name == TMPFILE_NAME else name
        inode = self._make(parent_inode, own_name, stat.S_IFREG | stat.S_IMODE(mode), ctx)
        await self._create_object(inode, parent_inode)
        return self._handle(inode.ino, write=True), self._known(inode)

    async def _create_object(self, inode: Inode, parent: int) -> None:
        try:
            await self._objects.create(inode.ino, parent)
        except BaseException:
            with trio.CancelScope(shield=True):
                self._names.vanish(inode.ino, time.time_ns())
                await self._objects.abandon(inode.ino)
            raise

    def _make(
        self,
        parent: int,
        name: bytes | None,
        mode: int,
        ctx: pyfuse3.RequestContext,
        *,
        rdev: int = 0,
        target: bytes | None = None,
    ) -> Inode:
        self._refuse(parent, name)
        if stat.S_ISREG(mode) and self._objects.lives.count >= self._objects_max:
            raise fail(errno.ENOSPC, name)
        with self._catalog.db.transaction():
            inode = self._names.make(
                parent, name, mode=mode, uid=ctx.uid, gid=ctx.gid, now_ns=time.time_ns(), rdev=rdev, target=target
            )
            if inode.is_file:
                self._catalog.placements.add(inode.ino)
        return inode

    @guarded
    async def link(
        self, inode: int, new_parent_inode: int, new_name: bytes, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.EntryAttributes:
        """Give a file another name."""
        self._refuse(new_parent_inode, new_name)
        self._refuse(inode, None)
        self._objects.check_link(inode, new_parent_inode)
        return self._known(self._charges.link(inode, new_parent_inode, new_name, time.time_ns()))

    @guarded
    async def unlink(self, parent_inode: int, name: bytes, ctx: pyfuse3.RequestContext) -> None:
        """Remove a name."""
        self._refuse(parent_inode, name)
        unlinked = self._charges.unlink(parent_inode, name, time.time_ns())
        self._objects.admission.gone(parent_inode, name)
        await self._delete_if_unused(unlinked.ino)

    @guarded
    async def rmdir(self, parent_inode: int, name: bytes, ctx: pyfuse3.RequestContext) -> None:
        """Remove an empty directory."""
        self._refuse(parent_inode, name)
        await self._delete_if_unused(self._names.rmdir(parent_inode, name, time.time_ns()).ino)

    @guarded
    async def rename(
        self,
        parent_inode_old: int,
        name_old: bytes,
        parent_inode_new: int,
        name_new: bytes,
        flags: int,
        ctx: pyfuse3.RequestContext,
    ) -> None:
        """Rename, replacing what is there."""
        self._refuse(parent_inode_old, name_old)
        self._refuse(parent_inode_new, name_new)
        self._namespaces.check_rename(parent_inode_old, name_old, parent_inode_new, name_new, flags)
        lost = self._charges.rename(parent_inode_old, name_old, parent_inode_new, name_new, flags, time.time_ns())
        if lost is not None:
            self._objects.admission.gone(parent_inode_new, name_new)
            await self._delete_if_unused(lost.ino)

    # -- attributes ----------------------------------------------------------------------------------------------

    @guarded
    async def setattr(
        self,
        inode: int,
        attr: pyfuse3.EntryAttributes,
        fields: pyfuse3.SetattrFields,
        fh: int | None,
        ctx: pyfuse3.RequestContext,
    ) -> pyfuse3.EntryAttributes:
        """Change attributes; the length of an object through its DDR file."""
        self._refuse(inode, None)
        if fields.update_size:
            await self._objects.truncate(inode, attr.st_size)
        values = attributes.changes(attr, fields)
        if "mtime_ns" in values:
            self._objects.touch(inode, values["mtime_ns"])
        return self._entry(self._names.setattr(inode, ctime_ns=time.time_ns(), **values))

    @guarded
    async def setxattr(self, inode: int, name: bytes, value: bytes, ctx: pyfuse3.RequestContext) -> None:
        """Set an extended attribute, or answer a question of the split."""
        if name == ASK_GROW:
            ask = parse_ask(value)
            await self._objects.grow(inode, ask.need_bytes, gate=ask.opcode is Opcode.GATE)
            return
        self._refuse(inode, None)
        await self._xattrs.set(self._inode(inode), name, value)

    @guarded
    async def getxattr(self, inode: int, name: bytes, ctx: pyfuse3.RequestContext) -> bytes:
        """Return an extended attribute."""
        if is_virtual(inode):
            raise fail(errno.ENODATA)
        return await self._xattrs.find(self._inode(inode), name)

    @guarded
    async def listxattr(self, inode: int, ctx: pyfuse3.RequestContext) -> Sequence[bytes]:
        """List extended attributes."""
        return [] if is_virtual(inode) else self._xattrs.list(self._inode(inode))

    @guarded
    async def removexattr(self, inode: int, name: bytes, ctx: pyfuse3.RequestContext) -> None:
        """Remove an extended attribute."""
        self._refuse(inode, None)
        await self._xattrs.remove(self._inode(inode), name)

    # -- files ---------------------------------------------------------------------------------------------------

    @guarded
    async def open(self, inode: int, flags: int, ctx: pyfuse3.RequestContext) -> pyfuse3.FileInfo:
        """Open an object; what the kernel is given to reach its bytes with is the split's part."""
        write = flags & os.O_ACCMODE != os.O_RDONLY
        if is_virtual(inode):
            if write:
                raise fail(errno.EACCES)
            info = self._handle(inode, write=False)
            self._handles.contents[info.fh] = await self._virtual.content(inode)
            return info
        truncate = bool(flags & os.O_TRUNC)
        if truncate and not write:
            await self._objects.truncate(inode, 0)
        await self._objects.open(inode, write=write, truncate=truncate and write)
        # The kernel clears set-id bits at chown, truncate and a write in passthrough, but neither at O_TRUNC nor at a
        # write that it hands on; those are foreseen here.
        if ctx.uid != 0 and (truncate or (write and not self._objects.lives.is_passthrough(inode))):
            mode = self._inode(inode).mode
            if mode != (kept := attributes.without_set_id(mode)):
                self._names.setattr(inode, mode=kept)
        return self._handle(inode, write=write)

    def _handle(self, ino: int, *, write: bool) -> pyfuse3.FileInfo:
        return pyfuse3.FileInfo(fh=self._handles.add(ino, write=write), keep_cache=self._objects.keeps_cache(ino))

    @guarded
    async def read(self, fh: int, off: int, size: int) -> bytes:
        """Read a virtual file; objects are read without Python."""
        return self._handles.contents[fh][off : off + size]

    @guarded
    async def release(self, fh: int) -> None:
        """Close a file: its last descriptor and its last mapping are gone."""
        ino, write = self._handles.pop(fh)
        if is_virtual(ino):
            return
        await self._objects.release(ino, write=write)
        await self._delete_if_unused(ino)

    @guarded
    async def fsync(self, fh: int, datasync: bool) -> None:
        """Make a file durable on NVMe."""
        ino = self._handles.ino(fh)
        if not is_virtual(ino):
            await self._objects.fsync(ino)

    # -- pieces --------------------------------------------------------------------------------------------------

    def _inode(self, ino: int) -> Inode:
        return self._virtual.known(ino) if is_virtual(ino) else self._names.inode(ino)

    def _entry(self, inode: Inode) -> pyfuse3.EntryAttributes:
        if not inode.is_file or is_virtual(inode.ino):
            return attributes.entry(inode, held_bytes=0)
        return attributes.entry(
            inode,
            held_bytes=self._objects.lives.held_blocks(inode.ino) * BLOCK_BYTES,
            written=self._objects.lives.attributes(inode.ino),
        )

    def _known(self, inode: Inode) -> pyfuse3.EntryAttributes:
        """Return an entry for an answer that raises the kernel's reference count."""
        entry = self._entry(inode)
        self._lookups.add(inode.ino)
        return entry

    def _refuse(self, ino: int, name: bytes | None) -> None:
        """Refuse to change what is virtual, or to make or remove a name in what was invalidated."""
        refuse_virtual(ino, name)
        if name is not None:
            self._namespaces.refuse_dead(ino)
