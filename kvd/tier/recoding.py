"""Objects on their way into a format and out of it: `csrc/format` in threads of its own, the mover for what is stored.

A stored file is made and read piece by piece: a piece is encoded into memory and moved to the drives while the next one is
encoded; on the way back a piece is fetched and verified while the one before is decoded. So an object needs some pieces of
memory, however long it is, and no thread of a drive ever waits for an encoder (docs/decisions/029).
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol

import trio

from kvd.format.errors import NotStoredFileError
from kvd.format.pieces import HEAD_FIRST_BYTES, decoder, encoder, head_bytes
from kvd.tier.mover import SUM_BYTES
from kvd.tier.storage import punch

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from kvd.catalog.records import Copy
    from kvd.format.model import Plan
    from kvd.format.pieces import Decoder, Encoder
    from kvd.format.store import Report
    from kvd.tier.copyfiles import CopyFiles
    from kvd.tier.mover import Mover
    from kvd.tier.stream import Stream

PIECE_BYTES = 8 << 20
"""Of the stored file at a demotion, of the object at a promotion: some milliseconds of a drive and of a thread."""
STORES_AT_ONCE = 2
"""Of several pieces each; others wait: these come to some 50 MiB."""
FETCHES_AT_ONCE = 4
"""The same."""
SHORT_AT_ONCE = 8
"""Objects of one piece, each way: they never wait for long ones, only for the threads."""
ENCODERS = max(1, (os.cpu_count() or 1) // 2)
"""Threads that encode: demotions leave the other half of the CPUs to the engines."""
DECODERS = max(1, os.cpu_count() or 1)
"""Threads that decode: somebody waits for what they give back."""

Runs = tuple[tuple[int, int], ...]


class Charge(Protocol):
    """Has the tier give room for pages of a stored file that is `size` bytes long by now; ENOSPC if it has none."""

    def __call__(self, runs: Runs, size: int, /) -> Awaitable[None]:
        """Charge them."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Recoded:
    """A stored file that is whole and durable; `object_pages`: the object's that are not all zeros."""

    size: int
    sums: bytes
    report: Report
    object_pages: int


