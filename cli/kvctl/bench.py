"""``kvctl bench``: what this machine makes of kvd's promises."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import version as package_version
from pathlib import Path  # noqa: TC003  cyclopts reads this annotation
from typing import Annotated, Final

from cyclopts import App, Parameter
from rich.table import Table
from rich.text import Text

from kvctl.benches.outcome import Sizes
from kvctl.exits import CtlError, Exit, UsageError
from kvctl.run import Run  # cyclopts reads this annotation
from kvd import config_units
from kvdriver import DeviceFault
from kvdriver.bench import PAGES, ROUNDS, Measured, measure
from kvdriver.ringbench import measure_model

bench = App(name="bench", help="Measure this machine against kvd's promises.")

Context = Annotated[Run, Parameter(parse=False)]

_DIGITS: Final = 2


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class Common:
    """Options of the benchmarks of the data plane.

    Parameters
    ----------
    size
        Of the cold objects together, of the large one, and of the DDR budget that is written over; the promises are
        given for 1GiB. Memory for twice and disk for eight times as much is needed.
    rounds
        Of each measurement; the median counts.
    ms
        How long a round of opens or stats takes, in milliseconds.
    scratch
        A folder on the disk to measure: else that of TMPDIR, or /var/tmp.
    mount
        A folder in the mount of the kvd that runs; without it each benchmark starts one of its own.
    plot
        Draw the numbers into this SVG file, too.
    """

    size: str = "1GiB"
    rounds: int = 5
    ms: int = 1000
    scratch: Path | None = None
    mount: Path | None = None
    plot: Path | None = None


SMALL_OBJECTS: Final = 100_000
MANY_OBJECTS: Final = 1_000_000
SESSIONS: Final = 100_000


@bench.command
def read(*, common: Common = Common(), ctl: Context) -> int:
    """Measure reads and mappings of objects in DDR against a plain tmpfs."""
    return _run("read", common, ctl)


@bench.command
def write(*, objects: int = SMALL_OBJECTS, common: Common = Common(), ctl: Context) -> int:
    """Measure writes of new objects against a plain tmpfs, and what small ones cost of memory.

    Parameters
    ----------
    objects
        How many small ones, of 4 KiB.
    """
    return _run("write", common, ctl, objects)


@bench.command
def cold(*, common: Common = Common(), ctl: Context) -> int:
    """Measure reads of objects on NVMe against O_DIRECT and plain reads of the same files."""
    return _run("cold", common, ctl)


@bench.command
def sustained(*, common: Common = Common(), ctl: Context) -> int:
    """Measure writes of four times the DDR budget against O_DIRECT writes of the disk."""
    return _run("sustained", common, ctl)


@bench.command
def meta(*, common: Common = Common(), ctl: Context) -> int:
    """Measure opens, closes and stats, and whether changes are seen at once."""
    return _run("meta", common, ctl)


@bench.command
def scale(*, objects: int = MANY_OBJECTS, common: Common = Common(), ctl: Context) -> int:
    """Measure a start, memory and operations with very many objects, against the same with 10,000.

    Each time the objects are in one folder and in many. Nothing of it depends on --size.

    Parameters
    ----------
    objects
        How many, of 4 KiB to 64 KiB, all on NVMe.
    """
    return _run("scale", common, ctl, objects)


@bench.command
def sessions(*, objects: int = SESSIONS, common: Common = Common(), ctl: Context) -> int:
    """Measure how long a client waits for a lease or a change of a session's state, with very many sessions.

    A thousand questions a second, for --ms in each round. Nothing of it depends on --size.

    Parameters
    ----------
    objects
        How many sessions, all on NVMe at first, each with a time to live.
    """
    return _run("sessions", common, ctl, objects)


@bench.command(name="all")
def everything(*, objects: int = SMALL_OBJECTS, common: Common = Common(), ctl: Context) -> int:
    """Measure all of the data plane: read, write, cold, sustained, meta.

    The exit status is 0 also where a bar is missed: that is for the reader to judge.

    Parameters
    ----------
    objects
        How many small ones, of 4 KiB.
    """
    return _run("all", common, ctl, objects)


def _run(what: str, common: Common, ctl: Run, objects: int = SMALL_OBJECTS) -> int:
    from kvctl.benches import plot, report, run  # noqa: PLC0415  other commands start sooner without

    try:
        size_bytes = config_units.parse_size(common.size)
    except ValueError as error:
        raise UsageError(f"--size {common.size}: {error}") from error
    options = run.Options(
        sizes=Sizes.of(size_bytes),
        rounds=common.rounds,
        objects=objects,
        duration_ms=common.ms,
        scratch=common.scratch,
        mount=common.mount,
    )
    if common.plot is not None:
        plot.check(common.plot)
    found = run.run(what, options, ctl)
    if common.plot is not None:
        plot.draw(found, common.plot)
    if ctl.as_json:
        ctl.document(report.document(found, package_version("kvd")))
    else:
        ctl.show(*report.show(found))
    return Exit.OK


@bench.command
def engine(*, pages: int = PAGES, rounds: int = ROUNDS, ctl: Context) -> int:
    """Measure the page-table engine in this process, and one in another over vfio-user: no daemon is asked.

    Takes half a minute and some 300 MiB at the default number of pages. The exit status is 0 also where a bar is
    missed: that is for the reader to judge.

    Parameters
    ----------
    pages
        Pages that are mapped while it is measured.
    rounds
        Rounds of each measurement; their median counts.
    """
    try:
        found = [*measure(pages, rounds), *measure_model()]
    except ValueError as error:
        raise UsageError(str(error)) from error
    except DeviceFault as fault:
        raise CtlError(str(fault), Exit.FAILED, fault.kind.name) from fault
    except OSError as error:
        raise CtlError(str(error.strerror), Exit.FAILED, "ENOMEM") from error
    if ctl.as_json:
        ctl.document({one.key: round(one.value, 3) for one in found})
    else:
        ctl.show(_table(found))
    return Exit.OK


def _table(found: list[Measured]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", show_edge=False)
    for column in ("KEY", "MEASURED", "BAR", "", "WHAT"):
        table.add_column(column, justify="right" if column in {"MEASURED", "BAR"} else "left", no_wrap=True)
    for one in found:
        sign = "<=" if one.at_most else ">="
        table.add_row(
            one.key,
            f"{one.value:,.{_DIGITS}f} {one.unit}",
            f"{sign} {one.bar:g}",
            Text("pass", "green") if one.passed else Text("missed", "red"),
            one.what,
        )
    return table
