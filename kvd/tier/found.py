"""What a start finds, as values."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvd.catalog.records import Copy, Placement
    from kvdriver import Tier
    from kvdriver.bulk import Charge


class Found(NamedTuple):
    """An object for the engine's books: the charges of its pages in its tier, and of its copy's while it is in DDR."""

    ino: int
    tier: Tier
    charges: Sequence[Charge]
    copy: Sequence[Charge] = ()


class Resident(NamedTuple):
    """An object that was found in DDR; `blocks` is what it holds there."""

    placement: Placement
    size: int
    copy: Copy | None
    session: int
    blocks: int


@dataclass(slots=True)
class Recovered:
    """What a start found and did, in objects; what is on NVMe is counted as it is looked at (`kvd.tier.index`).

    Attributes
    ----------
    cold
        On NVMe by the catalogue; they are looked at while the daemon serves.
    on_nvme
        Those of `cold` that have been.
    reverted
        Had a writer, or were only in a DDR that is gone; they are their last copy again.
    dropped
        The same without a copy, or their files have vanished; their names are gone.
    damaged
        Their file on NVMe has the wrong length; they answer EIO.
    swept
        Files without a row, removed.
    resident
        Those in DDR.
    """

    in_ddr: int = 0
    cold: int = 0
    on_nvme: int = 0
    reverted: int = 0
    dropped: int = 0
    damaged: int = 0
    swept: int = 0
    resident: list[Resident] = field(default_factory=list)
