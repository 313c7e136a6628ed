"""The fixtures themselves, and the least that a mount must do."""

from __future__ import annotations

import os
import subprocess

import pytest

from support.mounted import Mounted


def test_what_is_written_is_read(folder):
    (folder / "a").write_bytes(b"bytes")
    assert (folder / "a").read_bytes() == b"bytes"
    assert [name.name for name in folder.iterdir()] == ["a"]


def test_only_what_is_worse_than_info_and_unclaimed_counts(tmp_path):
    class Kvd:
        log = tmp_path / "log"

    Kvd.log.write_text(
        '{"level": "info", "event": "a"}\n{"level": "warning", "event": "b"}\n'
        'Traceback: c\n{"level": "error", "event": "mine"}\n{"level": "warn'
    )
    running = Mounted(Kvd)  # type: ignore[arg-type]
    running.claim("mine")
    assert running.unclaimed() == ['{"level": "warning", "event": "b"}', "Traceback: c"]
    assert running.unclaimed() == []
    running.claims.clear()
    with Kvd.log.open("a") as log:
        log.write('ing", "event": "d"}\n')
    with pytest.raises(pytest.fail.Exception, match='"event": "d"'):
        running.check_log()


def test_df_shows_the_tiers(mounted):
    lines = subprocess.run(["df", "-B1", mounted.root], capture_output=True, text=True, check=True).stdout.splitlines()
    numbers = os.statvfs(mounted.root)
    assert lines[1].split()[1] == str(numbers.f_blocks * numbers.f_frsize)
