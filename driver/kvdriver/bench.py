"""How fast the in-process engine is on this machine, against what it must reach.

Each measurement is a round in C (csrc/bench) in one thread, whose processor time counts; rounds of all measurements
alternate, so that a noisy machine disturbs them alike, and the median counts. What is a ratio is measured against its peer
in the same run.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

from kvdriver._bench import ffi, lib
from kvdriver.results import check_result

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType

PAGES: Final = 16 << 20
"""Pages mapped while it is measured, as the promises name them: 128 MiB of tables."""
ROUNDS: Final = 7
_WHAT: Final = "benchmark of the engine"
_MEGA: Final = 1e6

MEMCPY_SHARE: Final = 0.5
"""What a conversion must reach of memcpy's speed, over the same 64 MiB of source."""

CHAIN_BLOCKS: Final = 128
PAGES_A_CHAIN: Final = 2048
"""So many chains are in the prefix index: 1 M blocks for 16 M pages."""
CHAINS_MIN: Final = 16
MATCHES: Final = 101
FLUSH_BYTES: Final = 96 << 20
"""Read between two matches, so that each finds cold caches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One number, and the bar that it must reach.

    Attributes
    ----------
    key
        Its name in JSON.
    what
        What was measured, in words.
    value
        The median of the rounds.
    unit
        Of `value` and `bar`.
    bar
        What it must reach.
    at_most
        The bar is the most that is allowed, not the least.
    """

    key: str
    what: str
    value: float
    unit: str
    bar: float
    at_most: bool = False

    @property
    def passed(self) -> bool:
        """Whether the bar is reached."""
        return self.value <= self.bar if self.at_most else self.value >= self.bar


class EngineBench:
    """An engine with pages mapped, to be measured.

    Parameters
    ----------
    pages
        How many; `lib.KVD_BENCH_PAGES_MIN` to `lib.KVD_BENCH_PAGES_MAX`.

    Raises
    ------
    OSError
        If the number is out of its limits or memory is not to be had.
    """

    def __init__(self, pages: int) -> None:
        out = ffi.new("kvd_bench **")
        if not lib.KVD_BENCH_PAGES_MIN <= pages <= lib.KVD_BENCH_PAGES_MAX:
            limits = f"{lib.KVD_BENCH_PAGES_MIN} to {lib.KVD_BENCH_PAGES_MAX}"
            raise ValueError(f"{pages} pages: the benchmark takes {limits}")
        check_result(lib.kvd_bench_init(pages, out), _WHAT)
        self._bench: Any = ffi.gc(out[0], lib.kvd_bench_fini)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        ffi.release(self._bench)

    def _round(self, what: Callable[..., int], *arguments: int) -> float:
        per_s = ffi.new("double *")
        check_result(what(self._bench, *arguments, per_s), _WHAT)
        return float(per_s[0])

    def run(self, rounds: int = ROUNDS) -> Iterator[tuple[str, float]]:
        """Measure.

        Parameters
        ----------
        rounds
            How many of each.

        Yields
        ------
        tuple
            Name of a measurement and what one round of it came to, per second.

        Raises
        ------
        OSError
            If the engine refused a command.
        """
        for _ in range(rounds):
            yield "translate", self._round(lib.kvd_bench_translate)
            yield "map", self._round(lib.kvd_bench_map)
            yield "age_scan", self._round(lib.kvd_bench_age_scan)
            yield "memcpy", self._round(lib.kvd_bench_convert, lib.KVD_BENCH_MEMCPY)
            yield "fp8", self._round(lib.kvd_bench_convert, lib.KVD_BENCH_TO_E4M3)
            yield "int8", self._round(lib.kvd_bench_convert, lib.KVD_BENCH_TO_INT8)
            yield "fp8_scaled", self._round(lib.kvd_bench_convert, lib.KVD_BENCH_TO_E4M3_SCALED)
            yield "int8_scaled", self._round(lib.kvd_bench_convert, lib.KVD_BENCH_TO_INT8_SCALED)

    def bytes_per_page(self) -> float:
        """Return what a mapped page costs of table memory."""
        return float(lib.kvd_bench_bytes_per_page(self._bench))


def prefix_match_us(pages: int) -> tuple[int, float]:
    """Match chains in a prefix index of its own, with cold caches.

    Returns
    -------
    tuple
        Blocks in the index, and the median microseconds for a chain of `CHAIN_BLOCKS`.

    Raises
    ------
    OSError
        If memory is not to be had.
    """
    chains = max(CHAINS_MIN, pages // PAGES_A_CHAIN)
    config = ffi.new("struct kvd_prefix_bench_config *")
    config.chains = chains
    config.chain_blocks = CHAIN_BLOCKS
    config.rounds = MATCHES
    config.flush_bytes = FLUSH_BYTES
    result = ffi.new("struct kvd_prefix_bench_result *")
    check_result(lib.kvd_prefix_bench(config, result), _WHAT)
    return chains * CHAIN_BLOCKS, float(result.match_us_median)


_CONVERSIONS: Final = {
    "fp8": "FP16 to E4M3, a scale a channel of 64 tokens given",
    "int8": "FP16 to INT8, a scale a channel of 64 tokens given",
    "fp8_scaled": "FP16 to E4M3, those scales chosen first, as GATHER does",
    "int8_scaled": "FP16 to INT8, those scales chosen first, as GATHER does",
}


def _against_memcpy(name: str, what: str, median: dict[str, float]) -> Measured:
    return Measured(
        key=f"{name}_vs_memcpy", what=what, value=median[name] / median["memcpy"], unit="of memcpy", bar=MEMCPY_SHARE
    )


def measure(pages: int = PAGES, rounds: int = ROUNDS) -> list[Measured]:
    """Measure the in-process engine.

    Parameters
    ----------
    pages
        Pages mapped meanwhile.
    rounds
        Rounds of each measurement, whose median counts.

    Raises
    ------
    ValueError
        If there are too few or too many pages or rounds.
    OSError
        If memory is not to be had.
    """
    if rounds < 1:
        raise ValueError(f"{rounds} rounds: at least one is needed")
    found: dict[str, list[float]] = {}
    with EngineBench(pages) as bench:
        for name, per_s in bench.run(rounds):
            found.setdefault(name, []).append(per_s)
        bytes_per_page = bench.bytes_per_page()
    blocks, match_us = prefix_match_us(pages)
    median = {name: statistics.median(values) for name, values in found.items()}
    return [
        Measured(
            key="translate_mops",
            what=f"TRANSLATE, random single pages of {pages:,}, in lists of 256",
            value=median["translate"] / _MEGA,
            unit="M lookups/s",
            bar=20,
        ),
        Measured(
            key="map_mops",
            what="MAP and UNMAP of 16 MiB objects, pages through both",
            value=median["map"] / _MEGA,
            unit="M pages/s",
            bar=3,
        ),
        Measured(
            key="age_scan_mpte",
            what=f"AGE_SCAN of {pages:,} pages, one of 1,024 used",
            value=median["age_scan"] / _MEGA,
            unit="M entries/s",
            bar=500,
        ),
        Measured(
            key="bytes_per_page",
            what="tables for a mapped page",
            value=bytes_per_page,
            unit="bytes",
            bar=16,
            at_most=True,
        ),
        Measured(
            key="prefix_us",
            what=f"PREFIX_MATCH of {CHAIN_BLOCKS} blocks among {blocks:,}, caches cold",
            value=match_us,
            unit="us",
            bar=10,
            at_most=True,
        ),
        *(_against_memcpy(name, what, median) for name, what in _CONVERSIONS.items()),
    ]
