"""``kvctl`` against a real daemon, and the virtual files of the mount."""

from __future__ import annotations

import json
import os
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from support.daemons import daemon, document, kvctl

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from support.daemons import Daemon

SIZE = 200_000


@pytest.fixture(scope="module")
def kvd() -> Iterator[Daemon]:
    # Not "auto": that follows what others leave free on the disk.
    with daemon({"nvme": {"capacity": "1GiB"}}) as made:
        yield made.up()


@pytest.fixture
def folder(kvd: Daemon, request: pytest.FixtureRequest) -> Path:
    """A folder of the test's own with three sealed objects in DDR."""
    made = kvd.mount / request.node.name
    made.mkdir()
    for name in ("a", "b", "c"):
        kvd.write(f"{made.name}/{name}", name.encode() * SIZE)
    return made


def lines(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


def test_status_says_the_same_in_words_and_in_json(kvd: Daemon, folder: Path) -> None:
    found = document(kvctl(kvd, "--json", "status"))
    assert (found["state"], found["reasons"], found["mount"], found["pid"]) == ("ok", [], str(kvd.mount), kvd.pid)
    assert found["objects"] >= 3
    assert "passthrough" in found["features"]
    assert [tier["tier"] for tier in found["tiers"]] == ["ddr", "nvme"]
    assert found["tiers"][0]["used_bytes"] >= 3 * SIZE
    shown = kvctl(kvd, "status").stdout
    assert shown.startswith(f"kvd {found['version']} serves {kvd.mount}: ok\n")
    assert f"process {kvd.pid}" in shown
    assert f"{found['objects']}: 0 leased, 0 pinned" in shown


def test_df_adds_up(kvd: Daemon, folder: Path) -> None:
    before = document(kvctl(kvd, "--json", "df"))["tiers"]
    assert kvctl(kvd, "demote", folder).returncode == 0
    after = document(kvctl(kvd, "--json", "df"))["tiers"]
    moved = [tier["used_bytes"] - was["used_bytes"] for was, tier in zip(before, after, strict=True)]
    assert moved[0] <= -3 * SIZE
    assert moved[1] >= 3 * SIZE
    assert [tier["objects"] - was["objects"] for was, tier in zip(before, after, strict=True)] == [-3, 3]
    header, ddr, nvme = lines(kvctl(kvd, "df").stdout)
    assert (header[0], ddr[0], nvme[0]) == ("TIER", "ddr", "nvme")
    info = os.statvfs(kvd.mount)
    assert info.f_blocks * info.f_frsize == sum(tier["capacity_bytes"] for tier in after)


def test_ls_and_stat_tell_what_is_known(kvd: Daemon, folder: Path) -> None:
    (folder / "sub").mkdir(mode=0o700)
    os.symlink("a", folder / "link")
    assert sorted(kvctl(kvd, "ls", folder).stdout.split()) == ["a", "b", "c", "link", "sub/"]
    listed = {os.path.basename(each["path"]): each for each in document(kvctl(kvd, "--json", "ls", folder))["entries"]}
    assert (listed["sub"]["kind"], listed["link"]["kind"], listed["a"]["kind"]) == ("dir", "symlink", "file")
    shown = kvctl(kvd, "ls", "-l", folder).stdout
    assert any(line[0] == "-rw-r--r--" and line[-1] == "a" and "ddr" in line for line in lines(shown))
    with (folder / "a").open("rb") as file:
        file.read(1)
        (entry,) = document(kvctl(kvd, "--json", "stat", folder / "a"))["entries"]
    info = (folder / "a").stat()
    assert (entry["ino"], entry["mode"], entry["size_bytes"]) == (info.st_ino, info.st_mode, info.st_size)
    assert (entry["tier"], entry["state"], entry["clean"], entry["opens"]) == ("ddr", "sealed", False, 1)
    assert entry["stored_bytes"] >= SIZE


def test_relative_paths_start_at_the_working_directory(kvd: Daemon, folder: Path) -> None:
    assert kvctl(kvd, "ls", cwd=folder).stdout.split() == ["a", "b", "c"]
    assert kvctl(kvd, "ls", "..", cwd=folder).stdout == kvctl(kvd, "ls", kvd.mount).stdout
    assert kvctl(kvd, "demote", "a", "./b", cwd=folder).stdout.startswith("demoted 2 objects")
    assert [kvd.tier(f"{folder.name}/{name}") for name in "abc"] == ["nvme", "nvme", "ddr"]
    outside = kvctl(kvd, "ls", "..", cwd=kvd.mount)
    assert (outside.returncode, outside.stderr) == (
        2,
        f"kvctl: {kvd.root} is not in {kvd.mount}, the mount that this daemon serves\n",
    )


def test_objects_move_there_and_back(kvd: Daemon, folder: Path) -> None:
    moved = document(kvctl(kvd, "--json", "demote", folder))
    assert moved == {"done": 3, "failed": [], "bytes": 3 * SIZE}
    assert document(kvctl(kvd, "--json", "demote", folder)) == {"done": 3, "failed": [], "bytes": 0}
    assert kvctl(kvd, "demote", folder).stdout == "demoted 0 objects, 0 B; 3 already there\n"
    assert kvctl(kvd, "promote", folder / "a").stdout == "promoted 1 object, 195 KiB\n"
    assert [kvd.tier(f"{folder.name}/{name}") for name in "abc"] == ["ddr", "nvme", "nvme"]
    assert kvctl(kvd, "promote", folder / "a", folder / "b").stdout == "promoted 1 object, 195 KiB; 1 already there\n"
    kvd.kvctl("demote", str(folder / "b"))
    assert [kvd.read(f"{folder.name}/{name}") for name in "abc"] == [name * SIZE for name in (b"a", b"b", b"c")]


def test_sync_makes_durable_and_moves_nothing(kvd: Daemon, folder: Path) -> None:
    assert document(kvctl(kvd, "--json", "sync", folder))["bytes"] == 3 * SIZE
    entries = document(kvctl(kvd, "--json", "ls", folder))["entries"]
    assert [(entry["tier"], entry["clean"]) for entry in entries] == [("ddr", True)] * 3
    assert document(kvctl(kvd, "--json", "sync"))["failed"] == []


def test_a_leased_object_stays_and_the_others_go(kvd: Daemon, folder: Path) -> None:
    with (folder / "b").open("rb"):
        done = kvctl(kvd, "demote", folder)
        assert done.returncode == 5
        assert done.stderr == f"kvctl: {folder}/b: in use: open or mapped\n"
        assert done.stdout == "demoted 2 objects, 391 KiB; 1 object failed\n"
        failed = document(kvctl(kvd, "--json", "demote", folder))["failed"]
        assert failed == [{"path": f"/{folder.name}/b", "code": "EBUSY", "error": "in use: open or mapped"}]
    assert [kvd.tier(f"{folder.name}/{name}") for name in "abc"] == ["nvme", "ddr", "nvme"]


def test_different_failures_are_status_1(kvd: Daemon, folder: Path) -> None:
    missing = kvctl(kvd, "demote", folder / "a", folder / "missing")
    assert (missing.returncode, missing.stderr) == (
        4,
        f"kvctl: {folder}/missing: no such file or directory in the mount\n",
    )
    for command in ("ls", "stat", "pin"):
        alone = kvctl(kvd, command, "missing", cwd=folder)
        assert (alone.returncode, alone.stderr) == (missing.returncode, missing.stderr)
    done = kvctl(kvd, "stat", folder / "a", folder / "missing")
    assert (done.returncode, "/a\n" in done.stdout) == (4, True)


def test_a_pin_holds_until_it_is_taken_off(kvd: Daemon, folder: Path) -> None:
    assert kvctl(kvd, "pin", folder).stdout == "pinned 3 objects\n"
    assert os.getxattr(folder / "a", "user.kvd.pin") == b"1"
    done = kvctl(kvd, "demote", folder)
    assert (done.returncode, done.stderr.splitlines()[0]) == (5, f"kvctl: {folder}/a: pinned")
    assert document(kvctl(kvd, "--json", "status"))["pinned"] == 3
    assert kvctl(kvd, "unpin", folder / "a", folder / "b").stdout == "unpinned 2 objects\n"
    assert kvctl(kvd, "unpin", folder).stdout == "unpinned 1 object\n"
    assert kvctl(kvd, "demote", folder).returncode == 0


def test_versions(kvd: Daemon) -> None:
    found = document(kvctl(kvd, "--json", "version"))
    assert (found["daemon"]["version"], found["daemon"]["mount"]) == (found["client"], str(kvd.mount))
    assert (kvd.mount / ".kvd/version").read_text() == f"kvd {found['client']}\n"


def test_virtual_files_are_json(kvd: Daemon, folder: Path) -> None:
    status = document(kvctl(kvd, "--json", "status"))
    stats: dict[str, Any] = json.loads((kvd.mount / ".kvd/stats").read_text())
    assert set(stats) == set(status) | {"data_plane"}
    assert (stats["objects"], stats["mount"]) == (status["objects"], str(kvd.mount))
    with (folder / "c").open("rb"):
        sessions = [json.loads(line) for line in (kvd.mount / ".kvd/sessions").read_text().splitlines()]
    found = {each["path"]: each for each in sessions}
    assert found[f"/{folder.name}/c"]["opens"] == 1
    assert (found[f"/{folder.name}/a"]["tier"], found[f"/{folder.name}/a"]["opens"]) == ("ddr", 0)
    assert ".kvd" not in os.listdir(kvd.mount)
    assert sorted(os.listdir(kvd.mount / ".kvd")) == ["sessions", "stats", "version"]
    with pytest.raises(PermissionError):
        (kvd.mount / ".kvd/stats").write_text("")


def test_completion_is_shell(kvd: Daemon) -> None:
    script = kvctl(kvd, "completion", "bash").stdout
    done = subprocess.run(["bash", "-n"], input=script, text=True, capture_output=True, check=False, timeout=20)
    assert (done.returncode, done.stderr, "demote" in script) == (0, "", True)


def test_faults_are_shown_and_make_it_degraded() -> None:
    with daemon() as kvd:
        kvd.up().write("model\n1", b"x" * SIZE)
        kvd.write("fine", b"fine")
        kvd.kvctl("demote", str(kvd.mount))
        ino = (kvd.mount / "model\n1").stat().st_ino
        (copy,) = kvd.nvme_dirs[0].rglob(f"{ino:x}.*")
        with copy.open("r+b") as damaged:
            damaged.seek(150_000)
            damaged.write(b"damage")
        kvd.claims.append("object quarantined")
        done = kvctl(kvd, "promote", kvd.mount)
        assert (done.returncode, done.stderr) == (7, f"kvctl: {kvd.mount}/model\\n1: page 2 failed its checksum\n")
        assert kvd.read("fine") == b"fine"
        shown = kvctl(kvd, "status").stdout
        assert ": degraded\n" in shown
        assert "because 1 quarantined object up " in " ".join(shown.split())
        assert lines(shown[shown.index("Faults\n") :])[1] == ["WHEN", "PAGE", "WHAT", "PATH", "WHERE"]
        assert lines(shown)[-1][2:6] == ["2", "checksum", "differs", "/model\\n1"]
        (fault,) = document(kvctl(kvd, "--json", "status"))["faults"]
        assert (fault["path"], fault["page"]) == ("/model\n1", 2)
        (kvd.mount / "model\n1").unlink()
        assert document(kvctl(kvd, "--json", "status"))["state"] == "ok"


def test_no_daemon() -> None:
    with daemon() as kvd:
        kvd.up()
        kvd.kill()
        for arguments in (["status"], ["ls", "/x"], ["demote", "/x"], ["sync"], ["version"]):
            done = kvctl(kvd, *arguments)
            assert done.returncode == 3
            assert done.stderr == (
                f"kvctl: no daemon: nobody listens on {kvd.socket}; "
                "start it: systemctl start kvd, or kvd --config FILE\n"
            )
        kvd.up()
