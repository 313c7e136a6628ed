"""How a copy describes itself: the extended attribute of its files, and the sums beside it (docs/format.md).

What can change while the copy stays (names, attributes) is in the attribute; what can't (which pages, their checksums) is
there too where it fits, else in a file of its own, which is written once. What is too much for the attribute, many names or
large extended attributes, is in the file of the tree (`kvd.tier.treefile`). All little-endian.
"""

from __future__ import annotations

import enum
import errno
import os
import struct
import uuid as uuids
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from kvd.catalog.form import Form
from kvd.catalog.packing import pack_runs, unpack_runs
from kvd.tier.mover import SUM_BYTES, crc32c

if TYPE_CHECKING:
    from pathlib import Path

    from kvd.catalog.records import Copy

ATTRIBUTE = "user.kvd"
"""Of each file of a copy."""
SUMS_SUFFIX = ".sums"
"""What is appended to the name of a copy's first file for the file with its sums."""
VERSION = 1
VERSION_STORED = 2
"""Of what is kept in a format: an older kvd must not take the file for the object."""
NAMES_MAX = 4
"""An object with more names has all of them in the file of the tree."""
XATTRS_BYTES_MAX = 1024
"""Extended attributes that come to more, packed, are in the file of the tree."""
SUMS_BYTES_MAX = 1536
"""Runs and sums that come to more are in a file of their own."""
VALUE_BYTES_MAX = 3900
"""What a description may need; ext4 with blocks of 4 KiB has room for 4,040 bytes."""
RUN_BYTES = 16
_MAGIC = b"kvd-copy"
_SUMS_MAGIC = b"kvd-sums"
_HEAD = struct.Struct("<8sHHHH16sQQQQIIIIqqqHHIQ")
_SUMS_HEAD = struct.Struct("<8sHHI16sQQQ")
_NAME = struct.Struct("<QB")
_XATTR = struct.Struct("<HI")
CRC = struct.Struct("<I")
"""The end of a description, of a file of sums and of the file of the tree: CRC32C of all before it."""


class Flag(enum.IntFlag):
    """What is elsewhere."""

    SUMS_ASIDE = 1
    NAMES_IN_TREE = 2
    XATTRS_IN_TREE = 4


class DescriptionError(Exception):
    """A description that can't be used; says why."""


class Execute(Protocol):
    """Runs a statement: a `Database`'s, or that of a connection of one's own."""

    def __call__(self, statement: str, values: tuple[Any, ...] = ..., /) -> Any:
        """Return the cursor."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """What a file says of itself.

    Attributes
    ----------
    part, parts
        Which part of the copy the file is, from 0, and of how many.
    size
        The file's.
    mtime_ns
        The object's, if it is this copy.
    names
        ``(inode number of the directory, name)``; None: the file of the tree has them.
    xattrs
        ``(name, value)``; None: the file of the tree has them.
    runs, sums
        As in the catalogue; None: in the file beside it.
    form
        As in the catalogue.
    """

    uuid: str
    ino: int
    gen: int
    part: int
    parts: int
    stripe_bytes: int
    page_bytes: int
    size: int
    mode: int
    uid: int
    gid: int
    atime_ns: int
    mtime_ns: int
    ctime_ns: int
    names: tuple[tuple[int, bytes], ...] | None
    xattrs: tuple[tuple[bytes, bytes], ...] | None
    runs: tuple[tuple[int, int], ...] | None
    sums: bytes | None
    form: Form | None = None


def as_bytes(value: bytes | str) -> bytes:
    """Return a column that holds bytes; in a damaged catalogue it may hold text."""
    return os.fsencode(value) if isinstance(value, str) else bytes(value)


def names_of(execute: Execute, ino: int) -> tuple[tuple[int, bytes], ...]:
    """Return an inode's names."""
    rows = execute("SELECT parent, name FROM dentry WHERE ino=? ORDER BY id", (ino,)).fetchall()
    return tuple((parent, as_bytes(name)) for parent, name in rows)


def xattrs_of(execute: Execute, ino: int) -> tuple[tuple[bytes, bytes], ...]:
    """Return an inode's extended attributes."""
    rows = execute("SELECT name, value FROM xattr WHERE ino=? ORDER BY name", (ino,)).fetchall()
    return tuple((as_bytes(name), as_bytes(value)) for name, value in rows)


def xattrs_bytes(xattrs: tuple[tuple[bytes, bytes], ...]) -> int:
    """Return what extended attributes come to, packed."""
    return sum(_XATTR.size + len(name) + len(value) for name, value in xattrs)


def is_aside(copy: Copy) -> bool:
    """Tell whether a copy's runs and sums are in a file of their own."""
    return RUN_BYTES * len(copy.runs) + SUM_BYTES * copy.pages > SUMS_BYTES_MAX


