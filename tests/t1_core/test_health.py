"""The health of an NVMe directory, as a table and as what errors do to it."""

from __future__ import annotations

import errno
import itertools
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvd.tier.health import (
    DOWN,
    TRANSITIONS,
    WRITE_ERRORS_MAX,
    WRITE_ERRORS_S,
    Event,
    Gone,
    Health,
    IllegalEventError,
    ProbeBegan,
    ProbeFailed,
    ProbePassed,
    ReadFailed,
    Slow,
    State,
    TimedOut,
    WriteFailed,
    WritesFailed,
    event_of,
)

EVENTS = tuple(Event.__subclasses__())
TOLD = tuple(event for event in EVENTS if event is not WritesFailed)
"""What others tell; `WritesFailed` is what the machine makes of too many `WriteFailed`."""


def at(state: State) -> Health:
    """Return a machine that is in a state."""
    health = Health(0.0)
    path: dict[State, tuple[type[Event], ...]] = {
        State.ONLINE: (),
        State.SUSPECT: (Slow,),
        State.OFFLINE: (TimedOut,),
        State.PROBING: (TimedOut, ProbeBegan),
    }
    for event in path[state]:
        health.meet(event(why="first"), 1.0)
    assert health.state is state
    return health


@pytest.mark.parametrize(("state", "event"), list(itertools.product(State, TOLD)))
def test_every_pair_is_in_the_table_or_is_refused_and_changes_nothing(state, event):
    health = at(state)
    if (state, event) in TRANSITIONS:
        health.meet(event(why="second"), 2.0)
        assert health.state is TRANSITIONS[state, event]
        return
    before = repr(health)
    with pytest.raises(IllegalEventError, match=f"{event.__name__} while {state.value}"):
        health.meet(event(why="second"), 2.0)
    assert repr(health) == before


def test_only_a_probe_brings_a_directory_back():
    back = {event for (state, event), after in TRANSITIONS.items() if state in DOWN and after not in DOWN}
    assert back == {ProbePassed}
    assert {state for (state, event), after in TRANSITIONS.items() if state in DOWN and after not in DOWN} == {
        State.PROBING
    }


def test_a_change_says_why_and_since_when_and_a_probe_of_an_offline_directory_is_none():
    health = at(State.ONLINE)
    change = health.meet(TimedOut(why="write: no answer"), 5.0)
    assert change is not None
    assert (change.before, change.after, change.why, change.since_s) == (
        State.ONLINE,
        State.OFFLINE,
        "write: no answer",
        5.0,
    )
    assert not health.usable
    for event in (ProbeBegan(), ProbeFailed(why="still"), Gone(why="late"), ProbeBegan()):
        assert health.meet(event, 6.0) is None
    assert (health.since_s, health.why, health.offline_count) == (5.0, "write: no answer", 1)
    change = health.meet(ProbePassed(), 9.0)
    assert change is not None
    assert change.after is State.ONLINE
    assert (health.since_s, health.why, health.usable) == (9.0, "", True)


def test_repeated_failed_writes_turn_it_offline_though_each_probe_passes():
    health = Health(0.0)
    for number in range(WRITE_ERRORS_MAX - 1):
        health.meet(WriteFailed(why="EIO"), float(number))
        assert health.state is State.SUSPECT
        health.meet(ProbePassed(), float(number))
    health.meet(WriteFailed(why="EIO"), float(WRITE_ERRORS_MAX))
    assert health.state is State.OFFLINE


def test_rare_failed_writes_and_any_number_of_failed_reads_do_not():
    health = Health(0.0)
    for number in range(3 * WRITE_ERRORS_MAX):
        now_s = number * WRITE_ERRORS_S / (WRITE_ERRORS_MAX - 1) + number
        health.meet(WriteFailed(why="EIO"), now_s)
        health.meet(ReadFailed(why="EIO"), now_s)
        assert health.state is State.SUSPECT
        health.meet(ProbePassed(), now_s)
        assert health.state is State.ONLINE


@given(st.lists(st.tuples(st.sampled_from(TOLD), st.floats(0, 100))))
def test_whatever_comes_the_state_says_whether_it_is_usable(story):
    health = Health(0.0)
    now_s = 0.0
    for event, passed_s in story:
        now_s += passed_s
        before = health.usable
        try:
            change = health.meet(event(why="x"), now_s)
        except IllegalEventError:
            continue
        assert health.usable is (health.state not in DOWN)
        assert health.usable is before or change is not None
        assert bool(health.why) is (health.state is not State.ONLINE)


@pytest.mark.parametrize(
    ("code", "write", "event"),
    [
        (errno.EIO, True, WriteFailed),
        (errno.EIO, False, ReadFailed),
        (errno.ETIMEDOUT, False, TimedOut),
        (errno.EROFS, True, Gone),
        (errno.ENODEV, False, Gone),
        (errno.ENOTCONN, False, Gone),
        (errno.ENOSPC, True, None),
        (errno.ENOENT, False, None),
        (errno.EMFILE, False, None),
    ],
)
def test_what_an_error_says_of_the_drive(code, write, event):
    found = event_of(OSError(code, os.strerror(code)), write=write, doing="open a file")
    assert type(found) is (type(None) if event is None else event)
    if found is not None:
        assert found.why == f"open a file: {os.strerror(code)}"