class Recoder:
    """Makes stored files and reads them."""

    def __init__(self, mover: Mover, *, page_bytes: int) -> None:
        self._mover = mover
        self._page_bytes = page_bytes
        self._stores = trio.CapacityLimiter(STORES_AT_ONCE)
        self._fetches = trio.CapacityLimiter(FETCHES_AT_ONCE)
        self._short_stores = trio.CapacityLimiter(SHORT_AT_ONCE)
        self._short_fetches = trio.CapacityLimiter(SHORT_AT_ONCE)
        self._encoders = trio.CapacityLimiter(ENCODERS)
        self._decoders = trio.CapacityLimiter(DECODERS)

    def __repr__(self) -> str:
        return f"<Recoder {self._stores.borrowed_tokens} stored, {self._fetches.borrowed_tokens} fetched>"

    # -- into a format -------------------------------------------------------------------------------------------

    async def store(self, ddr_fd: int, planned: Plan, files: CopyFiles, charge: Charge) -> Recoded:
        """Write an object as a stored file, durably; the head, without which it is none, with the last piece.

        Raises
        ------
        OSError
            ENOSPC from `charge`, EIO for an object that is shorter than the plan, or as `Mover.demote`.
        """
        async with self._short_stores if planned.size <= PIECE_BYTES else self._stores:
            with _staged() as staged_fd, encoder(planned, page_bytes=self._page_bytes) as made:
                return await self._store(ddr_fd, staged_fd, made, files, charge)

    async def _store(self, ddr_fd: int, staged_fd: int, made: Encoder, files: CopyFiles, charge: Charge) -> Recoded:
        head_pages = -(-made.head_bytes // self._page_bytes)
        sums = bytearray()
        moved = ready = head_pages  # pages that are on the drives, and that are encoded
        while not made.done:
            piece = (moved, ready - moved)
            await _both(
                partial(self._encode, made, ddr_fd, staged_fd),
                partial(self._put, staged_fd, piece, files, charge, sums),
            )
            moved, ready = ready, max(ready, made.end // self._page_bytes)
        await trio.to_thread.run_sync(made.head, staged_fd, limiter=self._encoders)
        pages = -(-made.end // self._page_bytes)
        rest: Runs = tuple(run for run in ((0, min(head_pages, pages)), (moved, pages - moved)) if run[1] > 0)
        await charge(rest, made.end)
        _, ends = await self._mover.demote(
            ddr_fd=staged_fd, parts=files.parts, stripe_bytes=files.stripe_bytes, size_bytes=made.end, runs=rest
        )
        cut = SUM_BYTES * rest[0][1]
        return Recoded(
            size=made.end,
            sums=ends[:cut] + bytes(sums) + ends[cut:],
            report=made.report(),
            object_pages=made.object_pages,
        )

    async def _encode(self, made: Encoder, ddr_fd: int, staged_fd: int) -> None:
        await trio.to_thread.run_sync(made.step, ddr_fd, staged_fd, PIECE_BYTES, limiter=self._encoders)

    async def _put(
        self, staged_fd: int, piece: tuple[int, int], files: CopyFiles, charge: Charge, sums: bytearray
    ) -> None:
        """Move encoded pages to the drives, and free their memory."""
        first, count = piece
        if not count:
            return
        end = (first + count) * self._page_bytes
        await charge((piece,), end)
        _, found = await self._mover.demote(
            ddr_fd=staged_fd,
            parts=files.parts,
            stripe_bytes=files.stripe_bytes,
            size_bytes=end,
            runs=(piece,),
            metadata=False,
            more=True,
        )
        sums += found
        punch(staged_fd, first * self._page_bytes, count * self._page_bytes)

    # -- out of it -----------------------------------------------------------------------------------------------

    async def fetch(
        self, copy: Copy, sums: bytes, files: CopyFiles, ddr_fd: int, *, ahead: bool, stream: Stream | None = None
    ) -> int:
        """Give an object back into an empty file, each page verified twice: as it is stored, and as it comes back.

        Parameters
        ----------
        stream
            Its pages are marked as they land, those first that a reader waits for; it is not ended.

        Returns
        -------
        int
            Bytes that were read.

        Raises
        ------
        ChecksumError
            With the page of the stored file.
        StoredFileError
            It passed its checksums, and can't be decoded all the same.
        OSError
            As `Mover.promote`.
        """
        async with self._short_fetches if copy.object_bytes <= PIECE_BYTES else self._fetches:
            source = _Source(self._mover, copy, sums, files, self._page_bytes, ahead=ahead)
            with _staged() as head_fd:
                await self._fetch_head(source, head_fd)
                with decoder(head_fd) as decoding:
                    if (decoding.object_bytes, decoding.page_bytes) != (copy.object_bytes, self._page_bytes):
                        raise NotStoredFileError("its head is of another object")
                    os.ftruncate(ddr_fd, decoding.object_bytes)
                    await _Fetching(source, decoding, ddr_fd, stream, self._decoders).run()
            return source.read_bytes

    async def _fetch_head(self, source: _Source, head_fd: int) -> None:
        if source.size < HEAD_FIRST_BYTES:
            raise NotStoredFileError("it has no head")
        await source.bring(head_fd, 0, HEAD_FIRST_BYTES)
        length = head_bytes(os.pread(head_fd, HEAD_FIRST_BYTES, 0))
        if length > source.size:
            raise NotStoredFileError("its head is longer than the file")
        if length > self._page_bytes:
            await source.bring(head_fd, self._page_bytes, length - self._page_bytes)


class _Source:
    """A stored file, brought in pieces; `read_bytes` counts."""

    def __init__(
        self, mover: Mover, copy: Copy, sums: bytes, files: CopyFiles, page_bytes: int, *, ahead: bool
    ) -> None:
        self._mover = mover
        self._sums = sums
        self._files = files
        self._page_bytes = page_bytes
        self._ahead = ahead
        self.size = copy.size
        self.read_bytes = 0

    async def bring(self, fd: int, offset: int, length: int) -> None:
        """Fetch the pages that have some bytes, verified."""
        first, beyond = offset // self._page_bytes, -(-(offset + length) // self._page_bytes)
        result = await self._mover.promote(
            parts=self._files.parts,
            stripe_bytes=self._files.stripe_bytes,
            ddr_fd=fd,
            size_bytes=self.size,
            runs=((first, beyond - first),),
            sums=self._sums[SUM_BYTES * first : SUM_BYTES * beyond],
            ahead=self._ahead,
            stream_address=0,
        )
        self.read_bytes += result.moved_bytes


class _Fetching:
    """The pieces of one object on their way: one is decoded while the next is brought."""

    def __init__(
        self, source: _Source, decoding: Decoder, ddr_fd: int, stream: Stream | None, threads: trio.CapacityLimiter
    ) -> None:
        self._source = source
        self._decoding = decoding
        self._ddr_fd = ddr_fd
        self._stream_address = 0 if stream is None else stream.address
        self._threads = threads
        page_bytes = decoding.page_bytes
        self._order = _Order(-(-decoding.object_bytes // page_bytes), PIECE_BYTES // page_bytes, stream)
        self._staged: dict[tuple[int, int], int] = {}

    async def run(self) -> None:
        """Bring and decode all of it."""
        try:
            at = self._order.take()
            await self._bring(at)
            while at is not None:
                after = self._order.take()
                await _both(partial(self._decode, at), partial(self._bring, after))
                at = after
        finally:
            for fd in self._staged.values():
                os.close(fd)

    async def _bring(self, piece: tuple[int, int] | None) -> None:
        """Fetch what pages of the object are made of, to its own offsets in a file in memory."""
        if piece is None:
            return
        offset, length = self._decoding.span(*piece)
        self._staged[piece] = fd = os.memfd_create("kvd-piece")
        if length:
            await self._source.bring(fd, offset, length)

    async def _decode(self, piece: tuple[int, int]) -> None:
        await trio.to_thread.run_sync(
            partial(self._decoding.pages, stream_address=self._stream_address),
            self._staged[piece],
            self._ddr_fd,
            *piece,
            limiter=self._threads,
        )
        os.close(self._staged.pop(piece))


class _Order:
    """In which order an object's pieces come: on from where a reader waits, else on from the last one."""

    def __init__(self, pages: int, piece_pages: int, stream: Stream | None) -> None:
        self._pages = pages
        self._piece_pages = piece_pages
        self._stream = stream
        self._left = dict.fromkeys(range(-(-pages // piece_pages)))
        self._next = 0
        self._seen: int | None = None

    def take(self) -> tuple[int, int] | None:
        """Return the first page of a piece and how many it has; None when none is left."""
        if not self._left:
            return None
        wanted = self._stream.wanted if self._stream is not None else None
        if wanted is not None and wanted != self._seen:
            self._seen = wanted
            self._next = min(wanted, self._pages - 1) // self._piece_pages
        number = self._next if self._next in self._left else self._following()
        del self._left[number]
        self._next = number + 1
        first = number * self._piece_pages
        return first, min(self._piece_pages, self._pages - first)

    def _following(self) -> int:
        return next((number for number in self._left if number > self._next), next(iter(self._left)))


@contextmanager
def _staged() -> Iterator[int]:
    """Have a file in memory for what is between an encoder and the mover."""
    fd = os.memfd_create("kvd-piece")
    try:
        yield fd
    finally:
        os.close(fd)


async def _both(first: Callable[[], Awaitable[None]], second: Callable[[], Awaitable[None]]) -> None:
    """Do two things at once; both have ended when this returns, or raises what the first one raised that failed."""
    errors: list[Exception] = []

    async def run(operation: Callable[[], Awaitable[None]]) -> None:
        try:
            await operation()
        except Exception as error:  # noqa: BLE001  raised below, by itself
            errors.append(error)
            nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run, first)
        nursery.start_soon(run, second)
    if errors:
        raise errors[0]
