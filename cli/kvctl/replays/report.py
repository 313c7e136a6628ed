"""What a replay says: one JSON document, or a table."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any, Final

from rich.table import Table

from kvctl import units
from kvctl.names import show as printable

if TYPE_CHECKING:
    from rich.console import RenderableType

    from kvctl.replays.replayer import Counts
    from kvctl.replays.run import Found

DIGITS: Final = 4
TWENTIETHS: Final = 20
SIZES: Final = ("ddr_read_bytes", "ddr_written_bytes", "nvme_read_bytes", "nvme_written_bytes")
TIMES: Final = ("ttft_mean_s", "ttft_p50_s", "ttft_p95_s")
COLUMNS: Final = (
    *("POLICY", "HITS", "DDR", "NVME", "DDR READ", "WRITTEN", "NVME READ", "WRITTEN"),
    *("TTFT MEAN", "P50", "P95"),
)


def document(found: Found) -> dict[str, Any]:
    """Return the hit rate by policy; and below ``"replay"`` all that was counted."""
    options, tiers = found.options, found.tiers
    rates: dict[str, Any] = {name: round(counts.hit_rate, DIGITS) for name, counts in found.counts.items()}
    return rates | {
        "replay": {
            "trace": found.trace,
            "hints": options.hints,
            "ddr_blocks": tiers.ddr_blocks,
            "nvme_blocks": tiers.nvme_blocks,
            "block_bytes": found.block_bytes,
            "unique_blocks": found.unique_blocks,
            "ddr_bytes_s": options.ddr_bytes_s,
            "nvme_bytes_s": options.nvme_bytes_s,
            "prefill_tokens_s": options.prefill_tokens_s,
            "uncached_ttft_mean_s": round(found.uncached_ttft_s, DIGITS),
            "policies": {name: numbers(counts, found.block_bytes) for name, counts in found.counts.items()},
        }
    }


def numbers(counts: Counts, block_bytes: int) -> dict[str, Any]:
    """Return all that is told of one policy."""
    return {
        "requests": counts.requests,
        "blocks": counts.blocks,
        "hit_rate": round(counts.hit_rate, DIGITS),
        "ddr_hit_rate": round(counts.ddr_hits / counts.blocks, DIGITS) if counts.blocks else 0.0,
        "nvme_hit_rate": round(counts.nvme_hits / counts.blocks, DIGITS) if counts.blocks else 0.0,
        "ddr_read_bytes": counts.ddr_hits * block_bytes,
        "ddr_written_bytes": counts.ddr_written * block_bytes,
        "nvme_read_bytes": counts.nvme_hits * block_bytes,
        "nvme_written_bytes": counts.nvme_written * block_bytes,
        "ttft_mean_s": round(statistics.fmean(counts.ttft_s), DIGITS) if counts.ttft_s else 0.0,
        "ttft_p50_s": round(statistics.median(counts.ttft_s), DIGITS) if counts.ttft_s else 0.0,
        "ttft_p95_s": round(_p95(counts.ttft_s), DIGITS),
    }


def _p95(values: list[float]) -> float:
    return statistics.quantiles(values, n=TWENTIETHS)[-1] if len(values) > 1 else sum(values)


def show(found: Found) -> list[RenderableType]:
    """Lay out a replay for people."""
    table = Table(box=None, pad_edge=False, header_style="bold", show_edge=False)
    for column in COLUMNS:
        table.add_column(column, justify="left" if column == "POLICY" else "right", no_wrap=True)
    for name, counts in found.counts.items():
        told = numbers(counts, found.block_bytes)
        table.add_row(
            name,
            f"{told['hit_rate']:.4f}",
            f"{told['ddr_hit_rate']:.4f}",
            f"{told['nvme_hit_rate']:.4f}",
            *(units.size(told[key]) for key in SIZES),
            *(f"{told[key]:.3f} s" for key in TIMES),
        )
    return [printable(sentence(found)), table]


def sentence(found: Found) -> str:
    """Say what was replayed."""
    counts = next(iter(found.counts.values()))
    nvme = f" and {found.tiers.nvme_blocks} of NVMe" if found.tiers.nvme_blocks else ""
    hints = "" if found.options.hints is None else f"; hints right in {found.options.hints:.0%}"
    return (
        f"{found.trace}: {counts.requests} requests, {counts.blocks} blocks of {units.size(found.block_bytes)}, "
        f"{found.unique_blocks} of them different; {found.tiers.ddr_blocks} blocks of DDR{nvme}{hints}; "
        f"without a cache the mean TTFT is {found.uncached_ttft_s:.3f} s"
    )
