"""Folders for tests that end many lives: in memory, so that a thousand syncs cost nothing."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def tmp_on_tmpfs() -> Iterator[Path]:
    """Return an empty directory on a tmpfs."""
    path = Path(tempfile.mkdtemp(prefix="kvd-", dir="/dev/shm"))
    yield path
    shutil.rmtree(path)
