"""Whose turn it is to grow when room is short.

Objects that are being written can't be demoted. If each of many writers got a part of the room, none might ever come to its
end, and all of it would be held by halves. So the one that asked first, and goes on asking, may have all the room there is; all
others together no more than a share of the budget, however many they are. When it is done, the next one is first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from kvd.tier.live import Live

ASKS_AGAIN_S = 2.0
"""Who has not asked for so long is not about to be done: until it asks again the next one is first."""
OTHERS_SHARE = 4
"""Writers that are not the first hold at most this part of the budget."""


class Turns:
    """The objects that are being written, in the order in which they asked for room.

    Parameters
    ----------
    budget_blocks
        Of DDR.
    """

    def __init__(self, *, budget_blocks: int) -> None:
        self._others_blocks = budget_blocks // OTHERS_SHARE
        self._asked_s: dict[int, float] = {}
        self._waiting: set[int] = set()
        self._growing: dict[int, Live] = {}
        self._claims: dict[int, int] = {}

    def __repr__(self) -> str:
        return f"<Turns growing={len(self._growing)} waiting={len(self._waiting)}>"

    @property
    def growing(self) -> list[Live]:
        """The objects that have room for writing, or ask for it."""
        return list(self._growing.values())

    @property
    def waiting(self) -> int:
        """How many wait for room."""
        return len(self._waiting)

    def describe(self) -> str:
        """Return what each writer holds, the first in line first, for the log."""
        inos = [*self._asked_s, *(ino for ino in self._growing if ino not in self._asked_s)]
        writers = [self._growing[ino] for ino in inos]
        return " ".join(
            f"{w.ino}:{w.mapped_blocks}+{w.reserved_blocks}{'*' * (w.ino in self._waiting)}" for w in writers
        )

    def join(self, live: Live) -> None:
        """Take note that an object is being written."""
        self._growing[live.ino] = live

    def ask(self, live: Live) -> None:
        """Take note that an object's writer asks for room and waits."""
        self.join(live)
        self._asked_s[live.ino] = trio.current_time()
        self._waiting.add(live.ino)

    def served(self, live: Live) -> None:
        """Take note that it waits no longer."""
        self._waiting.discard(live.ino)
        if live.ino in self._asked_s:
            self._asked_s[live.ino] = trio.current_time()

    def leave(self, ino: int) -> None:
        """Take note that an object has no writer any more."""
        self._growing.pop(ino, None)
        self._asked_s.pop(ino, None)
        self._waiting.discard(ino)
        self._claims.pop(ino, None)

    def _first(self) -> int | None:
        now_s = trio.current_time()
        active = (
            ino for ino, asked_s in self._asked_s.items() if ino in self._waiting or now_s - asked_s < ASKS_AGAIN_S
        )
        return next(active, None)

    def claim(self, live: Live, blocks: int) -> bool:
        """Tell whether an object's reservation may be `blocks`; if so that stands until `unclaim`, reserved or not yet."""
        first = self._first()
        if live.ino != first:
            held = sum(
                other.mapped_blocks + max(other.reserved_blocks, self._claims.get(other.ino, 0))
                for other in self._growing.values()
                if other is not live and other.ino != first
            )
            if held + live.mapped_blocks + blocks > self._others_blocks:
                return False
        self._claims[live.ino] = blocks
        return True

    def unclaim(self, live: Live) -> None:
        """Forget a claim: it is reserved, or can't be."""
        self._claims.pop(live.ino, None)
