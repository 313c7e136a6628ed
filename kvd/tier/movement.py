"""What the mover moves, and what comes of it: the values and errors of `kvd.tier.mover`."""

from __future__ import annotations

import enum
import errno
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvd.errors import DamagedError
from kvd.tier._mover import lib

if TYPE_CHECKING:
    from collections.abc import Sequence


class Kind(enum.IntEnum):
    """What a move does; the numbers are `enum kvd_mover_kind`."""

    PROMOTE = lib.KVD_MOVE_PROMOTE
    DEMOTE = lib.KVD_MOVE_DEMOTE
    VERIFY = lib.KVD_MOVE_VERIFY


class MoveClass(enum.IntEnum):
    """Who waits with whom for a place in C's queue."""

    PROMOTE = 0
    AHEAD = 1
    DEMOTE = 2
    VERIFY = 3

    @property
    def kind(self) -> Kind:
        """What its moves do."""
        return Kind.PROMOTE if self is MoveClass.AHEAD else Kind[self.name]


class ChecksumError(DamagedError):
    """A page on NVMe is not what was written there, or is missing.

    Attributes
    ----------
    page
        Number of the page in its object.
    device
        Number of the device that it is on.
    """

    def __init__(self, page: int, device: int = 0) -> None:
        super().__init__(f"page {page} failed its checksum")
        self.page = page
        self.device = device


class DeviceError(OSError):
    """A device failed a request.

    Attributes
    ----------
    device
        Its number.
    """

    def __init__(self, number: int, what: str, device: int) -> None:
        super().__init__(number, f"{what}: {os.strerror(number)}")
        self.device = device


class DeviceTimeoutError(DeviceError):
    """A device did not answer in time; its `errno` is ETIMEDOUT."""

    def __init__(self, what: str, device: int) -> None:
        super().__init__(errno.ETIMEDOUT, what, device)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """An object's file on one device: all of it, or its stripes there.

    Attributes
    ----------
    fd
        Open for reading, or for writing where it is written.
    device
        Number of the device, from 0 on; no two parts of an object have the same.
    direct
        `fd` was opened with O_DIRECT.
    dir_fd
        The folder of the file, which a demotion makes durable, too; none if the file's name is durable already.
    """

    fd: int
    device: int
    direct: bool
    dir_fd: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A move as C is asked for it.

    Attributes
    ----------
    kind, move_class
        What is done, and who waits with whom.
    parts, stripe_bytes, ddr_fd, size_bytes, runs
        As `Mover.promote` has them; `ddr_fd` is -1 where there is none.
    sums
        Read, or filled by a demotion.
    flags
        Of `enum kvd_mover_flags`.
    stream_address
        As `Mover.promote` has it.
    """

    kind: Kind
    move_class: MoveClass
    parts: Sequence[Part]
    stripe_bytes: int
    size_bytes: int
    runs: Sequence[tuple[int, int]]
    sums: bytes | bytearray
    ddr_fd: int = -1
    flags: int = 0
    stream_address: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveResult:
    """A move that went well.

    Attributes
    ----------
    moved_bytes
        Copied or checked; holes don't count.
    duration_s
        From start to end of the copy, without the wait in the queue.
    """

    moved_bytes: int
    duration_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceStatistics:
    """Of one device.

    Attributes
    ----------
    queue_depth
        Data requests that it gets at a time.
    in_flight
        Requests that it has not answered yet, `given_up` included.
    given_up
        Those whose move has ended without them. While they fill the depth, moves there are refused.
    queued
        Moves with a part there, waiting or running.
    oldest_s
        Age of the oldest request in flight; 0 if there is none.
    read_bytes, written_bytes
        Since the start.
    """

    queue_depth: int
    in_flight: int
    given_up: int
    queued: int
    oldest_s: float
    read_bytes: int
    written_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MoverStatistics:
    """Of one direction.

    Attributes
    ----------
    jobs, failed
        Moves that ended, and those of them that did not end well.
    moved_bytes, busy_s
        Bytes of all moves, and the time during which at least one was running.
    queued
        Moves that wait or run in C now.
    callers_waiting
        Tasks that wait for a place in the queue.
    """

    jobs: int
    failed: int
    moved_bytes: int
    busy_s: float
    queued: int
    callers_waiting: int


def error_of(status: int, what: str, device: int, bad_page: int) -> Exception:
    """Return what a failed move raises; `status` is a negative errno."""
    if status == -errno.EBADMSG:
        return ChecksumError(bad_page, device)
    if device == lib.KVD_MOVE_NO_DEVICE:
        return OSError(-status, f"{what}: {os.strerror(-status)}")
    if status == -errno.ETIMEDOUT:
        return DeviceTimeoutError(what, device)
    return DeviceError(-status, what, device)
