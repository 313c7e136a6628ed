"""`make conformance` tells a device that fails, or passes fewer tests than another."""

from __future__ import annotations

import conformance
import pytest

SAID = "noise\nCONFORMANCE in-process 72 passed\nCONFORMANCE vfio-user:/tmp/a/card.sock 7 passed\n"


@pytest.mark.parametrize(
    ("device", "count"), [("in-process", 72), ("vfio-user:/tmp/a/card.sock", 7), ("vfio:0000:01:00.0", None)]
)
def test_the_count_is_a_device_s_own(device: str, count: int | None) -> None:
    assert conformance.passed(device, SAID) == count


@pytest.mark.parametrize(
    ("runs", "told"),
    [
        ({"in-process": (0, 72), "card": (0, 72)}, []),
        ({"in-process": (0, 72), "card": (0, 71)}, ["not the same tests have passed: 72 on in-process, 71 on card"]),
        ({"in-process": (1, 72), "card": (0, 72)}, ["in-process: the suite failed (pytest's status 1)"]),
        ({"in-process": (0, 0), "card": (0, 0)}, ["in-process: no test has passed", "card: no test has passed"]),
        (
            {"in-process": (0, 72), "card": (2, None)},
            [
                "card: the suite failed (pytest's status 2)",
                "card: no test has passed",
                "not the same tests have passed: 72 on in-process, None on card",
            ],
        ),
    ],
)
def test_what_is_wrong_is_told(runs: dict[str, tuple[int, int | None]], told: list[str]) -> None:
    assert conformance.faults(runs) == told


def test_a_device_that_is_not_there_fails(capsys: pytest.CaptureFixture[str]) -> None:
    status, count = conformance.run("vfio-user:/nowhere/card.sock", ["-x"])
    assert (status, count) == (1, 0)
    assert "Nobody answers at /nowhere/card.sock" in capsys.readouterr().out


def test_a_suite_that_runs_no_test_fails(capsys: pytest.CaptureFixture[str]) -> None:
    status, count = conformance.run("in-process", ["-k", "there_is_no_such_test"])
    assert (status, count) == (5, 0)
    assert "deselected" in capsys.readouterr().out
