"""Markers of the tiers' directories: whose they are, and what is said of those that kvd can't use."""

from __future__ import annotations

import json

import pytest
import trio

from kvd.errors import ConfigError
from kvd.tier.ddr import DdrStore
from kvd.tier.nvme import NvmeStore


def nvme(path, *, uuid="mine", copies=None):
    return started((path,), uuid, copies)


def started(dirs, uuid="mine", copies=None):
    store = NvmeStore(dirs, uuid=uuid, reserve_bytes=0, direct=False, copies=copies)
    trio.run(store.start)
    return store


def ddr(path, *, uuid="mine"):
    return DdrStore(path, uuid=uuid)


TIERS = pytest.mark.parametrize(("open_tier", "name"), [(nvme, "kvd-nvme.json"), (ddr, "kvd-ddr.json")])


@TIERS
def test_a_directory_that_is_nobodys_is_taken_and_stays(tmp_path, open_tier, name):
    open_tier(tmp_path)
    before = (tmp_path / name).read_text()
    open_tier(tmp_path)
    assert (tmp_path / name).read_text() == before


@TIERS
def test_a_newer_version_is_said_to_be_one(tmp_path, open_tier, name):
    open_tier(tmp_path)
    marker = tmp_path / name
    marker.write_text(json.dumps(json.loads(marker.read_text()) | {"version": 2}))
    with pytest.raises(ConfigError, match=f"{name} has version 2, this kvd knows 1; install a newer kvd"):
        open_tier(tmp_path)


@TIERS
@pytest.mark.parametrize("content", ['{"uuid": "mine"}', '{"magic": "other", "version": 1, "uuid": "mine"}', "[]"])
def test_a_foreign_marker(tmp_path, open_tier, name, content):
    (tmp_path / name).write_text(content)
    with pytest.raises(ConfigError, match=f"{name} is not kvd's; set another directory"):
        open_tier(tmp_path)
    assert (tmp_path / name).read_text() == content


@TIERS
def test_another_catalogues(tmp_path, open_tier, name):
    del name
    open_tier(tmp_path, uuid="theirs")
    with pytest.raises(ConfigError, match="belongs to catalogue theirs"):
        open_tier(tmp_path)


def test_a_new_catalogue_does_not_blame_the_list(tmp_path):
    nvme(tmp_path, uuid="theirs")
    new = "is new: nothing is on NVMe by it; restore the catalog.sqlite of the objects or set another directory"
    with pytest.raises(ConfigError, match=new):
        nvme(tmp_path)
    with pytest.raises(ConfigError, match="not to mine as number 0; set another directory"):
        nvme(tmp_path, copies={0: 1})


def test_a_directory_that_is_nobodys_is_looked_at_and_left_alone(tmp_path):
    store = NvmeStore((tmp_path,), uuid="mine", reserve_bytes=0, direct=False)

    async def look():
        await store.start(claim=False)
        return await store.files()

    assert trio.run(look) == ({}, set())
    assert list(tmp_path.iterdir()) == []


def test_a_list_in_another_order(tmp_path):
    dirs = tmp_path / "one", tmp_path / "two"
    for path in dirs:
        path.mkdir()
    started(dirs)
    with pytest.raises(ConfigError, match="as number 1, not to mine as number 0; restore the order of the list"):
        started(dirs[::-1])
