"""Answers that come in pieces: the steps of an operation, the entries of a large directory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import structlog
import trio

from kvd.api import wire
from kvd.errors import KvdError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from starlette.types import Receive, Scope, Send

    from kvd.api.backend import Entry

HEARTBEAT_S: Final = 5.0
"""An operation says something at least this often, so that a client can tell a long step from a dead daemon."""

ENTRIES_CHUNK: Final = 256
"""Entries encoded at one go: about 1 ms of the loop's time."""

_log = structlog.get_logger("kvd.api")


def log_unexpected(error: Exception, scope: Scope) -> None:
    """Log a bug, with its traceback; an operator's problem is the client's to print."""
    if not isinstance(error, KvdError):
        _log.error("request failed", method=scope["method"], route=scope["path"], exc_info=error)


async def send_failure(error: Exception, send: Send) -> None:
    """Answer with the error that stands for an exception."""
    status, body = wire.failure(error)
    await _start(send, status, b"application/json")
    await send({"type": "http.response.body", "body": wire.dump(body) + b"\n", "more_body": False})


async def _start(send: Send, status: int, media_type: bytes) -> None:
    headers = [(b"content-type", media_type), (b"cache-control", b"no-store")]
    await send({"type": "http.response.start", "status": status, "headers": headers})


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class Operation:
    """The answer of promote, demote, sync, scrub and fsck: one JSON line a step, an empty line when there was none for a while.

    An error before the first line is an HTTP error; a later one is the last line, ``{"error": ...}``. A client that goes
    away cancels the operation, at the next checkpoint of whoever does it.
    """

    def __init__(self, begin: Callable[[], AsyncIterator[object]], slot: AbstractContextManager[None]) -> None:
        self._begin = begin
        self._slot = slot
        self._turn = trio.Lock()
        self._started = False
        self._ended = False
        self._spoke_at = 0.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the operation as an ASGI response."""
        try:
            with self._slot:
                await self._run(scope, receive, send)
        except wire.TooManyError as error:
            await send_failure(error, send)

    async def _run(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._spoke_at = trio.current_time()
        async with trio.open_nursery() as nursery:

            async def cancel_when_gone() -> None:
                await _gone(receive)
                nursery.cancel_scope.cancel()

            nursery.start_soon(cancel_when_gone)
            nursery.start_soon(self._beat, send)
            await self._steps(scope, send)
            nursery.cancel_scope.cancel()

    async def _beat(self, send: Send) -> None:
        while True:
            await trio.sleep_until(self._spoke_at + HEARTBEAT_S)
            if trio.current_time() >= self._spoke_at + HEARTBEAT_S:
                await self._line(b"\n", send)

    async def _line(self, line: bytes, send: Send, *, more: bool = True) -> None:
        async with self._turn:
            if self._ended:
                return
            await self._open(send)
            self._spoke_at = trio.current_time()
            self._ended = not more
            await send({"type": "http.response.body", "body": line, "more_body": more})

    async def _open(self, send: Send) -> None:
        if not self._started:
            self._started = True
            await _start(send, 200, b"application/x-ndjson")

    async def _steps(self, scope: Scope, send: Send) -> None:
        try:
            steps = self._begin()
            try:
                async for step in steps:
                    await self._line(wire.dump(step) + b"\n", send)
            finally:
                if (close := getattr(steps, "aclose", None)) is not None:
                    await close()
        except Exception as error:  # noqa: BLE001  whatever an operation raises is answered; a bug is logged
            log_unexpected(error, scope)
            await self._fail(error, send)
        else:
            await self._line(b"", send, more=False)

    async def _fail(self, error: Exception, send: Send) -> None:
        async with self._turn:
            if self._started:
                line = wire.dump(wire.failure(error)[1]) + b"\n"
                await send({"type": "http.response.body", "body": line, "more_body": False})
            else:
                await send_failure(error, send)
            self._ended = True


class ListingAnswer:
    """The answer of list, encoded piece by piece so that a directory of a million names does not stop the daemon."""

    def __init__(self, path: bytes, entries: Sequence[Entry]) -> None:
        self._path = path
        self._entries = entries

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the listing as an ASGI response."""
        del scope
        async with trio.open_nursery() as nursery:

            async def cancel_when_gone() -> None:
                await _gone(receive)
                nursery.cancel_scope.cancel()

            nursery.start_soon(cancel_when_gone)
            await _start(send, 200, b"application/json")
            for piece in self._pieces():
                await send({"type": "http.response.body", "body": piece, "more_body": True})
                await trio.lowlevel.checkpoint()
            await send({"type": "http.response.body", "body": b"", "more_body": False})
            nursery.cancel_scope.cancel()

    def _pieces(self) -> Iterator[bytes]:
        yield b'{"path":' + wire.dump(self._path) + b',"entries":['
        for first in range(0, len(self._entries), ENTRIES_CHUNK):
            chunk = wire.dump(self._entries[first : first + ENTRIES_CHUNK])
            yield (b"," if first else b"") + chunk[1:-1]
        yield b"]}"
