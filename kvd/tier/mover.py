"""Copies objects between tier files, off the trio thread: `csrc/mover` with a task that waits for its results.

A move that was accepted is never left alone: what it reads and writes is kept until its result is here, also when the
task that asked for it is cancelled.
"""

from __future__ import annotations

import enum
import errno
import os
import sys
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import trio

from kvd.errors import DamagedError
from kvd.tier._mover import ffi, lib

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

SUM_BYTES = 4
"""Size of one checksum in `sums`."""

STOP_WAIT_S = 10.0
"""How long a cancelled move is waited for; the C side promises far less (KVD_LANE_GRACE_MS)."""

_REAP_AT_ONCE = 64
_MS_PER_S = 1000

assert sys.byteorder == "little", "sums are stored as the CPU has them"


class Kind(enum.IntEnum):
    """What a move does; the numbers are `enum kvd_mover_kind`."""

    PROMOTE = lib.KVD_MOVE_PROMOTE
    DEMOTE = lib.KVD_MOVE_DEMOTE
    VERIFY = lib.KVD_MOVE_VERIFY


class ChecksumError(DamagedError):
    """A page on NVMe is not what was written there, or is missing.

    Attributes
    ----------
    page
        Number of the page in its object.
    """

    def __init__(self, page: int) -> None:
        super().__init__(f"page {page} failed its checksum")
        self.page = page


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveResult:
    """A move that went well.

    Attributes
    ----------
    moved_bytes
        Copied or checked; holes don't count.
    duration_s
        From start to end of the copy, without the wait in the queue.
    """

    moved_bytes: int
    duration_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MoverStatistics:
    """Of one direction.

    Attributes
    ----------
    jobs, failed
        Moves that ended, and those of them that did not end well.
    moved_bytes, busy_s
        Bytes of all moves, and the time during which at least one was running.
    queued
        Moves that wait or run in C now.
    callers_waiting
        Tasks that wait for a place in the queue.
    """

    jobs: int
    failed: int
    moved_bytes: int
    busy_s: float
    queued: int
    callers_waiting: int


class _Move:
    """A move that C has; it holds all memory that C was given."""

    def __init__(self, kind: Kind, keep: tuple[Any, ...]) -> None:
        self.kind = kind
        self.keep = keep
        self.ended = trio.Event()
        self.status: int | None = None  # None: the mover was closed before a result came
        self.bad_page = 0
        self.result = MoveResult(moved_bytes=0, duration_s=0.0)


