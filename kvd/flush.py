"""Flushing DDR to NVMe on the way down: bounded, with progress, losing nothing that was sealed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import trio

from kvd import log
from kvd.errors import BusyError, KvdError

if TYPE_CHECKING:
    from kvd.notify import Notifier
    from kvd.tier.objects import Objects

logger = log.get(__name__)

WORKERS = 4
REPORT_S = 1.0
EXTEND_S = 10.0
"""Asked of systemd with every report, so that a long flush is not mistaken for a hang."""


@dataclass(slots=True)
class Flushed:
    """What a flush came to; `left` objects are only in DDR still."""

    done: int = 0
    total: int = 0
    bytes_done: int = 0
    left: int = 0
    reason: str = ""


async def flush(objects: Objects, *, flush_s: float, notifier: Notifier) -> Flushed:
    """Move every sealed object out of DDR; copy those that are still open for reading.

    What has a writer to the end is not sealed: it stays what its last fsync made it.
    """
    await objects.seal_late()
    lives = objects.lives
    there = [lives.by_ino[ino] for ino in lives.census.resident]
    inos = [live.ino for live in there if live.sealed and not live.damaged]
    result = Flushed(total=len(inos))
    unsealed = len(lives.census.unsealed)
    if unsealed:
        logger.info("objects with a writer keep what their last fsync made durable", objects=unsealed)
    send, receive = trio.open_memory_channel[int](len(inos))
    for ino in inos:
        send.send_nowait(ino)
    send.close()
    if inos:
        _say(result, notifier)
    with trio.move_on_after(flush_s) as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_report, result, notifier)
            async with trio.open_nursery() as workers:
                for _ in range(WORKERS):
                    workers.start_soon(_work, objects, receive.clone(), result)
            nursery.cancel_scope.cancel()
    if scope.cancelled_caught:
        result.reason = f"[daemon] flush: {flush_s:g} s were not enough"
    result.left = objects.count_dirty()
    logger.info("flushed", objects=result.done, bytes=result.bytes_done, left=result.left)
    return result


async def _work(objects: Objects, inos: trio.MemoryReceiveChannel[int], result: Flushed) -> None:
    async for ino in inos:
        try:
            result.bytes_done += await _leave(objects, ino)
            result.done += 1
        except (OSError, KvdError) as error:
            result.reason = str(error)


async def _leave(objects: Objects, ino: int) -> int:
    try:
        return await objects.demote(ino)
    except BusyError:
        return await objects.sync(ino)


async def _report(result: Flushed, notifier: Notifier) -> None:
    while True:
        await trio.sleep(REPORT_S)
        _say(result, notifier)


def _say(result: Flushed, notifier: Notifier) -> None:
    line = f"flushing to NVMe: {result.done} of {result.total} objects, {result.bytes_done >> 20} MiB"
    logger.info(line)
    notifier.status(line)
    notifier.extend(EXTEND_S)
