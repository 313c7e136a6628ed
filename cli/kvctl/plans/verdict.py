"""What a plan says in words: what to buy, and the three cases in which a cache does not pay."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kvctl import units
from kvctl.plans.costs import GIB, HOUR_S

if TYPE_CHECKING:
    from kvctl.plans.run import Plan
    from kvctl.plans.sweep import Point

SHORT_SHARE: Final = 0.5
"""Requests below the break-even from which on a load is one of short contexts."""
SAVED_SHARE_MIN: Final = 0.01
"""Of the cost of prefill: prices vary by more than that."""
MEDIAN: Final = 0.5
DAY_S: Final = 24 * HOUR_S
WHOLE: Final = 100
NAMES: Final = {"ddr": "DDR", "nvme": "NVMe"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One of the cases in which a cache does not pay.

    Attributes
    ----------
    name
        Which.
    holds
        Whether this load is one.
    sentence
        The numbers.
    """

    name: str
    holds: bool
    sentence: str


def money(value: float) -> str:
    """Return an amount for people: without hundredths where there are hundreds."""
    return f"{value:,.0f}" if abs(value) >= WHOLE else f"{value:,.2f}"


def percent(value: float) -> str:
    """Return a share for people."""
    return f"{value:.1%}" if 0 < value < 1 / WHOLE else f"{value:.0%}"


def tiers(point: Point) -> str:
    """Say the sizes of a point."""
    nvme = f" and {units.size(point.nvme_bytes)} of NVMe" if point.nvme_bytes else ""
    return f"{units.size(point.ddr_bytes)} of DDR{nvme}"


def break_even(plan: Plan) -> list[str]:
    """Say from which length on each tier is worth asking."""
    found = []
    for name, tokens in plan.asked.costs.break_even.items():
        told = "never: the GPU is always faster" if tokens is None else f"from {units.plural(tokens, 'token')} on"
        found.append(f"Restoring from {NAMES[name]} is faster than computing {told}.")
    return found


def sentences(plan: Plan) -> list[str]:
    """Say what to buy, and why not more."""
    best = plan.best
    if best is None:
        return [f"Buy nothing: {_why_nothing(plan)}"]
    costs, load = plan.asked.costs, plan.load
    share = best.saved_month / costs.gpu_month(load.prefill_s, load.span_s)
    buy = (
        f"Buy {tiers(best)}: {money(best.price_month)} a month, for GPU time worth {money(best.saved_month)} a month, "
        f"{percent(share)} of what prefill costs."
    )
    found = [
        buy,
        _more(best, plan.find(2 * best.ddr_bytes, best.nvme_bytes), "Twice the DDR"),
    ]
    if best.ddr_bytes >= load.unique_blocks * load.block_bytes:
        found[-1] = "The whole trace fits: more DDR would save nothing."
    if costs.nvme is not None:
        larger = min((each.nvme_bytes for each in plan.points if each.nvme_bytes > best.nvme_bytes), default=None)
        what = f"{units.size(larger)} of NVMe" if larger and not best.nvme_bytes else "Twice the NVMe"
        found.append(_more(best, None if larger is None else plan.find(best.ddr_bytes, larger), what))
    if best.ddr_bytes == min(each.ddr_bytes for each in plan.points):
        found.append("Less DDR was not looked at: see --ddr-sizes.")
    if best.nvme_bytes:
        found.append(_wear(plan, best))
    if plan.too_fast is not None:
        found.append(_too_fast(plan.too_fast))
    return found


def _more(best: Point, more: Point | None, what: str) -> str:
    if more is None:
        return f"{what} was not looked at."
    cost, saved = more.price_month - best.price_month, more.saved_month - best.saved_month
    limit = f", but needs {more.nvme_busy:.1f} times the rate that NVMe has" if more.nvme_busy > 1 else ""
    return f"{what} would cost {money(cost)} more a month, and save {money(abs(saved))} {'more' if saved >= 0 else 'less'}{limit}."


