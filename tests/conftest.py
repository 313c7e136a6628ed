"""Fixtures for all layers. Imports nothing that needs a mount or a built extension."""

from __future__ import annotations

import logging
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kvd import log

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SCRATCH_PARENT = Path("/var/tmp")
"""A real file system, and a name short enough for a socket below it (107 bytes)."""


class LogGuard(logging.Handler):
    """Keeps what was logged at WARNING and above, until a test claims it."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.records: list[logging.LogRecord] = []
        self.claims: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    def unclaimed(self) -> list[str]:
        texts = [f"{record.levelname} {record.name}: {_text(record)}" for record in self.records]
        return [text for text in texts if not any(claim in text for claim in self.claims)]


def _text(record: logging.LogRecord) -> str:
    # structlog hands over the event with its fields as a dict.
    if isinstance(record.msg, dict):
        return " ".join([str(record.msg.get("event")), *(f"{key}={value}" for key, value in record.msg.items())])
    return record.getMessage()


@pytest.fixture(autouse=True)
def log_guard() -> Iterator[LogGuard]:
    """Fail a test in whose process a WARNING or worse was logged that it did not claim."""
    log.route()
    guard = LogGuard()
    root = logging.getLogger()
    root.addHandler(guard)
    yield guard
    root.removeHandler(guard)
    if unclaimed := guard.unclaimed():
        pytest.fail("logged, and not claimed with claim_log:\n" + "\n".join(unclaimed), pytrace=False)


@pytest.fixture
def claim_log(log_guard: LogGuard) -> Callable[[str], None]:
    """Return a function that says: a record with this text in it belongs to the test."""
    return log_guard.claims.append


@pytest.fixture
def scratch() -> Iterator[Path]:
    """Return an empty directory on a real file system whose name leaves room for a socket's."""
    path = Path(tempfile.mkdtemp(prefix="kvd-", dir=SCRATCH_PARENT))
    yield path
    shutil.rmtree(path)
