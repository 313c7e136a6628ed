"""`Status` as metrics: nothing is counted a second time, each scrape asks the daemon once."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from kvdriver import FaultKind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client.metrics_core import Metric

    from kvd.api.backend import Engine, Status, TierUsage

MEDIA_TYPES: Final = ("text/plain", "application/openmetrics-text")
"""What a scraper may ask for; the first unless it asks."""


def render(status: Status, accept: str) -> tuple[bytes, str]:
    """Write the metrics of a status.

    Parameters
    ----------
    status
        What is told.
    accept
        The scraper's `Accept`.

    Returns
    -------
    bytes, str
        The text, and its content type.
    """
    registry = CollectorRegistry()
    registry.register(StatusCollector(status))
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type


class StatusCollector(Collector):
    """The metrics of one `Status`."""

    def __init__(self, status: Status) -> None:
        self._status = status

    def __repr__(self) -> str:
        return f"<StatusCollector {self._status.state}>"

    def collect(self) -> Iterator[Metric]:
        """Yield every family."""
        status = self._status
        yield InfoMetricFamily(
            "kvd",
            "The daemon.",
            value={"version": status.version, "kernel": _text(status.kernel), "mount": _text(status.mount)},
        )
        yield GaugeMetricFamily("kvd_uptime_seconds", "Since the daemon started.", value=status.uptime_s)
        degraded = status.state != "ok"
        yield GaugeMetricFamily("kvd_degraded", "1 if something is wrong; kvctl status says what.", value=degraded)
        features = GaugeMetricFamily("kvd_feature", "1 if the mount has the feature.", labels=["feature"])
        for feature in status.features:
            features.add_metric([feature], 1)
        for off in status.features_off:
            features.add_metric([off.feature], 0)
        yield features
        yield from _tiers(status.tiers)
        yield from _objects(status)
        yield from _engine(status.engine)


def _tiers(tiers: tuple[TierUsage, ...]) -> Iterator[Metric]:
    values: dict[str, tuple[str, list[int]]] = {
        "kvd_tier_budget_bytes": ("What policy keeps to.", [tier.budget_bytes for tier in tiers]),
        "kvd_tier_capacity_bytes": ("The engine's limit.", [tier.capacity_bytes for tier in tiers]),
        "kvd_tier_used_bytes": ("What objects are charged.", [tier.used_bytes for tier in tiers]),
        "kvd_tier_reserved_bytes": ("What writers are promised.", [tier.reserved_bytes for tier in tiers]),
        "kvd_tier_objects": ("Objects that are read from the tier.", [tier.objects for tier in tiers]),
    }
    for name, (told, numbers) in values.items():
        family = GaugeMetricFamily(name, told, labels=["tier"])
        for tier, number in zip(tiers, numbers, strict=True):
            family.add_metric([tier.tier], number)
        yield family


def _objects(status: Status) -> Iterator[Metric]:
    yield GaugeMetricFamily("kvd_objects", "Objects.", value=status.objects)
    yield GaugeMetricFamily("kvd_leased_objects", "Objects that are open or mapped.", value=status.leased)
    yield GaugeMetricFamily("kvd_pinned_objects", "Objects that are pinned.", value=status.pinned)
    yield GaugeMetricFamily("kvd_dirty_objects", "Sealed objects that are only in DDR.", value=status.dirty)
    yield GaugeMetricFamily("kvd_damaged_objects", "Objects in quarantine.", value=status.damaged)
    yield CounterMetricFamily("kvd_promoted_bytes", "Moved to DDR since the start.", value=status.promoted_bytes)
    yield CounterMetricFamily("kvd_demoted_bytes", "Moved to NVMe since the start.", value=status.demoted_bytes)
    yield CounterMetricFamily(
        "kvd_faults", "Faults of stored data that the catalogue has recorded.", value=status.faults_count
    )


def _engine(engine: Engine) -> Iterator[Metric]:
    yield InfoMetricFamily(
        "kvd_engine",
        "Where the page-table engine runs, and where it should.",
        value={"transport": _text(engine.transport), "wanted": _text(engine.wanted)},
    )
    yield GaugeMetricFamily("kvd_engine_degraded", "1 if it runs elsewhere.", value=engine.state != "ok")
    yield GaugeMetricFamily(
        "kvd_engine_since_timestamp_seconds", "Since when it runs there, since 1970.", value=engine.since_s
    )
    faults = CounterMetricFamily("kvd_engine_faults", "How often the card failed.", labels=["kind"])
    for kind in {kind.value: 0 for kind in FaultKind} | engine.faults:
        faults.add_metric([kind], engine.faults.get(kind, 0))
    yield faults
    yield CounterMetricFamily(
        "kvd_engine_replayed_commands", "Commands of a failed card that others executed.", value=engine.replayed
    )
    yield CounterMetricFamily(
        "kvd_engine_taken_back", "How often a card got the tables again.", value=engine.taken_back
    )
    yield CounterMetricFamily(
        "kvd_engine_losses", "What repairs of the tables had to give up.", value=engine.losses_count
    )


def _text(value: str) -> str:
    """Return a label that is UTF-8, whatever name of the file system is in it."""
    return os.fsencode(value).decode("utf-8", "backslashreplace")
