"""The control API: routes over a `Control`, served on a UNIX socket."""

from __future__ import annotations

import logging
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Final, cast

import structlog
import trio
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.config import Config as HypercornConfig
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ConnectionState, LifespanState
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.routing import Route

from kvd.api.answers import answer
from kvd.api.endpoint import listening
from kvd.api.routes import ROUTES, Routes, guarded
from kvd.api.shapes import ErrorBody, Failure

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from hypercorn.typing import ASGIFramework
    from starlette.requests import Request
    from starlette.responses import Response

    from kvd.api.backend import Control

CONNECTIONS_MAX: Final = 64
GRACE_S: Final = 3.0
"""What running requests get when the server is told to stop."""

SEND_S_MAX: Final = 30.0
"""A client that takes nothing for so long is cut off; a stopped ``kvctl`` must not hold an operation for ever."""

IDLE_S_MAX: Final = 15
HEADER_BYTES_MAX: Final = 16 * 1024
STREAMS_MAX: Final = 8

_log = structlog.get_logger("kvd.api")


def build_app(control: Control) -> Starlette:
    """Make the ASGI application.

    Parameters
    ----------
    control
        The daemon, or a fake of it.
    """
    routes = Routes(control)
    table = [Route(route.path, guarded(partial(route.handler, routes)), methods=[route.method]) for route in ROUTES]
    return Starlette(routes=table, exception_handlers={HTTPException: _no_route})


async def _no_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = f"{request.method} {request.scope['path']}: {error.detail}; /v1/openapi.json lists the routes"
    code = "ENOSYS" if error.status_code in {404, 405} else "EINVAL"
    return answer(Failure(error=ErrorBody(code=code, message=message)), error.status_code)


class _Stream(trio.abc.Stream):
    """A connection as hypercorn sees it, bounded where hypercorn is not.

    Hypercorn shields its sends from cancellation and has no deadline for them. Once it closed the connection, or found
    that it can't send, it may still wait for ever: for somebody to take a body, or for its turn to read the next request
    of a client that sent two at once. So a connection that is closed or broken is cancelled, by `end`.
    """

    def __init__(self, inner: trio.SocketStream, server: _Server, end: Callable[[], None]) -> None:
        self._inner = inner
        self._server = server
        self._end = end

    @property
    def socket(self) -> trio.socket.SocketType:
        """The connection's socket, which hypercorn asks for its addresses."""
        return self._inner.socket

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Send, for no longer than `_Server.send_scope` allows; what goes wrong ends the connection."""
        with self._server.send_scope():
            try:
                await self._inner.send_all(data)
            except (trio.BrokenResourceError, trio.ClosedResourceError, trio.BusyResourceError) as error:
                # Busy: hypercorn's sends take turns, so only its own end of stream can be in the way.
                self._end()
                raise trio.BrokenResourceError(f"can't send: {error}") from error
            return
        self._end()
        raise trio.BrokenResourceError("the client takes nothing")

    async def wait_send_all_might_not_block(self) -> None:
        """Wait until a send might not have to wait."""
        await self._inner.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        """Receive; hypercorn has a deadline for that (`IDLE_S_MAX`)."""
        return await self._inner.receive_some(max_bytes)

    async def send_eof(self) -> None:
        """Say that nothing more will be sent."""
        await self._inner.send_eof()

    async def aclose(self) -> None:
        """Close, and end whatever of hypercorn still waits on this connection."""
        await self._inner.aclose()
        self._end()


class _Listener(trio.abc.Listener[trio.SocketStream]):
    """Accepts no more connections than may be served at a time; the others wait in the kernel's queue."""

    def __init__(self, inner: trio.SocketListener, free: trio.Semaphore) -> None:
        self._inner = inner
        self._free = free

    async def accept(self) -> trio.SocketStream:
        """Wait for a place, then for a client; the place is given back when the connection ends."""
        await self._free.acquire()
        try:
            return await self._inner.accept()
        except BaseException:
            self._free.release()
            raise

    async def aclose(self) -> None:
        """Stop to listen."""
        await self._inner.aclose()


class _Server:
    """The connections, and how they end."""

    def __init__(self, app: Starlette) -> None:
        config = HypercornConfig()
        config.accesslog = None
        config.errorlog = logging.getLogger("kvd.api.http")
        config.keep_alive_timeout = IDLE_S_MAX
        config.h11_max_incomplete_size = HEADER_BYTES_MAX
        config.h2_max_concurrent_streams = STREAMS_MAX
        config.include_server_header = False
        self._config = config
        self._app = ASGIWrapper(cast("ASGIFramework", app))
        self._context = WorkerContext(None)
        self._free = trio.Semaphore(CONNECTIONS_MAX)
        self._grace = trio.CancelScope(shield=True)
        self._sends: set[trio.CancelScope] = set()

    def __repr__(self) -> str:
        return f"<_Server: {CONNECTIONS_MAX - self._free.value} of {CONNECTIONS_MAX} connections>"

    async def run(self, sock: socket.socket, unbind: Callable[[], None], task_status: trio.TaskStatus[None]) -> None:
        """Accept until cancelled; `unbind` takes the address away before the connections get their grace."""
        listener = _Listener(trio.SocketListener(trio.socket.from_stdlib_socket(sock)), self._free)
        async with trio.open_nursery() as nursery:
            closing = trio.Event()
            connections = await nursery.start(self._hold, closing)
            task_status.started()
            try:
                await trio.serve_listeners(self._connection, [listener], handler_nursery=connections)
            finally:
                unbind()
                await self._context.terminated.set()
                self._grace.deadline = trio.current_time() + GRACE_S
                for scope in self._sends:
                    scope.deadline = min(scope.deadline, self._grace.deadline)
                closing.set()

    async def _hold(self, closing: trio.Event, *, task_status: trio.TaskStatus[trio.Nursery]) -> None:
        """Keep the connections out of the server's cancellation, so that they can end in order."""
        with self._grace:
            async with trio.open_nursery() as connections:
                task_status.started(connections)
                await closing.wait()

    async def _connection(self, stream: trio.SocketStream) -> None:
        try:
            with trio.CancelScope() as scope:
                # Hypercorn names the one kind of stream that it has met; it asks no more of it than of any.
                bounded = cast("trio.SSLStream[trio.SocketStream]", _Stream(stream, self, scope.cancel))
                state = ConnectionState(LifespanState())
                await TCPServer(self._app, self._config, self._context, state, bounded)
        except Exception as error:  # noqa: BLE001  one connection's bug must not end the others
            _log.error("connection failed", exc_info=error)
        finally:
            self._free.release()

    @contextmanager
    def send_scope(self) -> Iterator[None]:
        """Bound one send by `SEND_S_MAX`, and by the grace once the server stops."""
        with trio.CancelScope(deadline=min(trio.current_time() + SEND_S_MAX, self._grace.deadline)) as scope:
            self._sends.add(scope)
            try:
                yield
            finally:
                self._sends.discard(scope)


async def serve(
    control: Control,
    socket_path: Path,
    group: str,
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve the API until cancelled; then running requests have `GRACE_S` to end, and the socket file goes.

    Parameters
    ----------
    control
        Who answers.
    socket_path
        Where to listen.
    group
        Who may connect besides the daemon's user.
    task_status
        Started once clients can connect.

    Raises
    ------
    ConfigError
        If the path can't be a socket's.
    UnavailableError
        If another daemon listens there, or the place can't be written to.
    """
    server = _Server(build_app(control))
    with ExitStack() as bound:
        sock = bound.enter_context(listening(socket_path, group))
        await server.run(sock.dup(), bound.close, task_status)
