"""``kvctl bench``: what this machine makes of kvd's promises; asks no daemon."""

from __future__ import annotations

from typing import Annotated, Final

from cyclopts import App, Parameter
from rich.table import Table
from rich.text import Text

from kvctl.exits import CtlError, Exit, UsageError
from kvctl.session import Session  # cyclopts reads this annotation
from kvdriver.bench import PAGES, ROUNDS, Measured, measure

bench = App(name="bench", help="Measure this machine against kvd's promises.")

Context = Annotated[Session, Parameter(parse=False)]

_DIGITS: Final = 2


@bench.command
def engine(*, pages: int = PAGES, rounds: int = ROUNDS, session: Context) -> int:
    """Measure the page-table engine in this process: no daemon is asked.

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
        found = measure(pages, rounds)
    except ValueError as error:
        raise UsageError(str(error)) from error
    except OSError as error:
        raise CtlError(str(error.strerror), Exit.FAILED, "ENOMEM") from error
    if session.as_json:
        session.document({one.key: round(one.value, 3) for one in found})
    else:
        session.show(_table(found))
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
