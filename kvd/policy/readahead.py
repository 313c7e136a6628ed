"""How far to read ahead of a client that opens the objects of a directory one after the other.

A model's layers, a chain of blocks: what is opened in order will be wanted in order. As the kernel's readahead does
within a file, the window opens with every step that goes on in order and closes with one that does not.
"""

from __future__ import annotations

from collections import OrderedDict

REMEMBERED_FOLDERS = 1024
AHEAD_FIRST = 4
AHEAD_MAX = 16


class Readahead:
    """Remembers the last step in each directory."""

    def __init__(self) -> None:
        self._last: OrderedDict[int, tuple[int, int]] = OrderedDict()  # folder: cookie, window

    def __repr__(self) -> str:
        return f"<Readahead folders={len(self._last)}>"

    def step(self, folder: int, cookie: int, before: int) -> int:
        """Return how many objects after `cookie` to fetch.

        Parameters
        ----------
        folder
            The directory.
        cookie
            The place of what is opened in the directory's order.
        before
            The place of its neighbour before it there, 0 if it is the first.
        """
        last, window = self._last.get(folder, (0, 0))
        if cookie != last:
            window = min(AHEAD_MAX, max(AHEAD_FIRST, 2 * window)) if last == before else 0
        self._last[folder] = (cookie, window)
        self._last.move_to_end(folder)
        if len(self._last) > REMEMBERED_FOLDERS:
            self._last.popitem(last=False)
        return window
