"""A daemon whose engine is a card in another process: `kvd-card` over vfio-user."""

from __future__ import annotations

import signal
import threading
from typing import TYPE_CHECKING

import pytest

from support import card_program
from support.daemons import daemon, document, kvctl, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from support.daemons import Daemon

pytestmark = pytest.mark.skipif(card_program.program() is None, reason="kvd-card is not installed")

SIZE = 300_000


@pytest.fixture
def socket(scratch: Path) -> Path:
    return scratch / "card.sock"


@pytest.fixture
def kvd(socket: Path) -> Iterator[Daemon]:
    with daemon({"daemon": {"device": f"vfio-user:{socket}"}, "nvme": {"capacity": "1GiB"}}) as made:
        yield made


def engine(kvd: Daemon) -> dict[str, object]:
    found: dict[str, object] = document(kvctl(kvd, "--json", "status"))["engine"]
    return found


def test_card_serves(kvd: Daemon, socket: Path) -> None:
    with card_program.running(socket):
        kvd.up()
        content = kvd.write("a", b"a" * SIZE)
        assert kvctl(kvd, "demote", kvd.mount / "a").returncode == 0
        assert kvd.read("a") == content
        found = engine(kvd)
        assert (found["transport"], found["state"], found["faults"]) == ("vfio-user", "ok", {})
        assert kvd.status()["device"] == "vfio-user"
        assert f"engine vfio-user (vfio-user:{socket})" in " ".join(kvctl(kvd, "status").stdout.split())
        assert kvctl(kvd, "device", "reset").returncode == 0
        assert kvd.read("a") == content
        assert kvd.stop() == 0


def test_killed_card_costs_nothing_and_is_taken_back(kvd: Daemon, socket: Path) -> None:
    """While objects are written, moved and read the card is killed: all of them are right, and status says so."""
    kvd.claims += ["the engine goes on in process"]
    process = card_program.start(socket)
    try:
        kvd.up()
        contents: dict[str, bytes] = {}

        def work() -> None:
            for number in range(60):
                name = f"o{number}"
                contents[name] = kvd.write(name, bytes([number]) * SIZE)
                if number % 3 == 0:
                    kvctl(kvd, "demote", kvd.mount / name)
                assert kvd.read(f"o{number // 2}") == contents[f"o{number // 2}"]

        worker = threading.Thread(target=work)
        worker.start()
        until(lambda: len(contents) > 15, "objects")
        process.send_signal(signal.SIGKILL)
        worker.join()
        assert len(contents) == 60
        found = engine(kvd)
        assert (found["transport"], found["state"], found["losses"]) == ("in-process", "degraded", [])
        assert kvd.status()["state"] == "degraded"
        assert "degraded since" in kvctl(kvd, "status").stdout
        metrics = kvctl(kvd, "metrics").stdout.splitlines()
        assert {"kvd_engine_degraded 1.0", 'kvd_engine_faults_total{kind="gone"} 1.0'} <= set(metrics)
        assert all(kvd.read(name) == content for name, content in contents.items())
        card_program.stop(process)
        assert kvctl(kvd, "device", "reset").returncode == 1
        process = card_program.start(socket)
        assert kvctl(kvd, "device", "reset").returncode == 0
        found = engine(kvd)
        assert (found["transport"], found["state"], found["taken_back"]) == ("vfio-user", "ok", 1)
        assert all(kvd.read(name) == content for name, content in contents.items())
        kvd.write("after", b"after" * SIZE)
        assert kvd.stop() == 0
    finally:
        card_program.stop(process)


def test_daemon_starts_without_its_card(kvd: Daemon, socket: Path) -> None:
    kvd.claims += ["the engine goes on in process"]
    kvd.up()
    content = kvd.write("a", b"a" * SIZE)
    found = engine(kvd)
    assert (found["transport"], found["state"]) == ("in-process", "degraded")
    assert str(socket) in str(found["reason"])
    with card_program.running(socket):
        until(lambda: engine(kvd)["state"] == "ok", "the card is taken without being told")
        assert kvd.read("a") == content
        assert kvd.stop() == 0


def test_device_reset_needs_a_card() -> None:
    with daemon() as made:
        done = kvctl(made.up(), "device", "reset")
        assert done.returncode == 1
        assert "in process" in done.stderr


@pytest.mark.parametrize(
    "text", ["fpga", "vfio-user:", "vfio-user:relative", "vfio:1", "in-process:x", "vfio-user:/" + "x" * 120]
)
def test_wrong_device_is_one_sentence(text: str) -> None:
    with daemon({"daemon": {"device": text}}) as made:
        status, sentence = made.refused()
        assert status == 78
        assert sentence.startswith("[daemon] device: ")
        assert sentence.endswith('set device = "in-process"')
