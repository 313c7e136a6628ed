"""One run of ``kvctl bench``: parts in turn, each on a kvd of its own, and nothing left at the end."""

from __future__ import annotations

import os
import signal
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, assert_never

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from kvctl.benches import disk, ground, machine, memory, meta, scale, sessions
from kvctl.benches.outcome import MIB, SUSTAINED_BUDGETS, Outcome, Sizes
from kvctl.exits import CtlError, Exit, UsageError
from kvctl.private import KvdFailedError
from kvd.client import ClientError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path
    from types import FrameType

    from kvctl.benches.ground import Ground
    from kvctl.run import Run

Part: TypeAlias = Literal["read", "write", "small", "cold", "sustained", "meta", "scale", "sessions"]

PARTS: Final[dict[str, tuple[Part, ...]]] = {
    "read": ("read",),
    "write": ("write", "small"),
    "cold": ("cold",),
    "sustained": ("sustained",),
    "meta": ("meta",),
    "scale": ("scale",),
    "sessions": ("sessions",),
    "all": ("read", "write", "small", "cold", "sustained", "meta"),
}
"""What each command runs."""

MARGIN_BYTES: Final = 64 * MIB
"""Of a budget and of the plain tmpfs, beyond what is measured."""
SMALL_OBJECT_BYTES: Final = 16 << 10
"""Of budget for an object of 4 KiB, so that a costly one is measured and not refused."""
META_BUDGET_BYTES: Final = 64 * MIB
NEVER_IDLE: Final = "24h"
"""Nothing moves to NVMe but what is told to."""
FLUSH: Final = "100ms"
"""At the end there is nothing to keep; after Ctrl-C there is nothing to wait for."""
STEPS: Final[dict[Part, tuple[int, int]]] = {
    "read": (3, 0),
    "write": (1, 1),
    "small": (0, 1),
    "cold": (2, 0),
    "sustained": (1, 0),
    "meta": (3, 0),
    "scale": (0, len(scale.LAYOUTS) * (len(scale.OPERATIONS) + 1)),
    "sessions": (1, 1),
}
"""Steps of the progress bar: a round, and once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How a benchmark is run.

    Attributes
    ----------
    sizes
        How much is measured.
    rounds
        Of each measurement.
    objects
        Small ones, for what they cost of memory.
    duration_ms
        Of a timed load.
    scratch
        A folder on a disk; None: a default.
    mount
        A folder in the mount of a kvd that runs; None: kvds of the benchmark's own.
    """

    sizes: Sizes
    rounds: int
    objects: int
    duration_ms: int
    scratch: Path | None
    mount: Path | None

    def __post_init__(self) -> None:
        for name, value in (("--rounds", self.rounds), ("--objects", self.objects), ("--ms", self.duration_ms)):
            if value < 1:
                raise UsageError(f"{name} {value}: at least 1 is needed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a run came to."""

    what: str
    machine: dict[str, Any]
    file_systems: dict[str, dict[str, str]]
    options: Options
    outcomes: tuple[Outcome, ...]


class _Runner:
    """The parts of one run, in one scratch folder."""

    def __init__(self, ctl: Run, options: Options, folder: Path, step: Callable[[], None]) -> None:
        self._ctl = ctl
        self._options = options
        self._folder = folder
        self._step = step
        self.file_systems = {"scratch": machine.file_system(folder)}

    @contextmanager
    def _ground(self, budget_bytes: int, *, idle: str = NEVER_IDLE, hot: bool = True) -> Iterator[Ground]:
        """Give the kvd that is measured; one of our own has this budget."""
        with ExitStack() as stack:
            if self._options.mount is not None and hot:
                found = stack.enter_context(ground.mounted(self._options.mount, self._folder, self._ctl.client))
            else:
                settings: dict[str, Mapping[str, Any]] = {
                    "daemon": {"flush": FLUSH},
                    "ddr": {"budget": budget_bytes, "burst": "12.5%", "idle": idle},
                }
                if not hot:
                    table, key = meta.HOT_KEY
                    settings[table] = {key: meta.HOT_OFF}
                found = stack.enter_context(ground.private(self._folder, settings))
            self.file_systems.setdefault("mount", machine.file_system(found.mount))
            yield found

    @contextmanager
    def _plain(self) -> Iterator[Path]:
        size_bytes = self._options.sizes.size_bytes // 2 + MARGIN_BYTES
        with ground.plain_tmpfs(self._folder, size_bytes) as point:
            self.file_systems.setdefault("plain", machine.file_system(point))
            yield point

    def run(self, part: Part) -> list[Outcome]:  # noqa: PLR0911 (one for each part)
        """Run one part."""
        sizes, rounds = self._options.sizes, self._options.rounds
        match part:
            case "read":
                with self._ground(sizes.size_bytes + MARGIN_BYTES) as here, self._plain() as plain:
                    return memory.read(here, plain, sizes, rounds, self._step)
            case "write":
                with self._ground(sizes.size_bytes + MARGIN_BYTES) as here, self._plain() as plain:
                    return memory.write(here, plain, sizes, rounds, self._step)
            case "small":
                with self._ground(self._options.objects * SMALL_OBJECT_BYTES + MARGIN_BYTES) as here:
                    found = memory.small(here, self._options.objects)
                    self._step()
                    return found
            case "cold":
                ground.need_space(self._folder, 2 * sizes.size_bytes + MARGIN_BYTES)
                with self._ground(2 * sizes.size_bytes + MARGIN_BYTES) as here:
                    cold = disk.cold(here, sizes, rounds, self._step)
                    return cold + disk.big(here, sizes, rounds, self._step)
            case "sustained":
                with self._ground(max(sizes.size_bytes, MIB), idle="60s") as here:
                    return disk.sustained(here, sizes, rounds, self._step)
            case "meta":
                return self._meta()
            case "scale":
                settings = {"daemon": {"flush": FLUSH}, "ddr": {"idle": NEVER_IDLE}}
                return scale.measure(self._folder, settings, self._options.objects, rounds, self._step)
            case "sessions":
                settings = {"daemon": {"flush": FLUSH}, "ddr": {"idle": NEVER_IDLE}}
                many, ms = self._options.objects, self._options.duration_ms
                return sessions.measure(self._folder, settings, many, ms, rounds, self._step)
            case _ as never:
                assert_never(never)

    def _meta(self) -> list[Outcome]:
        rounds, duration_ms = self._options.rounds, self._options.duration_ms
        with ExitStack() as stack:
            here = stack.enter_context(self._ground(META_BUDGET_BYTES))
            handlers = None
            if meta.can_leave_to_handlers():
                handlers = stack.enter_context(self._ground(META_BUDGET_BYTES, hot=False))
            opened = meta.opens(here, handlers, duration_ms, rounds, self._step)
            return opened + meta.stats(here, duration_ms, rounds, self._step)


def run(what: str, options: Options, ctl: Run) -> Report:
    """Run the parts of one command.

    Raises
    ------
    CtlError
        If it can't be measured here; nothing is left behind.
    """
    if os.geteuid() != 0:
        raise CtlError("bench needs root: it mounts a tmpfs and drops the page cache", Exit.FAILED, "EPERM")
    parts = PARTS[what]
    found = machine.facts()
    outcomes: list[Outcome] = []
    with signals_end_it(), _progress(ctl) as progress, ground.scratch(options.scratch) as folder:
        task = progress.add_task("", total=sum(_steps(part, options.rounds) for part in parts))
        runner = _Runner(ctl, options, folder, lambda: progress.advance(task))
        for part in parts:
            progress.update(task, description=part)
            try:
                outcomes += runner.run(part)
            except KvdFailedError as error:
                raise CtlError(f"{part}: {error}", Exit.FAILED, "EIO") from error
            except ClientError as error:
                raise CtlError(f"{part}: {error}", Exit.FAILED, error.code) from error
            except OSError as error:
                raise CtlError(f"{part}: {error}", Exit.FAILED, "EIO") from error
        file_systems = runner.file_systems
    return Report(what=what, machine=found, file_systems=file_systems, options=options, outcomes=tuple(outcomes))


def _steps(part: Part, rounds: int) -> int:
    a_round, once = STEPS[part]
    return a_round * (min(rounds, disk.SUSTAINED_ROUNDS_MAX) if part == "sustained" else rounds) + once


def _progress(ctl: Run) -> Progress:
    return Progress(
        TextColumn("{task.description:<9}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=ctl.err,
        transient=True,
        disable=not ctl.err.is_terminal,
    )


@contextmanager
def signals_end_it() -> Iterator[None]:
    """Let Ctrl-C or SIGTERM end the run once; cleaning up is not interrupted: it takes a bounded time."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        del number, frame
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = {each: signal.signal(each, interrupt) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def describe(options: Options) -> str:
    """Return in words what is measured."""
    budgets = SUSTAINED_BUDGETS * options.sizes.size_bytes / (1 << 30)
    return f"size {options.sizes.size_bytes / (1 << 30):g} GiB ({budgets:g} GiB sustained), {options.rounds} rounds"
