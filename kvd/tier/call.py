"""A call in a thread that nobody need wait for to its end."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


class Call:
    """A call in a thread that may be left: it then does not begin, or what it brings is disposed of."""

    def __init__(
        self, action: Callable[[], Any], dispose: Callable[[Any], object] | None, ended: Callable[[], object] | None
    ) -> None:
        self._action = action
        self._dispose = dispose
        self._ended = ended
        self._lock = threading.Lock()
        self._began = False
        self._left = False
        self._results: list[Any] = []

    def run(self) -> Any:
        """Run in the thread; the waiter finds the result here, too, and takes it with `take`."""
        with self._lock:
            if self._left:
                return None
            self._began = True
        try:
            result = self._action()
        finally:
            if self._ended is not None:
                self._ended()
        with self._lock:
            self._results.append(result)
            late = self._left
        if late:
            self._dispose_of_it()
        return result

    def take(self) -> None:
        """Say that the result has come to the waiter."""
        self._results.clear()

    def leave(self) -> None:
        """Say that nobody waits any more."""
        with self._lock:
            self._left = True
            began, there = self._began, bool(self._results)
        if not began and self._ended is not None:
            self._ended()
        if there:
            self._dispose_of_it()

    def _dispose_of_it(self) -> None:
        with self._lock:
            results, self._results = self._results, []
        if self._dispose is not None:
            for result in results:
                self._dispose(result)
