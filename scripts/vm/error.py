"""What can go wrong before a test runs."""

from __future__ import annotations

import errno
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


class BedError(Exception):
    """The bed cannot be set up or started.

    Parameters
    ----------
    what
        What is wrong, in one line (the output of a program may follow).
    mend
        What mends it, in one line.
    """

    def __init__(self, what: str, mend: str) -> None:
        super().__init__(f"{what}\nmend: {mend}")
        self.what = what
        self.mend = mend


@contextmanager
def disk_errors() -> Iterator[None]:
    """Name a disk that is full.

    Raises
    ------
    BedError
        Something could not be written for want of room.
    """
    try:
        yield
    except OSError as error:
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            raise BedError(f"the disk is full: {error}", "make room, or put the checkout elsewhere") from error
        raise
