"""Starts after the daemon was killed, and on a configuration that has changed since."""

from __future__ import annotations

import contextlib
import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from support.daemons import Daemon, daemon, mounted_at, tree_of, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MIB = 1 << 20


@pytest.fixture
def kvd() -> Iterator[Daemon]:
    with daemon() as made:
        yield made


@contextlib.contextmanager
def tmpfs(path: Path) -> Iterator[None]:
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "somebody", path], check=True, timeout=20)
    (path / "file").write_bytes(b"theirs")
    try:
        yield
    finally:
        subprocess.run(["umount", path], check=True, timeout=20)


def test_kills_in_a_row_leave_one_mount_and_every_object(kvd: Daemon) -> None:
    contents: dict[str, bytes] = {}
    with daemon() as other, tmpfs(kvd.root / "foreign"):
        other.up().write("theirs", b"precious")
        for life in range(3):
            kvd.up()
            assert {name: kvd.read(name) for name in contents} == contents
            contents[f"object{life}"] = kvd.write(f"object{life}", os.urandom(MIB))
            kvd.kill()
            with pytest.raises(OSError, match="Transport endpoint is not connected"):
                os.listdir(kvd.mount)
        kvd.up()
        assert len(mounted_at(kvd.mount)) == 1
        assert {name: (kvd.tier(name), kvd.read(name)) for name in contents} == {
            name: ("ddr", content) for name, content in contents.items()
        }
        assert tree_of(kvd.root / "foreign") == {"file": b"theirs"}
        assert other.read("theirs") == b"precious"
    assert sum("detached a dead mount of an earlier kvd" in line for line in kvd.lines()) == 3


def test_dead_mounts_on_top_of_each_other_are_all_detached(kvd: Daemon) -> None:
    kvd.up().write("object", b"there")
    kvd.kill()
    source = f"kvd@{kvd.root}/state"
    for _ in range(2):
        fuse = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        options = f"fd={fuse},rootmode=40000,user_id=0,group_id=0"
        command = ["mount", "-i", "-t", "fuse.kvd", "-o", options, source, kvd.mount]
        subprocess.run(command, check=True, pass_fds=(fuse,), timeout=20)
        os.close(fuse)
    assert mounted_at(kvd.mount) == [f"fuse.kvd {source}"] * 3
    kvd.up()
    assert mounted_at(kvd.mount) == [f"fuse.kvd {source}"]
    assert kvd.read("object") == b"there"


def test_a_foreign_mount_over_a_dead_one_stays(kvd: Daemon) -> None:
    kvd.up().write("object", b"there")
    kvd.kill()
    subprocess.run(["mount", "-t", "tmpfs", "somebody", kvd.mount], check=True, timeout=20)
    status, sentence = kvd.refused()
    assert (status, "tmpfs 'somebody'; unmount it" in sentence) == (78, True)
    assert mounted_at(kvd.mount) == [f"fuse.kvd kvd@{kvd.root}/state", "tmpfs somebody"]
    subprocess.run(["umount", kvd.mount], check=True, timeout=20)
    kvd.up()
    assert kvd.read("object") == b"there"


def test_a_killed_writer_leaves_what_was_fsynced(kvd: Daemon) -> None:
    kvd.up()
    kvd.write("sealed", b"sealed")
    with (
        (kvd.mount / "written").open("wb", buffering=0) as synced,
        (kvd.mount / "lost").open("wb", buffering=0) as lost,
    ):
        synced.write(b"fsynced")
        os.fsync(synced.fileno())
        synced.write(b" and more")
        lost.write(b"never fsynced")
        kvd.kill()
    kvd.up()
    assert sorted(os.listdir(kvd.mount)) == ["sealed", "written"]
    assert (kvd.read("sealed"), kvd.read("written")) == (b"sealed", b"fsynced")


def test_a_ddr_that_is_gone_falls_back_to_what_nvme_has(kvd: Daemon) -> None:
    kvd.up()
    kvd.write("only in ddr", b"lost with the memory")
    content = kvd.write("synced", os.urandom(MIB))
    kvd.kvctl("sync", str(kvd.mount / "synced"))
    kvd.kill()
    subprocess.run(["umount", "-l", kvd.ddr], check=True, timeout=20)
    kvd.up()
    assert os.listdir(kvd.mount) == ["synced"]
    assert (kvd.tier("synced"), kvd.read("synced")) == ("nvme", content)


def test_a_smaller_budget_is_reached_by_moving_objects(kvd: Daemon) -> None:
    kvd.up()
    contents = {f"object{number}": kvd.write(f"object{number}", os.urandom(4 * MIB)) for number in range(16)}
    kvd.kill()
    kvd.set("ddr", budget="16MiB", burst="8MiB")
    status, sentence = kvd.refused()
    what = f"with burst it is 24.0MiB, less than the 64.0MiB that {kvd.ddr} holds from before"
    assert (status, sentence) == (78, f"[ddr] budget: {what}; set more, or demote objects first")
    kvd.set("ddr", budget="32MiB", burst="48MiB", idle="50ms")
    kvd.up()
    until(lambda: sum(kvd.tier(name) == "ddr" for name in contents) * 4 <= 24, "the low watermark")
    assert {name: kvd.read(name) for name in contents} == contents


def test_one_more_nvme_directory_is_taken_into_use(kvd: Daemon) -> None:
    content = kvd.up().write("object", os.urandom(MIB))
    assert kvd.stop() == 0
    more = kvd.root / "more"
    kvd.nvme_dirs.append(more)
    kvd.write_config()
    kvd.up()
    assert (kvd.read("object"), (more / "objects").is_dir()) == (content, True)
    assert str(more) in kvd.status()["tiers"][1]["path"]
    assert kvd.stop() == 0
    kvd.nvme_dirs.reverse()
    kvd.write_config()
    status, sentence = kvd.refused()
    assert (status, sentence.endswith("restore the order of the list or set another directory")) == (78, True)
    kvd.nvme_dirs.reverse()
    kvd.write_config()
