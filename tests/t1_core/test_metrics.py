"""The metrics say what the status says, in both text formats."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from kvd.api.metrics import render
from kvd.errors import UnavailableError
from kvdriver import FaultKind
from support.fake_control import GIB, MIB, WELL, FakeControl
from support.serving import served

if TYPE_CHECKING:
    from collections.abc import Iterator

OPENMETRICS = "application/openmetrics-text; version=1.0.0"
FORMATS = [("", parse_text, "text/plain"), (OPENMETRICS, parse_openmetrics, "application/openmetrics-text")]


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="kvd") as name:
        yield Path(name)


def samples(parse, text: str) -> dict[tuple[str, ...], float]:
    found = [
        ((sample.name, *(value for _, value in sorted(sample.labels.items()))), sample.value)
        for family in parse(text)
        for sample in family.samples
    ]
    assert len(dict(found)) == len(found), "a sample is told twice"
    return dict(found)


POLICY = {
    ("kvd_admitted_objects_total",): 12,
    ("kvd_dropped_objects_total",): 30,
    ("kvd_saved_bytes_total",): 3 * GIB,
    ("kvd_written_through_objects_total",): 4,
    ("kvd_evicted_objects_total",): 7,
    ("kvd_evicted_bytes_total",): 2 * GIB,
}


def take_tiers(found, status):
    """Take out what is told of each tier, and see that it is the status."""
    for tier in status.tiers:
        given_bytes = getattr(status.sessions, f"given_{tier.tier}_bytes")
        assert found.pop(("kvd_window_given_bytes_total", tier.tier)) == given_bytes > 0
        for what in ("budget_bytes", "capacity_bytes", "used_bytes", "reserved_bytes", "objects"):
            assert found.pop((f"kvd_tier_{what}", tier.tier)) == getattr(tier, what)


@pytest.mark.parametrize(("accept", "parse", "media_type"), FORMATS)
async def test_metrics_are_the_status(folder: Path, accept, parse, media_type) -> None:
    failed = replace(WELL, state="degraded", reason="gone", losses=("a",), losses_count=300)
    control = FakeControl(degraded=True, engine=failed)
    async with served(control, folder / "s") as client:
        answer = await client.get("/metrics", headers={"accept": accept} if accept else {})
        assert answer.status_code == 200
        assert answer.headers["content-type"].split(";")[0] == media_type
    found = samples(parse, answer.text)
    status = await control.status()
    take_tiers(found, status)
    for kind in FaultKind:
        assert found.pop(("kvd_engine_faults_total", kind.value)) == (kind is FaultKind.TIMEOUT)
    assert found == {
        ("kvd_info", "6.18.0", "/mnt/kvd", "0.1.0"): 1,
        ("kvd_uptime_seconds",): 93_784,
        ("kvd_degraded",): 1,
        ("kvd_feature", "passthrough"): 1,
        ("kvd_feature", "direct-io"): 1,
        ("kvd_feature", "io_uring"): 1,
        ("kvd_feature", "hugepages"): 0,
        ("kvd_directory_online", "/data/a"): 1,
        ("kvd_directory_online", "/data/b"): 0,
        ("kvd_directory_since_timestamp_seconds", "/data/a"): 1_700_000_000,
        ("kvd_directory_since_timestamp_seconds", "/data/b"): 1_700_000_000,
        ("kvd_directory_free_bytes", "/data/a"): 900 * GIB,
        ("kvd_directory_free_bytes", "/data/b"): 900 * GIB,
        ("kvd_directory_offline_total", "/data/a"): 0,
        ("kvd_directory_offline_total", "/data/b"): 1,
        ("kvd_objects",): status.objects,
        ("kvd_unchecked_objects",): 100,
        ("kvd_leased_objects",): 1,
        ("kvd_pinned_objects",): 0,
        ("kvd_dirty_objects",): 0,
        ("kvd_damaged_objects",): 1,
        ("kvd_promoted_bytes_total",): 5 * GIB,
        ("kvd_demoted_bytes_total",): 7 * GIB,
        ("kvd_faults_total",): 17,
        ("kvd_namespaces",): 0,
        ("kvd_fingerprint_mismatches_total",): 0,
        ("kvd_invalidated_names_left",): 1500,
        ("kvd_invalidated_names_deleted_total",): 64,
        **POLICY,
        ("kvd_sessions", "idle"): 3,
        ("kvd_sessions", "cold"): 1,
        ("kvd_session_refused_events_total",): 2,
        ("kvd_expired_total",): 9,
        ("kvd_expired_pins_total",): 1,
        ("kvd_api_leases",): 4,
        ("kvd_lost_api_leases_total",): 5,
        ("kvd_scrub_rate_bytes",): 32 * MIB,
        ("kvd_scrub_ended_timestamp_seconds",): 1_699_000_000,
        ("kvd_scrub_objects_total",): 5,
        ("kvd_scrub_verified_bytes_total",): 3 * GIB,
        ("kvd_scrub_bad_pages_total",): 2,
        ("kvd_scrub_healed_objects_total",): 1,
        ("kvd_scrub_quarantined_objects_total",): 1,
        ("kvd_scrub_unreadable_objects_total",): 0,
        ("kvd_engine_info", "vfio-user", "vfio-user:/run/card.sock"): 1,
        ("kvd_engine_degraded",): 1,
        ("kvd_engine_since_timestamp_seconds",): 1_700_000_000,
        ("kvd_engine_replayed_commands_total",): 3,
        ("kvd_engine_taken_back_total",): 1,
        ("kvd_engine_losses_total",): 300,
    }
    assert status.tiers[0].reserved_bytes == 2 * MIB


async def test_names_that_are_not_utf8_are_told_escaped() -> None:
    status = await FakeControl(mount='/mnt/\udcff"\n').status()
    text, _ = render(status, "")
    assert ("kvd_info", "6.18.0", '/mnt/\\xff"\n', "0.1.0") in samples(parse_text, text.decode())


async def test_daemon_that_can_not_answer_is_an_error_not_an_empty_page(folder: Path) -> None:
    async with served(FakeControl(bug=UnavailableError("no engine")), folder / "s") as client:
        answer = await client.get("/metrics")
    assert answer.status_code == 503
    assert answer.json()["error"]["message"] == "no engine"
