"""Exit statuses, and the errors that lead to them."""

from __future__ import annotations

import enum


class Exit(enum.IntEnum):
    """How ``kvctl`` ends; Ctrl-C makes it 130."""

    OK = 0
    FAILED = 1
    USAGE = 2
    NO_DAEMON = 3
    NOT_FOUND = 4
    BUSY = 5
    NO_SPACE = 6
    DAMAGED = 7
    MISMATCH = 8


_BY_CODE = {
    "EINVAL": Exit.USAGE,
    "EMSGSIZE": Exit.USAGE,
    "ENOENT": Exit.NOT_FOUND,
    "EBUSY": Exit.BUSY,
    "EAGAIN": Exit.BUSY,
    "ENOSPC": Exit.NO_SPACE,
    "EIO": Exit.DAMAGED,
    "EKEYREJECTED": Exit.MISMATCH,
}


class CtlError(Exception):
    """A command can't be done; printed as one sentence.

    Attributes
    ----------
    status
        What to exit with.
    code
        The daemon's word for it, or ours.
    """

    def __init__(self, message: str, status: Exit, code: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


class UsageError(CtlError):
    """The user asked for something that makes no sense."""

    def __init__(self, message: str) -> None:
        super().__init__(message, Exit.USAGE, "EINVAL")


class DaemonError(CtlError):
    """The daemon said no."""

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message, exit_of(code), code)


class NoDaemonError(CtlError):
    """The daemon can't be reached, or went away."""

    def __init__(self, message: str) -> None:
        super().__init__(message, Exit.NO_DAEMON, "NO_DAEMON")


def exit_of(code: str | None) -> Exit:
    """Return the exit status for one of the daemon's error codes."""
    return _BY_CODE.get(code or "", Exit.FAILED)


def exit_of_all(codes: list[str | None]) -> Exit:
    """Return the status for several failures: theirs if they agree, else `Exit.FAILED`."""
    statuses = {exit_of(code) for code in codes}
    if not statuses:
        return Exit.OK
    return statuses.pop() if len(statuses) == 1 else Exit.FAILED
