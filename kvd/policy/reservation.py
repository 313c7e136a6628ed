"""How large a new object will be, from what was seen."""

from __future__ import annotations

from collections import OrderedDict, deque

REMEMBERED_SIZES = 16
REMEMBERED_KEYS = 4096


class UsualSize:
    """Guesses an object's final size by the largest of the latest ones of its kind.

    A kind is a key: the directory in which objects are made. The largest, not the mean: a guess too large costs room
    for the time of a write, a guess too small costs the writer a wait.

    Parameters
    ----------
    first_blocks
        The guess for a kind not seen yet.
    """

    def __init__(self, *, first_blocks: int) -> None:
        self._first_blocks = first_blocks
        self._seen: OrderedDict[int, deque[int]] = OrderedDict()

    def __repr__(self) -> str:
        return f"<UsualSize kinds={len(self._seen)}>"

    def guess(self, key: int) -> int:
        """Return the blocks that a new object of this kind will likely hold."""
        sizes = self._seen.get(key)
        return max(sizes) if sizes else self._first_blocks

    def learn(self, key: int, blocks: int) -> None:
        """Take note of an object's final size."""
        sizes = self._seen.setdefault(key, deque(maxlen=REMEMBERED_SIZES))
        self._seen.move_to_end(key)
        sizes.append(blocks)
        if len(self._seen) > REMEMBERED_KEYS:
            self._seen.popitem(last=False)
