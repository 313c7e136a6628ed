"""What is said of sessions survives the daemon: a clean stop, and a kill."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import pytest

from kvd.client import Client, ClientError
from support.mounted import start_kvd

if TYPE_CHECKING:
    from collections.abc import Callable

WAIT_S = 20.0
TTL_S = 3.0
CONTENT = os.urandom(1 << 16)


def wait_for(condition: Callable[[], object]) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline_s, "waited in vain"
        time.sleep(0.01)  # between two looks


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_times_pins_and_releases_survive_the_daemon(end: str) -> None:
    with start_kvd() as running:
        kvd, root = running.kvd, running.root
        for name in ("ends", "ended", "pinned", "kept"):
            (root / name).write_bytes(CONTENT)
        wait_for(lambda: os.getxattr(root / "kept", "user.kvd.session_state") == b"idle")
        os.setxattr(root / "ended", "user.kvd.ttl", b"0.2")
        os.setxattr(root / "ends", "user.kvd.ttl", b"%.1f" % TTL_S)
        began_s = time.time()
        os.setxattr(root / "pinned", "user.kvd.pin", b"soft %.1f" % TTL_S)
        os.setxattr(root / "kept", "user.kvd.ttl", b"3600 refresh")
        with Client(kvd.socket.with_suffix(".client")) as client:
            if end == "kill":
                kvd.kill()
            else:
                assert kvd.stop() == 0
            with pytest.raises(ClientError):
                client.session("/kept")
        kvd.start()
        wait_for(lambda: not (root / "ended").exists())
        if (root / "ends").exists():
            assert os.getxattr(root / "pinned", "user.kvd.pin") == b"1" or time.time() > began_s + TTL_S
        wait_for(lambda: not (root / "ends").exists())
        assert time.time() >= began_s + TTL_S - 0.1
        wait_for(lambda: os.getxattr(root / "pinned", "user.kvd.pin") == b"0")
        assert os.getxattr(root / "kept", "user.kvd.ttl") == b"3600 refresh"
        assert (root / "kept").read_bytes() == CONTENT
