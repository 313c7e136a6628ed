"""What a run tells while it goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from vm.__main__ import Report
from vm.console import Judge, stages

if TYPE_CHECKING:
    from collections.abc import Sequence

LINES = ("VM-TEST boot ok", "noise", "CONFORMANCE vfio:0000:02:00.0 72 passed")


@pytest.mark.parametrize(
    ("verbose", "told"),
    [
        (False, ["vm-test: boot: 1 passed, 0 failed, 0 skipped in 0.0 s", f"vm-test: {LINES[2]}"]),
        (
            True,
            [f"  | {LINES[0]}", "vm-test: boot: 1 passed, 0 failed, 0 skipped in 0.0 s"]
            + [f"  | {line}" for line in LINES[1:]],
        ),
    ],
)
def test_stages_and_counts_are_told(verbose: bool, told: Sequence[str], capsys: pytest.CaptureFixture[str]):
    judge = Judge(stages([]), 0.0)
    report = Report(judge, verbose=verbose)
    for line in LINES:
        judge.line(line, 0.0)
        report.line(line)
    assert capsys.readouterr().out.splitlines() == list(told)
