"""Asking what may not answer."""

from __future__ import annotations

import errno
import os
import threading

import pytest

from kvd import config_check
from kvd.errors import ConfigError
from kvd.patience import within


def test_what_comes_in_time_is_returned_or_raised():
    assert within(30, lambda: 7) == 7

    def fail():
        raise OSError(errno.EIO, "broken")

    with pytest.raises(OSError, match="broken"):
        within(30, fail)


def test_what_does_not_come_is_left_alone():
    let_go, ended = threading.Event(), threading.Event()

    def hang():
        let_go.wait()
        ended.set()

    with pytest.raises(TimeoutError, match=r"no answer within 0\.01 s"):
        within(0.01, hang)
    assert not ended.is_set()
    let_go.set()
    assert ended.wait(30)


@pytest.mark.parametrize(
    ("table", "code", "refused"),
    [
        ("nvme", errno.EIO, False),
        ("nvme", errno.ENOTCONN, False),
        ("nvme", errno.EACCES, True),
        ("ddr", errno.EIO, True),
    ],
)
def test_only_a_drives_own_errors_are_left_to_the_daemon(tmp_path, monkeypatch, table, code, refused):
    def stat(path, **more):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr("pathlib.Path.stat", stat)

    def check():
        config_check._asking(table, lambda: config_check._check_directory(table, "dirs", tmp_path, set()))

    if refused:
        with pytest.raises(ConfigError, match=os.strerror(code)):
            check()
    else:
        check()
