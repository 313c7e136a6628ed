"""`make vm-test`: set up the bed, pack the guest, run it, judge it.

Usage: ``python -m vm [--card "PROGRAM OPTIONS"] [--verbose]`` with `scripts` in PYTHONPATH, by the Python of the virtual environment.
"""

from __future__ import annotations

import argparse
import shlex
import shutil
import signal
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from vm import image, steps
from vm.bed import locked, set_up
from vm.console import Judge, Result, stages
from vm.error import BedError, disk_errors
from vm.helpers import Helper
from vm.machine import Machine
from vm.requests import Requests
from vm.watch import Watch

if TYPE_CHECKING:
    from types import FrameType

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "build/vm"
CARD = "card"
QEMU_LINES = 10
SOCKETS_PARENT = "/tmp"  # noqa: S108 - a short name: a socket's has at most 107 bytes; the folder is private
EXIT_FAILED = 1
EXIT_NO_BED = 2


def main(arguments: list[str]) -> int:
    """Run everything; return the exit status."""
    parser = argparse.ArgumentParser(prog="vm-test", description=__doc__)
    parser.add_argument("--card", type=shlex.split, help="the card model, attached by vfio-user: program and options")
    parser.add_argument("--verbose", action="store_true", help="show the guest's console")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, _terminated)
    try:
        with disk_errors(), locked(FOLDER):
            judge = _run(options.card, verbose=options.verbose)
    except BedError as error:
        say(str(error))
        return EXIT_NO_BED
    for stage, tail in judge.tails.items():
        sys.stdout.write(f"--- the console when {stage} had failed (all of it: {FOLDER / 'console.log'})\n")
        sys.stdout.write("\n".join(tail) + "\n")
    if judge.tails:
        said = (FOLDER / "qemu.log").read_text(errors="replace").splitlines()
        sys.stdout.write("\n".join(["--- what QEMU said", *said[-QEMU_LINES:]]) + "\n")
    closing, good = judge.summary()
    sys.stdout.write(f"{closing}\n")
    return 0 if good else EXIT_FAILED


def _run(card: list[str] | None, *, verbose: bool) -> Judge:
    bed = set_up(FOLDER, say)
    started = time.monotonic()
    listed = steps.read(ROOT)
    compiled = FOLDER / "compiled"
    steps.collect(ROOT, listed, compiled)
    packed = FOLDER / "image.cpio"
    size = image.pack(bed, ROOT, compiled, packed)
    say(f"guest packed in {time.monotonic() - started:.1f} s, {size >> 20} MiB")
    with ExitStack() as stack:
        sockets = Path(tempfile.mkdtemp(prefix="kvd-vm-", dir=SOCKETS_PARENT))
        stack.callback(shutil.rmtree, sockets)
        helpers = []
        if card is not None:
            helper = card_helper(card, sockets)
            stack.callback(helper.stop)
            helper.start()
            helpers.append(helper)
        machine = Machine(bed=bed, image=packed, sockets=sockets, card=helpers[0].socket if helpers else None)
        judge = Judge(stages([(step.name, step.timeout_s) for step in listed]), time.monotonic())
        log = stack.enter_context((FOLDER / "console.log").open("wb"))
        report = Report(judge, verbose=verbose)
        errors = stack.enter_context((FOLDER / "qemu.log").open("wb"))
        requests = Requests(helpers, machine.monitor)
        Watch(judge, requests, log, errors, report.line).run(machine.command(), machine.port)
        report.new_results()
    return judge


def card_helper(command: list[str], sockets: Path) -> Helper:
    """Return the card model as a helper, not started."""
    socket = sockets / "card"
    return Helper(name=CARD, command=[*command, "--socket", str(socket)], socket=socket, log=FOLDER / "card.log")


class Report:
    """Says how a run goes, one line for each stage that has ended."""

    def __init__(self, judge: Judge, *, verbose: bool) -> None:
        self._judge = judge
        self._verbose = verbose
        self._told = 0

    def line(self, text: str) -> None:
        """Take a line of the console that the judge has seen."""
        if self._verbose:
            sys.stdout.write(f"  | {text}\n")
        self.new_results()

    def new_results(self) -> None:
        """Tell the results that are new."""
        for result in self._judge.results[self._told :]:
            say(describe(result))
        self._told = len(self._judge.results)


def describe(result: Result) -> str:
    """Return a stage's result as a line."""
    counts = f"{result.passed} passed, {result.failed} failed, {result.skipped} skipped in {result.seconds:.1f} s"
    return f"{result.stage}: {counts}" + (f": {result.why}" if result.why else "")


def say(line: str) -> None:
    """Print a line of progress."""
    sys.stdout.write(f"vm-test: {line}\n")
    sys.stdout.flush()


def _terminated(number: int, frame: FrameType | None) -> None:
    # So that QEMU and the helpers are ended on the way out.
    raise SystemExit(128 + number)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
