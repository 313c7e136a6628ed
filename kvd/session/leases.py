"""Leases through the API: who holds one keeps an object or a session where it is, until a deadline or until it dies.

A lease belongs to the process at the other end of the socket, which the kernel names (peer credentials, pidfd); when that process
is gone so are its leases, whatever the deadline. Open files and mappings are leases too, but those the kernel counts.
"""

from __future__ import annotations

import contextlib
import errno
import heapq
import itertools
import os
import socket
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import structlog
import trio

from kvd.errors import InvalidError, KvdError, NotFoundError, UnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvd.api.sessions import Socket
    from kvd.session.sessions import Sessions

log = structlog.get_logger(__name__)

LEASES_MAX = 1 << 17
CLIENT_LEASES_MAX = 1 << 15
CLIENTS_MAX = 1024
LEASE_S_MAX = 86400.0
SO_PEERPIDFD = 77
"""Since Linux 6.5: a pidfd of who connected, which can't be of another process that got the same number later."""
_CREDENTIALS = struct.Struct("3i")
_DESCRIPTOR = struct.Struct("i")


class TooManyLeasesError(KvdError):
    """As many leases, or clients with leases, as there may be."""

    errno = errno.ENOSPC


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """Who is at the other end of a socket: process, user and group, as the kernel says."""

    pid: int
    uid: int
    gid: int

    @classmethod
    def of(cls, sock: Socket) -> Peer:
        """Return who connected a UNIX socket."""
        pid, uid, gid = _CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
        return cls(pid=pid, uid=uid, gid=gid)


def peer_pidfd(sock: Socket, peer: Peer) -> int:
    """Return a pidfd of who connected a socket.

    Raises
    ------
    UnavailableError
        It is gone already, or the kernel can't tell (another PID namespace).
    """
    try:
        (pidfd,) = _DESCRIPTOR.unpack(sock.getsockopt(socket.SOL_SOCKET, SO_PEERPIDFD, _DESCRIPTOR.size))
        return int(pidfd)
    except OSError as error:
        if error.errno not in (errno.ENOPROTOOPT, errno.EINVAL):
            raise UnavailableError(f"process {peer.pid} is gone") from error
    try:
        return os.pidfd_open(peer.pid)
    except OSError as error:
        raise UnavailableError(f"process {peer.pid} can't be watched: {error.strerror}") from error


@dataclass(slots=True)
class Lease:
    """One lease; `deadline_s` by trio's clock."""

    number: int
    ino: int
    client: Client
    deadline_s: float


@dataclass(slots=True)
class Client:
    """A process that has leases, or had; it is watched until it ends."""

    pid: int
    leases: set[int] = field(default_factory=set)
    gone: trio.CancelScope = field(default_factory=trio.CancelScope)


@dataclass(slots=True)
class LeaseCounts:
    """Since the start: leases given, given back, over by their deadline, lost with their process."""

    given: int = 0
    ended: int = 0
    overdue: int = 0
    lost: int = 0


