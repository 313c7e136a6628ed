"""One directory of the NVMe tier: every operation on it runs in a thread with a deadline, so that nobody waits for a drive.

A thread that a drive keeps is abandoned, and what it may still bring is disposed of. A directory has few threads of its
own; when all are kept, it is offline anyway.
"""

from __future__ import annotations

import errno
import os
import time
from typing import TYPE_CHECKING, TypeVar

import structlog
import trio

from kvd.catalog.database import FILE_NAME
from kvd.errors import ConfigError
from kvd.tier import marker
from kvd.tier.call import Call
from kvd.tier.health import Event, Gone, Health, State, TimedOut, event_of
from kvd.tier.probing import takes_direct, try_out

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

log = structlog.get_logger(__name__)

T = TypeVar("T")

KEY = "[nvme] dirs"
MARKER = "kvd-nvme.json"
MAGIC = "kvd-nvme"
OBJECTS = "objects"
PROBE = "kvd-probe"
FAN_OUT = 256
"""Folders a level; two levels: 7.5 million files in one folder met ENOSPC with terabytes free elsewhere."""
THREADS_MAX = 8
"""Operations on one directory at once, abandoned ones included."""


class DirectoryOfflineError(OSError):
    """A directory, `device` by number, is not asked, since its drive does not answer or fails: EIO at once."""

    def __init__(self, path: Path, why: str, device: int) -> None:
        super().__init__(errno.EIO, f"{path} is offline: {why}")
        self.device = device


