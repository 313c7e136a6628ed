"""One suite for every device: ``--device in-process | vfio-user:SOCKET | vfio:SLOT``, more than once for several.

Without the option it runs on the in-process engine and, where the program is installed, on ``kvd-card`` over vfio-user.
Imports nothing but kvdriver, trio, pytest and the models of tests/support, so that it runs in a guest and with `run.py`.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kvdriver import Device, DeviceAddress, Tier, cardmodel, open_bare

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

PAGE_BLOCKS = 16
SESSIONS_MAX = 16
CAPACITY_BLOCKS = {Tier.DDR: 4096, Tier.NVME: 65536}

CARD = "vfio-user:kvd-card"
"""Stands for a card that the suite starts itself."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--device", action="append", default=None, help="in-process, vfio-user:SOCKET or vfio:SLOT")


def devices(config: pytest.Config) -> list[str]:
    chosen = config.getoption("device", None)
    return chosen or ["in-process", *([CARD] if cardmodel.program() else [])]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "device_name" in metafunc.fixturenames:
        metafunc.parametrize("device_name", devices(metafunc.config), scope="session")


@pytest.fixture(scope="session")
def own_card() -> Iterator[str]:
    """Start a card for the whole run; return its address."""
    folder = Path(tempfile.mkdtemp(prefix="kvd-card-", dir="/tmp"))
    socket = folder / "card.sock"
    process = cardmodel.start(socket)
    try:
        cardmodel.until_listening(process, socket)
        yield f"vfio-user:{socket}"
    finally:
        status = cardmodel.stop(process)
        shutil.rmtree(folder)
    assert status == 0


@pytest.fixture(scope="session")
def address(request: pytest.FixtureRequest, device_name: str) -> DeviceAddress:
    return DeviceAddress.parse(request.getfixturevalue("own_card") if device_name == CARD else device_name)


@pytest.fixture
async def device(address: DeviceAddress) -> AsyncIterator[Device]:
    """A device that must be consistent when the test ends; the test may close it."""
    device = await open_bare(
        address, page_bytes=PAGE_BLOCKS * 4096, capacity_blocks=CAPACITY_BLOCKS, sessions_max=SESSIONS_MAX
    )
    try:
        yield device
        try:
            faults = await device.check()
        except ValueError:
            return
        assert faults == []
    finally:
        device.close()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say how many tests each device has passed."""
    here = os.path.dirname(os.path.relpath(__file__, config.rootpath))
    for name in devices(config):
        passed = [
            report
            for report in terminalreporter.stats.get("passed", [])
            if report.when == "call" and report.nodeid.startswith(here) and f"[{name}" in report.nodeid
        ]
        terminalreporter.write_line(f"CONFORMANCE {name} {len(passed)} passed")
