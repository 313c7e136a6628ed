"""The mover as the daemon uses it, on a real file system and on memory files."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import pytest
import trio

from kvd.errors import DamagedError
from kvd.tier.extents import held_blocks
from kvd.tier.mover import STOP_WAIT_S, ChecksumError, DeviceTimeoutError, Kind, Mover, MoveResult
from kvd.tier.storage import allocate, punch
from kvdriver import BLOCK_BYTES
from support.movers import (
    MOVED,
    PAGE,
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
from support.needs import need_root

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


async def test_round_trip(tmp_path: Path) -> None:
    content = sparse_content()
    async with Mover.open(page_bytes=PAGE, io_bytes=2 * PAGE) as mover:
        with nvme_file(tmp_path / "object") as nvme, memory_file() as back:
            sums = await demoted(mover, tmp_path / "object", nvme, content)
            assert (tmp_path / "object").read_bytes() == content
            assert len(sums) == 4 * 9
            checked = await mover.verify(parts=[whole(nvme)], size_bytes=SIZE, runs=RUNS, sums=sums)
            assert checked.moved_bytes == MOVED
            moved = await mover.promote(parts=[whole(nvme)], ddr_fd=back, size_bytes=SIZE, runs=RUNS, sums=sums)
            assert isinstance(moved, MoveResult)
            assert os.pread(back, SIZE + 1, 0) == content
        counts = mover.statistics()
        assert [counts[kind].jobs for kind in Kind] == [1, 1, 1]
        assert [counts[kind].moved_bytes for kind in Kind] == [MOVED] * 3
        assert [counts[kind].failed for kind in Kind] == [0, 0, 0]
        assert repr(mover) == "<Mover open, 0 moving, 0 waiting>"
    assert repr(mover) == "<Mover closed, 0 moving, 0 waiting>"


async def test_sums_are_crc32c_little_endian(tmp_path: Path) -> None:
    async with Mover.open(page_bytes=PAGE) as mover:
        with nvme_file(tmp_path / "object") as nvme, memory_file(b"123456789") as ddr:
            _, sums = await mover.demote(ddr_fd=ddr, parts=[whole(nvme)], size_bytes=9, runs=[(0, 1)])
    assert sums == (0xE3069283).to_bytes(4, "little")


async def test_object_without_pages(tmp_path: Path) -> None:
    async with Mover.open(page_bytes=PAGE) as mover:
        with nvme_file(tmp_path / "object") as nvme, memory_file() as ddr:
            result, sums = await mover.demote(ddr_fd=ddr, parts=[whole(nvme)], size_bytes=123, runs=[])
    assert (result.moved_bytes, sums) == (0, b"")
    assert (tmp_path / "object").read_bytes() == bytes(123)


async def test_damaged_page(tmp_path: Path) -> None:
    async with Mover.open(page_bytes=PAGE) as mover:
        with nvme_file(tmp_path / "object") as nvme, memory_file() as back:
            sums = await demoted(mover, tmp_path / "object", nvme, sparse_content())
            os.pwrite(nvme, b"\0" if os.pread(nvme, 1, 7 * PAGE) != b"\0" else b"\1", 7 * PAGE)
            with pytest.raises(ChecksumError, match="page 7") as caught:
                await mover.promote(parts=[whole(nvme)], ddr_fd=back, size_bytes=SIZE, runs=RUNS, sums=sums)
            assert caught.value.page == 7
            assert isinstance(caught.value, DamagedError)
            os.ftruncate(nvme, 0)
            with pytest.raises(ChecksumError):
                await mover.verify(parts=[whole(nvme)], size_bytes=SIZE, runs=RUNS, sums=sums)
        assert mover.statistics()[Kind.PROMOTE].failed == 1


async def test_errors_carry_their_errno(tmp_path: Path) -> None:
    async with Mover.open(page_bytes=PAGE) as mover:
        with memory_file(bytes(PAGE)) as ddr, memory_file() as other:
            with pytest.raises(OSError, match="submit a demote") as caught:
                await mover.demote(ddr_fd=ddr, parts=[whole(other)], size_bytes=1, runs=[(1, 1)])
            assert caught.value.errno == errno.EINVAL
            with pytest.raises(OSError, match="3 bytes of sums for 1 pages") as caught:
                await mover.verify(parts=[whole(ddr)], size_bytes=1, runs=[(0, 1)], sums=b"abc")
            assert caught.value.errno == errno.EINVAL
            with pytest.raises(OSError, match="demote") as caught:
                await mover.demote(ddr_fd=ddr, parts=[whole(other)], size_bytes=PAGE + 1, runs=[(0, 2)])
            assert caught.value.errno == errno.EIO
        # The places of those that failed are free: nothing is left.
        assert {kind: counts.queued for kind, counts in mover.statistics().items()} == dict.fromkeys(Kind, 0)
    with pytest.raises(OSError, match="start the mover"):
        async with Mover.open(page_bytes=PAGE, io_bytes=PAGE + 1):
            pytest.fail("it opened")


async def test_no_space(tmp_path: Path) -> None:
    need_root()
    await trio.run_process(["mount", "-t", "tmpfs", "-o", f"size={2 * PAGE}", "kvd-test", str(tmp_path)])
    try:
        dst = os.open(tmp_path / "object", os.O_RDWR | os.O_CREAT, 0o600)
    finally:
        # Detached, it lives as long as the file is open.
        await trio.run_process(["umount", "--lazy", str(tmp_path)])
    with memory_file(bytes(8 * PAGE)) as ddr:
        async with Mover.open(page_bytes=PAGE, io_bytes=PAGE) as mover:
            with pytest.raises(OSError, match="demote") as caught:
                await mover.demote(ddr_fd=ddr, parts=[whole(dst)], size_bytes=8 * PAGE, runs=[(0, 8)])
    os.close(dst)
    assert caught.value.errno == errno.ENOSPC


async def test_deadline() -> None:
    async with Mover.open(page_bytes=PAGE, deadline_s=0.02) as mover:
        with silent_pipe() as fd, pytest.raises(DeviceTimeoutError, match="verify") as caught:
            await Verify(mover, fd)()
    assert caught.value.errno == errno.ETIMEDOUT
    assert caught.value.device == 0


async def test_cancelled_task_cancels_its_move() -> None:
    async with Mover.open(page_bytes=PAGE) as mover:
        with silent_pipe() as fd:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(Verify(mover, fd))
                await until_queued(mover, 1)
                nursery.cancel_scope.cancel()
            # When the task is gone, so is the move: its descriptor may be closed.
            assert repr(mover) == "<Mover open, 0 moving, 0 waiting>"
        assert mover.statistics()[Kind.VERIFY].failed == 1


async def test_a_cancellation_around_the_mover_does_not_lose_the_results_it_waits_for() -> None:
    with silent_pipe() as fd, trio.CancelScope() as scope:
        async with Mover.open(page_bytes=PAGE) as mover, trio.open_nursery() as nursery:
            nursery.start_soon(Verify(mover, fd))
            await until_queued(mover, 1)
            start_s = trio.current_time()
            scope.cancel()
    assert trio.current_time() - start_s < STOP_WAIT_S / 2


async def test_callers_wait_for_a_place(tmp_path: Path) -> None:
    moves = 200
    content = sparse_content()
    done = []
    async with Mover.open(page_bytes=PAGE, queue_jobs=4, queue_depth=4, io_bytes=2 * PAGE) as mover:
        with nvme_file(tmp_path / "object") as nvme:
            sums = await demoted(mover, tmp_path / "object", nvme, content)

            async def promote() -> None:
                with memory_file() as back:
                    await mover.promote(parts=[whole(nvme)], ddr_fd=back, size_bytes=SIZE, runs=RUNS, sums=sums)
                    done.append(os.pread(back, SIZE + 1, 0) == content)

            async with trio.open_nursery() as nursery:
                for _ in range(moves):
                    nursery.start_soon(promote)
                for _ in range(2):  # the first may come before the new tasks ran
                    await trio.lowlevel.checkpoint()
                assert mover.statistics()[Kind.PROMOTE].callers_waiting > moves / 2
        assert mover.statistics()[Kind.PROMOTE].jobs == moves
    assert done == [True] * moves


async def test_cancelled_while_waiting_for_a_place() -> None:
    async with Mover.open(page_bytes=PAGE, queue_jobs=1) as mover:
        with silent_pipe() as fd:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(Verify(mover, fd))
                await until_queued(mover, 1)
                with trio.move_on_after(0) as scope:
                    await Verify(mover, fd)()
                assert scope.cancelled_caught
                nursery.cancel_scope.cancel()
        assert mover.statistics()[Kind.VERIFY].jobs == 1


async def test_closing_ends_what_moves_and_what_waits() -> None:
    errors: list[BaseException] = []
    with silent_pipe() as fd:

        async def verify(mover: Mover) -> None:
            try:
                await Verify(mover, fd)()
            except (OSError, trio.ClosedResourceError) as error:
                errors.append(error)

        async with trio.open_nursery() as nursery, Mover.open(page_bytes=PAGE, queue_jobs=1) as mover:
            for _ in range(3):
                nursery.start_soon(verify, mover)
            await until_queued(mover, 1)
    assert [type(error) for error in errors] == [trio.ClosedResourceError] * 3
    with pytest.raises(trio.ClosedResourceError):
        await Verify(mover, -1)()
    with pytest.raises(trio.ClosedResourceError):
        mover.statistics()


def test_a_file_gets_storage_that_is_no_data_and_gives_it_back() -> None:
    with memory_file() as fd:
        os.truncate(fd, 0)
        allocate(fd, PAGE, PAGE)
        assert (os.fstat(fd).st_size, held_blocks(fd) * BLOCK_BYTES) == (0, PAGE)
        os.truncate(fd, 2 * PAGE)
        assert os.pread(fd, 2 * PAGE, 0) == bytes(2 * PAGE)
        with pytest.raises(OSError, match="No such device or address"):
            os.lseek(fd, 0, os.SEEK_DATA)
        punch(fd, PAGE, PAGE)
        assert held_blocks(fd) == 0


@pytest.mark.parametrize("change", [allocate, punch])
def test_what_no_file_can_hold_is_refused(change: Callable[[int, int, int], None]) -> None:
    with memory_file() as fd:
        for offset, length in ((2**63, PAGE), (0, 2**63), (0, 0)):
            with pytest.raises(OSError, match="Invalid argument"):
                change(fd, offset, length)
    with pytest.raises(OSError, match="Bad file descriptor"):
        change(-1, 0, PAGE)
