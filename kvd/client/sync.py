"""The client for programs with threads, or with nothing."""

from __future__ import annotations

import socket
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from kvd.client import calls, paths
from kvd.client.calls import ANSWER_S_MAX, PACKET_BYTES_MAX, Call, ClientError, Entry, answer_of
from kvd.client.mapping import Mapping

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Sequence
    from types import TracebackType

T = TypeVar("T")


class Client:
    """A connection to the daemon; may be used by several threads, one question at a time.

    All paths are below the mount point, or absolute within the mount.

    Parameters
    ----------
    socket_path
        The daemon's clients' socket; ``$KVD_CLIENT`` or ``/run/kvd/kvd.client`` if it is not given.

    Raises
    ------
    ClientError
        There is no daemon, or it may not be asked.
    """

    def __init__(self, socket_path: str | os.PathLike[str] | None = None) -> None:
        where = calls.socket_path(socket_path)
        self._lock = threading.Lock()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
        self._socket.settimeout(ANSWER_S_MAX)  # of the connect
        try:
            self._socket.connect(where)
            self.mount = self._ask(calls.hello())
        except OSError as error:
            self._socket.close()
            raise ClientError(f"can't reach a daemon at {where}: {error.strerror}", "NO_DAEMON") from error
        except BaseException:
            self._socket.close()
            raise

    def __repr__(self) -> str:
        return f"<Client of {self.mount}>"

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Hang up. Leases stay until their deadline, or until this process ends."""
        self._socket.close()

    def _ask(self, call: Call[T]) -> T:
        with self._lock:
            try:
                self._socket.settimeout(call.wait_s)
                self._socket.send(call.packet)
                packet = self._socket.recv(PACKET_BYTES_MAX + 1)
            except OSError as error:
                self._socket.close()  # a late answer must not be taken for the next one
                raise ClientError(f"the daemon does not answer: {error}", "NO_DAEMON") from error
        return answer_of(call, packet)

    def _inside(self, path: str | os.PathLike[str]) -> str:
        return paths.inside(path, self.mount)

    # -- names ---------------------------------------------------------------------------------------------------

    def exists(self, names: Sequence[str | os.PathLike[str]]) -> list[bool]:
        """Return which paths there are, in one round trip for each `calls.NAMES_MAX`."""
        inside = [self._inside(name) for name in names]
        return [each for part in calls.batches(inside) for each in self._ask(calls.exists(part))]

    def match_prefix(self, folder: str | os.PathLike[str], hashes: Sequence[str]) -> int:
        """Return how many of these names a directory has, up to the first that it has not: the blocks of a chain."""
        matched = 0
        for part in calls.batches(hashes):
            found = self._ask(calls.match_prefix(self._inside(folder), part))
            matched += found
            if found < len(part):
                break
        return matched

    # -- sessions ------------------------------------------------------------------------------------------------

    def open(self, path: str | os.PathLike[str]) -> Session:
        """Return a session that there is, or the session of an object."""
        inside = self._inside(path)
        self._ask(calls.session(inside))
        return Session(self, inside)

    def create(self, path: str | os.PathLike[str]) -> Session:
        """Make a session that is a directory, if there is none, and return it."""
        inside = self._inside(path)
        paths.outside(inside, self.mount).mkdir(exist_ok=True)
        return self.open(path)

    def session(self, path: str | os.PathLike[str]) -> Entry:
        """Describe a session."""
        return self._ask(calls.session(self._inside(path)))

    def release(self, path: str | os.PathLike[str]) -> str:
        """Say that a session is not needed soon: it goes to NVMe in the background; return its state."""
        return self._ask(calls.ask("release", self._inside(path)))

    def resume(self, path: str | os.PathLike[str]) -> str:
        """Say that a session is needed soon: it comes to DDR in the background; return its state."""
        return self._ask(calls.ask("resume", self._inside(path)))

    def prefetch(self, path: str | os.PathLike[str]) -> str:
        """Guess that a session is needed soon; return its state."""
        return self._ask(calls.ask("prefetch", self._inside(path)))

    def ttl(self, path: str | os.PathLike[str], ttl_s: float, *, refresh: bool = False) -> float:
        """Give a session, or an object by itself, a time to live from now on; 0 takes it away.

        Returns when it ends, in seconds since 1970.
        """
        return self._ask(calls.ttl(self._inside(path), ttl_s, refresh=refresh))

    def pin(self, path: str | os.PathLike[str], kind: str = "soft", *, for_s: float = 0.0) -> int:
        """Pin ``soft`` or ``hard``, or unpin (``none``); return how many objects changed."""
        return self._ask(calls.pin(self._inside(path), kind, for_s))

    def fork(
        self,
        path: str | os.PathLike[str],
        new_path: str | os.PathLike[str],
        *,
        until: str | int | None = None,
        tokens: int | None = None,
        bytes_per_token: int = 0,
    ) -> Session:
        """Make a session that has what another has, up to a point; `code` is ``EBUSY`` while one of its objects has a writer.

        Parameters
        ----------
        path, new_path
            The session, and the new one, which must not be there yet.
        until
            Of a directory the last block's name, or how many; of a file how many bytes. None: all.
        tokens, bytes_per_token
            Of a file how many tokens; as the namespace's layout says where `bytes_per_token` is 0.
        """
        new = self._inside(new_path)
        self._ask(calls.fork(self._inside(path), new, until, tokens, bytes_per_token))
        return Session(self, new)

    def end(self, path: str | os.PathLike[str]) -> None:
        """End a session with its content; ``EBUSY`` while somebody uses it."""
        self._ask(calls.close(self._inside(path)))

    # -- leases and bytes ----------------------------------------------------------------------------------------

    @contextmanager
    def lease(self, path: str | os.PathLike[str], for_s: float) -> Iterator[Lease]:
        """Keep an object or a session where it is: for so many seconds, or until the context or this process ends."""
        lease = Lease(self, self._ask(calls.lease(self._inside(path), for_s)))
        try:
            yield lease
        finally:
            lease.end()

    def map(self, path: str | os.PathLike[str]) -> Mapping:
        """Map an object."""
        return Mapping(paths.outside(self._inside(path), self.mount))

    def store(
        self, path: str | os.PathLike[str], data: bytes | bytearray | memoryview, *, parent: str | os.PathLike[str] = ""
    ) -> None:
        """Write a new object; it is there whole or not at all.

        `parent` is the object before it in its chain, by its name in the same directory or its path; `OSError` if there is none.
        """
        paths.store(paths.outside(self._inside(path), self.mount), data, self._inside(parent))


class Lease:
    """A lease that this process holds."""

    def __init__(self, client: Client, number: int) -> None:
        self._client = client
        self.number = number

    def __repr__(self) -> str:
        return f"<Lease {self.number}>"

    def renew(self, for_s: float) -> None:
        """Hold it for so many seconds from now on; ``ENOENT`` if it is over."""
        self._client._ask(calls.renew(self.number, for_s))  # noqa: SLF001  (of the same file)

    def end(self) -> None:
        """Give it back; harmless when it is over."""
        try:
            self._client._ask(calls.end(self.number))  # noqa: SLF001  (of the same file)
        except ClientError as error:
            if error.code not in ("ENOENT", "NO_DAEMON"):
                raise


class Session:
    """One session, by its path within the mount."""

    def __init__(self, client: Client, path: str) -> None:
        self._client = client
        self.path = path

    def __repr__(self) -> str:
        return f"<Session {self.path}>"

    def describe(self) -> Entry:
        """Describe it."""
        return self._client.session(self.path)

    def store(self, name: str, data: bytes | bytearray | memoryview, *, parent: str | os.PathLike[str] = "") -> None:
        """Write a new object into a session that is a directory; see `Client.store`."""
        self._client.store(f"{self.path}/{name}", data, parent=parent)

    def append(
        self, data: bytes | bytearray | memoryview, *, name: str = "", parent: str | os.PathLike[str] = ""
    ) -> None:
        """Add to a session that is a file; with a `name`, an object after `parent` to one that is a directory."""
        if name:
            self.store(name, data, parent=parent)
            return
        if parent:
            raise ValueError("only a new object, with a name, has a parent")
        paths.append(paths.outside(self.path, self._client.mount), data)

    def release(self) -> str:
        """See `Client.release`."""
        return self._client.release(self.path)

    def resume(self) -> str:
        """See `Client.resume`."""
        return self._client.resume(self.path)

    def fork(
        self,
        new_path: str | os.PathLike[str],
        *,
        until: str | int | None = None,
        tokens: int | None = None,
        bytes_per_token: int = 0,
    ) -> Session:
        """See `Client.fork`."""
        return self._client.fork(self.path, new_path, until=until, tokens=tokens, bytes_per_token=bytes_per_token)

    def end(self) -> None:
        """See `Client.end`."""
        self._client.end(self.path)
