"""How far to read ahead of a client that opens the objects of a directory one after the other.

A model's layers, a chain of blocks: what is opened in order will be wanted in order. As the kernel's readahead does
within a file, the window opens with every step that goes on in order; one that does not fetches
nothing, and a second one halves it.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass, field
from typing import Generic, TypeVar

REMEMBERED_FOLDERS = 1024
REMEMBERED_STEPS = 16
"""Clients of several threads open neighbours side by side: one that follows any of so many latest steps is in order."""
AHEAD_FIRST = 4
AHEAD_MAX = 16


Key = TypeVar("Key", int, bytes)


@dataclass(slots=True)
class _Folder(Generic[Key]):
    latest: deque[Key] = field(default_factory=lambda: deque(maxlen=REMEMBERED_STEPS))
    window: int = 0
    jumps: int = 0


class Readahead(Generic[Key]):
    """Remembers the latest steps in each directory, by whatever tells its order."""

    def __init__(self) -> None:
        self._folders: OrderedDict[int, _Folder[Key]] = OrderedDict()

    def __repr__(self) -> str:
        return f"<Readahead folders={len(self._folders)}>"

    def step(self, folder: int, place: Key, before: Key) -> int:
        """Return how many objects after `place` to fetch.

        Parameters
        ----------
        folder
            The directory.
        place
            Of what is opened in the directory's order.
        before
            The place of its neighbour before it there, 0 or empty if it is the first.
        """
        known = self._folders.setdefault(folder, _Folder())
        self._folders.move_to_end(folder)
        if len(self._folders) > REMEMBERED_FOLDERS:
            self._folders.popitem(last=False)
        if place in known.latest:
            return known.window
        in_order = not before or before in known.latest
        known.latest.append(place)
        if in_order:
            known.jumps = 0
            known.window = min(AHEAD_MAX, max(AHEAD_FIRST, 2 * known.window))
            return known.window
        known.jumps += 1
        if known.jumps > 1:
            known.window //= 2
        return 0
