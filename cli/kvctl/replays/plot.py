"""The picture of a replay: a panel for hits by tier, one for the time to first token, one for what NVMe was written.

matplotlib is only imported when a picture is asked for (docs/decisions/020-bench.md).
"""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any, Final

from kvctl.benches.plot import OURS_COLOUR, PEER_COLOUR, check, save
from kvctl.replays import report
from kvd.policy.policies import DEFAULT

if TYPE_CHECKING:
    from pathlib import Path

    from kvctl.replays.run import Found

__all__ = ["check", "draw"]

FIGURE_INCHES: Final = (12.6, 3.4)
NVME_ALPHA: Final = 0.45
GIB: Final = 2**30
DIGITS: Final = 3
WHOLE_FROM: Final = 100
"""Numbers from here on are shown without decimals."""
LABEL_ROOM: Final = 1.2
"""Of the longest bar."""
TICKS: Final = 5
TITLE_COLUMNS: Final = 150


def draw(found: Found, path: Path) -> None:
    """Draw a replay to an SVG file.

    Raises
    ------
    CtlError
        If the file can't be written.
    """
    from matplotlib.backends.backend_svg import FigureCanvasSVG  # noqa: PLC0415
    from matplotlib.figure import Figure  # noqa: PLC0415

    figure = Figure(figsize=FIGURE_INCHES, layout="constrained")
    FigureCanvasSVG(figure)
    figure.suptitle(textwrap.fill(report.sentence(found), TITLE_COLUMNS).replace("$", r"\$"), size=9)
    names = list(found.counts)[::-1]
    told = [report.numbers(found.counts[name], found.block_bytes) for name in names]
    colours = [OURS_COLOUR if name == DEFAULT else PEER_COLOUR for name in names]
    ddr = [each["ddr_hit_rate"] for each in told]
    nvme = [each["nvme_hit_rate"] for each in told] if found.tiers.nvme_blocks else None
    what = "hits for each block" + (" (pale: NVMe)" if nvme else "")
    _panel(figure.add_subplot(1, 3, 1), names, ddr, colours, what, nvme)
    ttft = [each["ttft_mean_s"] for each in told]
    times = _panel(
        figure.add_subplot(1, 3, 2), names, ttft, colours, "estimated TTFT, mean, s (dashed: without a cache)"
    )
    times.axvline(found.uncached_ttft_s, color="black", linestyle="--", linewidth=0.8)
    times.set_xlim(0, LABEL_ROOM * max([found.uncached_ttft_s, *ttft]))
    written = [each["nvme_written_bytes"] / GIB for each in told]
    _panel(figure.add_subplot(1, 3, 3), names, written, colours, "NVMe written, GiB")
    save(figure, path)


def _panel(
    axes: Any,
    names: list[str],
    values: list[float],
    colours: list[str],
    what: str,
    more: list[float] | None = None,
) -> Any:
    axes.barh(names, values, color=colours, height=0.6)
    ends = values
    if more is not None:
        axes.barh(names, more, left=values, color=colours, height=0.6, alpha=NVME_ALPHA)
        ends = [value + beyond for value, beyond in zip(values, more, strict=True)]
    for place, end in enumerate(ends):
        axes.annotate(
            f"{end:,.{DIGITS}g}" if end < WHOLE_FROM else f"{end:,.0f}",
            (end, place),
            xytext=(3, 0),
            textcoords="offset points",
            va="center",
            size=8,
        )
    axes.set_title(what, size=9)
    # Last, for it ends the fitting; room for the words at the longest bar, and an axis where all are 0.
    axes.set_xlim(0, max(ends, default=0) * LABEL_ROOM or 1)
    axes.locator_params(axis="x", nbins=TICKS)
    axes.tick_params(labelsize=8)
    return axes
