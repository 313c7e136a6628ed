"""One session in memory, and what is known of its objects."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from kvd.session.machine import Facts
from kvdriver.abi import State


class Told(NamedTuple):
    """What is counted of an object in its session's `Facts`, each 0 or 1."""

    open: int = 0
    filling: int = 0
    resident: int = 0
    coming: int = 0
    damaged: int = 0


NOTHING = Told()


class Change(NamedTuple):
    """A session has come from one state to another."""

    ino: int
    before: State
    after: State


@dataclass(slots=True)
class Session:
    """A session in memory.

    Attributes
    ----------
    ino
        Its file or its directory.
    since_s, used_s
        When it came to its state, and when it was used last, by trio's clock.
    members
        Its objects in memory; None of a file, which is its own only one.
    stored
        The catalogue has its state.
    """

    ino: int
    since_s: float
    used_s: float
    state: State = State.NEW
    facts: Facts = field(default_factory=Facts)
    members: set[int] | None = None
    stored: bool = False


class Member(NamedTuple):
    """An object in memory: its session, and what is counted of it there."""

    session: Session
    told: Told
