"""Dealings with the engine: one at a time is under way, whole."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeVar

import trio

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine


class Locked(Protocol):
    """Who has dealings."""

    lock: trio.Lock


L = TypeVar("L", bound=Locked)
P = ParamSpec("P")
T = TypeVar("T")


def alone(
    dealing: Callable[Concatenate[L, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[L, P], Coroutine[Any, Any, T]]:
    """Let a dealing run while no other does, to its end."""

    @functools.wraps(dealing)
    async def call(books: L, /, *args: P.args, **kwargs: P.kwargs) -> T:
        with trio.CancelScope(shield=True):
            try:
                books.lock.acquire_nowait()
            except trio.WouldBlock:
                await books.lock.acquire()
            try:
                result = await dealing(books, *args, **kwargs)
            finally:
                books.lock.release()
        return result

    return call
