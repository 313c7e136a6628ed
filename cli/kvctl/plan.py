"""``kvctl plan``: how much of each tier is worth buying for a load, before anything is bought."""

from __future__ import annotations

import re
from pathlib import Path  # noqa: TC003  cyclopts reads this annotation
from typing import TYPE_CHECKING, Annotated, Final

from cyclopts import Parameter

from kvctl import options as amounts
from kvctl.exits import Exit, UsageError
from kvctl.names import show as printable
from kvctl.run import Run  # noqa: TC001  cyclopts reads this annotation

if TYPE_CHECKING:
    from kvctl.plans.costs import Costs, Prefill, Tier
    from kvctl.plans.run import Plan

DDR_RATE: Final = "10GB"
NVME_RATE: Final = "2GB"
DDR_FIRST: Final = "0.1ms"
"""An open, a read and a close."""
NVME_FIRST: Final = "10ms"
"""docs/benchmarks.md, `big_first_ms`."""
POINTS_MAX: Final = 64
LENGTH_MAX: Final = 1 << 30
RATE_MAX: Final = 1e9
PRICE_MAX: Final = 1e9
PRICE_MIN: Final = 1e-9
GIB_OF_UNIT: Final = {"GiB-month": 1.0, "TiB-month": 1024.0, "GB-month": 1e9 / 2**30, "TB-month": 1e12 / 2**30}
GPU_UNIT: Final = "h"
PREFILL_FORM: Final = "tokens a second, or RATE@TOKENS,... by rising TOKENS"
_PRICE: Final = re.compile(r"(ddr|nvme|gpu)=(\d+(?:\.\d+)?)/([A-Za-z-]+)")
_RATE: Final = re.compile(r"(\d+(?:\.\d+)?)(?:@(\d+))?")


def plan(  # noqa: PLR0913  each is an option of the command
    trace: Annotated[Path, Parameter(name="TRACE")],
    /,
    *,
    model: str,
    gpu_prefill: str,
    price: str,
    ddr_rate: str | None = None,
    nvme_rate: str | None = None,
    ddr_first: str = DDR_FIRST,
    nvme_first: str | None = None,
    measure: Annotated[bool, Parameter(negative="", show_default=False)] = False,
    ddr_sizes: str | None = None,
    nvme_sizes: str | None = None,
    plot: Path | None = None,
    run: Annotated[Run, Parameter(parse=False)],
) -> int:
    """Say how much DDR and NVMe is worth its price for a load, and where a cache does not pay. No daemon is asked.

    TRACE is what kvctl replay takes. It is replayed at many sizes through the daemon's own policy.

    Parameters
    ----------
    model
        layers=32,kv_heads=8,head_dim=128,dtype=fp16, or a model's config.json.
    gpu_prefill
        Tokens a second that a GPU prefills: 8000, or measured at lengths, 8000@4096,5000@32768.
    price
        ddr=3.0/GiB-month,nvme=0.1/GiB-month,gpu=2.5/h, all in one currency. Without nvme only DDR is looked at.
    ddr_rate
        Bytes a second at which one reader has DDR: 10GB where nothing is said. Of several links the slowest counts.
    nvme_rate
        The same of NVMe: 2GB where nothing is said.
    ddr_first
        From asking to the first byte of DDR.
    nvme_first
        The same of NVMe: 10ms where nothing is said.
    measure
        Measure rates and NVMe's first byte here, as kvctl bench read and cold do: needs root, 512 MiB of memory, 2 GiB of disk.
    ddr_sizes
        Sizes to try, 16GiB..512GiB, doubled from one to the other; else what the trace suggests.
    nvme_sizes
        The same of NVMe; none at all is always tried.
    plot
        Draw the numbers into this SVG file, too.
    """
    from kvctl.plans import plot as picture  # noqa: PLC0415  other commands start sooner without
    from kvctl.plans import run as plans  # noqa: PLC0415
    from kvctl.plans import shape  # noqa: PLC0415

    if measure and (ddr_rate, nvme_rate, nvme_first) != (None, None, None):
        raise UsageError("give --measure, or --ddr-rate, --nvme-rate and --nvme-first")
    of_model = shape.parse(model)
    rates = (ddr_rate or DDR_RATE, nvme_rate or NVME_RATE, ddr_first, nvme_first or NVME_FIRST)
    costs = _costs(of_model.token_bytes, prefill(gpu_prefill), prices(price), _tiers(*rates))
    tried = _sizes("--ddr-sizes", ddr_sizes), _sizes("--nvme-sizes", nvme_sizes)
    if tried[1] is not None and costs.nvme is None:
        raise UsageError("--nvme-sizes: --price has no nvme=")
    if plot is not None:
        picture.check(plot)
    if measure:
        costs = _measured(costs, run)
    asked = plans.Asked(shape=of_model, costs=costs, ddr_sizes=tried[0], nvme_sizes=tried[1])
    with run.err.status(f"reading {printable(str(trace))}") as status:  # nothing where stderr is no terminal
        found = plans.run(trace, asked, status.update)
    if plot is not None:
        picture.draw(found, plot)
    _print(found, run)
    return Exit.OK


