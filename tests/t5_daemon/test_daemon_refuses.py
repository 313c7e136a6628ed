"""Starts that must fail: an exit status and one sentence that says what is wrong and what to do, and nothing touched."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sqlite3
import subprocess
from typing import TYPE_CHECKING

import pytest

from kvd.catalog.schema import SCHEMA_VERSION
from kvd.errors import ConfigError
from kvd.tier.nvme import NvmeStore
from support.content import wait_until
from support.daemons import Daemon, daemon, kvctl, mounted_at, tree_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture(scope="module")
def other() -> Iterator[Daemon]:
    """Somebody else's daemon, alive, with an object."""
    with daemon() as made:
        made.up().write("theirs", b"precious")
        yield made
        assert made.running
        assert made.read("theirs") == b"precious"


@pytest.fixture
def kvd() -> Iterator[Daemon]:
    with daemon() as made:
        yield made


@contextlib.contextmanager
def tmpfs(path: Path, source: str) -> Iterator[None]:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", source, path], check=True, timeout=20)
    try:
        yield
    finally:
        subprocess.run(["umount", path], check=True, timeout=20)


def test_a_second_daemon_on_the_same_state_names_the_first(other: Daemon) -> None:
    status, sentence = other.refused()
    assert (status, sentence) == (
        69,
        f"another kvd (pid {other.pid}) uses {other.root}/state; stop it or set [daemon] state",
    )
    assert other.read("theirs") == b"precious"


def test_the_socket_of_a_live_daemon_is_not_taken(kvd: Daemon, other: Daemon) -> None:
    kvd.set("daemon", socket=other.socket)
    status, sentence = kvd.refused()
    assert (status, sentence) == (
        69,
        f"another daemon listens on {other.socket}; stop it or choose another [daemon] socket",
    )
    assert kvd.mounts() == []
    assert kvctl(other, "version").returncode == 0


def test_a_socket_that_a_dead_daemon_left_is_taken(kvd: Daemon) -> None:
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(kvd.socket))
    kvd.up()
    assert kvd.stop() == 0


def test_a_live_daemons_mount_point_stays(kvd: Daemon, other: Daemon) -> None:
    kvd.set("daemon", mount=other.mount)
    status, sentence = kvd.refused()
    what = f"{other.mount} has a mount that is not this kvd's: fuse.kvd 'kvd@{other.root}/state'"
    assert (status, sentence) == (78, f"[daemon] mount: {what}; unmount it, or set an empty directory")
    assert other.read("theirs") == b"precious"


def test_a_foreign_file_system_at_the_mount_point_stays(kvd: Daemon) -> None:
    with tmpfs(kvd.mount, "some body"):
        status, sentence = kvd.refused()
        assert mounted_at(kvd.mount) == ["tmpfs some\\040body"]
    assert (status, "tmpfs 'some body'; unmount it" in sentence) == (78, True)


def test_a_foreign_file_system_at_the_ddr_path_stays(kvd: Daemon) -> None:
    with tmpfs(kvd.ddr, "somebody"):
        (kvd.ddr / "file").write_bytes(b"theirs")
        status, sentence = kvd.refused()
        assert tree_of(kvd.ddr) == {"file": b"theirs"}
    assert (status, f"[ddr] path: {kvd.ddr} has a mount that is not kvd's: tmpfs 'somebody'" in sentence) == (78, True)


def _occupied(path: Path) -> str:
    (path / "file").touch()
    return "is not empty; empty it, or set an empty directory"


def _missing(path: Path) -> str:
    path.rmdir()
    return f"is not there; make it (mkdir -p {path}), or set another"


def _file(path: Path) -> str:
    path.rmdir()
    path.touch()
    return "is not a directory; set an empty directory"


def _link(path: Path) -> str:
    path.rmdir()
    path.symlink_to(path.parent / "nvme0")
    return "is not a directory; set an empty directory"


