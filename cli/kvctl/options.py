"""Values of options: read from what the user wrote, or refused with one sentence."""

from __future__ import annotations

from kvctl.exits import UsageError
from kvd import config_units


def positive(what: str, value: int) -> int:
    """Return a count that must be more than 0.

    Raises
    ------
    UsageError
        If it is not; it begins with `what`.
    """
    if value <= 0:
        raise UsageError(f"{what} {value}: more than 0")
    return value


def size(what: str, text: str) -> int:
    """Return the bytes of a size, or of a rate a second, more than 0.

    Raises
    ------
    UsageError
        If it is no such size; it begins with `what`.
    """
    try:
        found_bytes = config_units.parse_size(text)
    except ValueError as error:
        raise UsageError(f"{what} {text}: {error}") from error
    if found_bytes <= 0:
        raise UsageError(f"{what} {text}: more than 0")
    return found_bytes


def duration(what: str, text: str) -> float:
    """Return the seconds of a duration.

    Raises
    ------
    UsageError
        If it is none; it begins with `what`.
    """
    try:
        return config_units.parse_duration(text)
    except ValueError as error:
        raise UsageError(f"{what} {text}: {error}") from error
