"""One daemon a module, once with passthrough and once without; a folder of its own for each test."""

from __future__ import annotations

import itertools
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from support.mounted import Mounted, start_kvd

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_numbers = itertools.count(1)


@pytest.fixture(scope="module", params=["auto", "off"], ids=["passthrough", "served"])
def mounted(request: pytest.FixtureRequest) -> Iterator[Mounted]:
    """Run a daemon for the module; the kernel does the I/O, or the split does."""
    with start_kvd({"fuse": {"passthrough": request.param}}) as running:
        assert running.passthrough == (request.param == "auto")
        yield running


@pytest.fixture(autouse=True)
def daemon_log(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail the test during which the module's daemon logged a WARNING that nobody claimed."""
    running = request.getfixturevalue("mounted") if "mounted" in request.fixturenames else None
    yield
    if running is not None:
        running.check_log()


@pytest.fixture
def claim_daemon_log(mounted: Mounted) -> Callable[[str], None]:
    """Return a function that says: a record of the daemon with this text in it belongs to the test."""
    return mounted.claim


@pytest.fixture
def folder(mounted: Mounted) -> Path:
    """Return an empty folder in the mount."""
    path = mounted.root / f"test{next(_numbers)}"
    path.mkdir()
    return path


@pytest.fixture
def plain() -> Iterator[Path]:
    """Return an empty folder on the machine's own file system."""
    path = Path(tempfile.mkdtemp(prefix="kvd-plain-", dir="/var/tmp"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


@pytest.fixture
def same(folder: Path, plain: Path) -> Callable[[Callable[[Path], Any]], Any]:
    """Return a function that runs a case on the machine's own file system and in the mount: both must come to the same."""

    def run(case: Callable[[Path], Any]) -> Any:
        expected = case(plain)
        assert case(folder) == expected
        return expected

    return run
