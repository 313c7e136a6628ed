"""What the repair of the engine's tables could not save, until the owner of the objects has dealt with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Self

import trio

LOSSES_MAX: Final = 512
"""Losses of a repair that are told one by one."""
SESSIONS_MAX: Final = 65536
"""Sessions with losses that are kept for their owner; of more it is only known that there are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """Pages that a session had and has no more.

    Attributes
    ----------
    session
        Its handle, which may be of no session any more; 0: of none.
    slot
        Of the pages; None: something of the session itself is lost, or all of it.
    told
        The same as a sentence, with the reason.
    """

    session: int
    slot: int | None
    first_page: int
    count: int
    told: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Repair:
    """What a repair did, and had to give up; `more` losses are not told one by one.

    Attributes
    ----------
    finished, undone
        Whether the command at which the last one died was brought to its end, or taken back.
    """

    losses: tuple[Loss, ...] = ()
    more: int = 0
    finished: bool = False
    undone: bool = False

    @property
    def count(self) -> int:
        """All losses."""
        return len(self.losses) + self.more

    @property
    def told(self) -> list[str]:
        """The losses as sentences."""
        return [loss.told for loss in self.losses] + ([f"and {self.more} more losses"] if self.more else [])


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """Sessions that the tables know wrongly; `every`: nobody knows which, so it may be any."""

    sessions: frozenset[int]
    every: bool = False

    def joined(self, other: Self) -> Lost:
        """Return both."""
        sessions = self.sessions | other.sessions
        every = self.every or other.every or len(sessions) > SESSIONS_MAX
        return Lost(sessions=frozenset() if every else sessions, every=every)


class LostSessions:
    """Collects the losses of repairs for one who asks for them when he can."""

    def __init__(self) -> None:
        self._lost = Lost(sessions=frozenset())
        self._there = trio.Event()

    def __repr__(self) -> str:
        return f"<LostSessions {'all' if self._lost.every else len(self._lost.sessions)}>"

    def add(self, repair: Repair) -> None:
        """Note what a repair had to give up."""
        sessions = frozenset(loss.session for loss in repair.losses if loss.session)
        self._lost = self._lost.joined(Lost(sessions=sessions, every=repair.more > 0))
        if self._lost.sessions or self._lost.every:
            self._there.set()

    async def take(self) -> Lost:
        """Wait for losses and hand them over."""
        await self._there.wait()
        self._there = trio.Event()
        lost, self._lost = self._lost, Lost(sessions=frozenset())
        return lost
