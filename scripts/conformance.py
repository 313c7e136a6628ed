"""`make conformance`: the one suite on the engine in this process and on a card over vfio-user, and whether it was the same.

Usage: conformance.py [PYTEST OPTIONS]. Prints a line ``CONFORMANCE DEVICE N passed`` for each device; the exit status is 1 if a
test failed on one of them, or if they did not pass equally many.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from private_card import CardFailedError, PrivateCard

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SUITE: Final = Path(__file__).parents[1] / "tests/t2_driver/conformance/run.py"
IN_PROCESS: Final = "in-process"
SUITE_S_MAX: Final = 600.0
PASSED: Final = re.compile(r"^CONFORMANCE (\S+) (\d+) passed$", re.MULTILINE)
EXIT_FAILED: Final = 1


def passed(device: str, said: str) -> int | None:
    """Return how many tests a run of the suite says that a device has passed; None: it says nothing of it."""
    counts = {match[1]: int(match[2]) for match in PASSED.finditer(said)}
    return counts.get(device)


def faults(runs: Mapping[str, tuple[int, int | None]]) -> list[str]:
    """Return what is wrong with runs of the suite, a sentence each.

    Parameters
    ----------
    runs
        By device: pytest's exit status, and how many tests passed.
    """
    found = []
    for device, (status, count) in runs.items():
        if status:
            found.append(f"{device}: the suite failed (pytest's status {status})")
        if not count:
            found.append(f"{device}: no test has passed")
    counts = {device: count for device, (_, count) in runs.items()}
    if len(set(counts.values())) > 1:
        told = ", ".join(f"{count} on {device}" for device, count in counts.items())
        found.append(f"not the same tests have passed: {told}")
    return found


def run(device: str, options: Sequence[str]) -> tuple[int, int | None]:
    """Run the suite on a device; show its line, or all of it if it failed."""
    command = [sys.executable, str(SUITE), "-q", "--device", device, *options]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=SUITE_S_MAX,
        )
    except subprocess.TimeoutExpired as error:
        said = error.stdout.decode(errors="replace") if isinstance(error.stdout, bytes) else error.stdout or ""
        sys.stdout.write(f"{said}\n{device}: the suite did not end within {SUITE_S_MAX:.0f} s\n")
        return EXIT_FAILED, None
    count = passed(device, done.stdout)
    if done.returncode or count is None:
        sys.stdout.write(done.stdout)
    else:
        sys.stdout.write(f"CONFORMANCE {device} {count} passed\n")
    sys.stdout.flush()
    return done.returncode, count


def main(options: Sequence[str]) -> int:
    """Run everything; return the exit status."""
    runs = {IN_PROCESS: run(IN_PROCESS, options)}
    try:
        with PrivateCard() as card:
            runs[card.address] = run(card.address, options)
    except CardFailedError as error:
        sys.stdout.write(f"conformance: {error}\n")
        return EXIT_FAILED
    wrong = faults(runs)
    for fault in wrong:
        sys.stdout.write(f"conformance: {fault}\n")
    return EXIT_FAILED if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
