"""The life of a session: every transition, every event that is refused, and that facts always bring a state into line."""

from __future__ import annotations

import errno
import itertools
import tomllib
from pathlib import Path

import pytest

from kvd.session.machine import ENDED, STEPS_MAX, Facts, Machine, RefusedError, due
from kvdriver.abi import Event, State

SPEC = tomllib.loads((Path(__file__).parents[2] / "driver/spec/session.toml").read_text())
PAIRS = list(itertools.product(State, Event))


@pytest.mark.parametrize(("state", "event"), PAIRS, ids=[f"{s.name}-{e.name}".lower() for s, e in PAIRS])
def test_a_step_is_what_the_description_says_or_is_refused_and_counted(state, event):
    machine = Machine()
    expected = SPEC[state.name.lower()].get(event.name.lower())
    if expected is not None:
        assert machine.step(state, event).name.lower() == expected
        assert not machine.refused
        return
    for count in (1, 2):
        with pytest.raises(RefusedError) as refused:
            machine.step(state, event)
        assert machine.refused == {(state, event): count}
    assert (refused.value.errno, refused.value.state, refused.value.event) == (errno.EBUSY, state, event)


def every_fact():
    for counts in itertools.product((0, 2), repeat=5):
        yield Facts(**dict(zip(("open", "filling", "resident", "coming", "damaged"), counts, strict=True)))


def settled(state, facts):
    """Follow what is due; return the state in which nothing is, and how many events that took."""
    machine = Machine()
    for steps in range(STEPS_MAX + 1):
        event = due(state, facts)
        if event is None:
            return state, steps
        state = machine.step(state, event)
    pytest.fail(f"not in line after {STEPS_MAX} events: {state!r} {facts}")


@pytest.mark.parametrize("state", list(State))
def test_facts_bring_every_state_into_line_by_events_that_can_happen(state):
    for facts in every_fact():
        after, steps = settled(state, facts)
        if state in ENDED:
            assert (after, steps) == (state, 0)
        elif facts.damaged:
            assert after is State.FAULTED
        elif facts.filling and facts.resident:
            assert after is State.FILLING
        elif facts.open and facts.resident:
            assert after is State.ACTIVE
        elif not (facts.resident or facts.coming or facts.open or facts.filling):
            assert after in (State.COLD, State.NEW)


def test_a_session_that_is_read_from_nvme_is_warming_until_nobody_does():
    assert settled(State.COLD, Facts(open=1))[0] is State.WARMING
    assert settled(State.WARMING, Facts())[0] is State.COLD


def test_what_is_idle_stays_so_until_time_or_a_client_says_otherwise():
    for state in (State.IDLE, State.COOLING, State.RELEASED):
        assert settled(state, Facts(resident=1)) == (state, 0)
