"""`kvctl fsck` and `kvctl scrub` as an operator uses them: on a kvd that runs, on one that is stopped, and after a loss."""

from __future__ import annotations

import json
import os
import stat
from typing import TYPE_CHECKING, Any

import pytest

from support.daemons import Daemon, daemon, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PAGE_BYTES = 65536


@pytest.fixture
def kvd() -> Iterator[Daemon]:
    with daemon({"scrub": {"rate": 0}}) as made:
        yield made


def ctl(kvd: Daemon, *arguments: str) -> tuple[int, str]:
    done = kvd.kvctl(*arguments, check=False)
    assert "Traceback" not in done.stderr
    return done.returncode, done.stdout + done.stderr


def document(kvd: Daemon, *arguments: str) -> tuple[int, dict[str, Any]]:
    done = kvd.kvctl("--json", *arguments, check=False)
    found: dict[str, Any] = json.loads(done.stdout)
    return done.returncode, found


def copy_file(kvd: Daemon, name: str) -> Path:
    ino = kvd.entry(name)["ino"]
    (path,) = kvd.nvme_dirs[0].glob(f"objects/*/*/{ino:x}.?")
    return path


def flip(path: Path, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 4]))


def stopped(kvd: Daemon) -> None:
    assert kvd.stop() == 0


def config(kvd: Daemon) -> tuple[str, str]:
    return "--config", str(kvd.config)


def test_a_running_kvd_checks_itself(kvd: Daemon) -> None:
    kvd.claims += ["bad copy healed", "object quarantined"]
    kvd.up()
    kept = {name: kvd.write(name, os.urandom(200_000)) for name in ("warm", "cold", "other")}
    kvd.kvctl("sync", str(kvd.mount))
    kvd.kvctl("demote", str(kvd.mount / "cold"), str(kvd.mount / "other"))
    assert ctl(kvd, "fsck", "--data") == (0, "clean\n")
    assert document(kvd, "fsck", *config(kvd)) == (0, {"online": True, "result": "clean", "left": 0, "faults": []})
    flip(copy_file(kvd, "warm"), 5)
    flip(copy_file(kvd, "cold"), 70_000)
    assert ctl(kvd, "fsck") == (0, "clean\n"), "bytes are not read without --data"
    status, told = ctl(kvd, "fsck", "--data")
    assert (status, told.splitlines()[-1]) == (1, "2 faults")
    status, told = ctl(kvd, "fsck", "--data", "--repair")
    assert (status, told.splitlines()[-1]) == (1, "2 faults, 1 mended")
    assert "a new copy was made from DDR" in told
    assert "quarantined" in told
    fault = next(each for each in kvd.status()["faults"] if each["path"] == "/cold")
    assert fault["place"] == f"{copy_file(kvd, 'cold')} at {PAGE_BYTES}"
    assert (fault["page"], fault["what"]) == (1, "checksum differs")
    assert fault["place"] in kvd.kvctl("status").stdout
    assert kvd.read("warm") == kept["warm"]
    assert kvd.read("other") == kept["other"]
    with pytest.raises(OSError, match="Input/output"):
        kvd.read("cold")
    (kvd.mount / "cold").unlink()
    until(lambda: ctl(kvd, "fsck", "--data") == (0, "clean\n"), "clean again")


