"""Run the steps in the guest, one after the other, and mark on the console how each ended.

The last step, `kernel`, is the runner's own: the guest's kernel has neither warned nor died on the way.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from pathlib import Path

from steps import STEPS, Step

RESULTS = Path("/run/results")
TAINTED = Path("/proc/sys/kernel/tainted")
TAINT_DIED = 1 << 7
TAINT_WARNED = 1 << 9
LOG_LINES = 20


def mark(step: str, words: str) -> None:
    """Print a line that the host waits for."""
    # On a line of its own, whatever a killed program left on the last one.
    sys.stdout.write(f"\nVM-TEST {step} {words}\n")
    sys.stdout.flush()


def run(step: Step) -> bool:
    """Run one step and mark its end."""
    mark(step.name, "start")
    started = time.monotonic()
    results = RESULTS / f"{step.name}.xml"
    command = step.command
    if command[0] == "pytest":
        command = (sys.executable, "-m", *command, "-p", "no:cacheprovider", f"--junitxml={results}")
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True) as process:
        try:
            status = process.wait(step.timeout_s)
            why = f"exit={status}"
        except subprocess.TimeoutExpired:
            status = 1
            why = f"timeout={step.timeout_s:g}"
        # Whatever it has started ends with it.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    counts = _counts(results) if step.command[0] == "pytest" else {"passed": int(status == 0)}
    good = status == 0 and counts.get("passed", 0) > 0 and not counts.get("failed", 0)
    numbers = " ".join(f"{name}={number}" for name, number in counts.items())
    mark(step.name, f"{'ok' if good else f'FAILED {why}'} {numbers} seconds={time.monotonic() - started:.1f}")
    return good


def _counts(results: Path) -> dict[str, int]:
    """Count tests from pytest's report; none if pytest did not come to write it."""
    try:
        suites = list(ET.parse(results).getroot().iter("testsuite"))
    except (OSError, ET.ParseError):
        return {"passed": 0}
    total, failures, errors, skipped = (
        sum(int(suite.get(name, "0")) for suite in suites) for name in ("tests", "failures", "errors", "skipped")
    )
    # A test whose tear-down fails counts twice, as a failure and as an error.
    failed = min(failures + errors, total)
    return {"passed": total - failed - skipped, "failed": failed, "skipped": skipped}


def main() -> int:
    """Run all steps; a failure does not stop the next one."""
    RESULTS.mkdir(parents=True)
    good = True
    for step in STEPS:
        if not run(step):
            good = False
            show_kernel_log()
    tainted = int(TAINTED.read_text())
    if tainted & (TAINT_DIED | TAINT_WARNED):
        good = False
        show_kernel_log()
        mark("kernel", f"FAILED tainted={tainted}")
    else:
        mark("kernel", "ok")
    return 0 if good else 1


def show_kernel_log() -> None:
    """Print the end of the kernel's log, for who reads the console."""
    done = subprocess.run(["dmesg"], capture_output=True, text=True, check=False, errors="replace")
    sys.stdout.write("\n".join(done.stdout.splitlines()[-LOG_LINES:]) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
