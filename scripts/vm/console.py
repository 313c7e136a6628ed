"""Judge a run by the markers on the guest's console. Pure: lines and times come in, results go out."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

BOOT_S_MAX = 120.0
STEP_MARGIN_S = 20.0
"""The guest ends a step at its own deadline; only if the guest hangs the host does it, so much later."""
KERNEL_S_MAX = 20.0
POWER_OFF_S_MAX = 30.0
TAIL_LINES = 30
NOT_REACHED = "not reached"
LINES_KEPT_MAX = 20_000

_MARKER = re.compile(r"^VM-TEST (?P<stage>\S+) (?P<word>start|ok|FAILED)(?P<rest>| .*)$")
_POWERED_OFF = re.compile(r"^\[[ \d.]+\] reboot: Power down$")
_NUMBER = re.compile(r"\b(passed|failed|skipped)=(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Something that has to happen next, within a time."""

    name: str
    seconds_max: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """How a stage ended; a stage without tests of its own counts as one."""

    stage: str
    passed: int
    failed: int
    skipped: int
    seconds: float
    why: str


def stages(steps: Sequence[tuple[str, float]]) -> list[Stage]:
    """Return all stages of a run whose guest has these steps (name, seconds)."""
    middle = [Stage(name=name, seconds_max=seconds + STEP_MARGIN_S) for name, seconds in steps]
    return [
        Stage(name="boot", seconds_max=BOOT_S_MAX),
        *middle,
        Stage(name="kernel", seconds_max=KERNEL_S_MAX),
        Stage(name="poweroff", seconds_max=POWER_OFF_S_MAX),
    ]


@dataclass(slots=True)
class Judge:
    """Takes the console line by line; `results` grows by one for each stage.

    Parameters
    ----------
    waiting
        Stages that are still to come.
    now
        When the machine was started, in seconds of the monotonic clock.
    """

    waiting: list[Stage]
    now: float
    results: list[Result] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    tails: dict[str, list[str]] = field(default_factory=dict)
    """The last lines of the console when a stage failed."""

    @property
    def deadline(self) -> float:
        """When the current stage has failed if nothing comes; infinite when all have ended."""
        return self.now + self.waiting[0].seconds_max if self.waiting else float("inf")

    def line(self, text: str, now: float) -> None:
        """Take one line of the console."""
        text = text.rstrip("\r\n")
        if len(self.lines) == LINES_KEPT_MAX:
            del self.lines[: LINES_KEPT_MAX // 2]
        self.lines.append(text)
        match = _MARKER.match(text)
        if match is None or match["word"] == "start":
            return
        if not self.waiting or self.waiting[0].name != match["stage"] or match["stage"] == "poweroff":
            self._result(match["stage"], now, {}, f"marker out of turn: {text}")
            return
        counts = {name: int(number) for name, number in _NUMBER.findall(match["rest"])}
        why = match["rest"].strip() or "no reason given" if match["word"] == "FAILED" else ""
        if not why and counts and (counts.get("failed") or not counts.get("passed")):
            why = f"said ok, but{match['rest']}"
        self._next(now, counts, why)

    def ended(self, status: int, now: float, *, device_killed: bool = False) -> None:
        """Take the end of the machine, by itself.

        Parameters
        ----------
        status
            QEMU's exit status.
        now
            Seconds of the monotonic clock.
        device_killed
            The process behind a device was killed on purpose. QEMU then may fail an assertion when it removes the
            device, at power off at the latest; what counts is that the guest came so far.
        """
        if self.waiting and self.waiting[0].name == "poweroff":
            why = (
                ""
                if any(_POWERED_OFF.search(line) for line in self.lines[-TAIL_LINES:])
                else "the guest did not power off"
            )
            if status and not (device_killed and not why):
                why = f"QEMU ended with status {status}"
            self._next(now, {}, why)
        elif self.waiting:
            self.gone(f"QEMU ended early, with status {status}", now)

    def gone(self, why: str, now: float) -> None:
        """Take the end of the machine before its time: this stage has failed, and so have those not reached."""
        while self.waiting:
            self._next(now, {}, why)
            why = NOT_REACHED

    def late(self, now: float) -> None:
        """Take it that the deadline of the current stage has passed."""
        self.gone(f"nothing for {self.waiting[0].seconds_max:g} s", now)

    def _next(self, now: float, counts: dict[str, int], why: str) -> None:
        self._result(self.waiting.pop(0).name, now, counts, why)

    def _result(self, stage: str, now: float, counts: dict[str, int], why: str) -> None:
        failed = counts.get("failed", 0)
        passed = counts.get("passed", 0)
        if why:
            failed = max(failed, 1)
            if why != NOT_REACHED:
                self.tails[stage] = self.lines[-TAIL_LINES:]
        elif not counts:
            passed = 1
        self.results.append(
            Result(
                stage=stage,
                passed=passed,
                failed=failed,
                skipped=counts.get("skipped", 0),
                seconds=now - self.now,
                why=why,
            )
        )
        self.now = now

    def summary(self) -> tuple[str, bool]:
        """Return the closing line and whether all is well."""
        passed, failed, skipped = (
            sum(getattr(result, name) for result in self.results) for name in ("passed", "failed", "skipped")
        )
        tail = f", {skipped} skipped" if skipped else ""
        return f"{passed} passed, {failed} failed{tail}", failed == 0 and passed > 0 and not self.waiting
