"""The daemon's tiers are killed before each change that they make to a file or a row, in turn."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[1] / "support/crash_points.py"
SHARDS = 4


@pytest.mark.parametrize(("ladder", "points_min"), [("", 60), ("zstd", 30), ("int8", 25), ("forks", 60)])
@pytest.mark.parametrize("shard", range(SHARDS))
def test_a_start_finds_what_the_rules_promise_whenever_the_last_life_ended(tmp_on_tmpfs, shard, ladder, points_min):
    done = subprocess.run(
        [sys.executable, PROGRAM, tmp_on_tmpfs, str(1 + shard), str(SHARDS), *([ladder] if ladder else [])],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0, done.stderr
    faults = [f"point {line['at']}, in {line['step']}: {line['why']}" for line in lines if "why" in line]
    assert not faults, "\n".join(faults[:3])
    assert lines[-1]["points"] > points_min, "the life is long enough to mean something"
