"""The tiers of this machine, by a short run of ``kvctl bench``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kvctl.benches import run as benches
from kvctl.benches.outcome import Sizes
from kvctl.exits import CtlError, Exit

if TYPE_CHECKING:
    from kvctl.benches.outcome import Outcome
    from kvctl.run import Run

SIZE_BYTES: Final = 256 << 20
ROUNDS: Final = 3
GB: Final = 1e9
MS_PER_S: Final = 1000


def rates(run: Run) -> tuple[float, float, float]:
    """Return bytes a second of DDR and of NVMe with one reader, and the seconds until NVMe's first byte.

    Raises
    ------
    CtlError
        If it can't be measured here.
    """
    options = benches.Options(
        sizes=Sizes.of(SIZE_BYTES), rounds=ROUNDS, objects=1, duration_ms=1, scratch=None, mount=None
    )
    found = {one.key: one for what in ("read", "cold") for one in benches.run(what, options, run).outcomes if one.ours}
    ddr, nvme, first = (_ours(found, key) for key in ("read_1_ratio", "big_ratio", "big_first_ms"))
    return ddr * GB, nvme * GB, first / MS_PER_S


def _ours(found: dict[str, Outcome], key: str) -> float:
    one = found.get(key)
    if one is None or one.ours is None or one.ours.median <= 0:
        raise CtlError(f"--measure: the benchmark did not give {key}", Exit.FAILED, "EIO")
    return one.ours.median