def _print(found: Plan, run: Run) -> None:
    from kvctl.plans import report  # noqa: PLC0415  as above

    if run.as_json:
        run.document(report.document(found))
    else:
        run.show(*report.show(found))


def _costs(token_bytes: int, gpu: Prefill, price: dict[str, float], tiers: tuple[Tier, Tier]) -> Costs:
    from kvctl.plans.costs import Costs  # noqa: PLC0415  as above

    return Costs(
        token_bytes=token_bytes,
        prefill=gpu,
        ddr=tiers[0],
        nvme=tiers[1] if "nvme" in price else None,
        ddr_gib_month=price["ddr"],
        nvme_gib_month=price.get("nvme", 0.0),
        gpu_hour=price["gpu"],
    )


def _tiers(ddr_rate: str, nvme_rate: str, ddr_first: str, nvme_first: str) -> tuple[Tier, Tier]:
    from kvctl.plans.costs import Tier  # noqa: PLC0415  as above

    return (
        Tier(
            name="ddr",
            bytes_s=amounts.size("--ddr-rate", ddr_rate),
            first_s=amounts.duration("--ddr-first", ddr_first),
        ),
        Tier(
            name="nvme",
            bytes_s=amounts.size("--nvme-rate", nvme_rate),
            first_s=amounts.duration("--nvme-first", nvme_first),
        ),
    )


def _measured(costs: Costs, run: Run) -> Costs:
    from dataclasses import replace  # noqa: PLC0415  as above

    from kvctl.plans import measure as benchmark  # noqa: PLC0415

    ddr_bytes_s, nvme_bytes_s, nvme_first_s = benchmark.rates(run)
    nvme = costs.nvme
    return replace(
        costs,
        ddr=replace(costs.ddr, bytes_s=ddr_bytes_s),
        nvme=None if nvme is None else replace(nvme, bytes_s=nvme_bytes_s, first_s=nvme_first_s),
    )


def prefill(text: str) -> Prefill:
    """Return the speed of a GPU.

    Raises
    ------
    UsageError
        If it is none.
    """
    from kvctl.plans.costs import Prefill  # noqa: PLC0415  as above

    points: list[tuple[int, float]] = []
    parts = text.split(",")
    for part in parts:
        match = _RATE.fullmatch(part.strip())
        if match is None or (match[2] is None and len(parts) > 1) or len(parts) > POINTS_MAX:
            raise UsageError(f"--gpu-prefill {text}: {PREFILL_FORM}")
        rate, length = float(match[1]), int(match[2] or 1)
        if not 0 < rate <= RATE_MAX or not 0 < length <= LENGTH_MAX or (points and length <= points[-1][0]):
            raise UsageError(f"--gpu-prefill {text}: {PREFILL_FORM}")
        points.append((length, rate))
    try:
        return Prefill(points)
    except ValueError as error:
        raise UsageError(f"--gpu-prefill {text}: {error}") from error


def prices(text: str) -> dict[str, float]:
    """Return prices by what they are for: a GiB of a tier for a month, a GPU for an hour.

    Raises
    ------
    UsageError
        If one is missing, or none.
    """
    found: dict[str, float] = {}
    for part in text.split(","):
        match = _PRICE.fullmatch(part.strip())
        if match is None or match[1] in found:
            raise UsageError(
                f"--price {part.strip()}: ddr=PRICE/GiB-month, nvme=PRICE/GiB-month, gpu=PRICE/h, each once"
            )
        name, price, unit = match[1], float(match[2]), match[3]
        units = (GPU_UNIT,) if name == "gpu" else tuple(GIB_OF_UNIT)
        if unit not in units:
            raise UsageError(f"--price {part.strip()}: the unit is one of {', '.join(units)}")
        if not PRICE_MIN <= price <= PRICE_MAX:
            raise UsageError(f"--price {part.strip()}: more than 0, and at most {PRICE_MAX:g}")
        found[name] = price / GIB_OF_UNIT.get(unit, 1.0)
    missing = [name for name in ("ddr", "gpu") if name not in found]
    if missing:
        raise UsageError(f"--price {text}: {' and '.join(missing)} is missing")
    return found


def _sizes(option: str, text: str | None) -> list[int] | None:
    from kvctl.plans import sweep  # noqa: PLC0415  as above

    if text is None:
        return None
    low, dots, high = text.partition("..")
    first = amounts.size(option, low)
    return sweep.doublings(first, amounts.size(option, high) if dots else first, f"{option} {text}")
