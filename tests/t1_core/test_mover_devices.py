"""The mover's devices: stripes, streams, errors and deadlines of each."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import struct
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING

import pytest
import trio

from kvd.tier.mover import ChecksumError, DeviceError, DeviceTimeoutError, Mover, Part
from support.movers import (
    MOVED,
    PAGE,
    PATIENCE_S,
    RUNS,
    SIZE,
    Verify,
    demoted,
    memory_file,
    nvme_file,
    silent_pipe,
    sparse_content,
    until_queued,
    whole,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


async def test_request_deadline() -> None:
    async with Mover.open(page_bytes=PAGE, deadline_s=PATIENCE_S, request_deadline_s=0.02) as mover:
        with silent_pipe() as fd, trio.fail_after(PATIENCE_S / 2), pytest.raises(DeviceTimeoutError):
            await Verify(mover, fd)()


async def test_device_statistics() -> None:
    async with Mover.open(page_bytes=PAGE, devices=2, queue_depth=8) as mover:
        with silent_pipe() as fd:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(Verify(mover, fd, device=1))
                await until_queued(mover, 1)
                with trio.fail_after(PATIENCE_S):
                    while (busy := mover.device_statistics()[1]).oldest_s == 0:
                        await trio.lowlevel.checkpoint()
                assert (busy.queue_depth, busy.in_flight, busy.given_up, busy.queued) == (8, 1, 0, 1)
                idle = mover.device_statistics()[0]
                assert (idle.in_flight, idle.queued, idle.oldest_s) == (0, 0, 0.0)
                nursery.cancel_scope.cancel()
    with pytest.raises(trio.ClosedResourceError):
        mover.device_statistics()


@contextmanager
def striped(folder: Path, count: int) -> Iterator[list[Part]]:
    with ExitStack() as stack:
        yield [
            Part(fd=stack.enter_context(nvme_file(folder / f"part-{k}")), device=k, direct=False) for k in range(count)
        ]


async def test_stripes(tmp_path: Path) -> None:
    content = sparse_content()
    async with Mover.open(page_bytes=PAGE, devices=3) as mover:
        with striped(tmp_path, 3) as parts, memory_file(content) as ddr, memory_file() as back:
            result, sums = await mover.demote(
                ddr_fd=ddr, parts=parts, stripe_bytes=2 * PAGE, size_bytes=SIZE, runs=RUNS, metadata=False
            )
            assert result.moved_bytes == MOVED
            for k in range(3):
                file = (tmp_path / f"part-{k}").read_bytes()
                assert len(file) == SIZE
                for page in range(SIZE // PAGE + 1):
                    own = content[page * PAGE : (page + 1) * PAGE]
                    assert file[page * PAGE : (page + 1) * PAGE] == (own if page // 2 % 3 == k else bytes(len(own)))
            await mover.verify(parts=parts, stripe_bytes=2 * PAGE, size_bytes=SIZE, runs=RUNS, sums=sums)
            await mover.promote(
                parts=parts, stripe_bytes=2 * PAGE, ddr_fd=back, size_bytes=SIZE, runs=RUNS, sums=sums, ahead=True
            )
            assert os.pread(back, SIZE + 1, 0) == content
            os.pwrite(parts[1].fd, b"???", 8 * PAGE)
            with pytest.raises(ChecksumError) as caught:
                await mover.verify(parts=parts, stripe_bytes=2 * PAGE, size_bytes=SIZE, runs=RUNS, sums=sums)
            assert (caught.value.page, caught.value.device) == (8, 1)
        read = [statistics.read_bytes for statistics in mover.device_statistics()]
        assert sum(statistics.written_bytes for statistics in mover.device_statistics()) == MOVED
        assert min(read) > 0


async def test_an_error_names_its_device(tmp_path: Path) -> None:
    async with Mover.open(page_bytes=PAGE, devices=2) as mover:
        with striped(tmp_path, 2) as parts, memory_file(bytes(SIZE)) as ddr:
            folder = os.open(tmp_path, os.O_RDONLY)
            broken = [parts[0], Part(fd=folder, device=1, direct=False)]
            with pytest.raises(DeviceError) as caught:
                await mover.verify(parts=broken, stripe_bytes=PAGE, size_bytes=SIZE, runs=[(1, 1)], sums=bytes(4))
            assert (caught.value.errno, caught.value.device) == (errno.EISDIR, 1)
            with pytest.raises(OSError, match="promote") as other:
                await mover.promote(parts=parts, stripe_bytes=PAGE, ddr_fd=folder, size_bytes=SIZE, runs=[], sums=b"")
            assert not isinstance(other.value, DeviceError)
            os.close(folder)
            with pytest.raises(OSError, match="submit") as twice:
                await mover.demote(ddr_fd=ddr, parts=[parts[0]] * 2, stripe_bytes=PAGE, size_bytes=SIZE, runs=[])
            assert twice.value.errno == errno.EINVAL


class Stream:
    """`struct kvd_stream`, as the one who makes it has it."""

    HEAD = struct.Struct("=QiiQII")

    def __init__(self, pages: int) -> None:
        words = (pages + 63) // 64
        self.fd = os.eventfd(0, os.EFD_NONBLOCK)
        self.memory = mmap.mmap(-1, self.HEAD.size + 8 * words)
        self.memory[: self.HEAD.size] = self.HEAD.pack(pages, self.fd, 1, 0, 0, 0)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))

    @property
    def status(self) -> int:
        return int(self.HEAD.unpack_from(self.memory)[2])

    def landed(self) -> set[int]:
        bits = int.from_bytes(self.memory[self.HEAD.size :], "little")
        return {page for page in range(bits.bit_length()) if bits >> page & 1}


async def test_stream(tmp_path: Path) -> None:
    content = sparse_content()
    pages = SIZE // PAGE + 1
    async with Mover.open(page_bytes=PAGE) as mover:
        with nvme_file(tmp_path / "object") as nvme, memory_file() as back:
            sums = await demoted(mover, tmp_path / "object", nvme, content)
            stream = Stream(pages)
            job = {"ddr_fd": back, "size_bytes": SIZE, "runs": RUNS, "sums": sums}
            await mover.promote(parts=[whole(nvme)], **job, stream_address=stream.address)
            assert (stream.status, stream.landed()) == (0, set(range(pages)))
            stream = Stream(pages)
            with silent_pipe() as fd:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(partial(mover.promote, parts=[whole(fd)], **job, stream_address=stream.address))
                    with trio.fail_after(PATIENCE_S):
                        while stream.landed() != {3, 4}:  # the holes
                            await trio.lowlevel.checkpoint()
                    assert stream.status == 1
                    nursery.cancel_scope.cancel()
            assert (stream.status, stream.landed()) == (-errno.ECANCELED, {3, 4})
            other = Stream(pages + 1)
            with pytest.raises(OSError, match="submit a promote"):
                await mover.promote(parts=[whole(nvme)], **job, stream_address=other.address)