@pytest.mark.parametrize("spoil", [_occupied, _missing, _file, _link])
def test_a_mount_point_that_is_no_empty_directory(kvd: Daemon, spoil: Callable[[Path], str]) -> None:
    mend = spoil(kvd.mount)
    assert kvd.refused() == (78, f"[daemon] mount: {kvd.mount} {mend}")


REBUILD = "move it away or restore it, or make it anew from the files: kvctl fsck --rebuild"


def _garbage(path: Path) -> str:
    path.write_bytes(b"garbage " * 1000)
    return f"is not a usable catalogue (file is not a database); {REBUILD}"


def _foreign(path: Path) -> str:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE theirs(x)")
    return "is not a kvd catalogue; set another directory"


def _newer(path: Path) -> str:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version=99")
    return f"has schema 99, this kvd knows up to {SCHEMA_VERSION}; install a newer kvd or set another directory"


def _cut(path: Path) -> str:
    with path.open("r+b") as file:
        file.truncate(5000)
    return f"is not a usable catalogue (database disk image is malformed); {REBUILD}"


@pytest.mark.parametrize("spoil", [_garbage, _foreign, _newer, _cut])
def test_a_catalogue_that_is_not_ours_is_left_as_it_is(
    kvd: Daemon, spoil: Callable[[Path], str], seed: dict[str, bytes]
) -> None:
    path = kvd.root / "state" / "catalog.sqlite"
    if spoil in {_newer, _cut}:
        path.write_bytes(seed["catalog.sqlite"])
    mend = spoil(path)
    before = tree_of(path.parent)
    assert kvd.refused() == (78, f"[daemon] state: {path} {mend}")
    after = tree_of(path.parent)
    assert after.pop("lock")
    assert after == before
    assert kvd.mounts() == []
    path.unlink()


@pytest.fixture(scope="module")
def seed() -> dict[str, bytes]:
    """The state directory of a daemon that ran."""
    with daemon() as made:
        made.up().stop()
        return tree_of(made.root / "state")


def test_an_nvme_directory_of_another_catalogue(kvd: Daemon, other: Daemon) -> None:
    kvd.set("nvme", dirs=other.nvme_dirs)
    wait_until((other.nvme_dirs[0] / "kvd-tree").exists, "the other one never described itself")
    before = tree_of(other.nvme_dirs[0])
    status, sentence = kvd.refused()
    owner = json.loads(before["kvd-nvme.json"])["uuid"]
    assert status == 78
    assert f"[nvme] dirs: {other.nvme_dirs[0]} belongs to catalogue {owner} as number 0" in sentence
    assert tree_of(other.nvme_dirs[0]) == before
    kvd.set("nvme", dirs=kvd.nvme_dirs)


def test_the_ddr_path_of_another_is_not_even_resized(kvd: Daemon, other: Daemon) -> None:
    kvd.set("ddr", path=other.ddr, budget="64MiB")
    size = os.statvfs(other.ddr).f_blocks
    status, sentence = kvd.refused()
    assert (status, f"[ddr] path: {other.ddr} belongs to catalogue" in sentence) == (78, True)
    assert os.statvfs(other.ddr).f_blocks == size
    assert other.read("theirs") == b"precious"
    kvd.set("ddr", path=kvd.ddr)


@pytest.mark.parametrize("name", ["nvme0/kvd-nvme.json", "ddr/kvd-ddr.json"])
@pytest.mark.parametrize("content", ["", "[]", "{"])
def test_a_marker_that_says_nothing(kvd: Daemon, name: str, content: str) -> None:
    (kvd.root / name).write_text(content)
    status, sentence = kvd.refused()
    assert (status, str(kvd.root / name) in sentence, kvd.mounts()) == (78, True, [])
    (kvd.root / name).unlink()


def test_an_nvme_directory_that_can_not_be_written(kvd: Daemon) -> None:
    kvd.set("nvme", dirs=["/sys"])
    assert kvd.refused() == (
        78,
        "[nvme] dirs: can't make /sys/objects: Operation not permitted; set a directory kvd can write",
    )
    assert kvd.mounts() == []
    kvd.set("nvme", dirs=kvd.nvme_dirs)


