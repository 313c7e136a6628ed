"""Objects that travel between the tiers, on a mount: same bytes after every journey, leases, pins, hits."""

import mmap
import os

import pytest

from support.content import (
    MIB,
    SIZES,
    WAYS,
    ddr_bytes,
    digest,
    file_bytes,
    fill,
    fill_sparse,
    spare_bytes,
    usage,
    wait_until,
)


def make_all(folder):
    made = {folder / f"{size}": fill(folder / f"{size}", size) for size in SIZES}
    made[folder / "sparse"] = fill_sparse(folder / "sparse")
    return made


def tiers_of(mounted, made):
    return {mounted.kvd.entry(str(path.relative_to(mounted.root)))["tier"] for path in made}


def test_every_size_is_the_same_after_every_journey(mounted, folder):
    made = make_all(folder)
    for journey in (["sync"], ["demote"], ["promote"], ["demote"]):
        mounted.kvd.kvctl(*journey, str(folder))
        for path, expected in made.items():
            for way in WAYS:
                assert way(path) == expected, f"{path.name} by {way.__name__} after {journey}"
    assert tiers_of(mounted, made) == {"ddr"}


@pytest.mark.parametrize("way", WAYS)
def test_a_cold_object_is_read_whole_by(mounted, folder, way):
    made = make_all(folder)
    mounted.kvd.kvctl("demote", str(folder))
    assert {path: way(path) for path in made} == made


def test_a_cold_object_is_written_in_place(mounted, folder):
    expected = {path: bytearray(path.read_bytes()) for path in make_all(folder)}
    mounted.kvd.kvctl("demote", str(folder))
    for path, data in expected.items():
        half = len(data) // 2
        with path.open("r+b") as file:
            file.seek(half)
            file.write(b"changed")
        data[half : half + 7] = b"changed"
        assert path.read_bytes() == data
    mounted.kvd.kvctl("demote", str(folder))
    for path, data in expected.items():
        assert path.read_bytes() == data


def demote(mounted, path):
    return mounted.kvd.kvctl("demote", str(path), check=False)


def test_an_open_object_is_refused_and_stays(mounted, folder):
    path = folder / "a"
    expected = fill(path, MIB)
    for mode in ("rb", "r+b"):
        with path.open(mode) as file:
            file.read(1)
            done = demote(mounted, path)
            assert (done.returncode, "in use" in done.stderr) == (5, True), done
        assert mounted.kvd.entry(f"{folder.name}/a")["tier"] == "ddr"
        assert digest(path) == expected
    wait_until(lambda: demote(mounted, path).returncode == 0, "released, it may go")


def test_a_mapped_object_is_refused_although_its_descriptor_is_closed(mounted, folder):
    path = folder / "a"
    expected = fill(path, MIB)
    fd = os.open(path, os.O_RDONLY)
    with mmap.mmap(fd, 0, mmap.MAP_SHARED, mmap.PROT_READ) as mapped:
        os.close(fd)
        assert demote(mounted, path).returncode == 5
        assert mapped[:] == path.read_bytes()
    assert digest(path) == expected
    wait_until(lambda: demote(mounted, path).returncode == 0, "unmapped, it may go")


def test_a_pinned_object_is_refused_and_a_folder_goes_without_it(mounted, folder):
    for name in ("a", "b"):
        fill(folder / name, 5000)
    mounted.kvd.kvctl("pin", str(folder / "a"))
    assert demote(mounted, folder).returncode == 5
    tiers = {name: mounted.kvd.entry(f"{folder.name}/{name}")["tier"] for name in ("a", "b")}
    assert tiers == {"a": "ddr", "b": "nvme"}
    mounted.kvd.kvctl("unpin", str(folder / "a"))
    assert demote(mounted, folder).returncode == 0


def test_hits_and_last_use_are_told(mounted, folder):
    path = folder / "a"
    fill(path, 5000)
    for _ in range(3):
        path.read_bytes()
    wait_until(lambda: mounted.kvd.entry(f"{folder.name}/a")["opens"] == 0, "releases come late, but come")
    entry = mounted.kvd.entry(f"{folder.name}/a")
    assert entry["hits"] == 3
    assert entry["idle_s"] < 30
    assert os.getxattr(path, "user.kvd.hits") == b"3"
    mounted.kvd.kvctl("demote", str(path))
    entry = mounted.kvd.entry(f"{folder.name}/a")
    assert (entry["hits"], entry["idle_s"]) == (3, None)


def test_books_are_what_the_files_hold_once_all_is_closed(mounted, folder):
    # What a mapping has read into the holes of the tests before are clean pages: the kernel may drop them at any time.
    for sparse in mounted.root.glob("*/sparse"):
        sparse.unlink()
    make_all(folder)
    mounted.kvd.kvctl("demote", str(folder / "65537"))
    fill(folder / "4095", 300_000)
    (folder / "1").unlink()
    wait_until(lambda: mounted.kvd.status()["leased"] == 0, "nobody has anything open")
    for tier, top in (("ddr", mounted.kvd.ddr), ("nvme", mounted.kvd.nvme_dirs[0] / "objects")):
        line = usage(mounted.kvd, tier)
        assert (line["used_bytes"], line["reserved_bytes"]) == (file_bytes(top), 0), tier
    marker_bytes = (mounted.kvd.ddr / "kvd-ddr.json").stat().st_blocks * 512
    beside_bytes = marker_bytes + spare_bytes(mounted.kvd)
    assert ddr_bytes(mounted.kvd) == usage(mounted.kvd, "ddr")["used_bytes"] + beside_bytes
