"""Kills a life in which a window slides before each thing that it does to files or the catalogue, in turn.

A program of its own, because it forks: ``sliding_crash.py FOLDER FIRST STEP``, as `crash_points` (see there). What may be found
is not one content but a rule: each token is what was written or zeroes, each that is told as valid is what was written, and
those that the window needs are valid, for a length that there was.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import structlog
import trio

sys.path.insert(0, str(Path(__file__).parents[1]))

from kvd import fsck
from kvd.catalog.schema import ROOT_INO
from kvd.flush import flush
from kvd.notify import Notifier
from kvd.session.windows import BYTES_PER_TOKEN
from support.crash_points import Points, drop_ddr, fresh, held, in_child
from support.sliding import TOKEN, WINDOW, tokens
from support.tiers import PAGE_BYTES, Tiers, tiers_at

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

DDR_MIB = 4
NAME = b"a"
LENGTHS = (80, 130, 200)
"""Of the file, in tokens, as it grows."""


@cache
def whole() -> bytes:
    return tokens(LENGTHS[-1])


def ino_of(tiers: Tiers) -> int:
    inode = tiers.catalog.names.lookup(ROOT_INO, NAME)
    assert inode is not None
    return inode.ino


def say(tiers: Tiers, **numbers: int) -> None:
    for what, number in numbers.items():
        tiers.sessions.set_number(tiers.catalog.names.inode(ino_of(tiers)), what, number)


async def begin(tiers: Tiers) -> None:
    ino = await tiers.begin(NAME)
    tiers.catalog.names.set_xattr(ino, BYTES_PER_TOKEN, b"%d" % TOKEN, 7)
    say(tiers, sink=3, window=WINDOW)


def grow(number: int) -> Callable[[Tiers], Awaitable[object]]:
    """Return a step in which the file grows to the length of that number, and its window slides."""

    async def act(tiers: Tiers) -> None:
        first = LENGTHS[number - 1] if number else 0
        tiers.write(ino_of(tiers), whole()[first * TOKEN : LENGTHS[number] * TOKEN], first * TOKEN)
        await tiers.sessions.windows.step()

    return act


async def narrow(tiers: Tiers) -> None:
    say(tiers, sink=0)
    await tiers.sessions.windows.step()


async def slide(tiers: Tiers) -> None:
    await tiers.sessions.windows.step()


async def _off(tiers: Tiers) -> None:
    say(tiers, window=0)
    tiers.write(ino_of(tiers), whole()[: LENGTHS[1] * TOKEN])


async def _on(tiers: Tiers, window: int) -> None:
    say(tiers, window=window)
    await tiers.sessions.windows.step()


STEPS: tuple[Callable[[Tiers], Awaitable[object]], ...] = (
    begin,
    grow(0),
    lambda t: t.objects.release(ino_of(t), write=True),
    lambda t: t.objects.fsync(ino_of(t)),
    lambda t: t.objects.open(ino_of(t), write=True),
    grow(1),
    lambda t: t.objects.fsync(ino_of(t)),
    lambda t: t.objects.release(ino_of(t), write=True),
    slide,
    lambda t: t.objects.sync(ino_of(t)),
    narrow,
    lambda t: t.objects.open(ino_of(t), write=True),
    grow(2),
    lambda t: t.objects.release(ino_of(t), write=True),
    lambda t: t.objects.demote(ino_of(t)),
    lambda t: t.read(ino_of(t)),
    lambda t: t.objects.demote(ino_of(t)),
)
COLD_STEPS: tuple[Callable[[Tiers], Awaitable[object]], ...] = (
    begin,
    _off,
    grow(2),
    lambda t: t.objects.release(ino_of(t), write=True),
    lambda t: t.objects.demote(ino_of(t)),
    lambda t: _on(t, 100),
    lambda t: _on(t, WINDOW),
    lambda t: t.objects.promote(ino_of(t)),
    lambda t: _on(t, WINDOW // 2),
)


def live(root: Path, steps: tuple[Callable[[Tiers], Awaitable[object]], ...], points: Points, progress: int) -> None:
    async def run() -> None:
        points.install()
        async with tiers_at(root, ddr_mib=DDR_MIB) as tiers:
            points.watch(tiers)
            for act in steps:
                await act(tiers)
                os.write(progress, b".")
            points.armed = False
            tiers.catalog.db._connection.set_trace_callback(None)

    trio.run(run)


async def look(tiers: Tiers) -> None:
    """See that what is there may be there."""
    if tiers.catalog.names.lookup(ROOT_INO, NAME) is None:
        return
    ino = ino_of(tiers)
    inode = tiers.catalog.names.inode(ino)
    valid = await tiers.sessions.windows.valid(inode)
    content = await tiers.read(ino)
    length = len(content) // TOKEN
    assert len(content) % TOKEN == 0
    assert length in (0, *LENGTHS), length
    assert valid is not None or not length
    there = {token for start, end in valid or () for token in range(start, end)}
    said = tiers.catalog.sessions.get(ino)
    needed = set(range(min(said.sink, length))) | set(range(max(0, length - (said.window or length)), length))
    assert needed <= there, f"{sorted(needed - there)} of {length} are lost"
    for token in range(length):
        found, wrote = (each[token * TOKEN : (token + 1) * TOKEN] for each in (content, whole()))
        assert found == wrote or (token not in there and not any(found)), f"token {token} of {length}"


def recover(root: Path) -> None:
    """Start again, compare, let the window slide, compare again, and stop cleanly."""
    config = None

    async def run() -> None:
        nonlocal config
        async with tiers_at(root, ddr_mib=DDR_MIB) as tiers:
            config = tiers.config
            await look(tiers)
            await tiers.sessions.windows.catch_up()
            await look(tiers)
            await held(tiers)
            result = await flush(tiers.objects, flush_s=30, notifier=Notifier())
            assert result.left == 0, result
        faults = await fsck.check(config, page_bytes=PAGE_BYTES, data=True)
        assert faults == [], faults

    trio.run(run)


def main() -> None:
    top, first, step = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory(), processors=[lambda *_: ""])
    points = 0
    for which, steps in (("grows", STEPS), ("is cold", COLD_STEPS)):
        at, ended = first, False
        while not ended:
            fresh(top / "life")
            status, told = in_child(lambda pipe: live(top / "life", steps, Points(top / "life", at), pipe))  # noqa: B023
            ended = not os.WIFSIGNALED(status)
            if ended and status:
                print(json.dumps({"life": which, "at": at, "step": "life itself", "why": told.decode()}))
                break
            for ddr_lost in (False, True):
                shutil.rmtree(top / "copy", ignore_errors=True)
                subprocess.run(["cp", "-a", top / "life", top / "copy"], check=True)  # keeps holes
                if ddr_lost:
                    drop_ddr(top / "copy")
                status, told_then = in_child(lambda _: recover(top / "copy"))
                if status:
                    fault = {
                        "life": which,
                        "at": at,
                        "step": len(told),
                        "ddr_lost": ddr_lost,
                        "why": told_then.decode(),
                    }
                    print(json.dumps(fault))
            points = max(points, at)
            at += step
    print(json.dumps({"points": points}))


if __name__ == "__main__":
    main()
