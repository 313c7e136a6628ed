"""A copy that NVMe has no room for is tried again, as often as room is made for it."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from kvd.tier.live import Live
    from kvd.tier.storing import MoveCounts

ROOM_TRIES = 3
"""Others may take the room that was made for a copy."""

T = TypeVar("T")


class MakeRoom(Protocol):
    """`kvd.tier.evicting.Evicting.make_room`."""

    async def __call__(self, ino: int, blocks: int, *, leaves: bool) -> bool:
        """Make room for an object; whether there may be some."""
        ...


async def no_room(ino: int, blocks: int, *, leaves: bool) -> bool:
    """Make none."""
    del ino, blocks, leaves
    return False


async def in_room(
    make: Callable[[], Awaitable[T]], live: Live, counts: MoveCounts, make_room: MakeRoom, *, leaves: bool
) -> T:
    """Make an object's copy; see `Storing.store` for `leaves` and the errors."""
    for _ in range(ROOM_TRIES):
        try:
            return await make()
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            refused, counts.refused_blocks = counts.refused_blocks, 0
            if not await make_room(live.ino, max(refused, live.mapped_blocks), leaves=leaves):
                counts.refused_blocks = refused
                raise
    return await make()
