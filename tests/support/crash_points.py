"""Kills a scripted life of the tiers before each thing that it does to files or the catalogue, in turn.

A program of its own, because it forks: ``crash_points.py FOLDER FIRST STEP [LADDER]`` kills at the points FIRST, FIRST + STEP,
..., of a life in formats if a ladder of them is given, of one with forks if that is the word.
Every end is looked at twice, with the DDR files as they are (a killed daemon) and without them (a power cut after which
the page cache of NVMe was written). It prints one line of JSON for each fault that it finds, and at last a summary.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import traceback
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog
import trio

sys.path.insert(0, str(Path(__file__).parents[1]))

from kvd import fsck
from kvd.catalog.schema import ROOT_INO
from kvd.flush import flush
from kvd.notify import Notifier
from kvd.tier.mover import Mover
from kvdriver import BLOCK_BYTES, Tier
from support.content import data_blocks
from support.forked_life import a_forked_life, reap
from support.scripted_life import DDR_MIB, Life, Model, a_life, a_stored_life, keep_in_formats, show
from support.tiers import PAGE_BYTES, Tiers, tiers_at

if TYPE_CHECKING:
    from collections.abc import Callable

LADDER_AT = 4
FORKED = "forks"
FILE_EVENTS = frozenset({"open", "os.remove", "os.truncate", "os.utime", "os.mkdir", "os.rename"})
CHANGES = ("INSERT", "UPDATE", "DELETE")


class Points:
    """Counts points in a child process, and kills it before the chosen one."""

    def __init__(self, root: Path, kill_at: int) -> None:
        self._root = str(root)
        self._kill_at = kill_at
        self.count = 0
        self.armed = False

    def install(self) -> None:
        sys.addaudithook(self._audit)
        for name in ("promote", "demote"):
            setattr(Mover, name, self._around(getattr(Mover, name)))

    def watch(self, tiers: Tiers) -> None:
        self._connection = tiers.catalog.db._connection
        self._connection.set_trace_callback(self._trace)
        self.armed = True

    def _hit(self) -> None:
        if self.armed:
            self.count += 1
            if self.count == self._kill_at:
                os.kill(os.getpid(), signal.SIGKILL)

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event in FILE_EVENTS and self.armed:
            changes = event != "open" or (arguments[2] or 0) & os.O_CREAT
            if changes and (isinstance(arguments[0], int) or str(arguments[0]).startswith(self._root)):
                self._hit()

    def _trace(self, statement: str) -> None:
        """Within a transaction only its end matters: before that, it is as if it had not begun."""
        if statement == "COMMIT" or (statement.startswith(CHANGES) and not self._connection.in_transaction):
            self._hit()

    def _around(self, move: Callable[..., Any]) -> Callable[..., Any]:
        async def moved(*args: Any, **more: Any) -> Any:
            self._hit()
            result = await move(*args, **more)
            self._hit()
            return result

        return moved


def in_child(work: Callable[[int], None]) -> tuple[int, bytes]:
    """Run `work` in a fork, giving it a pipe to tell its progress by; return wait status and what it told."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.close(read_end)
            work(write_end)
            code = 0
        except BaseException:  # noqa: BLE001 - the parent reports it
            os.write(write_end, traceback.format_exc(limit=-6).encode()[:60000])
        finally:
            os._exit(code)
    os.close(write_end)
    told = b""
    while part := os.read(read_end, 65536):
        told += part
    os.close(read_end)
    return os.waitpid(pid, 0)[1], told


def live(root: Path, life: Life, points: Points, progress: int) -> None:
    async def run() -> None:
        points.install()
        async with tiers_at(root, ddr_mib=DDR_MIB) as tiers:
            points.watch(tiers)
            for _, act, _ in life.steps:
                await act(tiers)
                os.write(progress, b".")
            points.armed = False
            tiers.catalog.db._connection.set_trace_callback(None)

    trio.run(run)


def recover(root: Path, points: Points | None, allowed: list[Model], *, ddr_lost: bool) -> None:
    """Start again, compare what is there with what may be, and stop cleanly."""
    config = None

    async def run() -> None:
        nonlocal config
        if points is not None:
            points.install()
            points.armed = True
        async with tiers_at(root, ddr_mib=DDR_MIB) as tiers:
            if points is not None:
                points.armed = False
            config = tiers.config
            await held(tiers)
            found = {}
            await reap(tiers)
            for inode in list(chain.from_iterable(tiers.catalog.names.walk(ROOT_INO))):
                name = tiers.catalog.names.path(inode.ino)[1:]
                found[name] = await tiers.read(inode.ino)
                assert len(found[name]) == tiers.catalog.names.inode(inode.ino).size
            assert any(model.allows(found, ddr_lost=ddr_lost) for model in allowed), (
                f"found {show(found)}, before the step {allowed[0]!r}, after it {allowed[1]!r}"
            )
            await held(tiers)
            result = await flush(tiers.objects, flush_s=30, notifier=Notifier())
            assert result.left == 0, result
        faults = await fsck.check(config, page_bytes=PAGE_BYTES, data=True)
        assert faults == [], faults

    trio.run(run)


async def held(tiers: Tiers) -> None:
    """Compare the engine's books with what the files hold."""
    ddr = [path for path in tiers.config.ddr.path.iterdir() if path.suffix != ".json"]
    assert await tiers.used_blocks(Tier.DDR) == sum(path.stat().st_blocks * 512 // BLOCK_BYTES for path in ddr)
    nvme = [path for path in (tiers.config.nvme.dirs[0] / "objects").rglob("*") if path.is_file()]
    assert await tiers.used_blocks(Tier.NVME) == sum(map(data_blocks, nvme))


def fresh(root: Path) -> None:
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir()


def drop_ddr(root: Path) -> None:
    for path in (root / "ddr").iterdir():
        path.unlink()


def main() -> None:
    top, first, step = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory(), processors=[lambda *_: ""])
    ladder = sys.argv[4] if len(sys.argv) > LADDER_AT else ""
    if ladder == FORKED:
        life = a_forked_life()
    elif ladder:
        keep_in_formats(ladder)
        life = a_stored_life(ladder)
    else:
        life = a_life()
    models = life.models()
    at, ended, faults = first, False, 0
    while not ended:
        fresh(top / "life")
        status, told = in_child(lambda pipe: live(top / "life", life, Points(top / "life", at), pipe))  # noqa: B023
        ended = not os.WIFSIGNALED(status)
        done = len(told)
        if ended and status:
            print(json.dumps({"at": at, "step": "life itself", "why": told.decode()}))
            faults += 1
            break
        what = life.steps[done][0] if done < len(life.steps) else "end"
        for ddr_lost in (False, True):
            shutil.rmtree(top / "copy", ignore_errors=True)
            subprocess.run(["cp", "-a", top / "life", top / "copy"], check=True)  # keeps holes
            if ddr_lost:
                drop_ddr(top / "copy")
            allowed = [models[done], models[min(done + 1, len(life.steps))]]
            if at % 7 == 3:  # die again in the middle of that recovery
                points = Points(top / "copy", 1 + at // 7 % 9)
                in_child(lambda _: recover(top / "copy", points, allowed, ddr_lost=ddr_lost))  # noqa: B023
            status, told = in_child(lambda _: recover(top / "copy", None, allowed, ddr_lost=ddr_lost))  # noqa: B023
            if status:
                faults += 1
                print(json.dumps({"at": at, "step": what, "ddr_lost": ddr_lost, "why": told.decode()}))
        at += step
    print(json.dumps({"points": at - 1, "faults": faults}))


if __name__ == "__main__":
    main()
