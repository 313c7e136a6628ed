"""Promotions of large objects that their readers need not wait for.

An open of a cold object larger than `STREAM_BYTES_MIN` is answered at once: its room is reserved, its DDR file made, and the
split serves what has landed there. The promotion runs in a task of its own. Meanwhile the object is as cold as before for
everybody else, and `Live.streaming` says what is going on:

===========  ==========================================================================================================
None         nothing
runs         the DDR file is being filled; opens for reading join; whoever needs the object whole, or gone, waits
failed       what has landed is read on by those who had it open, the rest is EIO; the file has no name any more
===========  ==========================================================================================================

``runs`` ends under the object's lock: with the object in DDR, or failed; failed ends with the last release, or when another
open brings the object in another way. Nobody waits for an end while he holds the lock (`Streaming.hold`).
"""

from __future__ import annotations

import errno
import os
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import structlog
import trio

from kvd.errors import KvdError, UnavailableError, VanishedError
from kvd.tier.stream import RUNS, Stream
from kvdriver import BLOCK_BYTES, EngineError, Tier

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from kvd.tier.books import Books
    from kvd.tier.copyfiles import CopyFiles
    from kvd.tier.ddr import DdrStore
    from kvd.tier.live import Live
    from kvd.tier.lives import Lives
    from kvd.tier.moves import Moves
    from kvd.tier.plane import DataPlane, Mode, PlaneObject
    from kvd.tier.room import Room

log = structlog.get_logger(__name__)

STREAM_BYTES_MIN = 16 << 20
"""A promotion of less is over within some 20 ms (at 1 GB/s), and then the kernel reads by itself (passthrough)."""


