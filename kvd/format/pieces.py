"""Stored files made and read in pieces (`csrc/format/pieces.c`), for the mover.

Calls of `step`, `head` and `pages` take time and release the interpreter's lock: they belong into a thread, one at a time for
each object. Bytes do not pass through Python.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from kvd.format._format import ffi, lib
from kvd.format.store import LEVEL, NO_PAGE, c_plan_of, check, report_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvd.format.model import Plan
    from kvd.format.store import Report


class Encoder:
    """A stored file in the making; made by `encoder`."""

    def __init__(self, pointer: Any) -> None:
        self._pointer = pointer
        self.end = self.head_bytes
        """Up to where the file is made, but for its head."""

    def __repr__(self) -> str:
        return f"<Encoder at {self.end}, {lib.kvd_format_encoder_left(self._pointer)} units left>"

    @property
    def head_bytes(self) -> int:
        """How long the head is."""
        return int(lib.kvd_format_encoder_head_bytes(self._pointer))

    @property
    def done(self) -> bool:
        """Whether all is there but the head."""
        return not lib.kvd_format_encoder_left(self._pointer)

    @property
    def object_pages(self) -> int:
        """How many of the object's pages are not all zeros."""
        return int(lib.kvd_format_encoder_pages(self._pointer))

    def step(self, object_fd: int, staged_fd: int, length: int) -> None:
        """Encode about `length` bytes more to their places in a file.

        Raises
        ------
        OSError
            EIO for an object that is shorter than it was; what reading and writing say.
        """
        end = ffi.new("uint64_t *")
        status = lib.kvd_format_encoder_step(self._pointer, object_fd, staged_fd, length, end)
        self.end = int(end[0])
        check(status, "encode")

    def head(self, staged_fd: int) -> None:
        """Write the head, when all else is there."""
        check(lib.kvd_format_encoder_head(self._pointer, staged_fd), "encode the head")

    def report(self) -> Report:
        """Return what has been made."""
        raw = ffi.new("struct kvd_format_report *")
        lib.kvd_format_encoder_report(self._pointer, raw)
        return report_of(raw)


@contextmanager
def encoder(planned: Plan, *, page_bytes: int) -> Iterator[Encoder]:
    """Have an encoder; OSError if the plan does not fit, or without memory."""
    out = ffi.new("kvd_format_encoder **")
    with c_plan_of(planned, page_bytes) as c_plan:
        check(lib.kvd_format_encoder_init(c_plan, LEVEL, out), "encode")
        try:
            yield Encoder(out[0])
        finally:
            lib.kvd_format_encoder_fini(out[0])


class Decoder:
    """A stored file whose head was read; made by `decoder`."""

    def __init__(self, reader: Any, pointer: Any) -> None:
        self._reader = reader
        self._pointer = pointer

    def __repr__(self) -> str:
        return f"<Decoder of {self.object_bytes} bytes>"

    @property
    def object_bytes(self) -> int:
        """The object's length."""
        raw = ffi.new("struct kvd_format_report *")
        lib.kvd_format_reader_report(self._reader, raw)
        return int(raw.object_bytes)

    @property
    def page_bytes(self) -> int:
        """The size of the pages that are checked."""
        return int(lib.kvd_format_reader_page_bytes(self._reader))

    def span(self, first_page: int, count: int) -> tuple[int, int]:
        """Return offset and length of what the stored file has of pages of the object."""
        offset, length = ffi.new("uint64_t *"), ffi.new("uint64_t *")
        check(lib.kvd_format_reader_span(self._reader, first_page, count, offset, length), "find pages")
        return int(offset[0]), int(length[0])

    def pages(self, staged_fd: int, object_fd: int, first_page: int, count: int, *, stream_address: int = 0) -> None:
        """Write pages to their places in a file, each checked before; those that are all zeros stay holes.

        Parameters
        ----------
        stream_address
            Of a `struct kvd_stream` in which each page is marked that has landed, or 0.

        Raises
        ------
        DamagedStoredFileError
            With the page; those before it have landed.
        OSError
            What reading and writing say.
        """
        bad = ffi.new("uint64_t *", NO_PAGE)
        status = lib.kvd_format_decoder_pages(
            self._pointer, staged_fd, object_fd, first_page, count, stream_address, bad
        )
        check(status, "decode", bad[0])


HEAD_FIRST_BYTES: int = lib.KVD_FORMAT_HEAD_FIRST_BYTES
"""Of a stored file, that tell how long its head is."""


def head_bytes(first: bytes) -> int:
    """Return how long the head of a stored file is that begins so.

    Raises
    ------
    StoredFileError
        It is no stored file, or a newer kvd's.
    """
    found = ffi.new("uint64_t *")
    check(lib.kvd_format_head_bytes(ffi.from_buffer(first), found), "read the head")
    return int(found[0])


@contextmanager
def decoder(staged_fd: int) -> Iterator[Decoder]:
    """Have a decoder for a file that has the stored file's length and its head; more of it is not looked at.

    Raises
    ------
    StoredFileError
        One of its kinds.
    OSError
        What reading says.
    """
    reader, out = ffi.new("kvd_format_reader **"), ffi.new("kvd_format_decoder **")
    check(lib.kvd_format_file_open(staged_fd, reader), "read the head")
    try:
        check(lib.kvd_format_decoder_init(reader[0], out), "decode")
        try:
            yield Decoder(reader[0], out[0])
        finally:
            lib.kvd_format_decoder_fini(out[0])
    finally:
        lib.kvd_format_reader_fini(reader[0])
