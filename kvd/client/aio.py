"""The client for programs that run on trio."""

from __future__ import annotations

import socket
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, TypeVar

import trio

from kvd.client import calls, paths
from kvd.client.calls import PACKET_BYTES_MAX, Call, ClientError, Entry, answer_of
from kvd.client.mapping import Mapping

if TYPE_CHECKING:
    import os
    from collections.abc import AsyncIterator, Sequence

T = TypeVar("T")


class TrioClient:
    """As `kvd.client.Client`, without waiting in the loop's way; made by `connect`.

    What touches the mount itself (`map`, `store`) runs in a thread.
    """

    def __init__(self, sock: trio.socket.SocketType) -> None:
        self._socket = sock
        self._turn = trio.Lock()
        self.mount = ""

    def __repr__(self) -> str:
        return f"<TrioClient of {self.mount}>"

    async def _ask(self, call: Call[T]) -> T:
        async with self._turn:
            try:
                with trio.fail_after(call.wait_s):
                    await self._socket.send(call.packet)
                    packet = await self._socket.recv(PACKET_BYTES_MAX + 1)
            except BaseException as error:
                self._socket.close()  # a late answer must not be taken for the next one
                if isinstance(error, OSError | trio.TooSlowError):
                    raise ClientError(f"the daemon does not answer: {error}", "NO_DAEMON") from error
                raise
        return answer_of(call, packet)

    def _inside(self, path: str | os.PathLike[str]) -> str:
        return paths.inside(path, self.mount)

    async def exists(self, names: Sequence[str | os.PathLike[str]]) -> list[bool]:
        """Return which paths there are, in one round trip for each `calls.NAMES_MAX`."""
        inside = [self._inside(name) for name in names]
        return [each for part in calls.batches(inside) for each in await self._ask(calls.exists(part))]

    async def match_prefix(self, folder: str | os.PathLike[str], hashes: Sequence[str]) -> int:
        """Return how many of these names a directory has, up to the first that it has not."""
        matched = 0
        for part in calls.batches(hashes):
            found = await self._ask(calls.match_prefix(self._inside(folder), part))
            matched += found
            if found < len(part):
                break
        return matched

    async def session(self, path: str | os.PathLike[str]) -> Entry:
        """Describe a session."""
        return await self._ask(calls.session(self._inside(path)))

    async def release(self, path: str | os.PathLike[str]) -> str:
        """Say that a session is not needed soon; return its state."""
        return await self._ask(calls.ask("release", self._inside(path)))

    async def resume(self, path: str | os.PathLike[str]) -> str:
        """Say that a session is needed soon; return its state."""
        return await self._ask(calls.ask("resume", self._inside(path)))

    async def prefetch(self, path: str | os.PathLike[str]) -> str:
        """Guess that a session is needed soon; return its state."""
        return await self._ask(calls.ask("prefetch", self._inside(path)))

    async def ttl(self, path: str | os.PathLike[str], ttl_s: float, *, refresh: bool = False) -> float:
        """Give a session, or an object by itself, a time to live from now on; 0 takes it away.

        Returns when it ends, in seconds since 1970.
        """
        return await self._ask(calls.ttl(self._inside(path), ttl_s, refresh=refresh))

    async def pin(self, path: str | os.PathLike[str], kind: str = "soft", *, for_s: float = 0.0) -> int:
        """Pin ``soft`` or ``hard``, or unpin (``none``); return how many objects changed."""
        return await self._ask(calls.pin(self._inside(path), kind, for_s))

    async def fork(
        self,
        path: str | os.PathLike[str],
        new_path: str | os.PathLike[str],
        *,
        until: str | int | None = None,
        tokens: int | None = None,
        bytes_per_token: int = 0,
    ) -> Entry:
        """Make a session that has what another has, up to a point; see `kvd.client.Client.fork`."""
        inside = self._inside(new_path)
        return await self._ask(calls.fork(self._inside(path), inside, until, tokens, bytes_per_token))

    async def end(self, path: str | os.PathLike[str]) -> None:
        """End a session with its content; ``EBUSY`` while somebody uses it."""
        await self._ask(calls.close(self._inside(path)))

    @asynccontextmanager
    async def lease(self, path: str | os.PathLike[str], for_s: float) -> AsyncIterator[int]:
        """Keep an object or a session where it is; yields the lease's number, for `renew`."""
        number = await self._ask(calls.lease(self._inside(path), for_s))
        try:
            yield number
        finally:
            with trio.CancelScope(shield=True):
                try:
                    await self._ask(calls.end(number))
                except ClientError as error:
                    if error.code not in ("ENOENT", "NO_DAEMON"):
                        raise

    async def renew(self, number: int, for_s: float) -> None:
        """Hold a lease for so many seconds from now on; ``ENOENT`` if it is over."""
        await self._ask(calls.renew(number, for_s))

    async def map(self, path: str | os.PathLike[str]) -> Mapping:
        """Map an object."""
        return await trio.to_thread.run_sync(Mapping, paths.outside(self._inside(path), self.mount))

    async def store(
        self, path: str | os.PathLike[str], data: bytes | bytearray | memoryview, *, parent: str | os.PathLike[str] = ""
    ) -> None:
        """Write a new object; it is there whole or not at all. `parent` is the one before it: see `kvd.client.Client.store`."""
        where = paths.outside(self._inside(path), self.mount)
        await trio.to_thread.run_sync(paths.store, where, data, self._inside(parent))


@asynccontextmanager
async def connect(socket_path: str | os.PathLike[str] | None = None) -> AsyncIterator[TrioClient]:
    """Connect to the daemon; see `kvd.client.Client` for the parameter and the errors."""
    where = calls.socket_path(socket_path)
    sock = trio.socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with sock:
        try:
            await sock.connect(where)
        except OSError as error:
            raise ClientError(f"can't reach a daemon at {where}: {error.strerror}", "NO_DAEMON") from error
        client = TrioClient(sock)
        client.mount = await client._ask(calls.hello())  # noqa: SLF001  (of the same file)
        yield client
