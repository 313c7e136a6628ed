"""Names and attributes: the POSIX tree, one transaction an operation.

Errors are `OSError` with the errno that ext4 would give. Permissions are the kernel's business
(``default_permissions``); what is checked here is what only the tree knows.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING, Any

from kvd.catalog.records import DirEntry, Inode
from kvd.catalog.schema import ROOT_INO

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kvd.catalog.database import Database

BATCH = 256
"""Names that are read at once: about a millisecond."""
NAME_BYTES_MAX = 255
LINK_MAX = 65000  # as ext4 has it
XATTR_NAME_BYTES_MAX = 64 << 10
"""Of an inode's names together, each with its NUL: Linux has no room for more in one answer to `listxattr`."""
XATTR_VALUE_BYTES_MAX = 1 << 20
"""Of an inode's values together; no tier's budget counts them."""
RENAME_NOREPLACE = 1
RENAME_EXCHANGE = 2
_COLUMNS = "ino, mode, uid, gid, nlink, size, atime_ns, mtime_ns, ctime_ns, rdev, target"
_SETTABLE = frozenset({"mode", "uid", "gid", "size", "atime_ns", "mtime_ns", "ctime_ns"})


def fail(code: int, what: object = None) -> OSError:
    """Return the `OSError` for `code`."""
    return OSError(code, os.strerror(code), what)


def _inode(row: tuple[Any, ...]) -> Inode:
    return Inode(
        ino=row[0],
        mode=row[1],
        uid=row[2],
        gid=row[3],
        nlink=row[4],
        size=row[5],
        atime_ns=row[6],
        mtime_ns=row[7],
        ctime_ns=row[8],
        rdev=row[9],
        target=row[10],
    )


