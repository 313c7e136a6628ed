"""The judge: lines and times in, results out."""

from __future__ import annotations

import pytest

from vm.console import KERNEL_S_MAX, NOT_REACHED, STEP_MARGIN_S, TAIL_LINES, Judge, stages

GOOD = [
    "VM-TEST boot ok uptime=4.2\r",
    "VM-TEST one start\r",
    "noise",
    "VM-TEST one ok passed=3 failed=0 skipped=1 seconds=2.0\r",
    "VM-TEST two ok passed=2 seconds=1.0",
    "VM-TEST kernel ok",
    "[   21.931766] reboot: Power down",
]


@pytest.fixture
def judge() -> Judge:
    return Judge(stages([("one", 10.0), ("two", 20.0)]), 100.0)


def feed(judge: Judge, lines: list[str]) -> None:
    for number, line in enumerate(lines, start=101):
        judge.line(line, number)


def test_all_is_well(judge: Judge):
    feed(judge, GOOD)
    judge.ended(0, 120.0)
    assert [(result.stage, result.passed, result.failed, result.skipped, result.why) for result in judge.results] == [
        ("boot", 1, 0, 0, ""),
        ("one", 3, 0, 1, ""),
        ("two", 2, 0, 0, ""),
        ("kernel", 1, 0, 0, ""),
        ("poweroff", 1, 0, 0, ""),
    ]
    assert judge.summary() == ("8 passed, 0 failed, 1 skipped", True)
    assert judge.tails == {}


def test_each_stage_has_its_own_deadline(judge: Judge):
    feed(judge, GOOD[:1])
    assert judge.deadline == 101 + 10.0 + STEP_MARGIN_S
    feed(judge, GOOD[1:5])
    assert judge.deadline == 104 + KERNEL_S_MAX


def test_nothing_has_passed_before_it_has_ended(judge: Judge):
    feed(judge, GOOD)
    assert judge.summary()[1] is False
    assert judge.deadline < float("inf")


@pytest.mark.parametrize(
    ("words", "failed", "why"),
    [
        ("FAILED exit=1 passed=2 failed=4 skipped=0", 4, "exit=1"),
        ("FAILED timeout=10 passed=0", 1, "timeout=10"),
        ("FAILED", 1, "no reason given"),
        ("ok passed=0 failed=0 skipped=9", 1, "said ok"),
        ("ok passed=5 failed=1", 1, "said ok"),
    ],
)
def test_a_step_that_fails_or_lies_is_a_failure_and_the_rest_goes_on(judge: Judge, words: str, failed: int, why: str):
    feed(judge, [GOOD[0], "something", f"VM-TEST one {words}", *GOOD[4:]])
    judge.ended(0, 120.0)
    result = judge.results[1]
    assert (result.stage, result.failed) == ("one", failed)
    assert why in result.why
    assert judge.tails["one"][-2:] == ["something", f"VM-TEST one {words}"]
    assert [other.failed for other in judge.results] == [0, failed, 0, 0, 0]
    assert judge.summary()[1] is False


def test_late(judge: Judge):
    feed(judge, [GOOD[0], *(str(number) for number in range(100))])
    judge.late(judge.deadline)
    assert [(result.stage, result.failed) for result in judge.results[1:]] == [
        ("one", 1),
        ("two", 1),
        ("kernel", 1),
        ("poweroff", 1),
    ]
    assert judge.results[1].why == f"nothing for {10.0 + STEP_MARGIN_S:g} s"
    assert {result.why for result in judge.results[2:]} == {NOT_REACHED}
    assert list(judge.tails) == ["one"]
    assert judge.tails["one"] == [str(number) for number in range(100 - TAIL_LINES, 100)]
    assert judge.summary() == ("1 passed, 4 failed", False)


def test_the_machine_ends_early(judge: Judge):
    feed(judge, GOOD[:4])
    judge.ended(0, 110.0)
    assert judge.results[2].why == "QEMU ended early, with status 0"
    assert judge.summary() == ("4 passed, 3 failed, 1 skipped", False)


def test_the_machine_ends_badly(judge: Judge):
    feed(judge, GOOD)
    judge.ended(-9, 110.0)
    assert judge.results[-1].why == "QEMU ended with status -9"
    assert judge.summary()[1] is False


@pytest.mark.parametrize("device_killed", [False, True])
def test_the_guest_does_not_power_off(judge: Judge, device_killed: bool):
    feed(judge, [*GOOD[:-1], "[   21.9] Kernel panic - not syncing"])
    judge.ended(0, 110.0, device_killed=device_killed)
    assert judge.results[-1].why == "the guest did not power off"
    assert judge.summary()[1] is False


def test_qemu_may_fail_after_the_guest_when_a_device_was_killed(judge: Judge):
    feed(judge, GOOD)
    judge.ended(-6, 110.0, device_killed=True)
    assert judge.summary()[1] is True


def test_qemu_may_not_fail_before_the_guest(judge: Judge):
    feed(judge, GOOD[:-1])
    judge.ended(-6, 110.0, device_killed=True)
    assert judge.results[-1].why == "QEMU ended with status -6"


def test_markers_out_of_turn_are_failures(judge: Judge):
    feed(judge, ["VM-TEST two ok passed=2", "VM-TEST poweroff ok", *GOOD])
    judge.ended(0, 120.0)
    assert [result.stage for result in judge.results if result.failed] == ["two", "poweroff"]
    assert judge.summary()[1] is False


def test_a_marker_inside_of_a_line_is_none(judge: Judge):
    feed(judge, ["# VM-TEST boot ok", " VM-TEST boot ok", "VM-TEST boot okay"])
    assert judge.results == []