def _wear(plan: Plan, best: Point) -> str:
    written_bytes = best.nvme_written_bytes / plan.load.span_s * DAY_S
    return (
        f"NVMe is then written {units.size(int(written_bytes))} a day, {written_bytes / best.nvme_bytes:.1f} times its size, "
        f"and busy for {percent(best.nvme_busy)} of the time."
    )


def _too_fast(point: Point) -> str:
    return (
        f"{tiers(point)} would leave {money(point.net_month)} a month, but needs {point.nvme_busy:.1f} times the rate "
        "that NVMe has."
    )


def _why_nothing(plan: Plan) -> str:
    shown = plan.shown
    if shown is None:
        return "all that comes again would not save what a block of DDR costs."
    if plan.too_fast is not None:
        return f"NVMe is too slow for what would pay. {_too_fast(plan.too_fast)}"
    return (
        f"no size saves what it costs; {tiers(shown)} comes nearest, with {money(shown.saved_month)} a month "
        f"for {money(shown.price_month)}."
    )


def cases(plan: Plan) -> list[Case]:
    """Check the load against each case."""
    return [_short(plan), _independent(plan), _small(plan)]


def _short(plan: Plan) -> Case:
    load, told, shares = plan.load, [], []
    for name, tokens in plan.asked.costs.break_even.items():
        share = 1.0 if tokens is None else load.shorter(tokens) / load.requests
        limit = "at any length" if tokens is None else f"below {units.plural(tokens, 'token')}"
        told.append(f"{percent(share)} of the requests are too short for {NAMES[name]} ({limit})")
        shares.append(share)
    return Case(name="short contexts", holds=min(shares) >= SHORT_SHARE, sentence=f"{'; '.join(told)}.")


def _independent(plan: Plan) -> Case:
    load, costs, bound = plan.load, plan.asked.costs, plan.bound
    share = load.seen_saved_s / load.prefill_s if load.prefill_s else 0.0
    seen = load.seen_tokens / load.input_tokens if load.input_tokens else 0.0
    bound_pays = bound is not None and bound.net_month > 0
    sentence = (
        f"an unlimited cache would find {percent(seen)} of the prompt tokens and save "
        f"{money(costs.gpu_month(load.seen_saved_s, load.span_s))} a month, {percent(share)} of what prefill costs"
    )
    if bound is not None:
        found = bound.hit_tokens / load.input_tokens if load.input_tokens else 0.0
        result = f"saves {money(bound.saved_month)} for {money(bound.price_month)}"
        sentence += f"; Belady's bound at {tiers(bound)} finds {percent(found)} and {result}"
    return Case(
        name="independent requests",
        holds=share < SAVED_SHARE_MIN or (plan.best is None and not bound_pays),
        sentence=f"{sentence}.",
    )


def _small(plan: Plan) -> Case:
    distance_bytes, best = plan.load.reuse_bytes(MEDIAN), plan.best
    if distance_bytes is None:
        return Case(name="one small host", holds=False, sentence="nothing is used again, so no size would do.")
    between = f"half of the reuse has up to {units.size(distance_bytes)} of KV in between"
    if best is None:
        affordable_bytes = _affordable_bytes(plan)
        sentence = f"{between}; all that could be saved pays for {units.size(affordable_bytes)} of the cheapest tier."
        return Case(name="one small host", holds=affordable_bytes < distance_bytes, sentence=sentence)
    holds = best.ddr_bytes + best.nvme_bytes < distance_bytes
    relation = "less" if holds else "more"
    sentence = f"{between}; {tiers(best)}, what pays best, holds {relation} than that."
    return Case(name="one small host", holds=holds, sentence=sentence)


def _affordable_bytes(plan: Plan) -> int:
    """Return how much of the cheapest tier costs what an unlimited cache saves."""
    costs, load = plan.asked.costs, plan.load
    cheapest = costs.ddr_gib_month if costs.nvme is None else min(costs.ddr_gib_month, costs.nvme_gib_month)
    return int(costs.gpu_month(load.seen_saved_s, load.span_s) / cheapest * GIB)
