"""The memory that a promotion shares with its readers."""

import errno
import os

import pytest

from kvd.tier.stream import RUNS, Stream


def descriptors():
    return len(os.listdir("/proc/self/fd"))


def test_what_has_landed_is_counted_and_the_first_end_counts():
    before = descriptors()
    stream = Stream(130)
    assert (stream.landed, stream.status) == (0, RUNS)
    assert stream.address % 8 == 0
    stream.mark(63, 3)
    stream.mark(64, 1)
    stream.mark(129, 1)
    assert stream.landed == 4
    stream.end(-errno.EIO)
    stream.end(0)
    assert stream.status == -errno.EIO
    assert repr(stream) == "<Stream 4 of 130 pages, status -5>"
    stream.close()
    stream.close()
    assert repr(stream) == "<Stream closed>"
    assert descriptors() == before


def test_what_a_hung_thread_may_write_to_stays():
    before = descriptors()
    stream = Stream(1)
    stream.keep()
    stream.close()
    assert descriptors() == before + 1, "its eventfd, too"


def test_no_memory_is_an_error_and_leaves_nothing():
    before = descriptors()
    with pytest.raises(OSError, match="memory"):
        Stream((1 << 64) - 1)
    assert descriptors() == before
