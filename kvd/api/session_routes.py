"""What the API answers about sessions; `kvd.api.routes` has the table."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from kvd.api import shapes, wire
from kvd.api.answers import answer, body_of
from kvd.api.sessions import ForkPoint
from kvd.api.stream import Operation

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from starlette.requests import Request
    from starlette.types import ASGIApp

    from kvd.api.backend import Control
    from kvd.api.sessions import SessionEntry

WATCHERS_MAX: Final = 16
"""Clients that list sessions, watch them or fork one, at a time."""


class SessionRoutes:
    """The handlers, over one `Control`."""

    def __init__(self, control: Control) -> None:
        self._control = control
        self._watching = 0

    @contextmanager
    def _seat(self) -> Iterator[None]:
        if self._watching >= WATCHERS_MAX:
            raise wire.TooManyError(
                f"{WATCHERS_MAX} clients list, watch or fork sessions; try again when one has ended"
            )
        self._watching += 1
        try:
            yield
        finally:
            self._watching -= 1

    async def session(self, request: Request) -> ASGIApp:
        """Answer `SessionDetail`."""
        return answer(await self._control.sessions.session_detail(wire.query_path(request.scope["query_string"])))

    async def list_sessions(self, request: Request) -> ASGIApp:
        """Stream `SessionEntry`."""
        path = wire.body_path(await body_of(request))
        return Operation(lambda: self._control.sessions.sessions(path), self._seat())

    async def watch_sessions(self, request: Request) -> ASGIApp:
        """Stream `SessionChange`."""
        path = wire.body_path(await body_of(request))
        return Operation(lambda: self._control.sessions.watch_sessions(path), self._seat())

    async def release_session(self, request: Request) -> ASGIApp:
        """Answer `SessionEntry`."""
        return answer(self._control.sessions.release_session(wire.body_path(await body_of(request))))

    async def resume_session(self, request: Request) -> ASGIApp:
        """Answer `SessionEntry`."""
        return answer(self._control.sessions.resume_session(wire.body_path(await body_of(request))))

    async def prefetch_session(self, request: Request) -> ASGIApp:
        """Answer `SessionEntry`."""
        path = wire.body_path(await body_of(request))
        return answer(self._control.sessions.resume_session(path, prefetch=True))

    async def close_session(self, request: Request) -> ASGIApp:
        """Answer `Closed`."""
        path = wire.body_path(await body_of(request))
        await self._control.sessions.close_session(path)
        return answer(shapes.Closed(path=path))

    async def pin_session(self, request: Request) -> ASGIApp:
        """Answer `Changed`."""
        wish = wire.body_shape(await body_of(request), shapes.PinRequest)
        changed = await self._control.sessions.pin_session(wire.path_of(wish.path), wish.pin, for_s=wish.for_s)
        return answer(shapes.Changed(changed=changed))

    async def live_session(self, request: Request) -> ASGIApp:
        """Answer `SessionEntry`."""
        wish = wire.body_shape(await body_of(request), shapes.TtlRequest)
        path = wire.path_of(wish.path)
        return answer(self._control.sessions.live_session(path, wish.ttl_s, refresh=wish.refresh))

    async def fork_session(self, request: Request) -> ASGIApp:
        """Stream one `SessionEntry`: a fork may take long, and who waits for it may go away."""
        wish = wire.body_shape(await body_of(request), shapes.ForkRequest)
        at = ForkPoint(until=wish.until, count=wish.count, tokens=wish.tokens, bytes_per_token=wish.bytes_per_token)
        path, new_path = wire.path_of(wish.path), wire.path_of(wish.new_path)

        async def fork() -> AsyncIterator[SessionEntry]:
            yield await self._control.sessions.fork_session(path, new_path, at)

        return Operation(fork, self._seat())