def test_scrub_finds_a_flip_in_a_cold_object_and_heals_one_in_a_warm_one(kvd: Daemon) -> None:
    kvd.claims += ["bad copy healed", "object quarantined"]
    kvd.up()
    warm = kvd.write("warm", os.urandom(200_000))
    kvd.write("cold", os.urandom(200_000))
    kvd.write("hot", b"only in DDR")
    kvd.kvctl("sync", str(kvd.mount / "warm"))
    kvd.kvctl("demote", str(kvd.mount / "cold"))
    assert ctl(kvd, "scrub", "--all") == (0, "verified 2 objects, 391 KiB; 1 not on NVMe\n")
    flip(copy_file(kvd, "cold"), 70_000)
    flip(copy_file(kvd, "warm"), 140_000)
    status, told = ctl(kvd, "scrub", str(kvd.mount / "cold"))
    assert status == 7
    assert "page 1 failed its checksum; quarantined" in told
    status, found = document(kvd, "scrub", str(kvd.mount / "warm"))
    assert (status, found) == (0, {"done": 1, "failed": [], "bytes": 200_000})
    assert copy_file(kvd, "warm").read_bytes() == warm
    scrub = kvd.status()["scrub"]
    assert (scrub["bad_pages"], scrub["healed"], scrub["quarantined"], scrub["rate_bytes"]) == (2, 1, 1, 0)
    assert "kvd_scrub_bad_pages_total 2.0" in kvd.kvctl("metrics").stdout
    assert "scrub" in kvd.kvctl("status").stdout
    assert ctl(kvd, "scrub")[0] == 2
    assert ctl(kvd, "scrub", "--all", str(kvd.mount))[0] == 2
    kvd.write("cold", b"new bytes end the quarantine")
    assert ctl(kvd, "scrub", "--all")[0] == 0


def test_the_scrubber_finds_it_by_itself(kvd: Daemon) -> None:
    kvd.claims += ["object quarantined"]
    kvd.up()
    kvd.write("cold", os.urandom(200_000))
    kvd.kvctl("demote", str(kvd.mount))
    flip(copy_file(kvd, "cold"), 70_000)
    stopped(kvd)
    kvd.set("scrub", rate="1GiB", period="1s")
    kvd.up()
    until(lambda: kvd.status()["scrub"]["quarantined"] == 1, "found")
    assert kvd.status()["state"] == "degraded"
    until(lambda: kvd.status()["scrub"]["ended_s"] > 0, "a whole pass")
    (kvd.mount / "cold").unlink()


def test_a_stopped_kvd_is_checked_and_repaired_here(kvd: Daemon) -> None:
    kvd.up()
    kept = kvd.write("a", os.urandom(200_000))
    kvd.write("b", os.urandom(200_000))
    busy = kvd.kvctl("fsck", *config(kvd), "--rebuild", check=False)
    assert (busy.returncode, f"pid {kvd.pid}" in busy.stderr) == (5, True)
    kvd.kvctl("demote", str(kvd.mount))
    path, other = copy_file(kvd, "a"), copy_file(kvd, "b")
    stopped(kvd)
    assert ctl(kvd, "fsck", *config(kvd), "--data") == (0, "clean\n")
    os.removexattr(path, "user.kvd")
    status, found = document(kvd, "fsck", *config(kvd))
    assert (status, found["online"], found["left"]) == (1, False, 1)
    (fault,) = found["faults"]
    assert (fault["kind"], fault["done"], fault["mended"]) == ("descriptions", "", False)
    assert fault["place"] == str(path)
    status, told = ctl(kvd, "fsck", *config(kvd), "--repair")
    assert (status, told.splitlines()[-1]) == (0, "1 fault, all mended")
    flip(other, 5)
    status, told = ctl(kvd, "fsck", *config(kvd), "--repair", "--data")
    assert (status, told.splitlines()[-1]) == (1, "1 fault")
    assert f"({other} at 0)" in told
    kvd.up()
    assert kvd.read("a") == kept
    (kvd.mount / "b").unlink()


def test_what_can_not_be_asked_is_refused_with_a_sentence(kvd: Daemon) -> None:
    status, told = ctl(kvd, "fsck")
    assert status == 3
    assert "--config FILE says where a stopped one keeps its state" in told
    assert ctl(kvd, "fsck", "--config", "/nowhere")[0] == 2
    assert ctl(kvd, "fsck", *config(kvd), "--rebuild", "--repair")[0] == 2
    status, told = ctl(kvd, "fsck", *config(kvd), "--rebuild")
    assert status == 2
    assert "nothing to make a catalogue from" in told


