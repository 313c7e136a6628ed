"""What the tests of the tiers share."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest


@pytest.fixture
def root(scratch):
    """A scratch folder whose ddr/ is on a tmpfs, as the daemon has it."""
    ddr = Path(tempfile.mkdtemp(prefix="kvd-", dir="/dev/shm"))
    (scratch / "ddr").symlink_to(ddr)
    yield scratch
    shutil.rmtree(ddr)
