"""The picture of a run: a panel for each number, both sides in it, a dot for each round.

matplotlib is only imported when a picture is asked for (docs/decisions/020-bench.md).
"""

from __future__ import annotations

import importlib.util
import math
from typing import TYPE_CHECKING, Any, Final

from kvctl.benches import machine
from kvctl.benches.run import describe
from kvctl.exits import CtlError, Exit, UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from kvctl.benches.outcome import Outcome
    from kvctl.benches.run import Report

SUFFIX: Final = ".svg"
COLUMNS: Final = 3
PANEL_INCHES: Final = (4.2, 2.4)
HEAD_INCHES: Final = 0.8
OURS_COLOUR: Final = "#1b6ca8"
PEER_COLOUR: Final = "#b0b0b0"


def check(path: Path) -> None:
    """Check that a picture can be made, before anything is measured for it.

    Raises
    ------
    CtlError
        If the library is missing, or the name is not that of an SVG file in a folder that is there.
    """
    if path.suffix != SUFFIX:
        raise UsageError(f"--plot {path}: the picture is an SVG file, name it so")
    if not path.parent.is_dir():
        raise UsageError(f"--plot {path}: there is no folder {path.parent}")
    if importlib.util.find_spec("matplotlib") is None:
        raise CtlError(
            "--plot needs matplotlib, which is not installed: pip install 'kvd[plot]'", Exit.FAILED, "ENOENT"
        )


def draw(report: Report, path: Path) -> None:
    """Draw a run to an SVG file.

    Raises
    ------
    CtlError
        If the file can't be written.
    """
    from matplotlib.backends.backend_svg import FigureCanvasSVG  # noqa: PLC0415
    from matplotlib.figure import Figure  # noqa: PLC0415

    shown = [one for one in report.outcomes if one.ours is not None]
    rows = max(1, math.ceil(len(shown) / COLUMNS))
    width, height = PANEL_INCHES
    figure = Figure(figsize=(COLUMNS * width, rows * height + HEAD_INCHES), layout="constrained")
    FigureCanvasSVG(figure)
    figure.suptitle(
        f"kvctl bench {report.what}\n{machine.sentence(report.machine)}\n{describe(report.options)}", size=9
    )
    for number, one in enumerate(shown, start=1):
        _panel(figure.add_subplot(rows, COLUMNS, number), one)
    save(figure, path)


def save(figure: Any, path: Path) -> None:
    """Write a figure to an SVG file.

    Raises
    ------
    CtlError
        If the file can't be written.
    """
    import matplotlib as mpl  # noqa: PLC0415

    try:
        # Words stay words, and the same numbers make the same file.
        with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "kvd"}):
            figure.savefig(path, format="svg", metadata={"Date": None})
    except OSError as error:
        raise CtlError(f"--plot {path}: {error.strerror}", Exit.FAILED, "EIO") from error


def _panel(axes: Any, one: Outcome) -> None:
    sides = [side for side in (one.peer, one.ours) if side is not None]
    colours = [OURS_COLOUR if side is one.ours else PEER_COLOUR for side in sides]
    axes.barh([side.name for side in sides], [side.median for side in sides], color=colours, height=0.6)
    for place, side in enumerate(sides):
        axes.plot(side.values, [place] * len(side.values), "o", color="black", markersize=3, alpha=0.5)
    sign = "<=" if one.at_most else ">="
    bar = "" if one.bar is None else f" (bar {sign} {one.bar:g})"
    axes.set_title(f"{one.key}: {one.value:.3g} {one.unit}{bar}", size=9)
    axes.set_xlabel(sides[0].unit, size=8)
    axes.set_xlim(left=0)
    axes.tick_params(labelsize=8)
