"""Copies objects between tier files, off the trio thread: `csrc/mover` with a task that waits for its results.

Each NVMe directory is a *device* with a queue, a thread and buffers of its own, so that one which hangs holds up no other.

A move that was accepted is never left alone: what it reads and writes is kept until its result is here, also when the
task that asked for it is cancelled.
"""

from __future__ import annotations

import errno
import os
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import trio

from kvd.tier._mover import ffi, lib
from kvd.tier.movement import (
    ChecksumError,
    DeviceError,
    DeviceStatistics,
    DeviceTimeoutError,
    Job,
    Kind,
    MoveClass,
    MoveResult,
    MoverStatistics,
    Part,
    error_of,
)
from kvd.tier.mover_handle import Handle

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

__all__ = [
    "ChecksumError",
    "DeviceError",
    "DeviceStatistics",
    "DeviceTimeoutError",
    "Kind",
    "MoveResult",
    "Mover",
    "MoverStatistics",
    "Part",
]

SUM_BYTES = 4
"""Size of one checksum in `sums`."""

STOP_WAIT_S = 10.0
"""How long a cancelled move is waited for; the C side promises far less (KVD_LANE_GRACE_MS)."""


class _Move:
    """A move that C has; it holds all memory that C was given."""

    def __init__(self, move_class: MoveClass, keep: tuple[Any, ...]) -> None:
        self.move_class = move_class
        self.keep = keep
        self.ended = trio.Event()
        self.status: int | None = None  # None: the mover was closed before a result came
        self.bad_page = 0
        self.device = lib.KVD_MOVE_NO_DEVICE
        self.result = MoveResult(moved_bytes=0, duration_s=0.0)


