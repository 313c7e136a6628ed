"""The classic orders of eviction, each of the objects of one tier: LRU, FIFO, LFU, S3-FIFO, ARC."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from typing import Final

SMALL_SHARE: Final = 10
"""S3-FIFO: one object in so many is in the small queue."""
S3_COUNT_MAX: Final = 3

Queue = OrderedDict[int, None]


def _oldest(queue: Queue) -> int:
    return queue.popitem(last=False)[0]


class Order(ABC):
    """Objects of one tier, of which one is the next to leave."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def insert(self, key: int) -> None:
        """Add an object that is not in the order."""

    @abstractmethod
    def touch(self, key: int) -> None:
        """Take note of the use of an object in the order."""

    @abstractmethod
    def remove(self, key: int) -> None:
        """Take out an object that leaves for another reason."""

    @abstractmethod
    def pop(self) -> int:
        """Take out the one that leaves; there is one."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {len(self)} objects>"


class Fifo(Order):
    """First in, first out."""

    def __init__(self) -> None:
        self._queue: Queue = OrderedDict()

    def __len__(self) -> int:
        return len(self._queue)

    def insert(self, key: int) -> None:
        """Add an object."""
        self._queue[key] = None

    def touch(self, key: int) -> None:
        """Change nothing."""

    def remove(self, key: int) -> None:
        """Take out an object."""
        del self._queue[key]

    def pop(self) -> int:
        """Take out the one that leaves."""
        return _oldest(self._queue)


class Lru(Fifo):
    """Least recently used."""

    def touch(self, key: int) -> None:
        """Take note of a use."""
        self._queue.move_to_end(key)


class Lfu(Order):
    """Least frequently used since it came; of those the least recently used."""

    def __init__(self) -> None:
        self._count: dict[int, int] = {}
        self._by_count: dict[int, Queue] = {}
        self._least = 1

    def __len__(self) -> int:
        return len(self._count)

    def _add(self, key: int, count: int) -> None:
        self._count[key] = count
        self._by_count.setdefault(count, OrderedDict())[key] = None

    def insert(self, key: int) -> None:
        """Add an object."""
        self._add(key, 1)
        self._least = 1

    def touch(self, key: int) -> None:
        """Take note of a use."""
        count = self._count[key]
        self.remove(key)
        self._add(key, count + 1)

    def remove(self, key: int) -> None:
        """Take out an object."""
        count = self._count.pop(key)
        queue = self._by_count[count]
        del queue[key]
        if not queue:
            del self._by_count[count]

    def pop(self) -> int:
        """Take out the one that leaves."""
        if self._least not in self._by_count:
            self._least = min(self._by_count)
        key = next(iter(self._by_count[self._least]))
        self.remove(key)
        return key


class S3Fifo(Order):
    """A small queue, a main queue, and the names of what left the small one (Yang and others, SOSP 2023)."""

    def __init__(self) -> None:
        self._small: Queue = OrderedDict()
        self._main: Queue = OrderedDict()
        self._ghosts: Queue = OrderedDict()
        self._count: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._count)

    def insert(self, key: int) -> None:
        """Add an object."""
        known = key in self._ghosts
        if known:
            del self._ghosts[key]
        (self._main if known else self._small)[key] = None
        self._count[key] = 0

    def touch(self, key: int) -> None:
        """Take note of a use."""
        self._count[key] = min(S3_COUNT_MAX, self._count[key] + 1)

    def remove(self, key: int) -> None:
        """Take out an object."""
        del self._count[key]
        del (self._small if key in self._small else self._main)[key]

    def pop(self) -> int:
        """Take out the one that leaves."""
        while True:
            if self._small and (not self._main or SMALL_SHARE * len(self._small) > len(self)):
                key = _oldest(self._small)
                if self._count[key] == 0:
                    del self._count[key]
                    self._remember(key)
                    return key
                self._count[key] = 0
            else:
                key = _oldest(self._main)
                if self._count[key] == 0:
                    del self._count[key]
                    return key
                self._count[key] -= 1
            self._main[key] = None

    def _remember(self, key: int) -> None:
        self._ghosts[key] = None
        while len(self._ghosts) > max(1, len(self._main)):
            self._ghosts.popitem(last=False)


class Arc(Order):
    """Adaptive replacement: once used, used again, and the names of what left either (Megiddo and Modha, FAST 2003)."""

    def __init__(self) -> None:
        self._once: Queue = OrderedDict()
        self._again: Queue = OrderedDict()
        self._once_ghosts: Queue = OrderedDict()
        self._again_ghosts: Queue = OrderedDict()
        self._target = 0.0
        """How many of those once used are to stay."""

    def __len__(self) -> int:
        return len(self._once) + len(self._again)

    def insert(self, key: int) -> None:
        """Add an object."""
        once, again = len(self._once_ghosts), len(self._again_ghosts)
        if key in self._once_ghosts:
            del self._once_ghosts[key]
            self._target = min(len(self), self._target + max(1.0, again / once))
        elif key in self._again_ghosts:
            del self._again_ghosts[key]
            self._target = max(0.0, self._target - max(1.0, once / again))
        else:
            self._once[key] = None
            return
        self._again[key] = None

    def touch(self, key: int) -> None:
        """Take note of a use."""
        self._once.pop(key, None)
        self._again[key] = None
        self._again.move_to_end(key)

    def remove(self, key: int) -> None:
        """Take out an object."""
        del (self._once if key in self._once else self._again)[key]

    def pop(self) -> int:
        """Take out the one that leaves."""
        size = len(self)
        if self._once and (len(self._once) > self._target or not self._again):
            key = _oldest(self._once)
            self._once_ghosts[key] = None
        else:
            key = _oldest(self._again)
            self._again_ghosts[key] = None
        while len(self._once) + len(self._once_ghosts) > size and self._once_ghosts:
            self._once_ghosts.popitem(last=False)
        while len(self) + len(self._once_ghosts) + len(self._again_ghosts) > 2 * size and self._again_ghosts:
            self._again_ghosts.popitem(last=False)
        return key
