"""How large a new object will be, from what was seen."""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass, field

REMEMBERED_SIZES = 16
REMEMBERED_KEYS = 4096
SURE_SIZES = 2
"""So many objects in a row that needed no more than was guessed make a kind's guess a sure one."""
TOLERANCE_SHARE = 4
"""A guess that was too small by less than this part of it was right: what keeps up with writers makes up for that."""


@dataclass(slots=True)
class _Kind:
    sizes: deque[int] = field(default_factory=lambda: deque(maxlen=REMEMBERED_SIZES))
    right: int = 0


class UsualSize:
    """Guesses an object's final size by the largest of the latest ones of its kind.

    A kind is a key: the directory in which objects are made. The largest, not the mean: a guess too large costs room
    for the time of a write, a guess too small costs the writer a wait. A guess that was wrong makes the kind unsure until
    new ones have been right, so that none is wrong twice.

    Parameters
    ----------
    first_blocks
        The guess for a kind not seen yet.
    """

    def __init__(self, *, first_blocks: int) -> None:
        self._first_blocks = first_blocks
        self._seen: OrderedDict[int, _Kind] = OrderedDict()

    def __repr__(self) -> str:
        return f"<UsualSize kinds={len(self._seen)}>"

    def guess(self, key: int) -> int:
        """Return the blocks that a new object of this kind will likely hold."""
        kind = self._seen.get(key)
        return max(kind.sizes) if kind and kind.sizes else self._first_blocks

    def sure(self, key: int) -> bool:
        """Tell whether the guess for this kind can be relied on."""
        kind = self._seen.get(key)
        return kind is not None and kind.right >= SURE_SIZES

    def doubtful(self, key: int) -> bool:
        """Tell whether the latest guess for this kind was wrong."""
        kind = self._seen.get(key)
        return kind is not None and kind.right == 0

    def learn(self, key: int, blocks: int) -> None:
        """Take note of an object's final size."""
        guess = self.guess(key)
        kind = self._kind(key)
        kind.right = kind.right + 1 if blocks <= guess + guess // TOLERANCE_SHARE else 0
        kind.sizes.append(blocks)

    def wrong(self, key: int, blocks: int) -> None:
        """Take note of an object that needs `blocks` already, before its final size is known."""
        guess = self.guess(key)
        if blocks > guess + guess // TOLERANCE_SHARE:
            kind = self._kind(key)
            kind.right = 0

    def _kind(self, key: int) -> _Kind:
        kind = self._seen.setdefault(key, _Kind())
        self._seen.move_to_end(key)
        if len(self._seen) > REMEMBERED_KEYS:
            self._seen.popitem(last=False)
        return kind
