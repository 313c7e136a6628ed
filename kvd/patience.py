"""Asking a file system that may not answer."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


def within(limit_s: float, action: Callable[[], T]) -> T:
    """Return what `action` returns, which runs in a thread that is left alone when it takes too long.

    Raises
    ------
    TimeoutError
        Past the limit; it has no `strerror`.
    BaseException
        What the action raised.
    """
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(action())
        except BaseException as error:  # noqa: BLE001  it is raised where it is waited for
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(limit_s)
    if errors:
        raise errors[0]
    if not results:
        raise TimeoutError(f"no answer within {limit_s:g} s")
    return results[0]