def describe(execute: Execute, copy: Copy, sums: bytes, *, uuid: str, page_bytes: int) -> list[bytes]:
    """Return the descriptions of a copy's files, as the catalogue has it now; one a part.

    Raises
    ------
    LookupError
        If there is no such inode (any more).
    """
    row = execute("SELECT mode, uid, gid, atime_ns, mtime_ns, ctime_ns FROM inode WHERE ino=?", (copy.ino,)).fetchone()
    if row is None:
        raise LookupError(copy.ino)
    mode, uid, gid, atime_ns, mtime_ns, ctime_ns = row
    names, xattrs = names_of(execute, copy.ino), xattrs_of(execute, copy.ino)
    flags, body = Flag(0), b""
    if len(names) > NAMES_MAX:
        flags, names = flags | Flag.NAMES_IN_TREE, ()
    if xattrs_bytes(xattrs) > XATTRS_BYTES_MAX:
        flags, xattrs = flags | Flag.XATTRS_IN_TREE, ()
    body += b"".join(_NAME.pack(parent, len(name)) + name for parent, name in names)
    body += b"".join(_XATTR.pack(len(name), len(value)) + name + value for name, value in xattrs)
    runs, pages = len(copy.runs), copy.pages
    if is_aside(copy):
        flags, runs, pages = flags | Flag.SUMS_ASIDE, 0, 0
    else:
        body += pack_runs(copy.runs) + sums
    version = VERSION
    if copy.form is not None:
        version, body = VERSION_STORED, body + copy.form.pack()
    described = []
    for part in range(len(copy.dirs)):
        head = _HEAD.pack(
            _MAGIC, version, flags, part, len(copy.dirs), uuids.UUID(uuid).bytes, copy.ino, copy.gen, copy.size,
            copy.stripe_bytes, page_bytes, mode, uid, gid, atime_ns, mtime_ns if copy.current else copy.mtime_ns,
            ctime_ns, len(names), len(xattrs), runs, pages,
        )  # fmt: skip
        described.append(_sealed(head + body))
    return described


def sums_beside(copy: Copy, sums: bytes, *, uuid: str) -> bytes:
    """Return what the file beside a copy holds."""
    head = _SUMS_HEAD.pack(
        _SUMS_MAGIC, VERSION, 0, len(copy.runs), uuids.UUID(uuid).bytes, copy.ino, copy.gen, copy.pages
    )
    return _sealed(head + pack_runs(copy.runs) + sums)


def _sealed(content: bytes) -> bytes:
    return content + CRC.pack(crc32c(content))


def opened(value: bytes, magic: bytes, head: struct.Struct, *versions: int) -> bytes:
    """Return what is before the checksum at the end.

    Raises
    ------
    DescriptionError
        If it begins with another magic or version, or the checksum differs.
    """
    if len(value) < head.size + CRC.size or not value.startswith(magic):
        raise DescriptionError("it is not kvd's")
    if (found := int.from_bytes(value[len(magic) : len(magic) + 2], "little")) not in versions:
        raise DescriptionError(f"it has version {found}, this kvd knows {max(versions)}")
    content, (crc,) = value[: -CRC.size], CRC.unpack(value[-CRC.size :])
    if crc32c(content) != crc:
        raise DescriptionError("its checksum differs")
    return content


def parse(value: bytes) -> Described:
    """Return what a description says.

    Raises
    ------
    DescriptionError
        If it is damaged, of another program or of a newer kvd.
    """
    content = opened(value, _MAGIC, _HEAD, VERSION, VERSION_STORED)
    try:
        return _parse(content)
    except (struct.error, ValueError, IndexError) as error:
        raise DescriptionError(f"it contradicts itself ({error})") from error


