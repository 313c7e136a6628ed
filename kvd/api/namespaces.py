"""What the control API says of all namespaces together, and of their quotas; the part of `kvd.api.backend` that is theirs."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """What a namespace is guaranteed in each tier, and what it has at most; limit 0: as much as there is.

    `priority` is 0 to 255: of those who have borrowed the lowest gives back first.
    """

    ddr_guaranteed_bytes: int = 0
    ddr_limit_bytes: int = 0
    nvme_guaranteed_bytes: int = 0
    nvme_limit_bytes: int = 0
    priority: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaWish:
    """What of a `Quota` shall be so; None: as it is."""

    ddr_guaranteed_bytes: int | None = None
    ddr_limit_bytes: int | None = None
    nvme_guaranteed_bytes: int | None = None
    nvme_limit_bytes: int | None = None
    priority: int | None = None

    def given(self) -> dict[str, int]:
        """Return what is wished for."""
        return {name: number for name, number in asdict(self).items() if number is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class TierShare:
    """A namespace in one tier: `borrowed_bytes` of what it uses are beyond its guarantee.

    `may_take_bytes` is what it can have more without anything of its own having to go.
    """

    tier: str
    capacity_bytes: int
    guaranteed_bytes: int
    limit_bytes: int
    used_bytes: int
    borrowed_bytes: int
    may_take_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespaceQuota:
    """How a namespace stands in each tier; `on_full` is '' where the configuration says it."""

    name: bytes
    priority: int
    on_full: str
    tiers: tuple[TierShare, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarm:
    """Somebody offered another fingerprint than a namespace has; `what` names each key with both values."""

    when_s: float
    namespace: str
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespaceStatus:
    """What concerns all namespaces together.

    `mismatches` counts the wrong fingerprints that were offered since the start; `alarms` are the latest kinds of them.
    `deleting` invalidated contents are on their way out, with `names_left` at their top; `names_deleted` since the start.
    """

    namespaces: int
    mismatches: int
    alarms: tuple[Alarm, ...]
    deleting: int
    names_left: int
    names_deleted: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionStatus:
    """Since the start: objects that policy let go to NVMe (`admitted`), or that it `dropped`, so that `saved_bytes` were not written.

    `through` objects were written right after they were stored; `evicted` ones a full NVMe has let go, with `evicted_bytes` there.
    """

    admitted: int
    dropped: int
    saved_bytes: int
    through: int
    evicted: int
    evicted_bytes: int
