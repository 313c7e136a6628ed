"""Numbers of a benchmark, and how large what they were measured on is."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Any, Final

from kvctl.exits import UsageError

MIB: Final = 1 << 20
ALIGN_BYTES: Final = 1 << 16
"""Sizes are multiples of a page of an object."""
SIZE_BYTES: Final = 1 << 30
"""The size for which the promises are given."""
SIZE_BYTES_MIN: Final = 8 * MIB
SIZE_BYTES_MAX: Final = 1 << 40
OBJECT_BYTES: Final = 16 * MIB
READ_OBJECTS: Final = 8
WRITE_OBJECTS_MIN: Final = 8
COLD_OBJECTS: Final = 64
SUSTAINED_BUDGETS: Final = 4
DIGITS: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One side of a measurement: a value a round."""

    name: str
    unit: str
    values: tuple[float, ...]

    @property
    def median(self) -> float:
        """The value that counts."""
        return statistics.median(self.values)

    def document(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {
            "name": self.name,
            "unit": self.unit,
            "median": round(self.median, DIGITS),
            "low": round(min(self.values), DIGITS),
            "high": round(max(self.values), DIGITS),
            "values": [round(value, DIGITS) for value in self.values],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One number and the bar that it is held against.

    Attributes
    ----------
    key
        Its name in JSON.
    what
        What was measured, in words.
    value
        The number; None: it could not be measured, and `note` says why.
    unit
        Of `value` and `bar`.
    bar
        What is promised; None: nothing is.
    at_most
        The bar is the most that is allowed, not the least.
    ours, peer
        What it was made of.
    note
        What a reader has to know about it.
    """

    key: str
    what: str
    value: float | None
    unit: str = "x"
    bar: float | None = None
    at_most: bool = False
    ours: Series | None = None
    peer: Series | None = None
    note: str = ""

    @property
    def passed(self) -> bool | None:
        """Whether the bar is reached; None where there is no bar or no number."""
        if self.value is None or self.bar is None:
            return None
        return self.value <= self.bar if self.at_most else self.value >= self.bar

    def document(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {
            "what": self.what,
            "value": None if self.value is None else round(self.value, DIGITS),
            "unit": self.unit,
            "bar": self.bar,
            "at_most": self.at_most,
            "passed": self.passed,
            "ours": None if self.ours is None else self.ours.document(),
            "peer": None if self.peer is None else self.peer.document(),
            "note": self.note,
        }


def ratio(key: str, what: str, bar: float | None, ours: Series, peer: Series, note: str = "") -> Outcome:
    """Return the median of ours over the median of the peer's."""
    return Outcome(key=key, what=what, value=ours.median / peer.median, bar=bar, ours=ours, peer=peer, note=note)


def lowest(key: str, what: str, outcomes: list[Outcome]) -> Outcome:
    """Return the worst of several outcomes with the same bar, under a name of its own."""
    worst = min((one for one in outcomes if one.value is not None), key=lambda one: one.value or 0.0)
    return Outcome(
        key=key,
        what=what,
        value=worst.value,
        unit=worst.unit,
        bar=worst.bar,
        ours=worst.ours,
        peer=worst.peer,
        note=f"the worst of {', '.join(one.key for one in outcomes)}",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How much is measured, all of it from one number.

    Attributes
    ----------
    size_bytes
        Of the set of cold objects, of the one large object, and of the DDR budget that is written over four times.
    """

    size_bytes: int

    @classmethod
    def of(cls, size_bytes: int) -> Sizes:
        """Check a size.

        Raises
        ------
        UsageError
            If it is out of the limits.
        """
        if not SIZE_BYTES_MIN <= size_bytes <= SIZE_BYTES_MAX:
            raise UsageError(f"--size {size_bytes}: the benchmark takes {SIZE_BYTES_MIN} to {SIZE_BYTES_MAX} bytes")
        return cls(size_bytes=size_bytes)

    def _aligned(self, size_bytes: int) -> int:
        return max(ALIGN_BYTES, size_bytes - size_bytes % ALIGN_BYTES)

    @property
    def read_object_bytes(self) -> int:
        """Of each of `READ_OBJECTS` objects in DDR."""
        return self._aligned(self.size_bytes // (2 * READ_OBJECTS))

    @property
    def write_object_bytes(self) -> int:
        """Of each new object."""
        return min(OBJECT_BYTES, self._aligned(self.size_bytes // (2 * WRITE_OBJECTS_MIN)))

    @property
    def write_objects(self) -> int:
        """How many of them a round writes: half of the size."""
        return self.size_bytes // 2 // self.write_object_bytes

    @property
    def cold_object_bytes(self) -> int:
        """Of each of `COLD_OBJECTS` objects on NVMe."""
        return self._aligned(self.size_bytes // COLD_OBJECTS)

    @property
    def big_bytes(self) -> int:
        """Of the one large object."""
        return self._aligned(self.size_bytes)

    @property
    def sustained_objects(self) -> int:
        """How many of `write_object_bytes` are `SUSTAINED_BUDGETS` times the budget."""
        return SUSTAINED_BUDGETS * self.size_bytes // self.write_object_bytes

    def document(self) -> dict[str, int]:
        """Return it for JSON: what was measured, in bytes and objects."""
        return {
            "size_bytes": self.size_bytes,
            "read_objects": READ_OBJECTS,
            "read_object_bytes": self.read_object_bytes,
            "write_objects": self.write_objects,
            "write_object_bytes": self.write_object_bytes,
            "cold_objects": COLD_OBJECTS,
            "cold_object_bytes": self.cold_object_bytes,
            "big_bytes": self.big_bytes,
            "sustained_objects": self.sustained_objects,
        }
