"""The memory that a running promotion shares with those who read its object (csrc/common/stream.h).

Neither the mover nor the split owns it: it is freed when the one has ended and the other has let go of it, and not before,
because both write to it and to its eventfd without asking.
"""

from __future__ import annotations

import errno
import os
from typing import Any

from kvd.tier._stream import ffi, lib

RUNS = 1


class Stream:
    """Which pages have landed; `n_pages` is the object's length in pages."""

    def __init__(self, n_pages: int) -> None:
        self.n_pages = n_pages
        self._event_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._pointer: Any = lib.kvd_stream_make(n_pages, self._event_fd)
        self._kept = False
        if self._pointer == ffi.NULL:
            os.close(self._event_fd)
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    def __repr__(self) -> str:
        if self._pointer is None:
            return "<Stream closed>"
        return f"<Stream {self.landed} of {self.n_pages} pages, status {self.status}>"

    @property
    def address(self) -> int:
        """Where it is, for C."""
        return int(ffi.cast("uintptr_t", self._pointer))

    @property
    def status(self) -> int:
        """`RUNS`, 0 when all has landed, or a negative errno."""
        return lib.kvd_stream_status(self._pointer)

    @property
    def landed(self) -> int:
        """Pages that can be read."""
        return lib.kvd_stream_landed(self._pointer)

    @property
    def wanted(self) -> int | None:
        """The page that a reader waited for last, None if none has waited."""
        want = lib.kvd_stream_wanted(self._pointer)
        return want - 1 if want else None

    def want(self, page: int) -> None:
        """Say that a reader waits for a page; the split does it itself."""
        lib.kvd_stream_want(self._pointer, page)

    def mark(self, first: int, count: int) -> None:
        """Say that pages have landed; the mover does it itself."""
        lib.kvd_stream_mark(self._pointer, first, count)

    def end(self, status: int) -> None:
        """Say that no more will come; only the first end counts."""
        lib.kvd_stream_end(self._pointer, status)

    def keep(self) -> None:
        """Leave it allocated until the process ends: a hung thread of the mover may still write to it."""
        self._kept = True

    def close(self) -> None:
        """Free it. Nobody knows of it any more."""
        pointer, self._pointer = self._pointer, None
        if pointer is not None and not self._kept:
            lib.kvd_stream_free(pointer)
            os.close(self._event_fd)
