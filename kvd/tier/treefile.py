"""The file of the tree: all of the namespace that no copy's description holds, in each NVMe directory (docs/format.md).

It is made from the catalogue through a connection of its own, so that a thread can do it, and takes the place of the older
one whole. The catalogue decides; this is what `kvctl fsck --rebuild` has when there is none.
"""

from __future__ import annotations

import contextlib
import enum
import json
import os
import shutil
import sqlite3
import stat
import struct
import uuid as uuids
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kvd.tier.describe import CRC, NAMES_MAX, XATTRS_BYTES_MAX, DescriptionError, as_bytes, opened, sync_folder
from kvd.tier.mover import crc32c

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

NAME = "kvd-tree"
MADE = "kvd-tree.made"
"""In the state directory, on its way to the others."""
VERSION = 1
_MAGIC = b"kvd-tree"
_HEAD = struct.Struct("<8sHHI16sQQ")
_RECORD = struct.Struct("<BI")
_INODE = struct.Struct("<QIIIqqqQ")
_NAME = struct.Struct("<QQ")
_XATTR = struct.Struct("<QH")
_NAMESPACE = struct.Struct("<Q")
_END = struct.Struct("<Q")
_IFMT = 0o170000
_PIECE_BYTES = 1 << 20
_FOLDER = f"(i.mode & {_IFMT}) != {stat.S_IFREG}"
_NAMES_HERE = f"{_FOLDER} OR i.nlink > {NAMES_MAX}"
_XATTRS_HERE = (
    f"{_FOLDER} OR i.ino IN (SELECT ino FROM xattr GROUP BY ino"  # noqa: S608
    f" HAVING sum(length(name) + length(value) + 6) > {XATTRS_BYTES_MAX})"
)
"""Whose names, and whose extended attributes, belong here and not into a description."""


class _Kind(enum.IntEnum):
    """Of a record."""

    INODE = 1
    NAME = 2
    XATTR = 3
    NAMESPACE = 4
    END = 255


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeInode:
    """What is no regular file: a directory, a symlink (with its target), a pipe, a socket, a device."""

    ino: int
    mode: int
    uid: int
    gid: int
    atime_ns: int
    mtime_ns: int
    ctime_ns: int
    rdev: int
    target: bytes | None


@dataclass(slots=True, kw_only=True)
class Tree:
    """What a file of the tree says.

    Attributes
    ----------
    written_ns
        When; the newest of several counts.
    ino_next
        No object that was made before has this number or a higher one.
    names
        ``(inode number, directory, name)``.
    namespaces
        By inode number, each row as the catalogue's columns.
    """

    uuid: str
    page_bytes: int
    written_ns: int
    ino_next: int
    inodes: list[TreeInode] = field(default_factory=list)
    names: list[tuple[int, int, bytes]] = field(default_factory=list)
    xattrs: list[tuple[int, bytes, bytes]] = field(default_factory=list)
    namespaces: dict[int, dict[str, object]] = field(default_factory=dict)


@contextlib.contextmanager
def reading(catalogue: Path) -> Iterator[sqlite3.Connection]:
    """Open a connection that reads one state of the catalogue, whatever is written meanwhile."""
    with contextlib.closing(sqlite3.connect(f"file:{catalogue}?mode=ro", uri=True, isolation_level=None)) as connection:
        connection.execute("BEGIN")
        yield connection


def records(connection: sqlite3.Connection) -> Iterator[bytes]:
    """Yield the records of the tree as the catalogue has it."""
    count = 0
    inodes = connection.execute(
        "SELECT ino, mode, uid, gid, atime_ns, mtime_ns, ctime_ns, rdev, target FROM inode i"  # noqa: S608
        f" WHERE {_FOLDER} ORDER BY ino"
    )
    for *numbers, target in inodes:
        count += 1
        yield _record(_Kind.INODE, _INODE.pack(*numbers) + (b"" if target is None else b"\1" + as_bytes(target)))
    for row in connection.execute(
        f"SELECT d.ino, d.parent, d.name FROM dentry d JOIN inode i USING(ino) WHERE {_NAMES_HERE} ORDER BY d.id"  # noqa: S608
    ):
        count += 1
        yield _record(_Kind.NAME, _NAME.pack(row[0], row[1]) + as_bytes(row[2]))
    for ino, name, value in connection.execute(
        f"SELECT i.ino, x.name, x.value FROM xattr x JOIN inode i USING(ino) WHERE {_XATTRS_HERE} ORDER BY i.ino, x.name"  # noqa: S608
    ):
        count += 1
        yield _record(_Kind.XATTR, _XATTR.pack(ino, len(name)) + as_bytes(name) + as_bytes(value))
    spaces = connection.execute("SELECT * FROM namespace ORDER BY ino")
    columns = [column[0] for column in spaces.description]
    for row in spaces:
        count += 1
        told = json.dumps(dict(zip(columns, row, strict=True)), sort_keys=True).encode()
        yield _record(_Kind.NAMESPACE, _NAMESPACE.pack(row[0]) + told)
    yield _record(_Kind.END, _END.pack(count))


def _record(kind: int, payload: bytes) -> bytes:
    return _RECORD.pack(kind, len(payload)) + payload


