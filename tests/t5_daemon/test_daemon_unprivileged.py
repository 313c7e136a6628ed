"""The daemon without any capability: mounted by fusermount3, on a borrowed tmpfs, without passthrough."""

from __future__ import annotations

import mmap
import os
from typing import TYPE_CHECKING

import pytest

from support.daemons import daemon, have, mounted_at

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from support.daemons import Daemon

MIB = 1 << 20


@pytest.fixture(scope="module")
def kvd() -> Iterator[Daemon]:
    have("fusermount3")
    with daemon(unprivileged=True) as made:
        yield made.up()


@pytest.fixture
def folder(kvd: Daemon, request: pytest.FixtureRequest) -> Path:
    made = kvd.mount / request.node.name
    made.mkdir()
    return made


def capabilities(pid: int) -> set[str]:
    with open(f"/proc/{pid}/status", encoding="ascii") as status:
        return {line.split()[1] for line in status if line.startswith(("CapEff", "CapPrm", "CapInh"))}


def test_it_has_no_capability_and_says_what_it_does_without(kvd: Daemon) -> None:
    assert capabilities(kvd.pid) == {"0" * 16}
    status = kvd.status()
    assert status["state"] == "ok"
    assert "passthrough" not in status["features"]
    off = {each["feature"]: each["reason"] for each in status["features_off"]}
    assert off["passthrough"] == "needs CAP_SYS_ADMIN: run kvd as root or as the systemd service"
    assert off["private tmpfs"].endswith("[ddr] path shares a tmpfs with others")
    assert mounted_at(kvd.mount) == [f"fuse.kvd kvd@{kvd.root}/state"]
    assert mounted_at(kvd.ddr) == []
    for feature, reason in off.items():
        assert any("without" in line and feature in line and reason.split()[0] in line for line in kvd.lines())


def test_bytes_come_back_by_read_and_by_mapping(kvd: Daemon, folder: Path) -> None:
    content = kvd.write(f"{folder.name}/object", os.urandom(3 * MIB + 77))
    os.rename(folder / "object", folder / "renamed")
    assert os.listdir(folder) == ["renamed"]
    with (folder / "renamed").open("rb") as file:
        assert file.read() == content
        with mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapping:
            assert mapping[:] == content
        assert os.pread(file.fileno(), 100, len(content) - 50) == content[-50:]


def test_a_shared_mapping_writes(kvd: Daemon, folder: Path) -> None:
    kvd.write(f"{folder.name}/object", bytes(MIB))
    with (folder / "object").open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapping:
        mapping[4096:4101] = b"hello"
        mapping.flush()
    assert (folder / "object").read_bytes()[4090:4106] == bytes(6) + b"hello" + bytes(5)


def test_an_object_goes_to_nvme_and_comes_back(kvd: Daemon, folder: Path) -> None:
    name = f"{folder.name}/object"
    content = kvd.write(name, os.urandom(2 * MIB))
    kvd.kvctl("demote", str(folder))
    assert kvd.tier(name) == "nvme"
    assert kvd.read(name) == content
    assert kvd.tier(name) == "ddr"


def test_more_than_the_budget_can_be_written(kvd: Daemon, folder: Path) -> None:
    names = [f"{folder.name}/{number}" for number in range(20)]
    contents = {name: kvd.write(name, os.urandom(8 * MIB)) for name in names}
    assert {kvd.tier(name) for name in names} == {"ddr", "nvme"}
    assert {name: kvd.read(name) for name in names} == contents


def test_it_survives_a_kill_and_a_stop() -> None:
    with daemon(unprivileged=True) as kvd:
        content = kvd.up().write("object", os.urandom(MIB))
        kvd.kill()
        assert kvd.up().read("object") == content
        assert len(mounted_at(kvd.mount)) == 1
        assert kvd.stop() == 0
        assert os.listdir(kvd.ddr) == ["kvd-ddr.json"]
        assert kvd.up().read("object") == content
