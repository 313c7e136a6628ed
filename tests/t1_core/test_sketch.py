"""The frequency sketch: never less than the truth, seldom more, in the same memory for ever."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvd.policy.sketch import COUNT_MAX, ROWS, SAMPLE_SHARE, Sketch, key_of

NAMES = st.binary(min_size=1, max_size=4)


@settings(max_examples=50, deadline=None)
@given(st.lists(NAMES, max_size=150))
def test_an_estimate_is_never_less_than_the_truth(names) -> None:
    sketch = Sketch(16)
    for name in names:
        sketch.add(key_of(1, name))
    for name, count in Counter(names).items():
        assert min(count, COUNT_MAX) <= sketch.estimate(key_of(1, name)) <= COUNT_MAX


@settings(max_examples=20, deadline=None)
@given(st.lists(NAMES, min_size=1, max_size=SAMPLE_SHARE * 16, unique=True), st.integers(0, 3))
def test_ageing_halves_and_forgets(names, rounds) -> None:
    sketch = Sketch(64)
    loved = key_of(1, b"loved")
    for _ in range(12):
        sketch.add(loved)
    was = sketch.estimate(loved)
    assert was >= 12
    for number in range(rounds * SAMPLE_SHARE * 64):
        sketch.add(key_of(2, b"%d" % (number % len(names))))
    assert sketch.estimate(loved) >= was >> (2 * rounds)  # half a sample later it is halved again, no oftener


def test_what_nobody_asks_for_is_forgotten() -> None:
    sketch = Sketch(1024)
    once = key_of(1, b"once")
    sketch.add(once)
    busy = key_of(1, b"busy")
    for _ in range(SAMPLE_SHARE * 1024):
        sketch.add(busy)
    assert sketch.estimate(once) == 0
    assert sketch.estimate(busy) >= COUNT_MAX // 2


def test_few_are_taken_for_others() -> None:
    sketch = Sketch(1 << 14)
    for number in range(4000):
        sketch.add(key_of(1, b"seen%d" % number))
    wrong = sum(sketch.estimate(key_of(1, b"new%d" % number)) > 0 for number in range(4000))
    assert wrong < 4000 * 0.01


def test_namespaces_are_apart() -> None:
    sketch = Sketch(1 << 10)
    sketch.add(key_of(1, b"a"))
    assert sketch.estimate(key_of(1, b"a")) == 1
    assert sketch.estimate(key_of(2, b"a")) == 0


def test_its_memory_does_not_grow() -> None:
    sketch = Sketch(64)
    size = sketch.size_bytes
    assert size == ROWS * 64 // 2
    for number in range(5000):
        sketch.add(key_of(number, b"x" * number))
    assert sketch.size_bytes == size


@pytest.mark.parametrize("counters", [0, 8, 17, 100])
def test_counters_are_a_power_of_two(counters) -> None:
    with pytest.raises(ValueError, match="power of two"):
        Sketch(counters)
