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

    from kvd.api.backend import Directory, Engine, Scrubbing, Status, TierUsage
    from kvd.api.formats import FormatUsage
    from kvd.api.namespaces import AdmissionStatus, NamespaceStatus
    from kvd.api.sessions import SessionStatus

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
        yield from _formats(status.formats)
        yield from _directories(status.directories)
        yield from _objects(status)
        yield from _namespaces(status.namespaces)
        yield from _admission(status.admission)
        yield from _sessions(status.sessions)
        yield from _scrub(status.scrub)
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


def _formats(formats: tuple[FormatUsage, ...]) -> Iterator[Metric]:
    used = GaugeMetricFamily("kvd_format_bytes", "What copies on NVMe are charged.", labels=["format"])
    copies = GaugeMetricFamily("kvd_format_copies", "Copies on NVMe.", labels=["format"])
    for each in formats:
        used.add_metric([each.format], each.used_bytes)
        copies.add_metric([each.format], each.copies)
    yield used
    yield copies


def _directories(directories: tuple[Directory, ...]) -> Iterator[Metric]:
    values: dict[str, tuple[str, list[float]]] = {
        "kvd_directory_online": (
            "1 if objects can be read and written there.",
            [each.state in ("online", "suspect") for each in directories],
        ),
        "kvd_directory_since_timestamp_seconds": (
            "Since when it is so, since 1970.",
            [each.since_s for each in directories],
        ),
        "kvd_directory_free_bytes": ("Free on its file system.", [each.free_bytes for each in directories]),
    }
    for name, (told, numbers) in values.items():
        family = GaugeMetricFamily(name, told, labels=["directory"])
        for each, number in zip(directories, numbers, strict=True):
            family.add_metric([_text(each.path)], number)
        yield family
    offline = CounterMetricFamily(
        "kvd_directory_offline", "How often it went offline since the start.", labels=["directory"]
    )
    for each in directories:
        offline.add_metric([_text(each.path)], each.offline_count)
    yield offline


def _objects(status: Status) -> Iterator[Metric]:
    yield GaugeMetricFamily("kvd_objects", "Objects.", value=status.objects)
    unchecked = status.index.total - status.index.done
    yield GaugeMetricFamily("kvd_unchecked_objects", "Objects on NVMe not looked at since the start.", value=unchecked)
    yield GaugeMetricFamily("kvd_leased_objects", "Objects that are open or mapped.", value=status.leased)
    yield GaugeMetricFamily("kvd_pinned_objects", "Objects that are pinned.", value=status.pinned)
    yield GaugeMetricFamily("kvd_dirty_objects", "Sealed objects that are only in DDR.", value=status.dirty)
    yield GaugeMetricFamily("kvd_damaged_objects", "Objects in quarantine.", value=status.damaged)
    yield CounterMetricFamily("kvd_promoted_bytes", "Moved to DDR since the start.", value=status.promoted_bytes)
    yield CounterMetricFamily("kvd_demoted_bytes", "Moved to NVMe since the start.", value=status.demoted_bytes)
    yield CounterMetricFamily(
        "kvd_faults", "Faults of stored data that the catalogue has recorded.", value=status.faults_count
    )


def _namespaces(found: NamespaceStatus) -> Iterator[Metric]:
    yield GaugeMetricFamily("kvd_namespaces", "Namespaces.", value=found.namespaces)
    yield CounterMetricFamily(
        "kvd_fingerprint_mismatches", "Wrong fingerprints that were offered.", value=found.mismatches
    )
    yield GaugeMetricFamily(
        "kvd_invalidated_names_left", "Names at the top of invalidated content.", value=found.names_left
    )
    yield CounterMetricFamily("kvd_invalidated_names_deleted", "Names of it that are gone.", value=found.names_deleted)


def _admission(found: AdmissionStatus) -> Iterator[Metric]:
    yield CounterMetricFamily("kvd_admitted_objects", "Let go to NVMe by policy.", value=found.admitted)
    yield CounterMetricFamily("kvd_dropped_objects", "Dropped instead, since nobody used them.", value=found.dropped)
    yield CounterMetricFamily("kvd_saved_bytes", "Not written to NVMe, since dropped.", value=found.saved_bytes)
    yield CounterMetricFamily(
        "kvd_written_through_objects", "Written right after they were stored.", value=found.through
    )
    yield CounterMetricFamily("kvd_evicted_objects", "Removed, since NVMe was full.", value=found.evicted)
    yield CounterMetricFamily("kvd_evicted_bytes", "What they held on NVMe.", value=found.evicted_bytes)


def _sessions(found: SessionStatus) -> Iterator[Metric]:
    states = GaugeMetricFamily("kvd_sessions", "Sessions with an object in memory.", labels=["state"])
    for state, count in found.states.items():
        states.add_metric([state], count)
    yield states
    yield CounterMetricFamily("kvd_session_refused_events", "Events that could not happen.", value=found.refused)
    yield CounterMetricFamily("kvd_expired", "Files and sessions whose time was over.", value=found.expired)
    yield CounterMetricFamily("kvd_expired_pins", "Soft pins that ended.", value=found.unpinned)
    yield GaugeMetricFamily("kvd_api_leases", "Leases through the API.", value=found.leases)
    yield CounterMetricFamily("kvd_lost_api_leases", "Leases whose process ended.", value=found.leases_lost)
    given = CounterMetricFamily(
        "kvd_window_given_bytes", "Given back, since a window left them behind.", labels=["tier"]
    )
    given.add_metric(["ddr"], found.given_ddr_bytes)
    given.add_metric(["nvme"], found.given_nvme_bytes)
    yield given


def _scrub(scrub: Scrubbing) -> Iterator[Metric]:
    yield GaugeMetricFamily("kvd_scrub_rate_bytes", "What may be read a second; 0: off.", value=scrub.rate_bytes)
    yield GaugeMetricFamily(
        "kvd_scrub_ended_timestamp_seconds", "When the last whole pass ended, since 1970.", value=scrub.ended_s
    )
    told = {
        "kvd_scrub_objects": ("Objects whose copy was read.", scrub.objects),
        "kvd_scrub_verified_bytes": ("Read of copies and verified.", scrub.verified_bytes),
        "kvd_scrub_bad_pages": ("Pages whose checksum differs.", scrub.bad_pages),
        "kvd_scrub_healed_objects": ("Objects with a bad copy that got a new one.", scrub.healed),
        "kvd_scrub_quarantined_objects": ("Objects that went into quarantine.", scrub.quarantined),
        "kvd_scrub_unreadable_objects": ("Objects whose copy could not be read.", scrub.unreadable),
    }
    for name, (words, count) in told.items():
        yield CounterMetricFamily(name, words, value=count)


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
