"""What a run of ``kvctl bench`` says: a table for people, a document for programs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from rich.table import Table
from rich.text import Text

from kvctl.benches import machine
from kvctl.benches.outcome import DIGITS
from kvctl.benches.run import describe

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType

    from kvctl.benches.outcome import Outcome, Series
    from kvctl.benches.run import Report

_LARGE: Final = 1000
_RIGHT: Final = frozenset({"MEASURED", "BAR"})


def document(report: Report, version: str) -> dict[str, Any]:
    """Return all of it for JSON: a number for each key, None where it could not be measured, and the details."""
    numbers = {one.key: None if one.value is None else round(one.value, DIGITS) for one in report.outcomes}
    options = report.options
    return {
        "bench": report.what,
        "version": version,
        **numbers,
        "machine": report.machine,
        "file_systems": report.file_systems,
        "rounds": options.rounds,
        "small_objects": options.objects,
        **options.sizes.document(),
        "details": {one.key: one.document() for one in report.outcomes},
    }


def show(report: Report) -> Iterator[RenderableType]:
    """Yield it for people: what was measured, bars and verdicts, and both sides of each."""
    yield Text(machine.sentence(report.machine))
    for name, found in report.file_systems.items():
        yield Text(f"{name}: {found['path']}, {found['type']} ({found['source']})")
    yield f"{describe(report.options)}; medians (lowest to highest of the rounds)"
    table = Table(box=None, pad_edge=False, header_style="bold", show_edge=False)
    for column in ("KEY", "MEASURED", "BAR", "", "KVD", "PEER", "WHAT"):
        table.add_column(column, justify="right" if column in _RIGHT else "left", no_wrap=True)
    for one in report.outcomes:
        sign = "<=" if one.at_most else ">="
        table.add_row(
            one.key,
            "-" if one.value is None else f"{_number(one.value)} {one.unit}",
            "-" if one.bar is None else f"{sign} {one.bar:g}",
            _verdict(one),
            _side(one.ours),
            _side(one.peer),
            Text(f"{one.what} ({one.note})" if one.note else one.what),
        )
    yield table


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= _LARGE else f"{value:.2f}"


def _side(series: Series | None) -> str:
    if series is None:
        return "-"
    low, high = min(series.values), max(series.values)
    return f"{_number(series.median)} {series.unit} ({_number(low)} to {_number(high)})"


def _verdict(one: Outcome) -> Text:
    match one.passed:
        case None:
            return Text("-")
        case True:
            return Text("pass", "green")
        case False:
            return Text("missed", "red")
