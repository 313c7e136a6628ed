"""Many processes change files and look at them: nobody sees what a change that has ended made old."""

import json
import sys
from pathlib import Path

import pytest

import support
from support.content import wait_until
from support.mounted import start_kvd
from support.races import ABSENT, Change, Look, State, impossible, race

UNCACHED = str(Path(support.__path__[0]) / "uncached_kvd.py")
OWNERS, LOOKERS = 3, 4
SECONDS = 4.0


def run(how, **settings):
    """Race on a kvd whose kernel asks for everything; return looks and the impossible ones."""
    with start_kvd({"fuse": settings}, prefix=(sys.executable, UNCACHED, how)) as running:
        if how == "unsound":
            running.claim("")
        folder = running.root / "folder"
        folder.mkdir()
        looks, found = race(folder, owners=OWNERS, lookers=LOOKERS, seconds=SECONDS)
        wait_until(lambda: running.kvd.status()["leased"] == 0, "nothing is open")
        served = json.loads((running.root / ".kvd" / "stats").read_text())["data_plane"]
        return looks, found, served


@pytest.mark.parametrize("passthrough", ["auto", "off"])
def test_nobody_sees_what_is_stale(passthrough):
    looks, found, served = run("sound", passthrough=passthrough)
    assert not found, (len(found), looks, found[:5])
    assert looks > 100
    for counter in ("hot_lookups", "hot_negatives", "hot_getattrs", "hot_opens", "hot_releases", "hot_readdirs"):
        assert served[counter] > 0, served


def test_a_table_that_is_not_told_in_time_is_found_out():
    looks, found, _ = run("unsound")
    assert found, looks


def test_the_check_of_what_was_seen():
    old, new = State(100, 0o600, 1), State(200, 0o600, 2)
    changes = {"a": [Change(10, 20, old), Change(30, 40, new), Change(50, 60, ABSENT)]}

    def seen(began, ended, state, how="read"):
        return not impossible(changes, [Look("a", how, began, ended, state)])

    assert seen(1, 5, ABSENT)
    assert seen(5, 15, old)
    assert seen(25, 28, old)
    assert seen(25, 35, new)
    assert seen(45, 55, ABSENT)
    assert seen(45, 48, State(0), how="list")
    assert not seen(1, 5, old)
    assert not seen(45, 48, old)
    assert not seen(41, 49, ABSENT)
    assert not seen(65, 70, new)
    assert not seen(65, 70, State(0), how="list")
    assert not seen(45, 48, new._replace(mode=0o644), how="stat")