def test_a_drive_that_is_not_mounted_does_not_cost_the_objects_on_it(kvd: Daemon) -> None:
    kvd.up().write("object", b"on NVMe")
    assert kvd.stop() == 0
    (drive,) = kvd.nvme_dirs
    drive.rename(kvd.root / "unplugged")
    drive.mkdir()
    status, sentence = kvd.refused()
    what = f"{drive} is empty, but 1 object is there by the catalogue; mount its drive"
    mend = f"(where that is lost: mkdir {drive}/objects, and kvd gives up what was on it)"
    assert (status, sentence) == (78, f"[nvme] dirs: {what} {mend}")
    drive.rmdir()
    (kvd.root / "unplugged").rename(drive)
    kvd.up()
    assert kvd.read("object") == b"on NVMe"


def test_a_drive_that_is_lost_can_be_given_up(kvd: Daemon) -> None:
    kvd.up().write("object", b"on NVMe")
    assert kvd.stop() == 0
    (drive,) = kvd.nvme_dirs
    drive.rename(kvd.root / "lost")
    (drive / "objects").mkdir(parents=True)
    kvd.claims.append("object lost")
    kvd.up()
    assert os.listdir(kvd.mount) == []
    assert [fault["what"] for fault in kvd.status()["faults"]] == ["its file on NVMe has vanished"]


def test_a_directory_that_left_the_list_is_missed(kvd: Daemon) -> None:
    first, second = kvd.root / "nvme0", kvd.root / "nvme1"
    second.mkdir()
    kvd.set("nvme", dirs=[first, second])
    kvd.up()
    assert kvd.stop() == 0
    kvd.set("nvme", dirs=[first])
    kvd.up().write("object", b"on the first")
    assert kvd.stop() == 0
    kvd.set("nvme", dirs=[second])
    status, sentence = kvd.refused()
    assert (status, f"{second} belongs to catalogue" in sentence) == (78, True)
    kvd.set("nvme", dirs=[first])


def test_a_budget_beyond_ram(kvd: Daemon) -> None:
    kvd.set("ddr", budget="9000GiB", burst="1GiB")
    status, sentence = kvd.refused()
    assert (status, sentence.startswith("[ddr] budget: with burst it is 8.8TiB, more than this ")) == (78, True)
    assert sentence.endswith("; set less")
    kvd.set("ddr", budget="64MiB", burst="8MiB")


def test_a_list_that_lost_a_directory_with_objects(tmp_path: Path) -> None:
    for count, words in ((1, "1 object is"), (7, "7 objects are")):
        with pytest.raises(ConfigError, match=rf"\[nvme\] dirs: the list has 1, but {words} in another"):
            NvmeStore((tmp_path,), uuid="x", reserve_bytes=0, direct=False, copies={0: 5, 1: count})
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def unprivileged() -> Iterator[Daemon]:
    with daemon(unprivileged=True) as made:
        yield made


@pytest.mark.parametrize(("name", "key"), [("nvme0", "[nvme] dirs"), ("state", "[daemon] state")])
def test_a_directory_that_is_somebody_elses(unprivileged: Daemon, name: str, key: str) -> None:
    path = unprivileged.root / name
    os.chown(path, 65534, 65534)
    mend = f"run kvd as its owner, or set {key.split()[1]} elsewhere"
    assert unprivileged.refused() == (78, f"{key}: {path} is not writable; {mend}")


def test_a_ddr_path_on_no_tmpfs_without_privileges(unprivileged: Daemon) -> None:
    kvd = unprivileged
    kvd.set("ddr", path=kvd.root / "ddr")
    status, sentence = kvd.refused()
    what = f"[ddr] path: {kvd.root}/ddr is not on a tmpfs, and kvd may not mount one without CAP_SYS_ADMIN"
    assert (status, sentence) == (78, f"{what}; set a directory on a tmpfs, such as one below /dev/shm")
    kvd.set("ddr", path=kvd.ddr)