class Directory:
    """One of ``[nvme] dirs``.

    Parameters
    ----------
    copies
        How many copies the catalogue knows in it: then it must be the directory that they are in, so that a drive that is
        not mounted does not look like objects that have vanished.
    known
        The catalogue knows copies in some directory.

    Attributes
    ----------
    uuid
        Of the catalogue.
    marked
        It has a marker; one that is only looked at may be nobody's yet.
    index
        Its place in the list.
    claimed
        It has this catalogue's marker, so what is in it is known to be kvd's.
    device
        `st_dev` of its file system when it was last seen; another one means that its drive is not mounted any more.
    direct
        Whether O_DIRECT works there.
    unswept
        It may hold files that no row knows: something was to be removed that could not be.
    free_bytes, size_bytes
        Of its file system, as last seen.
    changed
        Set, and exchanged, when its health has changed.
    probe_why
        Why the last probe failed.
    moves
        Scopes of what others do on its files; cancelled when it goes offline.
    told
        Hears whether anything may be asked of it, when that may have changed.
    """

    def __init__(
        self,
        path: Path,
        index: int,
        *,
        uuid: str,
        deadline_s: float,
        direct: bool,
        copies: int = 0,
        known: bool = False,
    ) -> None:
        self.path = path
        self.index = index
        self.claimed = False
        self.device = -1
        self.direct = direct
        self.unswept = False
        self.free_bytes = 0
        self.size_bytes = 0
        self.health = Health(time.time())
        self.changed = trio.Event()
        self.probe_why = ""
        self.moves: set[trio.CancelScope] = set()
        self.told: Callable[[bool], object] = lambda _usable: None
        self._copies = copies
        self.marked = True
        self._known = known
        self._wants_direct = direct
        self.uuid = uuid
        self._deadline_s = deadline_s
        self._threads = trio.CapacityLimiter(THREADS_MAX)
        self._prober = trio.CapacityLimiter(1)

    def __repr__(self) -> str:
        return f"<Directory {self.index} {self.path} {self.health!r}>"

    # -- what is learnt ------------------------------------------------------------------------------------------

    def meet(self, event: Event) -> None:
        """Take in what was learnt of the directory; say it where it matters, once."""
        change = self.health.meet(event, time.time())
        if change is None:
            return
        match change.after:
            case State.ONLINE:
                log.info("nvme directory is online", path=str(self.path), was=change.before.value)
            case State.SUSPECT:
                log.info("nvme directory is suspect", path=str(self.path), why=change.why)
            case _:
                log.warning("nvme directory is offline", path=str(self.path), why=change.why)
        self.changed.set()
        self.changed = trio.Event()
        self.told(self.health.usable)
        if not self.health.usable:
            for scope in self.moves:
                scope.cancel()

    def failed(self, error: OSError, *, write: bool, doing: str) -> None:
        """Take in an error of an operation that others did on the directory's files."""
        if isinstance(error, DirectoryOfflineError):
            return
        event = event_of(error, write=write, doing=doing)
        if event is not None:
            self.meet(event)

    # -- operations ----------------------------------------------------------------------------------------------

    def check_usable(self) -> None:
        """Raise `DirectoryOfflineError` if nothing may be asked of the directory."""
        if not self.health.usable:
            raise DirectoryOfflineError(self.path, self.health.why, self.index)

    async def run(
        self,
        action: Callable[[], T],
        *,
        doing: str,
        write: bool,
        dispose: Callable[[T], object] | None = None,
        ended: Callable[[], object] | None = None,
    ) -> T:
        """Do something on the directory in a thread; an error of the drive is taken in and raised.

        Parameters
        ----------
        action
            What to do; runs to its end also where nobody waits for it any more.
        doing
            What it is, for people.
        write
            Whether it changes something: nothing may be put where the drive was.
        dispose
            What is done with a result that comes when nobody waits for it any more; in any thread, so it must not wait.
        ended
            Called when the action has ended, however late; in the thread.

        Raises
        ------
        DirectoryOfflineError
            Before anything was tried.
        OSError
            ETIMEDOUT past the deadline, or what the action met.
        """

        def checked() -> T:
            if write and self.claimed:
                self.check_place()
            return action()

        call = Call(checked, dispose, ended)
        try:
            self.check_usable()
            with trio.move_on_after(self._deadline_s):
                result: T = await trio.to_thread.run_sync(call.run, abandon_on_cancel=True, limiter=self._threads)
                call.take()
                return result
        except OSError as error:
            self.failed(error, write=write, doing=doing)
            raise
        finally:
            call.leave()
        why = f"{doing}: no answer within {self._deadline_s:g} s"
        self.meet(TimedOut(why=why))
        raise OSError(errno.ETIMEDOUT, f"{self.path}: {why}")

    def file(self, ino: int, gen: int) -> Path:
        """Return the path of a copy's file."""
        first, second = ino % FAN_OUT, ino // FAN_OUT % FAN_OUT
        return self.path / OBJECTS / f"{first:02x}" / f"{second:02x}" / f"{ino:x}.{gen:x}"

    def check_place(self) -> None:
        """Check that this is still the directory that was claimed; in a thread.

        Raises
        ------
        OSError
            ENODEV if another file system is there or the marker is gone: the drive was unmounted, so what is missing there
            has not vanished, and nothing may be put there.
        """
        if os.stat(self.path).st_dev != self.device:  # noqa: PTH116 (for each new copy: without a Path's overhead)
            raise OSError(errno.ENODEV, f"{self.path}: its drive is not mounted")

    def check_marker(self) -> None:
        """Check the place by its marker, too; in a thread. Raises as `check_place`."""
        self.check_place()
        try:
            found = marker.read(self.path / MARKER, KEY, MAGIC)
        except ConfigError as error:
            raise OSError(errno.ENODEV, str(error)) from error
        if found is None:
            raise OSError(errno.ENODEV, f"{self.path}: its marker {MARKER} is gone")

    # -- claiming and probing ------------------------------------------------------------------------------------

    async def start(self, *, claim: bool) -> None:
        """Claim the directory and look at it, within the deadline; a drive that does not answer makes it offline.

        Raises
        ------
        ConfigError
            If it can't be this catalogue's.
        """
        try:
            await self.run(lambda: self._look(claim=claim), doing="look at it", write=False)
        except OSError as error:
            if event_of(error, write=False, doing="") is None:
                text = f"{KEY}: {self.path}: {error.strerror}; set a directory kvd can write"
                raise ConfigError(text) from error
            if self.health.usable:
                self.meet(Gone(why=f"look at it: {error.strerror or error}"))

    def _look(self, *, claim: bool) -> None:
        """Claim the directory if it is not yet, and learn what is to be known of it; in a thread."""
        try:
            self._claim(claim=claim)
        except ConfigError as error:
            cause = error.__cause__
            if isinstance(cause, OSError) and event_of(cause, write=False, doing="") is not None:
                raise cause from None  # the drive's, not the operator's
            raise
        self.device = os.stat(self.path).st_dev  # noqa: PTH116
        self.direct = self._wants_direct and takes_direct(self.path / PROBE)
        if self._wants_direct and not self.direct and not self.claimed:
            log.warning("nvme directory without O_DIRECT, using buffered I/O", path=str(self.path))
        self.claimed = True
        self.measure()

    def _claim(self, *, claim: bool) -> None:
        mine = marker.make(MAGIC, uuid=self.uuid, index=self.index)
        found = marker.read(self.path / MARKER, KEY, MAGIC)
        if found is not None and found != mine:
            raise ConfigError(
                f"{KEY}: {self.path} belongs to catalogue {found.get('uuid')} as number {found.get('index')},"
                f" not to {self.uuid} as number {self.index}{self._mend(found)}"
            )
        objects = self.path / OBJECTS
        if found is None and self.claimed:
            raise ConfigError(f"{KEY}: {self.path}: its marker {MARKER} is gone; mount its drive")
        if found is None and self._copies and not objects.is_dir():
            raise ConfigError(
                f"{KEY}: {self.path} is empty, but {count_objects(self._copies)} there by the catalogue; mount its drive"
                f" (where that is lost: mkdir {objects}, and kvd gives up what was on it)"
            )
        self.marked = found is not None or claim
        if not claim:
            return
        try:
            objects.mkdir(exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"{KEY}: can't make {objects}: {error.strerror}; set a directory kvd can write"
            ) from error
        if found is None:
            marker.write(self.path / MARKER, KEY, mine)

    def _mend(self, found: Mapping[str, object]) -> str:
        """Return how a directory and a catalogue that do not belong together came to meet, and what to do."""
        if found.get("uuid") == self.uuid:
            return "; restore the order of the list or set another directory"
        if self._known:
            return "; set another directory"
        return (
            f", which is new: nothing is on NVMe by it; restore the {FILE_NAME} of the objects or set another directory"
        )

    def measure(self) -> None:
        """Learn how much room there is; in a thread. Raises EROFS if it has become read-only."""
        info = os.statvfs(self.path)
        self.size_bytes = info.f_blocks * info.f_frsize
        self.free_bytes = info.f_bavail * info.f_frsize
        if info.f_flag & os.ST_RDONLY:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    async def probe(self) -> bool:
        """Try out whether the drive works; whether it does. Returns within the deadline; a thread that hangs stays.

        While one hangs, no other begins: that one is waited for.
        """

        def attempt() -> None:
            self._look(claim=True)
            try_out(self.path / PROBE)

        why = f"a probe had no answer within {self._deadline_s:g} s"
        with trio.move_on_after(self._deadline_s):
            try:
                await trio.to_thread.run_sync(attempt, abandon_on_cancel=True, limiter=self._prober)
            except OSError as error:
                why = f"a probe failed: {error.strerror or error}"
            except ConfigError as error:
                why = str(error)
            else:
                return True
        self.probe_why = why
        return False


def count_objects(count: int) -> str:
    """Return a number of objects with its verb."""
    return "1 object is" if count == 1 else f"{count} objects are"
