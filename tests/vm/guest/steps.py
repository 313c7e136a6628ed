"""What runs in the guest, in this order. A step stands here only when what it runs exists (`docs/vm-test.md`)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One command, judged by its exit status and, if it is pytest, by the tests that it ran.

    Parameters
    ----------
    name
        One word, as it stands in the markers on the console.
    command
        Run in the root of the checkout; ``pytest`` is the guest's own.
    timeout_s
        After this the command and its children are killed, and the step has failed. Software emulation is some 10 times
        slower than the machine.
    """

    name: str
    command: tuple[str, ...]
    timeout_s: float


STEPS = (
    Step(name="bed", command=("pytest", "tests/vm/guest/test_bed.py"), timeout_s=90),
    # The unplugging last, as it leaves no such device behind.
    Step(
        name="edu", command=("pytest", "tests/vm/guest/test_edu.py", "tests/vm/guest/test_edu_unplug.py"), timeout_s=180
    ),
)
