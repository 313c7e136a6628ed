"""Opens a card that nobody waits for too long: whoever gives up goes on, and the card is closed when it does open."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

import trio

from kvdriver.faults import DeviceFault, FaultKind

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvdriver.card import Card

PREPARE_S_MAX: Final = 30.0
"""How long an opening is waited for. The kernel resets a card when it is opened, and is patient with a dead one."""
CLOSE_S_MAX: Final = 2.0
"""How long the close of a card is waited for; it goes on by itself."""


class _Try:
    """One opening, in a thread. The card goes to who waits for it; when nobody does any more, it is closed."""

    def __init__(self, prepare: Callable[[], Card]) -> None:
        self._prepare = prepare
        self._lock = threading.Lock()
        self._unwanted = False
        self._card: Card | None = None
        self.ended = False

    def run(self) -> Card:
        """Open the card, in a thread."""
        try:
            card = self._prepare()
            with self._lock:
                unwanted = self._unwanted
                self._card = card
            if unwanted:
                card.close()
        finally:
            self.ended = True
        return card

    def give_up(self) -> Card | None:
        """Stop waiting; return the card if it has been opened in this very moment."""
        with self._lock:
            self._unwanted = True
            card, self._card = self._card, None
            return card


class Preparer:
    """Opens the same card again and again, one try at a time.

    Parameters
    ----------
    prepare
        Opens the card as far as that goes without tables; may wait, raises `DeviceFault`.
    within_s
        What that may take.
    """

    def __init__(self, prepare: Callable[[], Card], *, within_s: float = PREPARE_S_MAX) -> None:
        self._prepare = prepare
        self._within_s = within_s
        self._last: _Try | None = None

    def __repr__(self) -> str:
        return f"<Preparer {'at work' if self._is_busy() else 'idle'}>"

    def _is_busy(self) -> bool:
        return self._last is not None and not self._last.ended

    async def card(self) -> Card:
        """Open the card; who is cancelled does not wait for it.

        Raises
        ------
        DeviceFault
            If it can't be opened: `FaultKind.TIMEOUT` when that takes too long, or an earlier try still does.
        """
        if self._is_busy():
            raise DeviceFault(FaultKind.TIMEOUT, "the card is still being opened by an earlier try")
        this = self._last = _Try(self._prepare)
        card = None
        try:
            with trio.move_on_after(self._within_s):
                card = await trio.to_thread.run_sync(this.run, abandon_on_cancel=True)
        finally:
            late = this.give_up()
            if card is None and late is not None:
                await close(late)
        if card is None:
            raise DeviceFault(FaultKind.TIMEOUT, f"the card did not open within {self._within_s:g} s")
        return card


async def close(card: Card) -> None:
    """Close a card in a thread, and wait for that a little."""
    with trio.move_on_after(CLOSE_S_MAX, shield=True):
        await trio.to_thread.run_sync(card.close, abandon_on_cancel=True)
