"""What the tests of the tiers share."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest

from support.tiers import YIELDING


@pytest.fixture(autouse=True, params=[False, True], ids=["at-once", "yielding"])
def yielding_engine(request):
    """Each test runs on an engine that answers at once, and on one that lets others run first, as a card does."""
    token = YIELDING.set(request.param)
    yield
    YIELDING.reset(token)


@pytest.fixture
def root(scratch):
    """A scratch folder whose ddr/ is on a tmpfs, as the daemon has it."""
    ddr = Path(tempfile.mkdtemp(prefix="kvd-", dir="/dev/shm"))
    (scratch / "ddr").symlink_to(ddr)
    yield scratch
    shutil.rmtree(ddr)