class Mover:
    """Moves objects; made by `open`.

    Methods raise `ChecksumError` when a page is damaged, `OSError` with the errno of the failed I/O (ENOSPC, ETIMEDOUT
    after `deadline_s`, EINVAL for runs that don't fit the size) and `trio.ClosedResourceError` when the mover was
    closed meanwhile. The descriptors stay the caller's, who keeps them open until the call returns or raises.
    """

    def __init__(self, handle: Any, *, page_bytes: int, queue_jobs: int, deadline_s: float) -> None:
        self._handle = handle
        self._page_bytes = page_bytes
        self._deadline_ms = round(deadline_s * _MS_PER_S)
        self._places = {kind: trio.Semaphore(queue_jobs, max_value=queue_jobs) for kind in Kind}
        self._moves: dict[int, _Move] = {}
        self._next_token = 0
        self._closed = False
        self._all_ended = trio.Event()
        # Cancelled moves wait for their results, so collecting must outlive a cancellation that comes from outside.
        self._collecting = trio.CancelScope(shield=True)

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        *,
        page_bytes: int,
        queue_jobs: int = 64,
        queue_depth: int = 8,
        io_bytes: int = 1 << 20,
        deadline_s: float = 30.0,
    ) -> AsyncGenerator[Mover, None]:
        """Start the threads; on leaving cancel what still moves and stop them.

        Parameters
        ----------
        page_bytes
            Size of a page, at least 4096, a power of two that divides `io_bytes`.
        queue_jobs
            Moves of each direction that C takes; further callers wait their turn.
        queue_depth, io_bytes
            I/O requests in flight for each direction, and the size of one; their product is buffer memory.
        deadline_s
            From the moment C takes a move until it fails with ETIMEDOUT.

        Raises
        ------
        OSError
            EINVAL for sizes that don't fit, or what setting up io_uring said.
        """
        config = ffi.new(
            "struct kvd_mover_config *",
            {"queue_jobs": queue_jobs, "queue_depth": queue_depth, "io_bytes": io_bytes},
        )
        out = ffi.new("kvd_mover **")
        _check(lib.kvd_mover_init(config, out), "start the mover")
        mover = cls(out[0], page_bytes=page_bytes, queue_jobs=queue_jobs, deadline_s=deadline_s)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(mover._collect)
                try:
                    yield mover
                finally:
                    await mover._end_all()
                    mover._collecting.cancel()
        finally:
            mover._abandon_all()
            # It waits for threads, but never longer than twice the grace time.
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(lib.kvd_mover_fini, mover._handle)

    def __repr__(self) -> str:
        state = "closed" if self._closed else "open"
        return f"<Mover {state}, {len(self._moves)} moving, {sum(self._waiting(kind) for kind in Kind)} waiting>"

    async def promote(
        self,
        *,
        src_fd: int,
        dst_fd: int,
        size_bytes: int,
        runs: Sequence[tuple[int, int]],
        sums: bytes,
        direct: bool,
    ) -> MoveResult:
        """Copy an object from NVMe to DDR, checking each page before it lands.

        Parameters
        ----------
        src_fd, dst_fd
            The NVMe file, readable, and the DDR file, writable; what was in the latter outside the runs stays.
        size_bytes
            Of the object; the DDR file ends there afterwards.
        runs
            ``(first page, number of pages)``, ascending, not overlapping; elsewhere are holes.
        sums
            CRC32C of each page of the runs in order, little-endian; that of a short last page covers its bytes only.
        direct
            `src_fd` was opened with O_DIRECT.
        """
        job = {"src_fd": src_fd, "dst_fd": dst_fd, "dir_fd": -1, "size_bytes": size_bytes, "nvme_direct": direct}
        return await self._move(Kind.PROMOTE, job, runs, self._sums(runs, sums))

    async def demote(
        self,
        *,
        src_fd: int,
        dst_fd: int,
        dir_fd: int | None,
        size_bytes: int,
        runs: Sequence[tuple[int, int]],
        direct: bool,
    ) -> tuple[MoveResult, bytes]:
        """Copy an object from DDR to a fresh file on NVMe and make it durable, with its name if `dir_fd` is given.

        Returns
        -------
        MoveResult
            What it took.
        bytes
            The sums, as `promote` wants them.
        """
        job = {
            "src_fd": src_fd,
            "dst_fd": dst_fd,
            "dir_fd": -1 if dir_fd is None else dir_fd,
            "size_bytes": size_bytes,
            "nvme_direct": direct,
        }
        sums = bytearray(SUM_BYTES * _pages(runs))
        result = await self._move(Kind.DEMOTE, job, runs, sums)
        return result, bytes(sums)

    async def verify(
        self, *, src_fd: int, size_bytes: int, runs: Sequence[tuple[int, int]], sums: bytes, direct: bool
    ) -> MoveResult:
        """Read an object on NVMe and check each page, as `promote` does."""
        job = {"src_fd": src_fd, "dst_fd": -1, "dir_fd": -1, "size_bytes": size_bytes, "nvme_direct": direct}
        return await self._move(Kind.VERIFY, job, runs, self._sums(runs, sums))

    def statistics(self) -> dict[Kind, MoverStatistics]:
        """Count what happened since the start, for each direction.

        Raises
        ------
        trio.ClosedResourceError
            After the mover was closed.
        """
        self._check_open()
        stats = ffi.new("struct kvd_mover_stats *")
        lib.kvd_mover_stats(self._handle, stats)
        return {
            kind: MoverStatistics(
                jobs=stats.jobs[kind],
                failed=stats.failed[kind],
                moved_bytes=stats.bytes[kind],
                busy_s=stats.busy_ns[kind] / 1e9,
                queued=stats.queued[kind],
                callers_waiting=self._waiting(kind),
            )
            for kind in Kind
        }

    def _waiting(self, kind: Kind) -> int:
        return self._places[kind].statistics().tasks_waiting

    def _check_open(self) -> None:
        if self._closed:
            raise trio.ClosedResourceError("the mover was closed")

    @staticmethod
    def _sums(runs: Sequence[tuple[int, int]], sums: bytes) -> bytes:
        if len(sums) != SUM_BYTES * _pages(runs):
            raise OSError(errno.EINVAL, f"{len(sums)} bytes of sums for {_pages(runs)} pages")
        return sums

    async def _move(
        self, kind: Kind, job: dict[str, int], runs: Sequence[tuple[int, int]], sums: bytes | bytearray
    ) -> MoveResult:
        self._check_open()
        await self._places[kind].acquire()
        token = self._submit(kind, job, runs, sums)
        move = self._moves[token]
        try:
            await move.ended.wait()
        except trio.Cancelled:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + STOP_WAIT_S):
                lib.kvd_mover_cancel(self._handle, token)
                await move.ended.wait()
            raise
        if move.status is None or (self._closed and move.status == -errno.ECANCELED):
            raise trio.ClosedResourceError("the mover was closed")
        if move.status == -errno.EBADMSG:
            raise ChecksumError(move.bad_page)
        _check(move.status, kind.name.lower())
        return move.result

    def _submit(self, kind: Kind, job: dict[str, int], runs: Sequence[tuple[int, int]], sums: bytes | bytearray) -> int:
        """Hand a move to C; the caller has taken a place, which the result gives back."""
        try:
            self._check_open()
            token = self._next_token
            c_runs = ffi.new("struct kvd_mover_run[]", list(runs))
            c_sums = ffi.from_buffer("uint32_t[]", sums)
            c_job = ffi.new(
                "struct kvd_mover_job *",
                {
                    **job,
                    "token": token,
                    "kind": kind,
                    "page_bytes": self._page_bytes,
                    "deadline_ms": self._deadline_ms,
                    "n_runs": len(runs),
                    "runs": c_runs,
                    "crc": c_sums,
                },
            )
            _check(lib.kvd_mover_submit(self._handle, c_job), f"submit a {kind.name.lower()}")
        except BaseException:
            self._places[kind].release()
            raise
        self._next_token += 1
        self._moves[token] = _Move(kind, (c_runs, c_sums))
        return token

    async def _collect(self) -> None:
        """Hand each result to the task that waits for it."""
        event_fd = lib.kvd_mover_eventfd(self._handle)
        results = ffi.new("struct kvd_mover_result[]", _REAP_AT_ONCE)
        with self._collecting:
            while True:
                await trio.lowlevel.wait_readable(event_fd)
                os.eventfd_read(event_fd)
                while count := lib.kvd_mover_reap(self._handle, results, _REAP_AT_ONCE):
                    for result in results[0:count]:
                        self._end(result)

    def _end(self, result: Any) -> None:
        move = self._moves.pop(result.token)
        move.status = result.status
        move.bad_page = result.bad_page
        move.result = MoveResult(moved_bytes=result.bytes, duration_s=result.duration_ns / 1e9)
        move.keep = ()
        self._places[move.kind].release()
        move.ended.set()
        if self._closed and not self._moves:
            self._all_ended.set()

    async def _end_all(self) -> None:
        """Refuse new moves; cancel the others and wait for their results, within a bound."""
        self._closed = True
        if not self._moves:
            return
        for token in self._moves:
            lib.kvd_mover_cancel(self._handle, token)
        with trio.CancelScope(shield=True, deadline=trio.current_time() + STOP_WAIT_S):
            await self._all_ended.wait()

    def _abandon_all(self) -> None:
        """Wake those whose result will not come: after `_end_all`, only where a thread hangs in the kernel."""
        self._closed = True
        for move in self._moves.values():
            _ABANDONED.append(move.keep)
            move.ended.set()


_ABANDONED: list[tuple[Any, ...]] = []
"""Memory that a hung thread may still write to, kept until the process ends."""


def punch(fd: int, offset: int, length: int) -> None:
    """Free what a file holds in a range; it reads as zeroes then, and the length stays."""
    _check(lib.kvd_mover_punch(fd, offset, length), "punch")


def _pages(runs: Sequence[tuple[int, int]]) -> int:
    return sum(count for _, count in runs)


def _check(err: int, what: str) -> None:
    if err < 0:
        raise OSError(-err, f"{what}: {os.strerror(-err)}")
