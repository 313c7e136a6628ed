"""Stored files (`csrc/format`): made from an object by a plan, read whole or in part, and what is known of them.

Calls block, for as long as the files take, and release the interpreter's lock: they belong into a thread. Bytes do not pass
through Python, but for `Stored.read`, which is for people and tests.
"""

from __future__ import annotations

import errno
import math
import os
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvd.format import model
from kvd.format._format import ffi, lib
from kvd.format.errors import DamagedStoredFileError, NewerStoredFileError, NotStoredFileError
from kvd.format.model import Kind, Plan, Role, RoleError
from kvd.format.plan import HEAD_FIRST_BYTES, head_bytes, plan

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvd.format.plan import Policy

LEVEL = 1
"""Of zstd: what is left after the planes is noise, on which higher ones spend time in vain (docs/formats.md)."""
PAGE_BYTES = 65536
NO_PAGE = 2**64 - 1
READ_BYTES_MAX = 1 << 30

assert (lib.KVD_FORMAT_UNIT_BYTES, lib.KVD_FORMAT_BLOCK_TOKENS, lib.KVD_FORMAT_CHANNELS_MAX) == (
    model.UNIT_BYTES,
    model.BLOCK_TOKENS,
    model.CHANNELS_MAX,
)
assert (lib.KVD_FORMAT_REGIONS_MAX, lib.KVD_FORMAT_UNITS_MAX) == (model.REGIONS_MAX, model.UNITS_MAX)


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a stored file is.

    Attributes
    ----------
    kind_bytes
        Of the object, by the format that they are kept in.
    errors
        By role; of those alone that have any values in lossy formats.
    """

    object_bytes: int
    stored_bytes: int
    kind_bytes: dict[Kind, int]
    errors: dict[Role, RoleError]

    @property
    def ratio(self) -> float:
        """How many times smaller than the object the stored file is, its head included."""
        return self.object_bytes / self.stored_bytes


def report_of(raw: Any) -> Report:
    """Return a `struct kvd_format_report` as a value."""
    errors = {
        role: RoleError(
            values=int(each.values),
            relative_l2=math.sqrt(each.square_error / each.square) if each.square > 0 else 0.0,
            most=float(each.most),
        )
        for role in Role
        if (each := raw.errors[role]).values
    }
    return Report(
        object_bytes=int(raw.object_bytes),
        stored_bytes=int(raw.stored_bytes),
        kind_bytes={kind: int(raw.kind_bytes[kind]) for kind in Kind if raw.kind_bytes[kind]},
        errors=errors,
    )


def check(status: int, what: str, bad_page: int = NO_PAGE) -> None:
    """Raise what a negative errno of `csrc/format` means."""
    match -status:
        case 0:
            return
        case errno.EBADMSG:
            raise DamagedStoredFileError(what, None if bad_page == NO_PAGE else bad_page)
        case errno.EPROTO:
            raise NotStoredFileError(what)
        case errno.EPROTONOSUPPORT:
            raise NewerStoredFileError(what)
        case number:
            raise OSError(number, f"{what}: {os.strerror(number)}")


@contextmanager
def c_plan_of(planned: Plan, page_bytes: int) -> Iterator[Any]:
    """Have a plan as C has it."""
    regions = ffi.new("struct kvd_format_region[]", max(1, len(planned.regions)))
    for raw, region in zip(regions, planned.regions, strict=False):
        raw.offset, raw.bytes = region.offset, region.length
        raw.tokens, raw.arrays, raw.channels = region.tokens, region.arrays, region.channels
        raw.kind, raw.dtype, raw.role = region.kind, region.dtype, region.role
    out = ffi.new("kvd_format_plan **")
    check(lib.kvd_format_plan_init(regions, len(planned.regions), planned.size, page_bytes, out), "plan")
    try:
        yield out[0]
    finally:
        lib.kvd_format_plan_fini(out[0])


def plan_file(object_fd: int, policy: Policy) -> Plan:
    """Return how an object is to be kept, from its begin.

    Raises
    ------
    OSError
        If it can't be read.
    """
    size = os.fstat(object_fd).st_size
    needed = head_bytes(os.pread(object_fd, HEAD_FIRST_BYTES, 0), size)
    head = bytearray()
    while len(head) < needed and (part := os.pread(object_fd, needed - len(head), len(head))):
        head += part
    return plan(bytes(head), size, policy)


def encode(
    object_fd: int, stored_fd: int, planned: Plan, *, level: int = LEVEL, page_bytes: int = PAGE_BYTES
) -> Report:
    """Make a stored file; neither file is synced.

    Parameters
    ----------
    object_fd
        Must not change meanwhile.
    stored_fd
        An empty file. It has no head, so is no stored file, until all else is in it.

    Raises
    ------
    OSError
        EINVAL for a plan that does not fit, EIO for an object that is shorter than the plan, what reading and writing say.
    """
    report = ffi.new("struct kvd_format_report *")
    with c_plan_of(planned, page_bytes) as c_plan:
        check(lib.kvd_format_file_encode(object_fd, stored_fd, c_plan, level, report), "encode")
    return report_of(report)


class Stored:
    """A stored file that is open; the descriptor stays the caller's. Made by `open_stored`."""

    def __init__(self, fd: int, reader: Any) -> None:
        self._fd = fd
        self._reader = reader

    def __repr__(self) -> str:
        report = self.report()
        return f"<Stored {report.object_bytes} bytes in {report.stored_bytes}>"

    def report(self) -> Report:
        """Return what it is."""
        raw = ffi.new("struct kvd_format_report *")
        lib.kvd_format_reader_report(self._reader, raw)
        return report_of(raw)

    def read(self, offset: int, length: int) -> bytes:
        """Return bytes of the object; the pages that they are in are verified.

        Raises
        ------
        DamagedStoredFileError
            With the page.
        OSError
            EINVAL for bytes beyond the object's end, or more than 1 GiB; what reading says.
        """
        if not 0 <= offset < NO_PAGE or not 0 <= length <= READ_BYTES_MAX:
            raise OSError(errno.EINVAL, "read: no such bytes")
        out = ffi.new("char[]", max(1, length))
        bad = ffi.new("uint64_t *", NO_PAGE)
        check(lib.kvd_format_file_read(self._fd, self._reader, offset, out, length, bad), "read", bad[0])
        return bytes(ffi.buffer(out, length))

    def decode(self, object_fd: int) -> None:
        """Give the object back into an empty file; each page is verified.

        Raises
        ------
        DamagedStoredFileError
            With the page; the file then holds a part of the object.
        OSError
            What reading and writing say.
        """
        bad = ffi.new("uint64_t *", NO_PAGE)
        check(lib.kvd_format_file_decode(self._fd, self._reader, object_fd, bad), "decode", bad[0])


@contextmanager
def open_stored(fd: int) -> Iterator[Stored]:
    """Open a stored file.

    Raises
    ------
    StoredFileError
        One of its kinds.
    OSError
        What reading says.
    """
    out = ffi.new("kvd_format_reader **")
    check(lib.kvd_format_file_open(fd, out), "open")
    try:
        yield Stored(fd, out[0])
    finally:
        lib.kvd_format_reader_fini(out[0])
