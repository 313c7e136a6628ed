"""A life in which a window slides is killed before each change that it makes to a file or a row, in turn."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[1] / "support/sliding_crash.py"
SHARDS = 5
POINTS_MIN = 45


@pytest.mark.parametrize("shard", range(SHARDS))
def test_tokens_are_what_they_were_or_told_as_given_back_whenever_the_last_life_ended(tmp_on_tmpfs, shard):
    done = subprocess.run(
        [sys.executable, PROGRAM, tmp_on_tmpfs, str(1 + shard), str(SHARDS)],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    faults = [f"{line['life']} {line['at']}, in step {line['step']}: {line['why']}" for line in lines if "why" in line]
    assert not faults, "\n".join(faults[:3])
    assert lines[-1]["points"] > POINTS_MIN, "the life is long enough to mean something"
