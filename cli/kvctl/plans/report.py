"""What a plan says: one JSON document, or tables and sentences."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from rich.table import Table

from kvctl import units
from kvctl.names import show as printable
from kvctl.plans import verdict
from kvctl.plans.costs import HOUR_S

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from kvctl.plans.run import Plan
    from kvctl.plans.sweep import Point

DIGITS: Final = 4
REUSE_SHARES: Final = (0.5, 0.9)
COLUMNS: Final = (
    "DDR",
    "NVME",
    "TOKENS HIT",
    "GPU S/H SAVED",
    "SAVES",
    "COSTS",
    "LEFT",
    "NVME BUSY",
    "STEP SAVES",
    "STEP COSTS",
)


def document(plan: Plan) -> dict[str, Any]:
    """Return all of a plan; amounts of money are for a month."""
    costs, load = plan.asked.costs, plan.load
    return {
        "trace": plan.trace,
        "model": {
            "layers": plan.asked.shape.layers,
            "layer_elements": plan.asked.shape.layer_elements,
            "dtype": plan.asked.shape.dtype,
            "token_bytes": costs.token_bytes,
        },
        "prefill": [{"tokens": tokens, "tokens_s": rate} for tokens, rate in costs.prefill.points],
        "tiers": {tier.name: {"bytes_s": tier.bytes_s, "first_s": tier.first_s} for tier in costs.tiers},
        "prices": {"ddr_gib_month": costs.ddr_gib_month, "gpu_hour": costs.gpu_hour}
        | ({} if costs.nvme is None else {"nvme_gib_month": costs.nvme_gib_month}),
        "break_even_tokens": costs.break_even,
        "load": {
            "requests": load.requests,
            "span_s": load.span_s,
            "input_tokens": load.input_tokens,
            "block_bytes": load.block_bytes,
            "unique_bytes": load.unique_blocks * load.block_bytes,
            "prefill_gpu_s_h": _per_hour(plan, load.prefill_s),
            "prefill_month": round(costs.gpu_month(load.prefill_s, load.span_s), DIGITS),
            "unlimited_hit_tokens": load.seen_tokens,
            "unlimited_saved_month": round(costs.gpu_month(load.seen_saved_s, load.span_s), DIGITS),
            "reuse_bytes": {f"p{share * 100:g}": load.reuse_bytes(share) for share in REUSE_SHARES},
        },
        "sizes": [_numbers(plan, point) for point in plan.points],
        "best": None if plan.best is None else _numbers(plan, plan.best),
        "belady": None if plan.bound is None else _numbers(plan, plan.bound),
        "cases": [{"case": each.name, "holds": each.holds, "sentence": each.sentence} for each in verdict.cases(plan)],
        "verdict": [*verdict.sentences(plan), *verdict.break_even(plan)],
    }


def _per_hour(plan: Plan, seconds: float) -> float:
    return round(seconds / plan.load.span_s * HOUR_S, DIGITS)


def _numbers(plan: Plan, point: Point) -> dict[str, Any]:
    return {
        "ddr_bytes": point.ddr_bytes,
        "nvme_bytes": point.nvme_bytes,
        "hit_tokens": point.hit_tokens,
        "saved_gpu_s_h": _per_hour(plan, point.saved_s),
        "saved_month": round(point.saved_month, DIGITS),
        "price_month": round(point.price_month, DIGITS),
        "left_month": round(point.net_month, DIGITS),
        "ddr_read_bytes": point.ddr_read_bytes,
        "nvme_read_bytes": point.nvme_read_bytes,
        "nvme_written_bytes": point.nvme_written_bytes,
        "nvme_busy": round(point.nvme_busy, DIGITS),
    }


def show(plan: Plan) -> list[RenderableType]:
    """Lay out a plan for people."""
    parts: list[RenderableType] = [printable(sentence(plan)), ""]
    beside = plan.shown
    if beside is not None:
        by_ddr = [point for point in plan.points if point.nvme_bytes == beside.nvme_bytes]
        by_nvme = [point for point in plan.points if point.ddr_bytes == beside.ddr_bytes]
        parts += [_table(plan, by_ddr), ""]
        parts += [_table(plan, by_nvme), ""] if len(by_nvme) > 1 else []
    parts += [*verdict.sentences(plan), *verdict.break_even(plan), "", "Where a cache does not pay:"]
    for case in verdict.cases(plan):
        parts.append(f"- {case.name}: {'yes' if case.holds else 'no'}; {case.sentence}")
    return parts


def sentence(plan: Plan) -> str:
    """Say what the plan is about."""
    load = plan.load
    return (
        f"{plan.trace}: {units.plural(load.requests, 'request')} in {units.age(load.span_s)}, "
        f"{load.input_tokens:,} tokens of prompts; KV of {units.size(plan.asked.costs.token_bytes)} a token, "
        f"{units.size(load.unique_blocks * load.block_bytes)} of it different. Amounts are for a month."
    )


def _table(plan: Plan, points: Sequence[Point]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", show_edge=False)
    for column in COLUMNS:
        table.add_column(column, justify="right", no_wrap=True)
    steps = [("", "")]
    for before, point in pairwise(points):
        saves, costs = point.saved_month - before.saved_month, point.price_month - before.price_month
        steps.append((verdict.money(saves), verdict.money(costs)))
    for point, step in zip(points, steps, strict=True):
        table.add_row(
            units.size(point.ddr_bytes),
            units.size(point.nvme_bytes) if point.nvme_bytes else "-",
            f"{point.hit_tokens / max(1, plan.load.input_tokens):.1%}",
            f"{_per_hour(plan, point.saved_s):,.0f}",
            verdict.money(point.saved_month),
            verdict.money(point.price_month),
            verdict.money(point.net_month),
            verdict.percent(point.nvme_busy) if point.nvme_bytes else "-",
            *step,
            style="bold" if point is plan.best else None,
        )
    return table
