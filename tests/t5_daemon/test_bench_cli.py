"""``kvctl bench engine``, with few pages: that it measures, what it says, and what it refuses. Not how fast this machine is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvdriver.bench import EngineBench, Measured
from support.kvctl_runs import kvctl

NOWHERE = Path("/nope")
FEW = ("bench", "engine", "--pages", "20000", "--rounds", "1")
KEYS = [
    "translate_mops",
    "map_mops",
    "age_scan_mpte",
    "bytes_per_page",
    "prefix_us",
    "fp8_vs_memcpy",
    "int8_vs_memcpy",
    "fp8_scaled_vs_memcpy",
    "int8_scaled_vs_memcpy",
]


def test_json_is_one_line_of_numbers() -> None:
    done = kvctl(NOWHERE, "--json", *FEW)
    assert (done.returncode, done.stderr, done.stdout.count("\n")) == (0, "", 1)
    found = json.loads(done.stdout)
    assert list(found) == KEYS
    assert all(value > 0 for value in found.values())
    assert 8 <= found["bytes_per_page"] < 16


def test_text_says_what_bar_and_verdict() -> None:
    done = kvctl(NOWHERE, *FEW)
    assert (done.returncode, done.stderr) == (0, "")
    head, *lines = done.stdout.splitlines()
    assert head.split() == ["KEY", "MEASURED", "BAR", "WHAT"]
    assert [line.split()[0] for line in lines] == KEYS
    assert all(" pass " in line or " missed " in line for line in lines)
    [size] = [line for line in lines if line.startswith("bytes_per_page")]
    assert "<= 16" in size
    assert " pass " in size


@pytest.mark.parametrize(
    ("option", "value", "told"),
    [("--pages", "4095", "4096 to 268435456"), ("--pages", "268435457", "4096 to"), ("--rounds", "0", "at least one")],
)
def test_numbers_that_make_no_sense(option: str, value: str, told: str) -> None:
    done = kvctl(NOWHERE, "bench", "engine", option, value)
    assert (done.returncode, done.stdout) == (2, "")
    assert told in done.stderr


@pytest.mark.parametrize(("value", "at_most", "passed"), [(5.0, False, True), (4.9, False, False), (4.9, True, True)])
def test_verdict(value: float, at_most: bool, passed: bool) -> None:
    one = Measured(key="k", what="w", value=value, unit="u", bar=5, at_most=at_most)
    assert one.passed is passed


def test_rounds_alternate() -> None:
    with EngineBench(5000) as bench:
        names = [name for name, per_s in bench.run(2) if per_s > 0]
    assert len(names) == 16
    assert names[:8] == names[8:]
    assert len(set(names)) == 8
