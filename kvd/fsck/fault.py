"""A fault that a check has found, and what was done about it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(slots=True, kw_only=True)
class Fault:
    """One fault.

    Attributes
    ----------
    kind
        For programs; ``catalogue``, ``names``, ``objects``, ``nvme``, ``ddr``, ``descriptions``, ``tree``, ``data``, ``engine``.
    what
        One sentence.
    place
        The file and the offset where it is, '' where that says nothing more.
    mend
        Repairs it and returns what was done; None where only `what` says what can be done.
    done
        What was done.
    mended
        It was not found again.
    """

    kind: str
    what: str
    place: str = ""
    mend: Callable[[], str] | None = field(default=None, repr=False)
    done: str = ""
    mended: bool = False

    def __str__(self) -> str:
        return self.what