def names_below(top: Path) -> dict[str, tuple[Any, ...]]:
    found = {}
    for path in sorted(top.rglob("*")):
        if ".kvd" not in path.parts:
            info = path.lstat()
            what = os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else b""
            found[str(path.relative_to(top))] = (
                info.st_mode, info.st_uid, info.st_gid, info.st_mtime_ns, info.st_size, info.st_nlink, info.st_ino, what,
            )  # fmt: skip
    return found


def test_a_lost_catalogue_is_made_anew_and_everything_is_served_again(kvd: Daemon) -> None:
    kvd.up()
    top = kvd.mount / "models" / "a"
    top.mkdir(parents=True)
    kvd.write("models/a/block", os.urandom(300_000))
    with (kvd.mount / "models/a/sparse").open("wb") as file:
        file.seek(40 << 20)
        file.write(b"end")
    until(lambda: os.getxattr(kvd.mount / "models/a/sparse", "user.kvd.state") == b"sealed", "seal")
    kvd.kvctl("demote", str(kvd.mount))
    (top / "block").rename(kvd.mount / "models" / "renamed after the demotion")
    (kvd.mount / "models" / "renamed after the demotion").chmod(0o604)
    os.link(top / "sparse", kvd.mount / "second name")
    (top / "link").symlink_to("../renamed")
    os.setxattr(top, "user.note", b"of a folder")
    os.setxattr(top / "sparse", "user.tag", b"x" * 3000)
    top.chmod(stat.S_ISGID | 0o750)
    before = names_below(kvd.mount)
    stopped(kvd)
    for path in (kvd.root / "state").glob("catalog.sqlite*"):
        path.unlink()
    status, told = ctl(kvd, "fsck", *config(kvd))
    assert status == 1
    assert "there is no catalogue" in told
    assert "kvctl fsck --rebuild" in told
    sentence = "the catalogue is made anew: 2 objects, 2 directories, 1 others\n"
    assert ctl(kvd, "fsck", *config(kvd), "--rebuild") == (0, sentence)
    kvd.up()
    assert names_below(kvd.mount) == before
    assert os.getxattr(top, "user.note") == b"of a folder"
    assert os.getxattr(top / "sparse", "user.tag") == b"x" * 3000
    assert kvd.entry("second name")["stored_bytes"] <= PAGE_BYTES
    assert ctl(kvd, "fsck", "--data") == (0, "clean\n")
    (kvd.mount / "new").write_bytes(b"new objects get numbers of their own")


def test_after_a_kill_the_next_start_describes_what_was_renamed(kvd: Daemon) -> None:
    kvd.up()
    content = kvd.write("a", os.urandom(100_000))
    kvd.kvctl("demote", str(kvd.mount))
    (kvd.mount / "a").rename(kvd.mount / "b")
    kvd.kill()
    kvd.up()
    stopped(kvd)
    for path in (kvd.root / "state").glob("catalog.sqlite*"):
        path.unlink()
    assert ctl(kvd, "fsck", *config(kvd), "--rebuild")[0] == 0
    kvd.up()
    assert os.listdir(kvd.mount) == ["b"]
    assert kvd.read("b") == content


def test_a_damaged_catalogue_is_refused_at_the_start_with_the_way_out(kvd: Daemon) -> None:
    kvd.up()
    content = kvd.write("a", os.urandom(100_000))
    kvd.kvctl("demote", str(kvd.mount))
    stopped(kvd)
    catalogue = kvd.root / "state" / "catalog.sqlite"
    damaged = bytearray(catalogue.read_bytes())
    damaged[:100] = bytes(100)
    catalogue.write_bytes(bytes(damaged))
    status, sentence = kvd.refused()
    assert status == 78
    assert "kvctl fsck --rebuild" in sentence
    status, found = document(kvd, "fsck", *config(kvd), "--rebuild")
    assert (status, found["objects"], found["left_out"]) == (0, 1, [])
    assert kvd.root / "state" == type(kvd.root)(found["kept"]).parent
    kvd.up()
    assert kvd.read("a") == content