class Leases:
    """Gives and ends them.

    Attributes
    ----------
    on_free
        Hears of an inode that nobody holds any more.
    """

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        self._leases: dict[int, Lease] = {}
        self._clients: dict[int, Client] = {}
        self._deadlines: list[tuple[float, int]] = []
        self._numbers = itertools.count(1)
        self._nursery: trio.Nursery | None = None
        self._wake = trio.Event()
        self.counts = LeaseCounts()
        self.on_free: Callable[[int], None] = lambda _ino: None

    def __repr__(self) -> str:
        return f"<Leases {len(self._leases)} of {len(self._clients)} clients>"

    def __len__(self) -> int:
        return len(self._leases)

    def give(self, ino: int, for_s: float, sock: Socket) -> Lease:
        """Give a lease of an object or a session to the process that connected `sock`.

        Parameters
        ----------
        ino
            The file or the directory.
        for_s
            Seconds until it ends by itself; `renew` puts that off.
        sock
            Their connection.

        Raises
        ------
        TooManyLeasesError
            There are as many as may be.
        UnavailableError
            The process is gone, or can't be watched.
        """
        _check(for_s)
        peer = Peer.of(sock)
        client = self._clients.get(peer.pid)
        if len(self._leases) >= LEASES_MAX or (client is not None and len(client.leases) >= CLIENT_LEASES_MAX):
            raise TooManyLeasesError("too many leases; give some back")
        if client is None:
            client = self._watch(sock, peer)
        lease = Lease(next(self._numbers), ino, client, trio.current_time() + for_s)
        self._leases[lease.number] = lease
        client.leases.add(lease.number)
        self._expect(lease)
        self._sessions.hold(ino, 1)
        self.counts.given += 1
        return lease

    def _watch(self, sock: Socket, peer: Peer) -> Client:
        if len(self._clients) >= CLIENTS_MAX:
            idle = next((each for each in self._clients.values() if not each.leases), None)
            if idle is None:
                raise TooManyLeasesError("too many processes have leases")
            del self._clients[idle.pid]
            idle.gone.cancel()
        if self._nursery is None:
            raise UnavailableError("leases are not given any more")
        pidfd = peer_pidfd(sock, peer)
        client = self._clients[peer.pid] = Client(peer.pid)
        self._nursery.start_soon(self._until_gone, client, pidfd)
        return client

    def renew(self, number: int, for_s: float, pid: int) -> Lease:
        """Put a lease's end off to so many seconds from now; `NotFoundError` if `pid` has no such lease."""
        _check(for_s)
        lease = self._of(number, pid)
        lease.deadline_s = trio.current_time() + for_s
        self._expect(lease)
        return lease

    def end(self, number: int, pid: int) -> None:
        """Take a lease back; `NotFoundError` if `pid` has no such lease (any more)."""
        self._drop(self._of(number, pid))
        self.counts.ended += 1

    def _of(self, number: int, pid: int) -> Lease:
        lease = self._leases.get(number)
        if lease is None or lease.client.pid != pid:
            raise NotFoundError(f"process {pid} has no lease {number}: it is over")
        return lease

    def of(self, ino: int) -> int:
        """Return how many there are of an inode."""
        return self._sessions.held[ino]

    def _expect(self, lease: Lease) -> None:
        heapq.heappush(self._deadlines, (lease.deadline_s, lease.number))
        if self._deadlines[0][1] == lease.number:
            self._wake.set()
        if len(self._deadlines) > 2 * len(self._leases) + 64:  # renewed ones leave their old entries behind
            self._deadlines = [(each.deadline_s, each.number) for each in self._leases.values()]
            heapq.heapify(self._deadlines)

    def _drop(self, lease: Lease) -> None:
        del self._leases[lease.number]
        lease.client.leases.discard(lease.number)
        self._sessions.hold(lease.ino, -1)
        if not self._sessions.held[lease.ino]:
            self.on_free(lease.ino)

    # -- ending --------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """End leases whose deadline or whose process is gone, for ever."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            try:
                while True:
                    self._wake = trio.Event()
                    wait_s = self._end_overdue()
                    with trio.move_on_after(wait_s):
                        await self._wake.wait()
            finally:
                self._nursery = None

    def _end_overdue(self) -> float:
        """End those whose deadline is over; return how long the next one has, in seconds."""
        now_s = trio.current_time()
        while self._deadlines:
            deadline_s, number = self._deadlines[0]
            lease = self._leases.get(number)
            if lease is not None and lease.deadline_s == deadline_s:
                if deadline_s > now_s:
                    return deadline_s - now_s
                self._drop(lease)
                self.counts.overdue += 1
            heapq.heappop(self._deadlines)
        return float("inf")

    async def _until_gone(self, client: Client, pidfd: int) -> None:
        """Wait for the end of a process; then its leases end."""
        try:
            with client.gone:
                await trio.lowlevel.wait_readable(pidfd)
        finally:
            with contextlib.suppress(OSError):
                os.close(pidfd)
        if client.gone.cancelled_caught:
            return
        del self._clients[client.pid]
        lost = [self._leases[number] for number in client.leases]
        for lease in lost:
            self._drop(lease)
        self.counts.lost += len(lost)
        if lost:
            log.info("a client is gone and its leases with it", process=client.pid, leases=len(lost))


def _check(for_s: float) -> None:
    if not 0 < for_s <= LEASE_S_MAX:
        raise InvalidError(f"a lease lasts more than 0 and at most {LEASE_S_MAX:.0f} s")
