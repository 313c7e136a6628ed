"""What a daemon holds after much use is what it held before."""

from __future__ import annotations

import json
import os
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from support.daemons import daemon, until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.daemons import Daemon

CYCLES = 2000
GROWTH_KIB_MAX = 16 << 10
"""Less than 8 bytes a page of what was written, and less than half a KiB for each request."""


@pytest.fixture
def kvd() -> Iterator[Daemon]:
    with daemon() as made:
        yield made.up()


def descriptors(kvd: Daemon) -> list[str]:
    folder = f"/proc/{kvd.pid}/fd"
    found = []
    for name in os.listdir(folder):
        try:
            found.append(os.readlink(f"{folder}/{name}"))
        except FileNotFoundError:
            continue
    return sorted(found)


def grown(kvd: Daemon, before: list[str]) -> list[str]:
    """What is open more often than before; SQLite keeps one descriptor of a connection that was closed, for the next."""
    return sorted((Counter(descriptors(kvd)) - Counter(before)).elements())


def resident_kib(kvd: Daemon) -> int:
    with open(f"/proc/{kvd.pid}/status", encoding="ascii") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS:"))


def cycles(kvd: Daemon, count: int) -> None:
    for number in range(count):
        path = kvd.mount / f"object{number}"
        path.write_bytes(b"%d" % number * 1000)
        assert path.read_bytes() == b"%d" % number * 1000
        path.unlink()


def nothing_left(kvd: Daemon) -> bool:
    status = kvd.status()
    ddr, nvme = status["tiers"]
    return (status["objects"], ddr["used_bytes"], ddr["reserved_bytes"], nvme["used_bytes"]) == (0, 0, 0, 0)


def test_objects_that_come_and_go_leave_nothing(kvd: Daemon) -> None:
    cycles(kvd, CYCLES)  # what is made once: threads, caches, SQLite's pages, the ageing policy's tables
    until(lambda: nothing_left(kvd), "an empty daemon")
    before, before_kib = descriptors(kvd), resident_kib(kvd)
    cycles(kvd, CYCLES)
    until(lambda: nothing_left(kvd), "an empty daemon")
    until(lambda: grown(kvd, before) in ([], [str(kvd.root / "state/catalog.sqlite")]), "the descriptors of before")
    assert resident_kib(kvd) - before_kib < GROWTH_KIB_MAX
    # The engine knows that an object is gone before its file is removed.
    until(lambda: [file.name for file in kvd.ddr.iterdir()] == ["kvd-ddr.json"], "a DDR without files")
    until(lambda: not (kvd.mount / ".kvd/sessions").read_text(), "no object in memory")
    assert json.loads((kvd.mount / ".kvd/stats").read_text())["objects"] == 0


def test_moves_and_control_requests_leave_no_descriptor(kvd: Daemon) -> None:
    for number in range(50):
        kvd.write(f"object{number}", b"x" * 70_000)
    kvd.kvctl("demote", str(kvd.mount))
    before = descriptors(kvd)
    for _ in range(3):
        kvd.kvctl("promote", str(kvd.mount))
        kvd.kvctl("demote", str(kvd.mount))
        for number in range(50):
            assert len(kvd.read(f"object{number}")) == 70_000
        kvd.kvctl("demote", str(kvd.mount))
    until(lambda: grown(kvd, before) in ([], [str(kvd.root / "state/catalog.sqlite")]), "the descriptors of before")


def test_clients_that_are_killed_leave_no_lease(kvd: Daemon) -> None:
    kvd.write("object", b"x" * 70_000)
    for _ in range(20):
        child = os.fork()
        if child == 0:
            os.open(kvd.mount / "object", os.O_RDONLY)
            os.kill(os.getpid(), 9)
        os.waitpid(child, 0)
    until(lambda: kvd.status()["leased"] == 0, "no lease")
    kvd.kvctl("demote", str(kvd.mount / "object"))
    assert kvd.tier("object") == "nvme"
