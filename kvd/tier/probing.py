"""What a directory's drive is tried with; may take for ever, so it is done in a thread."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

PROBE_BYTES = 4096
FULL = (errno.ENOSPC, errno.EDQUOT)


def try_out(path: Path) -> None:
    """Write a file, sync it, read it back and remove it.

    Raises
    ------
    OSError
        What the drive said, EIO if other bytes came back. A full drive is a good drive.
    """
    data = os.urandom(PROBE_BYTES)
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.write(fd, data)
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            if os.pread(fd, PROBE_BYTES, 0) != data:
                raise OSError(errno.EIO, "other bytes came back than were written")
        finally:
            os.close(fd)
    except OSError as error:
        if error.errno not in FULL:
            raise
    finally:
        path.unlink(missing_ok=True)


def takes_direct(probe: Path) -> bool:
    """Tell whether a file can be opened with O_DIRECT; a full drive is taken to be as nearly all are."""
    try:
        os.close(os.open(probe, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_DIRECT, 0o600))
    except OSError as error:
        if error.errno in FULL:
            return True
        if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
            raise
        return False
    finally:
        probe.unlink(missing_ok=True)
    return True