def _head(connection: sqlite3.Connection, written_ns: int) -> bytes:
    meta = dict(connection.execute("SELECT key, value FROM meta WHERE key IN ('uuid', 'page_bytes')").fetchall())
    (last,) = connection.execute("SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name='inode'").fetchone()
    uuid = uuids.UUID(str(meta["uuid"])).bytes
    return _HEAD.pack(_MAGIC, VERSION, 0, int(meta["page_bytes"]), uuid, written_ns, last + 1)


def make(catalogue: Path, path: Path, written_ns: int) -> None:
    """Write what the file of the tree is to hold to a file of its own; see `put`.

    Raises
    ------
    OSError
        What the file system said.
    """
    with reading(catalogue) as connection, path.open("wb") as file:
        crc = 0
        for piece in _pieces(connection, written_ns):
            crc = crc32c(piece, crc)
            file.write(piece)
        file.write(CRC.pack(crc))


def put(made: Path, directory: Path) -> None:
    """Let a directory have what `make` made as its file of the tree, durably, in the place of the older one.

    Raises
    ------
    OSError
        What the file system said; the older one is there then.
    """
    fresh = directory / f"{NAME}.new"
    try:
        with made.open("rb") as source, fresh.open("wb") as file:
            os.fchmod(file.fileno(), 0o600)
            shutil.copyfileobj(source, file, _PIECE_BYTES)
            file.flush()
            os.fsync(file.fileno())
        fresh.rename(directory / NAME)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise
    sync_folder(directory)


def write(catalogue: Path, directories: Iterable[Path], written_ns: int) -> None:
    """Write the file of the tree into directories; see `make` and `put`."""
    made = catalogue.with_name(MADE)
    try:
        make(catalogue, made, written_ns)
        for directory in directories:
            put(made, directory)
    finally:
        made.unlink(missing_ok=True)


def _pieces(connection: sqlite3.Connection, written_ns: int) -> Iterator[bytes]:
    piece = bytearray(_head(connection, written_ns))
    for record in records(connection):
        piece += record
        if len(piece) >= _PIECE_BYTES:
            yield bytes(piece)
            piece.clear()
    yield bytes(piece)


def read(directory: Path) -> Tree:
    """Return what the file of the tree in a directory says.

    Raises
    ------
    FileNotFoundError
        If there is none.
    DescriptionError
        If it is damaged, of another program or of a newer kvd.
    """
    content = _content(directory)
    _, _, _, page_bytes, uuid, written_ns, ino_next = _HEAD.unpack_from(content)
    tree = Tree(uuid=str(uuids.UUID(bytes=uuid)), page_bytes=page_bytes, written_ns=written_ns, ino_next=ino_next)
    at, count = _HEAD.size, 0
    try:
        while True:
            kind, length = _RECORD.unpack_from(content, at)
            at += _RECORD.size
            payload = content[at : at + length]
            at += length
            if kind == _Kind.END:
                if _END.unpack(payload) != (count,) or at != len(content):
                    raise DescriptionError("it contradicts itself")
                return tree
            count += 1
            _take(tree, kind, payload)
    except (struct.error, ValueError) as error:
        raise DescriptionError("it contradicts itself") from error


def _content(directory: Path) -> bytes:
    return opened((directory / NAME).read_bytes(), _MAGIC, _HEAD, VERSION)


def _take(tree: Tree, kind: int, payload: bytes) -> None:
    match kind:
        case _Kind.INODE:
            numbers = _INODE.unpack_from(payload)
            rest = payload[_INODE.size :]
            ino, mode, uid, gid, atime_ns, mtime_ns, ctime_ns, rdev = numbers
            tree.inodes.append(
                TreeInode(
                    ino=ino,
                    mode=mode,
                    uid=uid,
                    gid=gid,
                    atime_ns=atime_ns,
                    mtime_ns=mtime_ns,
                    ctime_ns=ctime_ns,
                    rdev=rdev,
                    target=rest[1:] if rest else None,
                )
            )
        case _Kind.NAME:
            ino, parent = _NAME.unpack_from(payload)
            tree.names.append((ino, parent, payload[_NAME.size :]))
        case _Kind.XATTR:
            ino, length = _XATTR.unpack_from(payload)
            name = payload[_XATTR.size : _XATTR.size + length]
            tree.xattrs.append((ino, name, payload[_XATTR.size + length :]))
        case _Kind.NAMESPACE:
            (ino,) = _NAMESPACE.unpack_from(payload)
            row = json.loads(payload[_NAMESPACE.size :])
            tree.namespaces[ino] = row
        case _:
            raise ValueError(f"record of kind {kind}")


def is_current(catalogue: Path, directory: Path) -> bool:
    """Tell whether a directory's file of the tree says what the catalogue says; see `read` for the errors."""
    content = _content(directory)
    with reading(catalogue) as connection:
        head = _head(connection, 0)
        written_at = _HEAD.size - 16  # the time of writing, u64, is the last field but one
        if content[:written_at] + bytes(8) + content[written_at + 8 : _HEAD.size] != head:
            return False
        at = _HEAD.size
        for record in records(connection):
            if content[at : at + len(record)] != record:
                return False
            at += len(record)
        return at == len(content)
