"""Gives tier files storage, and takes it from them; their length stays."""

from __future__ import annotations

from kvd.tier._mover import lib
from kvd.tier.mover_handle import check


def punch(fd: int, offset: int, length: int) -> None:
    """Free what a file holds in a range; it reads as zeroes then."""
    check(lib.kvd_mover_punch(fd, offset, length), "punch")


def allocate(fd: int, offset: int, length: int) -> None:
    """Give a file storage in a range that it has none in. OSError as `fallocate`."""
    check(lib.kvd_mover_allocate(fd, offset, length), "allocate")