class Mover:
    """Moves objects; made by `open`.

    Methods raise

    - `ChecksumError` when a page is damaged,
    - `DeviceTimeoutError` when a device did not answer in time, or is known not to,
    - `DeviceError` with the errno of the request that a device failed,
    - another `OSError` where no device is to blame: ENOSPC of the DDR file, EINVAL for runs that don't fit the size,
    - `trio.ClosedResourceError` when the mover was closed meanwhile.

    The descriptors stay the caller's, who keeps them open until the call returns or raises.

    An object's side on NVMe is a list of parts: page p is in part ``p * page_bytes // stripe_bytes % len(parts)``, at its
    own offset, and each part's file has the object's length. `stripe_bytes` is not looked at with one part.
    """

    def __init__(self, handle: Handle, *, queue_jobs: int) -> None:
        self._handle = handle
        self._places = {each: trio.Semaphore(queue_jobs, max_value=queue_jobs) for each in MoveClass}
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
        devices: int = 1,
        queue_jobs: int = 64,
        queue_depth: int = 16,
        io_bytes: int = 1 << 20,
        deadline_s: float = 30.0,
        request_deadline_s: float | None = None,
    ) -> AsyncGenerator[Mover, None]:
        """Start the threads; on leaving cancel what still moves and stop them.

        Parameters
        ----------
        page_bytes
            Size of a page, at least 4096, a power of two that divides `io_bytes`.
        devices
            How many there are.
        queue_jobs
            Moves of each class (promotions, those ahead of need, demotions, verifications) that C takes; further callers
            wait their turn.
        queue_depth, io_bytes
            I/O requests in flight for each device, at least 4, and the size of one; their product is its buffer memory.
        deadline_s
            From the moment C takes a move until it fails with ETIMEDOUT.
        request_deadline_s
            How long a device may take for one request; the same if it is not given.

        Raises
        ------
        OSError
            EINVAL for sizes that don't fit, or what setting up io_uring said.
        """
        handle = Handle(
            page_bytes=page_bytes,
            devices=devices,
            queue_jobs=queue_jobs,
            queue_depth=queue_depth,
            io_bytes=io_bytes,
            deadline_s=deadline_s,
            request_deadline_s=request_deadline_s or deadline_s,
        )
        mover = cls(handle, queue_jobs=queue_jobs)
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
                await trio.to_thread.run_sync(mover._handle.close)

    def __repr__(self) -> str:
        state = "closed" if self._closed else "open"
        return f"<Mover {state}, {len(self._moves)} moving, {sum(self._waiting(each) for each in MoveClass)} waiting>"

    async def promote(
        self,
        *,
        parts: Sequence[Part],
        stripe_bytes: int = 0,
        ddr_fd: int,
        size_bytes: int,
        runs: Sequence[tuple[int, int]],
        sums: bytes,
        ahead: bool = False,
        stream_address: int = 0,
    ) -> MoveResult:
        """Copy an object from NVMe to DDR, checking each page before it lands.

        Parameters
        ----------
        parts, ddr_fd
            The NVMe files, readable, and the DDR file, writable; what was in the latter outside the runs stays.
        size_bytes
            Of the object; the DDR file ends there afterwards.
        runs
            ``(first page, number of pages)``, ascending, not overlapping; elsewhere are holes.
        sums
            CRC32C of each page of the runs in order, little-endian; that of a short last page covers its bytes only.
        ahead
            Nobody waits for it yet: it stands behind those that somebody waits for.
        stream_address
            Of a `struct kvd_stream` (csrc/common/stream.h) of the object's pages, or 0: they are marked as they land, in
            the order that its readers want, and its status is set at the end, however this call ends once C has the move.
            It is kept until the call returns or raises.
        """
        return await self._move(
            Job(
                kind=Kind.PROMOTE,
                move_class=MoveClass.AHEAD if ahead else MoveClass.PROMOTE,
                parts=parts,
                stripe_bytes=stripe_bytes,
                ddr_fd=ddr_fd,
                size_bytes=size_bytes,
                runs=runs,
                sums=self._sums(runs, sums),
                flags=lib.KVD_MOVE_AHEAD if ahead else 0,
                stream_address=stream_address,
            )
        )

    async def demote(
        self,
        *,
        ddr_fd: int,
        parts: Sequence[Part],
        stripe_bytes: int = 0,
        size_bytes: int,
        runs: Sequence[tuple[int, int]],
        metadata: bool = True,
        more: bool = False,
    ) -> tuple[MoveResult, bytes]:
        """Copy an object from DDR to fresh files on NVMe and make them durable, with their names if `dir_fd` is given.

        Parameters
        ----------
        metadata
            Make the files' attributes durable, too, not only what reading the bytes needs.
        more
            More of the same files follows: nothing is made durable yet, and `size_bytes`, a whole number of pages, is how far
            they go now.

        Returns
        -------
        MoveResult
            What it took.
        bytes
            The sums, as `promote` wants them.
        """
        sums = bytearray(SUM_BYTES * _pages(runs))
        result = await self._move(
            Job(
                kind=Kind.DEMOTE,
                move_class=MoveClass.DEMOTE,
                parts=parts,
                stripe_bytes=stripe_bytes,
                ddr_fd=ddr_fd,
                size_bytes=size_bytes,
                runs=runs,
                sums=sums,
                flags=(lib.KVD_MOVE_SYNC_METADATA if metadata else 0) | (lib.KVD_MOVE_MORE if more else 0),
            )
        )
        return result, bytes(sums)

    async def verify(
        self,
        *,
        parts: Sequence[Part],
        stripe_bytes: int = 0,
        size_bytes: int,
        runs: Sequence[tuple[int, int]],
        sums: bytes,
    ) -> MoveResult:
        """Read an object on NVMe and check each page, as `promote` does; behind all other moves."""
        return await self._move(
            Job(
                kind=Kind.VERIFY,
                move_class=MoveClass.VERIFY,
                parts=parts,
                stripe_bytes=stripe_bytes,
                size_bytes=size_bytes,
                runs=runs,
                sums=self._sums(runs, sums),
            )
        )

    def statistics(self) -> dict[Kind, MoverStatistics]:
        """Count what happened since the start, for each direction.

        Raises
        ------
        trio.ClosedResourceError
            After the mover was closed.
        """
        self._check_open()
        waiting = dict.fromkeys(Kind, 0)
        for each in MoveClass:
            waiting[each.kind] += self._waiting(each)
        return {kind: self._handle.statistics(kind, waiting[kind]) for kind in Kind}

    def device_statistics(self) -> tuple[DeviceStatistics, ...]:
        """Tell what each device has to do and how long it takes for it.

        Raises
        ------
        trio.ClosedResourceError
            After the mover was closed.
        """
        self._check_open()
        return tuple(self._handle.device(device) for device in range(self._handle.devices))

    def _waiting(self, move_class: MoveClass) -> int:
        return self._places[move_class].statistics().tasks_waiting

    def _check_open(self) -> None:
        if self._closed:
            raise trio.ClosedResourceError("the mover was closed")

    @staticmethod
    def _sums(runs: Sequence[tuple[int, int]], sums: bytes) -> bytes:
        if len(sums) != SUM_BYTES * _pages(runs):
            raise OSError(errno.EINVAL, f"{len(sums)} bytes of sums for {_pages(runs)} pages")
        return sums

    async def _move(self, job: Job) -> MoveResult:
        self._check_open()
        await self._places[job.move_class].acquire()
        move, token = self._submit(job)
        try:
            await move.ended.wait()
        except trio.Cancelled:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + STOP_WAIT_S):
                self._handle.cancel(token)
                await move.ended.wait()
            raise
        if move.status is None or (self._closed and move.status == -errno.ECANCELED):
            raise trio.ClosedResourceError("the mover was closed")
        if move.status < 0:
            raise error_of(move.status, job.kind.name.lower(), move.device, move.bad_page)
        return move.result

    def _submit(self, job: Job) -> tuple[_Move, int]:
        """Hand a move to C; the caller has taken a place, which the result gives back."""
        token = self._next_token
        try:
            self._check_open()
            keep = self._handle.submit(token, job)
        except BaseException:
            self._places[job.move_class].release()
            raise
        self._next_token += 1
        move = self._moves[token] = _Move(job.move_class, keep)
        return move, token

    async def _collect(self) -> None:
        """Hand each result to the task that waits for it."""
        event_fd = self._handle.event_fd
        with self._collecting:
            while True:
                await trio.lowlevel.wait_readable(event_fd)
                os.eventfd_read(event_fd)
                for result in self._handle.results():
                    self._end(result)

    def _end(self, result: Any) -> None:
        move = self._moves.pop(result.token)
        move.status = result.status
        move.bad_page = result.bad_page
        move.device = result.device
        move.result = MoveResult(moved_bytes=result.bytes, duration_s=result.duration_ns / 1e9)
        move.keep = ()
        self._places[move.move_class].release()
        move.ended.set()
        if self._closed and not self._moves:
            self._all_ended.set()

    async def _end_all(self) -> None:
        """Refuse new moves; cancel the others and wait for their results, within a bound."""
        self._closed = True
        if not self._moves:
            return
        for token in self._moves:
            self._handle.cancel(token)
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


def crc32c(data: bytes, crc: int = 0) -> int:
    """Return the CRC32C (RFC 3720) of bytes, as a continuation of that of what is before them."""
    return lib.kvd_mover_crc32c(crc, ffi.from_buffer(data), len(data))


def _pages(runs: Sequence[tuple[int, int]]) -> int:
    return sum(count for _, count in runs)