class Names:
    """The tree of names in `db`."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self.folder_moves = 0  # grows when a directory gets another parent: who remembers ways up forgets them then
        self.changed: Callable[[int], None] = lambda ino: None  # hears of each inode that changes, in the transaction
        self.named: Callable[[int], None] = lambda ino: None  # hears of each that has got a name, in the transaction

    # -- finding -------------------------------------------------------------------------------------------------

    def inode(self, ino: int) -> Inode:
        """Return an inode; ESTALE if there is none (any more): the kernel then looks the name up again."""
        row = self._db.execute(f"SELECT {_COLUMNS} FROM inode WHERE ino=?", (ino,)).fetchone()  # noqa: S608
        if row is None:
            raise fail(errno.ESTALE, ino)
        return _inode(row)

    def lookup(self, parent: int, name: bytes) -> Inode | None:
        """Return what `name` in the directory `parent` is, or None."""
        _check_name(name)
        if name == b".":
            return self.inode(parent)
        if name == b"..":
            return self.inode(self.parent(parent))
        row = self._db.execute(
            f"SELECT {_COLUMNS} FROM inode WHERE ino=(SELECT ino FROM dentry WHERE parent=? AND name=?)",  # noqa: S608
            (parent, name),
        ).fetchone()
        return None if row is None else _inode(row)

    def parent(self, ino: int) -> int:
        """Return a directory's parent; the root's is itself."""
        row = self._db.execute("SELECT parent FROM dentry WHERE ino=?", (ino,)).fetchone()
        return ROOT_INO if row is None else int(row[0])

    def resolve(self, path: bytes) -> Inode:
        """Return what an absolute path within the mount names; symlinks are not followed."""
        at = self.inode(ROOT_INO)
        for name in path.split(b"/"):
            if name in (b"", b"."):
                continue
            if not at.is_dir:
                raise fail(errno.ENOTDIR, path)
            found = self.lookup(at.ino, name)
            if found is None:
                raise fail(errno.ENOENT, path)
            at = found
        return at

    def number(self, path: bytes) -> int | None:
        """Return the inode that a clean absolute path names, by one short query a name; None if there is none."""
        at: int | None = ROOT_INO
        for name in filter(None, path.split(b"/")):
            (at,) = self._db.execute("SELECT ino FROM dentry WHERE parent=? AND name=?", (at, name)).fetchone() or (
                None,
            )
        return at

    def path(self, ino: int) -> bytes | None:
        """Return a path of an inode, or None when it has no name."""
        parts: list[bytes] = []
        while ino != ROOT_INO:
            row = self._db.execute("SELECT parent, name FROM dentry WHERE ino=? LIMIT 1", (ino,)).fetchone()
            if row is None:
                return None
            parts.append(row[1])
            ino = row[0]
        return b"/" + b"/".join(reversed(parts))

    def listing(self, parent: int, after: int = 0, limit: int = 1 << 30) -> list[DirEntry]:
        """Return up to `limit` entries of a directory after the cookie `after`; see `batches` for large ones."""
        rows = self._db.execute(
            f"SELECT d.id, d.name, {', '.join('i.' + c for c in _COLUMNS.split(', '))}"  # noqa: S608
            " FROM dentry d JOIN inode i USING(ino) WHERE d.parent=? AND d.id>? ORDER BY d.id LIMIT ?",
            (parent, after, limit),
        ).fetchall()
        return [DirEntry(cookie=row[0], name=row[1], inode=_inode(row[2:])) for row in rows]

    def batches(self, parent: int) -> Iterator[list[DirEntry]]:
        """Yield a directory's entries, `BATCH` at a time, so that the reader can let others run in between.

        Nothing is held meanwhile. A name that is made then does not come: whoever makes them as fast as they are read would
        keep the reader for ever.
        """
        after, last = 0, int(self._db.scalar("SELECT coalesce(max(id), 0) FROM dentry"))
        while entries := [entry for entry in self.listing(parent, after, BATCH) if entry.cookie <= last]:
            yield entries
            after = entries[-1].cookie

    def walk(self, ino: int) -> Iterator[list[Inode]]:
        """Yield the regular files at or below an inode in batches, each file once for each of its names."""
        top = self.inode(ino)
        if top.is_file:
            yield [top]
        pending = [ino] if top.is_dir else []
        while pending:
            for entries in self.batches(pending.pop()):
                pending += [entry.inode.ino for entry in entries if entry.inode.is_dir]
                yield [entry.inode for entry in entries if entry.inode.is_file]

    # -- making --------------------------------------------------------------------------------------------------

    def make(
        self,
        parent: int,
        name: bytes | None,
        *,
        mode: int,
        uid: int,
        gid: int,
        now_ns: int,
        rdev: int = 0,
        target: bytes | None = None,
    ) -> Inode:
        """Make an inode under a name (None: without one, for O_TMPFILE)."""
        with self._db.transaction():
            folder = self._folder(parent)
            if name is not None:
                self._free(parent, name)
            if folder.mode & stat.S_ISGID:
                gid = folder.gid
                if stat.S_ISDIR(mode):
                    mode |= stat.S_ISGID
            nlink = 0 if name is None else 2 if stat.S_ISDIR(mode) else 1
            ino = self._db.execute(
                "INSERT INTO inode(mode, uid, gid, nlink, size, atime_ns, mtime_ns, ctime_ns, rdev, target)"
                " VALUES(?,?,?,?,?,?,?,?,?,?)",
                (mode, uid, gid, nlink, len(target or b""), now_ns, now_ns, now_ns, rdev, target),
            ).lastrowid
            assert ino is not None
            if name is not None:
                self._enter(parent, name, ino, now_ns)
            if stat.S_ISDIR(mode):
                self._links(parent, 1, now_ns)
            return self.inode(ino)

    def link(self, ino: int, parent: int, name: bytes, now_ns: int) -> Inode:
        """Give an inode another name."""
        with self._db.transaction():
            self._folder(parent)
            self._free(parent, name)
            if self.inode(ino).nlink >= LINK_MAX:
                raise fail(errno.EMLINK)
            self._enter(parent, name, ino, now_ns)
            self._links(ino, 1, now_ns)
            return self.inode(ino)

    # -- removing ------------------------------------------------------------------------------------------------

    def unlink(self, parent: int, name: bytes, now_ns: int) -> Inode:
        """Remove a name of what is not a directory; return the inode as it is now."""
        with self._db.transaction():
            inode = self._entry(parent, name)
            if inode.is_dir:
                raise fail(errno.EISDIR, name)
            self._leave(parent, name, now_ns)
            self._links(inode.ino, -1, now_ns)
            return self.inode(inode.ino)

    def rmdir(self, parent: int, name: bytes, now_ns: int) -> Inode:
        """Remove an empty directory; return its inode, now without links."""
        with self._db.transaction():
            inode = self._entry(parent, name)
            if not inode.is_dir:
                raise fail(errno.ENOTDIR, name)
            self._empty(inode)
            self._leave(parent, name, now_ns)
            self._links(parent, -1, now_ns)
            self._links(inode.ino, -inode.nlink, now_ns)
            return self.inode(inode.ino)

    def remove(self, ino: int) -> None:
        """Forget an inode that has neither names nor users."""
        with self._db.transaction():
            for table in ("inode", "xattr", "object", "copy", "namespace", "session", "chain"):
                self._db.execute(f"DELETE FROM {table} WHERE ino=?", (ino,))  # noqa: S608

    def vanish(self, ino: int, now_ns: int) -> None:
        """Remove every name of a file whose bytes are lost, and the file."""
        with self._db.transaction():
            for parent, name in self._db.execute("SELECT parent, name FROM dentry WHERE ino=?", (ino,)).fetchall():
                self._db.name_vanishing(parent, name)
                self._leave(parent, name, now_ns)
            self.remove(ino)

    def orphans(self) -> list[int]:
        """Return the inodes without a name, but for the graves of `kvd.catalog.namespaces`."""
        graves = "SELECT value FROM meta WHERE key GLOB 'grave:*'"
        return [row[0] for row in self._db.execute(f"SELECT ino FROM inode WHERE nlink=0 AND ino NOT IN ({graves})")]  # noqa: S608

    # -- renaming ------------------------------------------------------------------------------------------------

    def rename(
        self, parent_old: int, name_old: bytes, parent_new: int, name_new: bytes, flags: int, now_ns: int
    ) -> Inode | None:
        """Rename; return the inode that lost its name to it, as it is now, or None."""
        if flags not in (0, RENAME_NOREPLACE, RENAME_EXCHANGE):
            raise fail(errno.EINVAL)
        with self._db.transaction():
            inode = self._entry(parent_old, name_old)
            self._folder(parent_new)
            _check_name(name_new)
            target = self.lookup(parent_new, name_new)
            if flags == RENAME_EXCHANGE:
                self._exchange((parent_old, name_old, inode), (parent_new, name_new, target), now_ns)
                return None
            if target is not None:
                if flags == RENAME_NOREPLACE:
                    raise fail(errno.EEXIST, name_new)
                if target.ino == inode.ino:
                    return None
                self._replaceable(inode, target)
            if inode.is_dir and self._is_below(parent_new, inode.ino):
                raise fail(errno.EINVAL)
            if target is not None:
                target = (self.rmdir if target.is_dir else self.unlink)(parent_new, name_new, now_ns)
            self._leave(parent_old, name_old, now_ns)
            self._enter(parent_new, name_new, inode.ino, now_ns)
            self._links(inode.ino, 0, now_ns)
            if inode.is_dir and parent_old != parent_new:
                self._links(parent_old, -1, now_ns)
                self._links(parent_new, 1, now_ns)
                self.folder_moves += 1
            return target

    def _exchange(self, one: tuple[int, bytes, Inode], other: tuple[int, bytes, Inode | None], now_ns: int) -> None:
        parent_one, _, inode_one = one
        parent_other, name_other, inode_other = other
        if inode_other is None:
            raise fail(errno.ENOENT, name_other)
        for inode, parent in ((inode_one, parent_other), (inode_other, parent_one)):
            if inode.is_dir and self._is_below(parent, inode.ino):
                raise fail(errno.EINVAL)
        for (parent, name, _), ino in ((one, inode_other.ino), (other, inode_one.ino)):
            self._db.execute("UPDATE dentry SET ino=? WHERE parent=? AND name=?", (ino, parent, name))
            self._links(ino, 0, now_ns)
            self.named(ino)
        self.folder_moves += inode_one.is_dir or inode_other.is_dir
        if parent_one != parent_other and inode_one.is_dir != inode_other.is_dir:
            gain = 1 if inode_other.is_dir else -1
            self._links(parent_one, gain, now_ns)
            self._links(parent_other, -gain, now_ns)

    def _replaceable(self, inode: Inode, target: Inode) -> None:
        if inode.is_dir and not target.is_dir:
            raise fail(errno.ENOTDIR)
        if target.is_dir:
            if not inode.is_dir:
                raise fail(errno.EISDIR)
            self._empty(target)

    def _is_below(self, ino: int, ancestor: int) -> bool:
        while ino != ROOT_INO:
            if ino == ancestor:
                return True
            ino = self.parent(ino)
        return ancestor == ROOT_INO

    # -- attributes ----------------------------------------------------------------------------------------------

    def setattr(self, ino: int, **values: int) -> Inode:
        """Set columns of an inode: mode, uid, gid, size, atime_ns, mtime_ns, ctime_ns."""
        assert values.keys() <= _SETTABLE, values
        if values:
            assignments = ", ".join(f"{column}=?" for column in values)
            self._db.execute(f"UPDATE inode SET {assignments} WHERE ino=?", (*values.values(), ino))  # noqa: S608
            self.changed(ino)
        return self.inode(ino)

    def xattr(self, ino: int, name: bytes) -> bytes:
        """Return an extended attribute; ENODATA if there is none."""
        row = self._db.execute("SELECT value FROM xattr WHERE ino=? AND name=?", (ino, name)).fetchone()
        if row is None:
            raise fail(errno.ENODATA, name)
        return bytes(row[0])

    def xattrs(self, ino: int) -> list[bytes]:
        """Return the names of an inode's extended attributes."""
        return [row[0] for row in self._db.execute("SELECT name FROM xattr WHERE ino=? ORDER BY name", (ino,))]

    def set_xattr(self, ino: int, name: bytes, value: bytes, now_ns: int) -> None:
        """Set an extended attribute; ENOSPC if the inode would have more than `listxattr` can tell, or too many bytes."""
        with self._db.transaction():
            name_bytes, value_bytes = self._db.execute(
                "SELECT coalesce(sum(length(name) + 1), 0), coalesce(sum(length(value)), 0) FROM xattr"
                " WHERE ino=? AND name<>?",
                (ino, name),
            ).fetchone()
            if name_bytes + len(name) + 1 > XATTR_NAME_BYTES_MAX or value_bytes + len(value) > XATTR_VALUE_BYTES_MAX:
                raise fail(errno.ENOSPC, name)
            self._db.execute("INSERT OR REPLACE INTO xattr VALUES(?,?,?)", (ino, name, value))
            self._links(ino, 0, now_ns)

    def remove_xattr(self, ino: int, name: bytes, now_ns: int) -> None:
        """Remove an extended attribute; ENODATA if there is none."""
        with self._db.transaction():
            if self._db.execute("DELETE FROM xattr WHERE ino=? AND name=?", (ino, name)).rowcount == 0:
                raise fail(errno.ENODATA, name)
            self._links(ino, 0, now_ns)

    # -- pieces --------------------------------------------------------------------------------------------------

    def _folder(self, ino: int) -> Inode:
        folder = self.inode(ino)
        if not folder.is_dir:
            raise fail(errno.ENOTDIR)
        if folder.nlink == 0:
            raise fail(errno.ENOENT)
        return folder

    def _entry(self, parent: int, name: bytes) -> Inode:
        inode = self.lookup(parent, name)
        if inode is None:
            raise fail(errno.ENOENT, name)
        return inode

    def _free(self, parent: int, name: bytes) -> None:
        if self.lookup(parent, name) is not None:
            raise fail(errno.EEXIST, name)

    def _empty(self, folder: Inode) -> None:
        if self._db.execute("SELECT 1 FROM dentry WHERE parent=? LIMIT 1", (folder.ino,)).fetchone():
            raise fail(errno.ENOTEMPTY)

    def _enter(self, parent: int, name: bytes, ino: int, now_ns: int) -> None:
        self._db.execute("INSERT INTO dentry(parent, name, ino) VALUES(?,?,?)", (parent, name, ino))
        self._db.execute("UPDATE inode SET mtime_ns=?, ctime_ns=? WHERE ino=?", (now_ns, now_ns, parent))
        self.changed(parent)
        self.named(ino)

    def _leave(self, parent: int, name: bytes, now_ns: int) -> None:
        self._db.execute("DELETE FROM dentry WHERE parent=? AND name=?", (parent, name))
        self._db.execute("UPDATE inode SET mtime_ns=?, ctime_ns=? WHERE ino=?", (now_ns, now_ns, parent))
        self.changed(parent)

    def _links(self, ino: int, change: int, now_ns: int) -> None:
        self._db.execute("UPDATE inode SET nlink=nlink+?, ctime_ns=? WHERE ino=?", (change, now_ns, ino))
        self.changed(ino)


def _check_name(name: bytes) -> None:
    if len(name) > NAME_BYTES_MAX:
        raise fail(errno.ENAMETOOLONG, name)
