"""``kvctl session`` as a user runs it: words, JSON documents and exit statuses."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from support.kvctl_runs import Daemon, daemon, document, kvctl

if TYPE_CHECKING:
    from collections.abc import Iterator

A, S = "/mnt/kvd/model/a.bin", b"/mnt/kvd/model/s-\xff"
VERBS = ("release", "resume", "prefetch", "ttl", "pin", "unpin", "close", "fork", "show")


@pytest.fixture
def fake() -> Iterator[Daemon]:
    with daemon() as found:
        yield found


def test_words(fake: Daemon) -> None:
    listed = kvctl(fake.path, "session", "list").stdout.splitlines()
    assert listed[0].split() == ["STATE", "SINCE", "OPEN", "LEASES", "PIN", "TTL", "PATH"]
    assert listed[1].split()[:5] == ["idle", "12s", "0", "1", "soft"]
    assert listed[2].endswith("/model/s-\\xff")
    assert kvctl(fake.path, "session", "list", "--state", "cold").stdout.count("\n") == 2
    shown = kvctl(fake.path, "session", "show", A).stdout
    for words in ("/model/a.bin\n", "2: 64.0 KiB ddr, 4.0 KiB nvme", "soft until 2023", "4096 trailing and 4 first"):
        assert words in shown
    assert kvctl(fake.path, "session", "pin", A).stdout == "pinned 2 objects\n"
    assert kvctl(fake.path, "session", "unpin", A).stdout == "unpinned 2 objects\n"
    assert "released" in kvctl(fake.path, "session", "release", A).stdout
    assert kvctl(fake.path, "session", "close", S).stdout == "closed 1 session\n"
    watched = kvctl(fake.path, "session", "watch", A).stdout.splitlines()
    assert watched == ["/model/a.bin: idle -> cooling", "/model/a.bin: cooling -> cold (3 before it were lost)"]


def test_documents(fake: Daemon) -> None:
    listed = document(kvctl(fake.path, "--json", "session", "list"))["sessions"]
    assert [each["path"] for each in listed] == ["/model/a.bin", "/model/s-\udcff"]
    shown = document(kvctl(fake.path, "--json", "session", "show", A))
    assert (shown["session"], shown["objects"], shown["hits"]) == (listed[0], 2, 5)
    told = document(kvctl(fake.path, "--json", "session", "ttl", "--time", "15m", "--refresh", A))
    assert (told["sessions"][0]["ttl_s"], told["sessions"][0]["refresh"], told["failed"]) == (900.0, True, [])
    pinned = document(kvctl(fake.path, "--json", "session", "pin", "--for", "1h", A))
    assert pinned == {"changed": 2, "failed": []}
    assert document(kvctl(fake.path, "--json", "session", "show", A))["session"]["pin_until_s"] == 1_700_003_600.0
    changes = kvctl(fake.path, "--json", "session", "watch", "--count", "1", A).stdout.splitlines()
    assert [json.loads(line)["after"] for line in changes] == ["cooling"]


def test_forks(fake: Daemon) -> None:
    made = document(kvctl(fake.path, "--json", "session", "fork", A, "/mnt/kvd/model/b", "--until", "12"))
    assert ([each["path"] for each in made["sessions"]], made["failed"]) == (["/model/b"], [])
    assert "cold" in kvctl(fake.path, "session", "fork", A, "/mnt/kvd/model/c", "--until", "./12").stdout
    options = ("--tokens", "5", "--bytes-per-token", "8")
    assert kvctl(fake.path, "session", "fork", A, "/mnt/kvd/model/d", *options).returncode == 0
    assert kvctl(fake.path, "session", "fork", A, "/elsewhere").returncode == 2


def test_what_can_not_be_done_has_a_status(fake: Daemon) -> None:
    busy = kvctl(fake.path, "--json", "session", "close", A)
    assert (busy.returncode, document(busy)["failed"][0]["code"]) == (5, "EBUSY")
    taken = kvctl(fake.path, "--json", "session", "fork", A, S)
    assert (taken.returncode, document(taken)["failed"][0]["code"]) == (1, "EEXIST")
    wrong = kvctl(fake.path, "session", "ttl", "--time", "soon", A)
    assert (wrong.returncode, "soon: a time is" in wrong.stderr) == (2, True)
    missing = kvctl(fake.path, "session", "show", "/mnt/kvd/nope")
    assert missing.returncode == 4


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_a_help_and_needs_a_daemon(verb: str, tmp_path) -> None:
    assert kvctl(None, "session", verb, "--help").returncode == 0
    more = {"ttl": ("--time", "5"), "fork": (S,)}.get(verb, ())
    assert kvctl(tmp_path / "nobody", "session", verb, A, *more).returncode == 3
