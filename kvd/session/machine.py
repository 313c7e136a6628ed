"""The life of a session: states, events, and the one table of both; pure.

The table is `kvdriver.abi.NEXT_STATE`, generated from ``driver/spec/session.toml`` as the engine's is, so that both agree.
What happens to a session comes from two sides. A client *asks* (release, resume, close): that may be refused. What the tiers
tell are *facts*, and `due` says which events bring a session's state into line with them, one after the other.
"""

from __future__ import annotations

import errno
from collections import Counter
from dataclasses import dataclass
from typing import Final

from kvd.errors import KvdError
from kvdriver.abi import NEXT_STATE, Event, State

STEPS_MAX: Final = 5
"""So many events bring any state into line with any facts (`tests/t1_core/test_session_machine.py` tries all)."""
ENDED: Final = frozenset({State.EXPIRED, State.CLOSED})
"""What is in these has no name any more: facts change nothing of it."""


class RefusedError(KvdError):
    """An event that can't happen in the session's state; the session stays as it is."""

    errno = errno.EBUSY

    def __init__(self, state: State, event: Event) -> None:
        super().__init__(f"{event.name.lower()} can't happen to a session that is {state.name.lower()}")
        self.state = state
        self.event = event


@dataclass(slots=True)
class Facts:
    """What the tiers know of a session's objects, each a count of objects.

    Attributes
    ----------
    open
        Open or mapped, for reading or writing.
    filling
        Not sealed.
    resident
        In DDR, sealed or not.
    coming
        On their way to DDR while they are read already.
    damaged
        In quarantine.
    """

    open: int = 0
    filling: int = 0
    resident: int = 0
    coming: int = 0
    damaged: int = 0


class Machine:
    """Takes steps and counts those that it refuses.

    Attributes
    ----------
    refused
        Events by the state in which they could not happen.
    """

    def __init__(self) -> None:
        self.refused: Counter[tuple[State, Event]] = Counter()

    def __repr__(self) -> str:
        return f"<Machine refused={self.refused.total()}>"

    def step(self, state: State, event: Event) -> State:
        """Return what an event makes of a state.

        Raises
        ------
        RefusedError
            The event can't happen there; it is counted.
        """
        after = NEXT_STATE[state].get(event)
        if after is None:
            self.refused[state, event] += 1
            raise RefusedError(state, event)
        return after


def due(state: State, facts: Facts) -> Event | None:
    """Return the event that is to happen next, given the facts; None when the state is in line with them."""
    if state in ENDED:
        return None
    if facts.damaged or state is State.FAULTED:
        return _due_wrong(state, facts)
    if state in (State.COLD, State.WARMING):
        return _due_away(state, facts)
    if facts.filling or state is State.FILLING:
        return _due_filling(state, facts)
    if facts.open or state is State.ACTIVE:
        return _due_active(state, facts)
    return _due_idle(state, facts)


def _due_wrong(state: State, facts: Facts) -> Event | None:
    """Return what is due when some of it is damaged, or was."""
    if facts.damaged:
        return None if state is State.FAULTED else Event.FAULT
    return Event.REPAIR


def _due_filling(state: State, facts: Facts) -> Event | None:
    """Return what is due when some of it is not sealed, or was not."""
    if facts.filling:
        return None if state is State.FILLING else Event.WRITE
    return Event.SEAL


def _due_active(state: State, facts: Facts) -> Event | None:
    """Return what is due when somebody has some of it open, or had."""
    if not facts.open:
        return Event.CLOSE
    if state is State.ACTIVE:
        return None
    return Event.SEAL if state is State.NEW else Event.OPEN


def _due_away(state: State, facts: Facts) -> Event | None:
    """Return what is due while none of it is taken to be in DDR."""
    if state is State.COLD:
        wanted = facts.resident or facts.coming or facts.open or facts.filling
        return Event.WARM if wanted else None
    if facts.resident:
        return Event.PROMOTED
    return None if facts.coming or facts.open or facts.filling else Event.DEMOTED


def _due_idle(state: State, facts: Facts) -> Event | None:
    """Return what is due while nobody has any of it open."""
    if state is State.NEW:
        return Event.SEAL if facts.resident else None
    if facts.resident or facts.coming:
        return None
    return Event.TICK if state is State.IDLE else Event.DEMOTED