def _parse(content: bytes) -> Described:
    (
        _, version, bits, part, parts, uuid, ino, gen, size, stripe_bytes, page_bytes, mode, uid, gid, atime_ns, mtime_ns,
        ctime_ns, n_names, n_xattrs, n_runs, n_pages,
    ) = _HEAD.unpack_from(content)  # fmt: skip
    flags, at = Flag(bits), _HEAD.size
    names = []
    for _ in range(n_names):
        parent, length = _NAME.unpack_from(content, at)
        at += _NAME.size + length
        names.append((parent, content[at - length : at]))
    xattrs = []
    for _ in range(n_xattrs):
        name_bytes, value_bytes = _XATTR.unpack_from(content, at)
        at += _XATTR.size + name_bytes + value_bytes
        xattrs.append((content[at - name_bytes - value_bytes : at - value_bytes], content[at - value_bytes : at]))
    end = at + RUN_BYTES * n_runs
    beyond = end + SUM_BYTES * n_pages
    form = Form.unpack(content[beyond:]) if version == VERSION_STORED else None
    if (form is None and beyond != len(content)) or part >= parts:
        raise ValueError(f"{len(content)} bytes")
    aside = Flag.SUMS_ASIDE in flags
    return Described(
        uuid=str(uuids.UUID(bytes=uuid)),
        ino=ino,
        gen=gen,
        part=part,
        parts=parts,
        stripe_bytes=stripe_bytes,
        page_bytes=page_bytes,
        size=size,
        mode=mode,
        uid=uid,
        gid=gid,
        atime_ns=atime_ns,
        mtime_ns=mtime_ns,
        ctime_ns=ctime_ns,
        names=None if Flag.NAMES_IN_TREE in flags else tuple(names),
        xattrs=None if Flag.XATTRS_IN_TREE in flags else tuple(xattrs),
        runs=None if aside else unpack_runs(content[at:end]),
        sums=None if aside else content[end:beyond],
        form=form,
    )


def parse_sums(value: bytes, described: Described) -> tuple[tuple[tuple[int, int], ...], bytes]:
    """Return runs and sums from the file beside a copy that is described so.

    Raises
    ------
    DescriptionError
        If the file is damaged or belongs to another copy.
    """
    content = opened(value, _SUMS_MAGIC, _SUMS_HEAD, VERSION)
    _, _, _, n_runs, uuid, ino, gen, n_pages = _SUMS_HEAD.unpack_from(content)
    if (str(uuids.UUID(bytes=uuid)), ino, gen) != (described.uuid, described.ino, described.gen):
        raise DescriptionError("it belongs to another copy")
    end = _SUMS_HEAD.size + RUN_BYTES * n_runs
    runs = unpack_runs(content[_SUMS_HEAD.size : end])
    if end + SUM_BYTES * n_pages != len(content) or sum(count for _, count in runs) != n_pages:
        raise DescriptionError("it contradicts itself")
    return runs, content[end:]


# -- files ---------------------------------------------------------------------------------------------------------------


def beside(path: Path) -> Path:
    """Return the path of the file with the sums of the copy whose first file is at `path`."""
    return path.with_name(path.name + SUMS_SUFFIX)


def read(path: Path) -> bytes | None:
    """Return the description of a file, None where it has none; OSError if it can't be read (EOPNOTSUPP: can have none)."""
    try:
        return os.getxattr(path, ATTRIBUTE, follow_symlinks=False)
    except OSError as error:
        if error.errno == errno.ENODATA:
            return None
        raise


def read_beside(path: Path) -> bytes | None:
    """Return what the file with the sums holds, None where there is none."""
    try:
        return beside(path).read_bytes()
    except FileNotFoundError:
        return None


def owner_of(path: Path, *, other_than: str) -> str:
    """Return the catalogue that a file says to belong to if it is another one; '' otherwise."""
    try:
        value = read(path)
        owner = "" if value is None else parse(value).uuid
    except (OSError, DescriptionError):
        return ""
    return "" if owner == other_than else owner


def write(path: Path, value: bytes, *, durable: bool) -> None:
    """Give a file of a copy its description; what is beside the first of them comes before (`write_beside`).

    Parameters
    ----------
    durable
        Not before it survives a power cut; otherwise the file system takes its time.

    Raises
    ------
    OSError
        What the file system said.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        os.setxattr(fd, ATTRIBUTE, value)
        if durable:
            os.fsync(fd)
    finally:
        os.close(fd)


def write_beside(path: Path, sums: bytes) -> None:
    """Write the file with the sums of the copy whose first file is at `path`, durably."""
    aside = beside(path)
    fd = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(sums)
        file.flush()
        os.fsync(fd)
    sync_folder(aside.parent)


def sync_folder(folder: Path) -> None:
    """Make the names of a folder durable."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def probe(directory: Path) -> str:
    """Return why copies in a directory can't describe themselves, '' if they can."""
    path = directory / "kvd-probe-xattr"
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        return f"{directory}: {error.strerror}"
    try:
        os.setxattr(fd, ATTRIBUTE, bytes(VALUE_BYTES_MAX))
    except OSError as error:
        if error.errno == errno.EOPNOTSUPP:
            return f"{directory}: its file system has no user extended attributes"
        if error.errno in (errno.E2BIG, errno.ERANGE):
            return f"{directory}: its file system has no extended attributes of {VALUE_BYTES_MAX} bytes"
        return f"{directory}: extended attributes: {error.strerror}"
    finally:
        os.close(fd)
        path.unlink(missing_ok=True)
    return ""
