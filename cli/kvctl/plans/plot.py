"""The picture of a plan: what is left a month by size, what hits, and restoring against computing by length.

matplotlib is only imported when a picture is asked for (docs/decisions/020-bench.md).
"""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any, Final

from kvctl import units
from kvctl.benches.plot import OURS_COLOUR, PEER_COLOUR, check
from kvctl.benches.plot import save as save_figure
from kvctl.plans import report, verdict

if TYPE_CHECKING:
    from pathlib import Path

    from kvctl.plans.run import Plan

__all__ = ["check", "draw"]

FIGURE_INCHES: Final = (15.0, 4.6)
COLOURS: Final = "viridis"
COLOUR_LAST: Final = 0.85
"""Of the colours' range: what lies above is too pale on white."""
NVME_COLOUR: Final = "#d0741c"
SMALL: Final = 8
TITLE: Final = 9
TITLE_COLUMNS: Final = 160
LENGTH_FIRST: Final = 16
LENGTH_LAST: Final = 1 << 17


def draw(plan: Plan, path: Path) -> None:
    """Draw a plan to an SVG file.

    Raises
    ------
    CtlError
        If the file can't be written.
    """
    from matplotlib.backends.backend_svg import FigureCanvasSVG  # noqa: PLC0415
    from matplotlib.figure import Figure  # noqa: PLC0415

    figure = Figure(figsize=FIGURE_INCHES, layout="constrained")
    FigureCanvasSVG(figure)
    head = [*textwrap.wrap(report.sentence(plan), TITLE_COLUMNS), verdict.sentences(plan)[0]]
    figure.suptitle("\n".join(head).replace("$", r"\$"), size=TITLE)
    _by_size(plan, figure.add_subplot(1, 3, 1), figure.add_subplot(1, 3, 2))
    _by_length(plan, figure.add_subplot(1, 3, 3))
    save_figure(figure, path)


def _by_size(plan: Plan, left: Any, hits: Any) -> None:
    from matplotlib import colormaps  # noqa: PLC0415

    colours = colormaps[COLOURS]
    nvme_sizes = sorted({point.nvme_bytes for point in plan.points})
    tokens = max(1, plan.load.input_tokens)
    for number, nvme_bytes in enumerate(nvme_sizes):
        points = [point for point in plan.points if point.nvme_bytes == nvme_bytes]
        colour = colours(COLOUR_LAST * number / max(1, len(nvme_sizes) - 1))
        name = f"NVMe {units.size(nvme_bytes)}" if nvme_bytes else "no NVMe"
        sizes = [point.ddr_bytes for point in points]
        style = {"color": colour, "marker": "o", "markersize": 3}
        left.plot(sizes, [point.net_month for point in points], label=name, **style)
        hits.plot(sizes, [100 * point.hit_tokens / tokens for point in points], **style)
    left.axhline(0, color="black", linewidth=0.8)
    if plan.best is not None:
        left.plot([plan.best.ddr_bytes], [plan.best.net_month], "o", markersize=10, fillstyle="none", color="black")
    hits.axhline(100 * plan.load.seen_tokens / tokens, color=PEER_COLOUR, linestyle="--", label="unlimited")
    if plan.bound is not None:
        bound = 100 * plan.bound.hit_tokens / tokens
        hits.plot([plan.bound.ddr_bytes], [bound], "*", color="black", label=f"Belady, {verdict.tiers(plan.bound)}")
    for axes, what in ((left, "left a month: GPU time saved less the tiers' price"), (hits, "prompt tokens found, %")):
        axes.set_title(what, size=TITLE)
        axes.set_xlabel("DDR", size=SMALL)
        axes.tick_params(labelsize=SMALL)
        axes.set_xscale("log", base=2)
        sizes = sorted({point.ddr_bytes for point in plan.points})
        axes.set_xticks(sizes, [units.size(each) for each in sizes], rotation=45, ha="right")
        axes.minorticks_off()
    hits.set_ylim(bottom=0)
    if plan.points:
        left.legend(fontsize=SMALL)
    hits.legend(fontsize=SMALL)


def _by_length(plan: Plan, axes: Any) -> None:
    costs = plan.asked.costs
    lengths = [LENGTH_FIRST]
    while lengths[-1] < LENGTH_LAST:
        lengths.append(2 * lengths[-1])
    axes.plot(lengths, [costs.prefill.seconds(each) for each in lengths], color="black", label="GPU computes")
    for tier, colour in zip(costs.tiers, (OURS_COLOUR, NVME_COLOUR), strict=False):
        seconds = [tier.restore_s(each * costs.token_bytes) for each in lengths]
        even = costs.break_even[tier.name]
        told = "never pays" if even is None else f"from {units.plural(even, 'token')} on"
        axes.plot(lengths, seconds, color=colour, label=f"{verdict.NAMES[tier.name]} restores: {told}")
        if even is not None and LENGTH_FIRST <= even <= LENGTH_LAST:
            axes.plot([even], [costs.prefill.seconds(even)], "o", color=colour, markersize=6)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    ticks = lengths[::2]
    axes.set_xticks(ticks, [f"{each:,}" for each in ticks])
    axes.minorticks_off()
    axes.set_title("seconds for a prefix of so many tokens", size=TITLE)
    axes.set_xlabel("tokens", size=SMALL)
    axes.tick_params(labelsize=SMALL)
    axes.legend(fontsize=SMALL)
