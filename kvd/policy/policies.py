"""The policies by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kvd.policy.classic import Classic
from kvd.policy.gittins import Gittins
from kvd.policy.orders import Arc, Fifo, Lfu, Lru, S3Fifo

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvd.policy.ageing import Policy

DEFAULT: Final = "default"
PLAIN: Final = "lru-tail"
"""The one that takes hardly any memory and is no worse than what was there before."""
OBJECTS_MAX: Final = 1 << 22
"""Objects that the default policy knows, in tiers and remembered, where nobody says otherwise."""

POLICIES: Final[dict[str, Callable[[], Policy]]] = {
    DEFAULT: lambda: Gittins(objects_max=OBJECTS_MAX),
    "lru": lambda: Classic(Lru),
    "lru-tail": lambda: Classic(Lru, tail_first=True),
    "lfu": lambda: Classic(Lfu),
    "fifo": lambda: Classic(Fifo),
    "s3-fifo": lambda: Classic(S3Fifo),
    "arc": lambda: Classic(Arc, tail_first=True),
}
