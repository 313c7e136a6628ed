"""Journeys of integrity over two NVMe directories: stripes, flips in each, a lost catalogue, renames after the demotion."""

import hashlib
import json
import os
import random
import subprocess

import pytest
from private_kvd import BIN

from support.content import digest, fill, wait_until
from support.mounted import start_kvd

MIB = 1 << 20
STRIPED = 40 * MIB + 12345
STRIPE = 8 * MIB


@pytest.fixture
def journey():
    settings = {"ddr": {"budget": "192MiB", "burst": "64MiB"}, "scrub": {"rate": 0}}
    with start_kvd(settings, nvme_dirs=2) as mounted:
        yield mounted


def parts_of(kvd, name):
    ino = kvd.entry(name)["ino"]
    return [path for top in kvd.nvme_dirs for path in top.glob(f"objects/*/*/{ino:x}.?")]


def flip(path, at):
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 16]))


def holder(parts, kvd, at):
    """Return the part that has the byte at an offset: the one with data there."""
    (found,) = [path for path in parts if has_data(path, at)]
    return found


def has_data(path, at):
    with path.open("rb") as file:
        try:
            return os.lseek(file.fileno(), at, os.SEEK_DATA) == at
        except OSError:
            return False


def offline(kvd, *arguments):
    done = subprocess.run(
        [str(BIN / "kvctl"), "--json", "fsck", "--config", str(kvd.config), *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Traceback" not in done.stderr
    return done.returncode, json.loads(done.stdout)


def test_a_lost_catalogue_over_two_directories(journey):
    kvd = journey.kvd
    (journey.root / "d").mkdir()
    expected = {}
    for number in range(6):
        expected[f"d/{number}"] = fill(journey.root / f"d/{number}", 100_000 + number, number)
    expected["striped"] = fill(journey.root / "striped", STRIPED, 9)
    kvd.kvctl("demote", str(journey.root))
    assert len(parts_of(kvd, "striped")) == 2
    (journey.root / "d/3").rename(journey.root / "renamed")
    (journey.root / "striped").rename(journey.root / "d/striped")
    (journey.root / "d/5").unlink()
    expected["renamed"], expected["d/striped"] = expected.pop("d/3"), expected.pop("striped")
    del expected["d/5"]
    assert kvd.stop() == 0
    kept = kvd.root / "kept"
    (kvd.root / "state").rename(kept)
    (kvd.root / "state").mkdir()
    status, made = offline(kvd, "--rebuild", "--data")
    assert (status, made["left_out"], made["objects"], made["directories"]) == (0, [], 6, 1)
    kvd.start()
    assert {name: digest(journey.root / name) for name in expected} == expected
    assert sorted(os.listdir(journey.root)) == ["d", "renamed"]
    assert kvd.kvctl("fsck", "--data").stdout == "clean\n"


def test_of_a_striped_object_without_one_part_nothing_is_invented(journey):
    kvd = journey.kvd
    fill(journey.root / "striped", STRIPED, 9)
    expected = fill(journey.root / "other", 5000)
    kvd.kvctl("demote", str(journey.root))
    _, second = parts_of(kvd, "striped")
    assert kvd.stop() == 0
    second.unlink()
    status, made = offline(kvd, "--rebuild")
    assert (status, made["objects"], len(made["left_out"])) == (1, 1, 1)
    assert "of 2 is missing" in made["left_out"][0]
    kvd.start()
    assert os.listdir(journey.root) == ["other"]
    assert digest(journey.root / "other") == expected


def test_flips_in_each_part_are_found_where_they_are(journey):
    kvd = journey.kvd
    journey.claim("object quarantined")
    journey.claim("bad copy healed")
    expected = fill(journey.root / "warm", STRIPED, 1)
    fill(journey.root / "cold", STRIPED, 2)
    kvd.kvctl("sync", str(journey.root))
    kvd.kvctl("demote", str(journey.root / "cold"))
    places = []
    for at in (65536 * 3, STRIPE + 65536 * 5):
        path = holder(parts_of(kvd, "cold"), kvd, at)
        flip(path, at + 77)
        places.append(f"{path} at {at}")
    assert places[0].split(" ")[0] != places[1].split(" ")[0]
    flip(holder(parts_of(kvd, "warm"), kvd, STRIPE), STRIPE + 5)
    done = kvd.kvctl("scrub", str(journey.root), check=False)
    assert done.returncode == 7, done
    faults = {fault["place"]: fault for fault in kvd.status()["faults"]}
    assert set(places) <= set(faults)
    assert faults[places[1]]["page"] == (STRIPE + 65536 * 5) // 65536
    assert next(fault for fault in faults.values() if fault["path"] == "/warm")["what"].endswith("healed by a new copy")
    with pytest.raises(OSError, match="Input/output"):
        (journey.root / "cold").read_bytes()
    kvd.kvctl("demote", str(journey.root / "warm"))
    assert digest(journey.root / "warm") == expected
    (journey.root / "cold").unlink()
    wait_until(lambda: kvd.status()["state"] == "ok", "the object goes with its name")


def test_renames_after_a_kill_are_described_by_the_next_start(journey):
    kvd = journey.kvd
    names = {}
    for number in range(50):
        data = random.Random(number).randbytes(3000)
        (journey.root / f"{number}").write_bytes(data)
        names[f"new {number}"] = hashlib.sha256(data).hexdigest()
    kvd.kvctl("demote", str(journey.root))
    for number in range(50):
        (journey.root / f"{number}").rename(journey.root / f"new {number}")
    kvd.kill()
    kvd.start()
    assert kvd.stop() == 0
    for path in (kvd.root / "state").glob("catalog.sqlite*"):
        path.unlink()
    status, made = offline(kvd, "--rebuild")
    assert (status, made["objects"]) == (0, 50)
    kvd.start()
    assert {path.name: digest(path) for path in journey.root.iterdir()} == names
