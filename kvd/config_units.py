"""Sizes, shares and durations as an operator writes them."""

import re
from fractions import Fraction

_NUMBER = r"(\d+(?:\.\d+)?)"
_SIZE = re.compile(_NUMBER + r"\s*([A-Za-z]*)")
_PERCENT = re.compile(_NUMBER + r"\s*%")
_DURATION = re.compile(_NUMBER + r"\s*([a-z]+)")

BYTES_OF_UNIT = {
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
}
SECONDS_OF_UNIT = {"ms": 0.001, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}

SIZE_BYTES_MAX = 2**60
"""More than any machine holds; keeps sums of sizes within 64 bits."""

DURATION_S_MAX = 7 * 24 * 3600.0
"""A week: no wait of the daemon is longer."""


def parse_size(value: str | int) -> int:
    """Return bytes for ``"8GiB"``, ``"1.5TB"`` or a plain number of bytes.

    Raises
    ------
    ValueError
        If `value` is no size; the text says why.
    """
    if isinstance(value, int):
        size_bytes = value
    else:
        match = _SIZE.fullmatch(value.strip())
        if match is None:
            raise ValueError(f'"{value}" is not a size')
        number, unit = match.groups()
        if not unit:
            raise ValueError(f'"{value}" has no unit')
        if unit not in BYTES_OF_UNIT:
            raise ValueError(f'"{value}" has the unknown unit "{unit}"')
        size_bytes = int(Fraction(number) * BYTES_OF_UNIT[unit])
    if not 0 <= size_bytes <= SIZE_BYTES_MAX:
        raise ValueError(f"{value} is out of range")
    return size_bytes


def parse_share(value: str | int, *, whole_bytes: int) -> int:
    """Return bytes for a size, or for a percentage of `whole_bytes` (``"12.5%"``).

    Raises
    ------
    ValueError
        If `value` is neither.
    """
    match = _PERCENT.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        return parse_size(value)
    return int(whole_bytes * Fraction(match[1]) / 100)


def parse_duration(value: str) -> float:
    """Return seconds for ``"250ms"``, ``"10s"``, ``"5min"``, ``"1h"`` or ``"7d"``.

    Raises
    ------
    ValueError
        If `value` is no duration.
    """
    match = _DURATION.fullmatch(value.strip())
    if match is None:
        raise ValueError(f'"{value}" is not a duration')
    number, unit = match.groups()
    if unit not in SECONDS_OF_UNIT:
        raise ValueError(f'"{value}" has the unknown unit "{unit}"')
    seconds = float(number) * SECONDS_OF_UNIT[unit]
    if not 0 < seconds <= DURATION_S_MAX:
        raise ValueError(f'"{value}" is out of range')
    return seconds


def size_text(size_bytes: int) -> str:
    """Return a size for people, in the largest binary unit that keeps it at least 1."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if size_bytes >= BYTES_OF_UNIT[unit]:
            return f"{size_bytes / BYTES_OF_UNIT[unit]:.1f}{unit}"
    return f"{size_bytes}B"