@dataclass(slots=True, eq=False)
class Run:
    """A promotion that readers need not wait for.

    Attributes
    ----------
    fd
        The DDR file; -1 when it has been given away or closed.
    ended
        The promotion is over and what came of it has been settled.
    before
        A failed one whose readers have not been brought over yet.
    """

    stream: Stream
    fd: int
    ahead: bool
    before: Run | None
    failed: bool = False
    ended: trio.Event = field(default_factory=trio.Event)
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)

    @property
    def runs(self) -> bool:
        """Whether readers may join."""
        return not self.failed

    def close(self) -> None:
        """Free what the split no longer looks at."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
        self.stream.close()
        if self.before is not None:
            self.before.close()
            self.before = None


class Streaming:
    """Starts, settles and ends them; `run` owns their tasks.

    Parameters
    ----------
    spec
        What the data plane is to be told of an object.

    Attributes
    ----------
    bytes_min
        Objects that are larger are streamed.
    """

    def __init__(
        self,
        lives: Lives,
        books: Books,
        ddr: DdrStore,
        moves: Moves,
        room: Room,
        plane: DataPlane,
        spec: Callable[[Live, Mode], PlaneObject],
    ) -> None:
        self._lives = lives
        self._books = books
        self._ddr = ddr
        self._moves = moves
        self._room = room
        self._plane = plane
        self._spec = spec
        self.bytes_min = STREAM_BYTES_MIN
        self._nursery: trio.Nursery | None = None
        self._running: set[Run] = set()

    def __repr__(self) -> str:
        return f"<Streaming {len(self._running)} of {self._lives!r}>"

    async def run(self) -> None:
        """Own the promotions, for ever; none is begun before, nor after."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            try:
                await trio.sleep_forever()
            finally:
                self._nursery = None

    def wants(self, live: Live) -> bool:
        """Whether an object is to be streamed when it is opened."""
        return self._nursery is not None and live.tier is Tier.NVME and live.size > self.bytes_min

    @asynccontextmanager
    async def hold(self, ino: int, *, cancel: bool = False, readers: bool = True) -> AsyncIterator[Live]:
        """Lock an object that no promotion runs for, after the end of one that does.

        Parameters
        ----------
        cancel
            End it, if nobody reads.
        readers
            Wait for it also if somebody reads; else yield the object as it is.
        """
        while True:
            async with self._lives.hold(ino) as live:
                run = live.streaming
                if run is None or not run.runs or (live.opens and not readers):
                    yield live
                    return
                if cancel and not live.opens:
                    run.scope.cancel()
            await run.ended.wait()

    async def stop(self) -> None:
        """Begin no more, and end those that run: for the way down, when nobody reads any more."""
        self._nursery = None
        for run in self._running:
            run.scope.cancel()
        for run in list(self._running):
            await run.ended.wait()

    # -- begin and end, under the object's lock --------------------------------------------------------------------

    async def begin(self, live: Live, *, ahead: bool = False, wait_s: float = 0.0) -> bool:
        """Begin to fill the object's DDR file; False if there is no room. The caller tells the data plane.

        But for the demotions that make room, nothing here takes longer for a larger object. With `ahead` nothing is
        demoted; `wait_s` is how long it is waited for room.

        Raises
        ------
        VanishedError
            The copy's file has vanished; so has the object now.
        DamagedError, OfflineError
            It can't be opened, or not now.
        """
        self._moves.check_reachable(live)
        before_blocks = live.reserved_blocks  # of a promotion that failed and is still read
        blocks = live.promoted_blocks
        room = self._room.grant(live, blocks) if ahead else self._room.reserve(live, blocks, wait_s=wait_s)
        if not await room:
            return False
        try:
            files = await self._moves.open_copy(live)
            try:
                self._start(live, files, ahead=ahead)
            except BaseException:
                files.close()
                raise
        except BaseException as error:
            with trio.CancelScope(shield=True):
                if isinstance(error, VanishedError):
                    await self._books.destroy(self._lives.sessions.pop(live.ino))
                else:
                    await self._books.reserve(live, before_blocks)
            raise
        return True

    def _start(self, live: Live, files: CopyFiles, *, ahead: bool) -> None:
        if self._nursery is None:
            raise UnavailableError("kvd is stopping")
        assert live.copy is not None
        fd = self._ddr.create(live.ino)
        try:
            os.ftruncate(fd, live.copy.object_bytes)
            stream = Stream(-(-live.copy.object_bytes // self._books.page_bytes))
        except BaseException:
            os.close(fd)
            self._ddr.file(live.ino).unlink()
            raise
        run = live.streaming = Run(stream=stream, fd=fd, ahead=ahead, before=live.streaming)
        self._running.add(run)
        self._nursery.start_soon(self._promote, live, run, files)

    async def leave(self, live: Live) -> None:
        """Let go of what readers had of a failed promotion: none of them is left, or they have another file now."""
        run = live.streaming
        if run is None:
            return
        if run.runs:
            if run.before is not None:
                run.before.close()
                run.before = None
            return
        live.streaming = None
        run.close()
        if live.tier is not Tier.DDR:
            await self._books.reserve(live, 0)

    # -- the task --------------------------------------------------------------------------------------------------

    async def _promote(self, live: Live, run: Run, files: CopyFiles) -> None:
        known = False
        try:
            async with trio.open_nursery() as nursery:
                with run.scope:
                    # Far ahead of the mover; over before the file is settled, or given up.
                    nursery.start_soon(self._ddr.spares.lay, run.fd, self._moves.extents(live))
                    known = await self._fill(live, run, files)
                nursery.cancel_scope.cancel()
        except Exception:  # a bug costs this promotion, not the mount
            log.exception("promotion failed", ino=live.ino)
        finally:
            files.close()
            with trio.CancelScope(shield=True):
                await self._over(live, run, known=known)

    async def _fill(self, live: Live, run: Run, files: CopyFiles) -> bool:
        """Let the mover fill the DDR file; whether it has given the file back."""
        try:
            await self._moves.stream(live, files, run.fd, run.stream, ahead=run.ahead)
        except trio.ClosedResourceError:
            return False
        except (KvdError, OSError):  # noted where it was met
            pass
        return True

    async def _over(self, live: Live, run: Run, *, known: bool) -> None:
        """Settle what came of a promotion; `known`: the mover has given it back."""
        if run.stream.status == RUNS:
            run.stream.end(-errno.ECANCELED)
            if not known:
                run.stream.keep()
        try:
            async with live.lock:
                if run.stream.status != 0 or not await self._settle(live, run):
                    await self._fail(live, run)
                self._lives.let_go_if_cold(live)
        finally:
            self._running.discard(run)
            run.ended.set()
        self._room.changed()

    async def _settle(self, live: Live, run: Run) -> bool:
        """Make the object one in DDR, for its readers too; False if that can't be."""
        live.ddr_fd, run.fd = run.fd, -1
        try:
            if live.mode is not None:
                await self._plane.object_switch(self._spec(live, live.mode))
            await self._moves.settle_in_ddr(live, live.ddr_fd)
        except (OSError, EngineError) as error:
            log.warning("promoted object can't be kept", ino=live.ino, error=str(error))
            run.fd, live.ddr_fd = live.ddr_fd, -1
            return False
        live.streaming = None
        run.close()
        await self._books.reserve(live, 0)
        live.last_use_s = trio.current_time()
        if live.mode is not None:
            self._plane.object_limit(live.ino, live.mapped_blocks * BLOCK_BYTES)
        else:
            os.close(live.ddr_fd)
            live.ddr_fd = -1
            live.from_nvme = run.ahead
        return True

    async def _fail(self, live: Live, run: Run) -> None:
        """Leave the object cold. Its readers keep what has landed for as long as they have it open."""
        run.failed = True
        os.close(run.fd)
        run.fd = -1
        await self._ddr.remove(live.ino)
        if live.mode is None:
            await self.leave(live)
