"""The picture of a replay: a panel for hits by tier, one for the time to first token, one for what NVMe was written.

matplotlib is only imported when a picture is asked for (docs/decisions/020-bench.md).
"""

from __future__ import annotations

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
    figure.suptitle(report.sentence(found), size=9)
    names = list(found.counts)[::-1]
    told = [report.numbers(found.counts[name], found.block_bytes) for name in names]
    colours = [OURS_COLOUR if name == DEFAULT else PEER_COLOUR for name in names]
    ddr = [each["ddr_hit_rate"] for each in told]
    hits = _panel(figure.add_subplot(1, 3, 1), names, ddr, colours, "hits for each block (pale: NVMe)")
    hits.barh(names, [each["nvme_hit_rate"] for each in told], left=ddr, color=colours, height=0.6, alpha=NVME_ALPHA)
    ttft = [each["ttft_mean_s"] for each in told]
    _panel(figure.add_subplot(1, 3, 2), names, ttft, colours, "estimated TTFT, mean, s")
    written = [each["nvme_written_bytes"] / GIB for each in told]
    _panel(figure.add_subplot(1, 3, 3), names, written, colours, "NVMe written, GiB")
    save(figure, path)


def _panel(axes: Any, names: list[str], values: list[float], colours: list[str], what: str) -> Any:
    axes.barh(names, values, color=colours, height=0.6)
    axes.set_title(what, size=9)
    axes.set_xlim(left=0)
    axes.tick_params(labelsize=8)
    return axes
