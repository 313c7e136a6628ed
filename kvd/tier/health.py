"""The health of one NVMe directory: what may be asked of it, and what makes that change. Pure: it does no I/O.

`TRANSITIONS` is the whole machine. An event that a state does not know raises `IllegalEventError` and changes nothing.
"""

from __future__ import annotations

import enum
import errno
from collections import deque
from dataclasses import dataclass

from kvd.errors import DRIVE_ERRORS

WRITE_ERRORS_MAX = 4
"""So many failed writes within `WRITE_ERRORS_S` turn a directory offline, also where its probe goes well each time."""
WRITE_ERRORS_S = 60.0
GONE = frozenset({errno.ENODEV, errno.ENXIO, errno.EROFS, errno.ESHUTDOWN, errno.ENOTCONN, errno.ESTALE})
"""What a drive says that is away, a file system that was stopped or has become read-only: no more tries are needed."""


class State(enum.Enum):
    """What is asked of a directory.

    ONLINE: everything. SUSPECT: reads and removals, and new copies only where no other directory takes them; a probe is
    under way. OFFLINE: nothing. PROBING: nothing but the probe.
    """

    ONLINE = "online"
    SUSPECT = "suspect"
    OFFLINE = "offline"
    PROBING = "probing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that was learnt of a directory; `why` is for people."""

    why: str = ""


class ReadFailed(Event):
    """A read met an I/O error: of one bad spot perhaps, so the probe decides."""


class WriteFailed(Event):
    """A write, fsync or change of names met an I/O error."""


class WritesFailed(Event):
    """As `WriteFailed`, and it was one too many."""


class Slow(Event):
    """A request is older than it should be."""


class TimedOut(Event):
    """A request was not answered within the deadline."""


class Gone(Event):
    """The directory is not there, is another one, or is read-only."""


class ProbeBegan(Event):
    """A probe of an offline directory has begun."""


class ProbePassed(Event):
    """What was written, synced and read back is right."""


class ProbeFailed(Event):
    """It is not, or there was no answer."""


class IllegalEventError(Exception):
    """An event that makes no sense in a state; nothing was changed."""


TRANSITIONS: dict[tuple[State, type[Event]], State] = {
    (State.ONLINE, ReadFailed): State.SUSPECT,
    (State.ONLINE, WriteFailed): State.SUSPECT,
    (State.ONLINE, WritesFailed): State.OFFLINE,
    (State.ONLINE, Slow): State.SUSPECT,
    (State.ONLINE, TimedOut): State.OFFLINE,
    (State.ONLINE, Gone): State.OFFLINE,
    (State.SUSPECT, ReadFailed): State.SUSPECT,
    (State.SUSPECT, WriteFailed): State.SUSPECT,
    (State.SUSPECT, WritesFailed): State.OFFLINE,
    (State.SUSPECT, Slow): State.SUSPECT,
    (State.SUSPECT, TimedOut): State.OFFLINE,
    (State.SUSPECT, Gone): State.OFFLINE,
    (State.SUSPECT, ProbePassed): State.ONLINE,
    (State.SUSPECT, ProbeFailed): State.OFFLINE,
    # What was asked before a directory went offline comes back late and changes nothing.
    (State.OFFLINE, ReadFailed): State.OFFLINE,
    (State.OFFLINE, WriteFailed): State.OFFLINE,
    (State.OFFLINE, WritesFailed): State.OFFLINE,
    (State.OFFLINE, Slow): State.OFFLINE,
    (State.OFFLINE, TimedOut): State.OFFLINE,
    (State.OFFLINE, Gone): State.OFFLINE,
    (State.OFFLINE, ProbePassed): State.OFFLINE,
    (State.OFFLINE, ProbeFailed): State.OFFLINE,
    (State.OFFLINE, ProbeBegan): State.PROBING,
    (State.PROBING, ReadFailed): State.PROBING,
    (State.PROBING, WriteFailed): State.PROBING,
    (State.PROBING, WritesFailed): State.PROBING,
    (State.PROBING, Slow): State.PROBING,
    (State.PROBING, TimedOut): State.PROBING,
    (State.PROBING, Gone): State.PROBING,
    (State.PROBING, ProbePassed): State.ONLINE,
    (State.PROBING, ProbeFailed): State.OFFLINE,
}

DOWN = frozenset({State.OFFLINE, State.PROBING})


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A directory became usable, unusable or doubtful; `since_s` is in seconds since 1970."""

    before: State
    after: State
    why: str
    since_s: float


class Health:
    """The machine of one directory.

    Attributes
    ----------
    state
        Where it is.
    since_s
        Since when it has been usable or not, in seconds since 1970; a probe of an offline directory does not change that.
    why
        What turned it suspect or offline; empty while it is online.
    offline_count
        How often it went offline.
    """

    def __init__(self, now_s: float) -> None:
        self.state = State.ONLINE
        self.since_s = now_s
        self.why = ""
        self.offline_count = 0
        self._write_errors_s: deque[float] = deque(maxlen=WRITE_ERRORS_MAX)

    def __repr__(self) -> str:
        return f"<Health {self.state.value} since {self.since_s:.0f}{f': {self.why}' if self.why else ''}>"

    @property
    def usable(self) -> bool:
        """Whether anything may be asked of the directory."""
        return self.state not in DOWN

    def meet(self, event: Event, now_s: float) -> Change | None:
        """Take an event in; return what became different for those who use the directory.

        Raises
        ------
        IllegalEventError
            If the state does not know the event.
        """
        event = self._counted(event, now_s)
        before = self.state
        try:
            after = TRANSITIONS[before, type(event)]
        except KeyError:
            raise IllegalEventError(f"{type(event).__name__} while {before.value}") from None
        self.state = after
        if (before in DOWN) and (after in DOWN):
            return None
        if before is after:
            return None
        self.since_s = now_s
        self.why = "" if after is State.ONLINE else event.why
        self.offline_count += after in DOWN
        return Change(before=before, after=after, why=event.why, since_s=now_s)

    def _counted(self, event: Event, now_s: float) -> Event:
        """Return `WritesFailed` for the failed write that is one too many."""
        if not isinstance(event, WriteFailed):
            return event
        self._write_errors_s.append(now_s)
        oldest_s = self._write_errors_s[0]
        if len(self._write_errors_s) == WRITE_ERRORS_MAX and now_s - oldest_s <= WRITE_ERRORS_S:
            self._write_errors_s.clear()
            return WritesFailed(why=event.why)
        return event


def event_of(error: OSError, *, write: bool, doing: str) -> Event | None:
    """Return what an error of a file operation says of the directory; None for what is no fault of the drive.

    Parameters
    ----------
    write
        Whether something was to be changed.
    doing
        What was tried, for people.
    """
    why = f"{doing}: {error.strerror or error}"
    if error.errno == errno.ETIMEDOUT:
        return TimedOut(why=why)
    if error.errno in GONE:
        return Gone(why=why)
    if error.errno in DRIVE_ERRORS:
        return WriteFailed(why=why) if write else ReadFailed(why=why)
    return None
