"""Numbers for people."""

from __future__ import annotations

_STEP = 1024
_MINUTE_S = 60
_HOUR_S = 3600
_DAY_S = 86400
_HUNDRED = 100


def size(count: int | None) -> str:
    """Return bytes as ``512 B``, ``3.0 MiB``, ``900 GiB``: three figures or so."""
    if count is None:
        return "-"
    if count < _STEP:
        return f"{count} B"
    value = count / _STEP
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        if round(value) < _STEP:
            return _figures(value, unit)
        value /= _STEP
    return _figures(value, "PiB")


def _figures(value: float, unit: str) -> str:
    return f"{value:.1f} {unit}" if round(value, 1) < _HUNDRED else f"{value:.0f} {unit}"


def age(seconds: float | None) -> str:
    """Return a duration in its two largest units: ``42s``, ``1h 6m``, ``3d 4h``."""
    if seconds is None:
        return "-"
    whole = max(0, int(seconds))
    if whole < _MINUTE_S:
        return f"{whole}s"
    if whole < _HOUR_S:
        return f"{whole // _MINUTE_S}m {whole % _MINUTE_S}s"
    if whole < _DAY_S:
        return f"{whole // _HOUR_S}h {whole % _HOUR_S // _MINUTE_S}m"
    return f"{whole // _DAY_S}d {whole % _DAY_S // _HOUR_S}h"


def share(part: int, whole: int) -> str:
    """Return a percentage."""
    return f"{_HUNDRED * part / whole:.0f}%" if whole > 0 else "-"


def plural(count: int, noun: str) -> str:
    """Return ``1 object``, ``2 objects``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
