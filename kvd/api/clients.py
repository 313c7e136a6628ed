"""The clients' socket: one packet a question, one packet the answer, for `kvd.client` and whoever speaks JSON.

HTTP costs several times as much as a session operation itself. Here a question costs one wake-up of the loop. A connection is
a SOCK_SEQPACKET, so there is nothing to frame; the kernel says whose it is, and that process is whose the leases are.
"""

from __future__ import annotations

import errno
import json
import socket
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import msgspec
import structlog
import trio

from kvd.api import wire
from kvd.api.endpoint import listening
from kvd.api.sessions import ForkPoint
from kvd.api.shapes import API_VERSION

if TYPE_CHECKING:
    from pathlib import Path

    from kvd.api.backend import Control

CONNECTIONS_MAX: Final = 256
PACKET_BYTES_MAX: Final = 128 << 10
"""Of a question; an answer to it is never longer."""
NAMES_MAX: Final = 4096
"""Names in one question."""
SEND_S_MAX: Final = 30.0
"""A client that takes nothing for so long is cut off."""
RETRY_S: Final = 0.1
_BUSY: Final = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS, errno.ECONNABORTED, errno.EINTR)
"""What an accept says when there is nothing wrong with the socket itself."""

_log = structlog.get_logger("kvd.api.clients")


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What a packet asks: `op`, and what that takes of the others; `path` is absolute within the mount."""

    op: str
    path: str = ""
    new_path: str = ""
    until: str = ""
    count: int | None = None
    tokens: int | None = None
    bytes_per_token: int = 0
    pin: str = "soft"
    for_s: float = 0.0
    ttl_s: float = 0.0
    refresh: bool = False
    lease: int = 0
    names: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """Who answers."""

    mount: str
    api: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Which names of a question are there: for each a 1 or a 0; or how many of them are, up to the first that is not."""

    there: str = ""
    matched: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """A session's state now."""

    state: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ends:
    """When something ends, in seconds since 1970; 0 for never."""

    expires_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """It is done; of a pin, to so many objects."""

    changed: int = 0


def client_socket(path: Path) -> Path:
    """Return where the clients' socket is, beside the control socket."""
    return path.with_suffix(".client")


async def serve_clients(
    control: Control,
    mount: Path,
    path: Path,
    group: str,
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve clients until cancelled.

    Parameters
    ----------
    control
        Who answers.
    mount
        Where the daemon's mount is.
    path
        Of the socket.
    group
        Who may connect besides the daemon's user.
    task_status
        Started once clients can connect.

    Raises
    ------
    ConfigError, UnavailableError
        See `kvd.api.endpoint.listening`.
    """
    free = trio.Semaphore(CONNECTIONS_MAX)
    with ExitStack() as stack:
        sock = stack.enter_context(listening(path, group, socket.SOCK_SEQPACKET))
        async with trio.open_nursery() as nursery:
            task_status.started()
            while True:
                await free.acquire()
                try:
                    await trio.lowlevel.wait_readable(sock)
                    connection, _ = sock.accept()
                    connection.setblocking(False)
                except BlockingIOError:
                    free.release()
                    continue
                except OSError as error:
                    free.release()
                    if error.errno not in _BUSY:
                        raise
                    _log.info("a client is not accepted now", errno=error.errno)
                    await trio.sleep(RETRY_S)
                    continue
                nursery.start_soon(_Connection(control, mount, connection, free).run)


class _Connection:
    """One client's connection: its questions are answered one after the other."""

    def __init__(self, control: Control, mount: Path, sock: socket.socket, free: trio.Semaphore) -> None:
        self._control = control
        self._mount = mount
        self._sock = sock
        self._free = free

    async def run(self) -> None:
        """Answer until the client goes.

        The socket is used without trio's wrapper: that goes through the loop's scheduler once more for each call.
        """
        sock = self._sock
        try:
            with sock:
                while True:
                    await trio.lowlevel.wait_readable(sock)
                    packet = sock.recv(PACKET_BYTES_MAX + 1)
                    if not packet or not await self._send(await self._answer(packet)):
                        return
        except (OSError, trio.ClosedResourceError) as error:
            _log.debug("client is gone", error=str(error))
        finally:
            self._free.release()

    async def _send(self, packet: bytes) -> bool:
        """Send an answer; False if the client takes nothing."""
        with trio.CancelScope() as scope:
            while True:
                try:
                    self._sock.send(packet)
                except BlockingIOError:
                    scope.deadline = min(scope.deadline, trio.current_time() + SEND_S_MAX)
                    await trio.lowlevel.wait_writable(self._sock)
                else:
                    return True
        return False

    async def _answer(self, packet: bytes) -> bytes:
        try:
            return await self._ask(_question(packet))
        except Exception as error:  # noqa: BLE001  a bug in one answer is one failure, never the end of the connection
            status, failure = wire.failure(error)
            if status == wire.HTTP_INTERNAL and failure.error.code == wire.INTERNAL:
                _log.error("question failed", exc_info=error)
            return msgspec.json.encode(failure)

    async def _ask(self, question: Question) -> bytes:
        sessions = self._control.sessions
        told: object
        match question.op:
            case "lease":
                told = sessions.lease(wire.path_of(question.path), question.for_s, self._sock)
            case "renew":
                told = sessions.renew_lease(question.lease, question.for_s, self._sock)
            case "end":
                sessions.end_lease(question.lease, self._sock)
                told = Done()
            case "exists":
                there = await self._control.exist([wire.path_of(name) for name in _few(question.names)])
                told = Found(there="".join("1" if each else "0" for each in there))
            case "match_prefix":
                folder = question.path.rstrip("/") + "/"
                told = Found(
                    matched=await self._control.match([wire.path_of(folder + name) for name in _few(question.names)])
                )
            case "hello":
                told = Hello(mount=str(self._mount), api=API_VERSION)
            case _:
                return await self._ask_of_session(question)
        return msgspec.json.encode(told)

    async def _ask_of_session(self, question: Question) -> bytes:
        sessions, path = self._control.sessions, wire.path_of(question.path)
        match question.op:
            case "session":
                return wire.dump(sessions.session(path))
            case "release" | "resume" | "prefetch":
                return msgspec.json.encode(State(state=sessions.ask(path, question.op)))
            case "ttl":
                expires_s = sessions.give_time(path, question.ttl_s, refresh=question.refresh)
                return msgspec.json.encode(Ends(expires_s=expires_s))
            case "pin":
                changed = await sessions.pin_session(path, question.pin, for_s=question.for_s)
                return msgspec.json.encode(Done(changed=changed))
            case "fork":
                at = ForkPoint(
                    until=question.until,
                    count=question.count,
                    tokens=question.tokens,
                    bytes_per_token=question.bytes_per_token,
                )
                return wire.dump(await sessions.fork_session(path, wire.path_of(question.new_path), at))
            case "close":
                await sessions.close_session(path)
                return msgspec.json.encode(Done())
            case _:
                raise wire.BadRequestError(f"there is no op {question.op!r}")


def _question(packet: bytes) -> Question:
    if len(packet) > PACKET_BYTES_MAX:
        raise wire.TooLargeError(f"a question has at most {PACKET_BYTES_MAX} bytes")
    try:
        value = json.loads(packet)
        return msgspec.convert(value, Question, strict=False)
    except (ValueError, RecursionError) as error:
        raise wire.BadRequestError(f"the packet is no question: {error}") from error


def _few(names: list[str]) -> list[str]:
    if len(names) > NAMES_MAX:
        raise wire.TooLargeError(f"{len(names)} names in one question; {NAMES_MAX} are allowed")
    return names
