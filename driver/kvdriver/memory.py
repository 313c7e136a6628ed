"""Memory that a card reaches: files mapped here and at an address of the card's own (IOVA)."""

from __future__ import annotations

import bisect
import errno
import mmap
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from kvdriver._vfio import ffi

if TYPE_CHECKING:
    from kvdriver.device import Mappable
    from kvdriver.transport import Transport

HUGE_BYTES: Final = 2 << 20
FIRST_ADDRESS: Final = 4 << 30
"""Above what PCs keep below 4 GiB for themselves, such as the window of MSI."""
PIECE_BYTES_MAX: Final = 1 << 30
"""One batch's buffers are not larger."""


def round_up(count: int, unit: int) -> int:
    """Return the next multiple of `unit`."""
    return -(-count // unit) * unit


class SharedMemory:
    """A file without a name, mapped here, in huge pages where the machine has them.

    Parameters
    ----------
    name
        What /proc shows.
    count
        Bytes; rounded up to huge pages.
    """

    def __init__(self, name: str, count: int) -> None:
        self.bytes = round_up(count, HUGE_BYTES)
        self.fd, self._map, self.huge = _file(name, self.bytes)
        self.view = memoryview(self._map)
        self.address = int(ffi.cast("uintptr_t", ffi.from_buffer(self._map)))

    def __repr__(self) -> str:
        return f"<SharedMemory {self.bytes >> 10} KiB{' in huge pages' if self.huge else ''}>"

    def close(self) -> None:
        """Unmap and close it."""
        if self.fd < 0:
            return
        with suppress(BufferError):  # somebody still looks at it: it goes with the last one
            self.view.release()
            self._map.close()
        os.close(self.fd)
        self.fd = -1


def _file(name: str, count: int) -> tuple[int, mmap.mmap, bool]:
    for flags in (os.MFD_HUGETLB, 0):
        try:
            fd = os.memfd_create(name, os.MFD_CLOEXEC | flags)
        except OSError:
            if flags:
                continue  # a kernel without huge pages
            raise
        try:
            os.ftruncate(fd, count)
            mapping = mmap.mmap(fd, count)  # huge pages that are not to be had fail here
        except OSError:
            os.close(fd)
            if flags:
                continue
            raise
        if not flags:
            with suppress(OSError):
                mapping.madvise(mmap.MADV_HUGEPAGE)
        return fd, mapping, bool(flags)
    raise AssertionError


class FileMemory:
    """A file of somebody else's, mapped here; the caller keeps the descriptor."""

    def __init__(self, fd: int, count: int) -> None:
        self.fd = fd
        self.bytes = count
        self._map = mmap.mmap(fd, count)
        with suppress(OSError):  # in huge pages, if the machine gives files of memory any
            self._map.madvise(mmap.MADV_HUGEPAGE)
        self.address = int(ffi.cast("uintptr_t", ffi.from_buffer(self._map)))

    def __repr__(self) -> str:
        return f"<FileMemory {self.bytes >> 10} KiB>"

    def close(self) -> None:
        """Unmap it."""
        with suppress(BufferError):
            self._map.close()


class AddressSpace:
    """Which addresses of a card are taken, and what of this process is behind them.

    Parameters
    ----------
    transport
        Maps; says which addresses may be used and how many mappings there may be.
    last
        Last address that the card itself reaches; 0: it does not say.
    """

    def __init__(self, transport: Transport, *, last: int = 0) -> None:
        info = transport.info
        self._transport = transport
        self._unit = max(info.page_bytes, HUGE_BYTES)
        self._last = min(info.address_last, last) if last else info.address_last
        first = FIRST_ADDRESS if self._last >= 2 * FIRST_ADDRESS else info.address_first
        self._first = round_up(max(first, info.address_first, self._unit), self._unit)
        self._mappings_max = info.mappings_max
        self._taken: list[tuple[int, int, Mappable]] = []

    def __repr__(self) -> str:
        return f"<AddressSpace {len(self._taken)} of {self._mappings_max} mappings>"

    def map(self, memory: Mappable) -> int:
        """Let the card reach a memory; return its address there.

        Raises
        ------
        OSError
            ENOSPC: no more mappings, or no room below the last address; ENOMEM: the locked-memory limit.
        """
        if len(self._taken) >= self._mappings_max:
            raise OSError(errno.ENOSPC, f"the {self._mappings_max} DMA mappings that there may be are used up")
        at = self._gap(memory.bytes)
        try:
            self._transport.dma_map(memory.address, memory.bytes, at, memory.fd)
        except OSError as error:
            if error.errno != errno.ENOMEM:
                raise
            what = (
                f"{memory.bytes >> 10} KiB more can't be locked: raise the limit (LimitMEMLOCK= in the unit, ulimit -l)"
            )
            raise OSError(errno.ENOMEM, what) from error
        bisect.insort(self._taken, (at, memory.bytes, memory), key=lambda taken: taken[0])
        return at

    def _gap(self, count: int) -> int:
        at = self._first
        for start, length, _ in self._taken:
            if at + count <= start:
                break
            at = round_up(start + length, self._unit)
        if at + count - 1 > self._last:
            raise OSError(
                errno.ENOSPC, f"no {count >> 10} KiB are free below the card's last address, 0x{self._last:x}"
            )
        return at

    def unmap(self, memory: Mappable) -> None:
        """Take a memory back from the card. Failures are `OSError`; it is forgotten all the same."""
        for number, (at, count, known) in enumerate(self._taken):
            if known is memory:
                del self._taken[number]
                self._transport.dma_unmap(at, count)
                return

    def of(self, address: int, count: int) -> int:
        """Return what the card calls a stretch of this process's memory; an address that it can't reach stays as it is."""
        for at, length, memory in self._taken:
            if memory.address <= address and address + count <= memory.address + length:
                return at + address - memory.address
        return address


class Scratch:
    """Buffers of the commands of one batch at a time.

    Parameters
    ----------
    space
        Where larger memory is mapped for what does not fit.
    view, address
        The memory that most batches fit into, and what the card calls it.
    """

    def __init__(self, space: AddressSpace, view: memoryview, address: int) -> None:
        self._space = space
        self._view = view
        self._address = address
        self._used = 0
        self._extra: list[SharedMemory] = []

    def __repr__(self) -> str:
        return f"<Scratch {self._used >> 10} of {self._view.nbytes >> 10} KiB, {len(self._extra)} larger>"

    def take(self, count: int) -> tuple[memoryview, int]:
        """Return `count` zeroed bytes, a multiple of 8, and what the card calls their begin, until `give_back`.

        Raises
        ------
        OSError
            If a large batch's memory is not to be had or mapped.
        """
        if self._used + count <= self._view.nbytes:
            at = self._used
            self._used += count
            self._view[at : at + count] = bytes(count)
            return self._view[at : at + count], self._address + at
        if count > PIECE_BYTES_MAX:
            raise OSError(errno.ENOMEM, f"the buffers of one batch would take {count >> 20} MiB")
        extra = SharedMemory("kvd-batch", count)
        try:
            address = self._space.map(extra)
        except BaseException:
            extra.close()
            raise
        self._extra.append(extra)
        return extra.view[:count], address

    def give_back(self) -> None:
        """End the use of all that was taken; the card has completed what used it."""
        self._used = 0
        while self._extra:
            extra = self._extra.pop()
            try:
                self._space.unmap(extra)
            finally:
                extra.close()

    def abandon(self) -> None:
        """Free the larger memory when the card can't reach it any more."""
        while self._extra:
            self._extra.pop().close()
