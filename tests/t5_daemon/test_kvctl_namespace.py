"""``kvctl namespace`` and ``kvctl invalidate`` as a user runs them: words, JSON documents and exit statuses."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from support.kvctl_runs import Daemon, daemon, document, kvctl

if TYPE_CHECKING:
    from collections.abc import Iterator

PRINT = ("--fingerprint", "model=llama", "--fingerprint", "tp=8")
MISMATCH = 8


@pytest.fixture
def fake() -> Iterator[Daemon]:
    """A daemon with one namespace."""
    with daemon() as found:
        made = kvctl(found.path, "namespace", "create", "llm", *PRINT, "--mode", "1770", "--owner", "12:34")
        assert made.returncode == 0, made.stderr
        yield found


def test_words(fake: Daemon) -> None:
    shown = kvctl(fake.path, "namespace", "show", "llm")
    assert shown.returncode == 0
    for words in ("llm\n", "model       llama", "tp          8", "admit       all", "1770, owner 12:34"):
        assert words in shown.stdout
    listed = kvctl(fake.path, "namespace", "list").stdout.splitlines()
    assert listed[0].split() == ["NAME", "ADMIT", "DURABILITY", "ON", "FAULT", "MODE", "OWNER", "FINGERPRINT"]
    assert listed[1].split() == ["llm", "all", "back", "eio", "1770", "12:34", "model=llama", "tp=8"]
    changed = kvctl(
        fake.path, "namespace", "set", "llm", "--admit", "reused", "--durability", "through", "--on-fault", "miss"
    )
    assert [line.split()[-1] for line in changed.stdout.splitlines()[3:6]] == ["reused", "through", "miss"]
    gone = kvctl(fake.path, "invalidate", "--namespace", "llm", "--fingerprint", "model=qwen")
    assert (gone.returncode, gone.stdout) == (0, "invalidated llm: 3 names gone; fingerprint model=qwen\n")


def test_documents(fake: Daemon) -> None:
    shown = document(kvctl(fake.path, "--json", "namespace", "show", "llm"))
    assert shown["name"] == "llm"
    assert shown["fingerprint"] == {"model": "llama", "tp": "8"}
    assert (shown["mode"], shown["uid"], shown["gid"]) == (0o1770, 12, 34)
    assert document(kvctl(fake.path, "--json", "namespace", "list")) == {"namespaces": [shown]}
    assert document(kvctl(fake.path, "--json", "namespace", "attach", "llm", *reversed_pairs(PRINT))) == shown
    assert document(kvctl(fake.path, "--json", "namespace", "set", "llm", "--admit", "reused"))["admit"] == "reused"
    gone = document(kvctl(fake.path, "--json", "invalidate", "--namespace", "llm"))
    assert (gone["names"], gone["namespace"]["fingerprint"]) == (3, shown["fingerprint"])
    assert document(kvctl(fake.path, "--json", "namespace", "remove", "--force", "llm")) == {"names": 3}
    assert document(kvctl(fake.path, "--json", "namespace", "list")) == {"namespaces": []}


def test_quotas(fake: Daemon) -> None:
    sizes = ("--ddr-guaranteed", "2GiB", "--ddr-limit", "8GiB", "--nvme-limit", "1TiB", "--priority", "7")
    shown = kvctl(fake.path, "namespace", "set", "llm", *sizes, "--on-full", "refuse")
    assert shown.returncode == 0, shown.stderr
    for words in ("2.0 GiB guaranteed, at most 8.0 GiB", "0 B guaranteed, at most 1.0 TiB", "priority    7", "refuse"):
        assert words in shown.stdout
    lines = kvctl(fake.path, "namespace", "quota", "llm").stdout.splitlines()
    assert lines[0] == "llm: priority 7, on full refuse"
    assert lines[1].split() == ["TIER", "GUARANTEED", "LIMIT", "USED", "BORROWED", "MAY", "TAKE", "OF"]
    assert lines[2].split() == [
        "ddr",
        *["2.0", "GiB", "8.0", "GiB", "3.0", "GiB", "1.0", "GiB", "13.0", "GiB", "16.0", "GiB"],
    ]
    told = document(kvctl(fake.path, "--json", "namespace", "quota", "llm"))
    assert told["tiers"][0]["borrowed_bytes"] == 1 << 30
    made = document(kvctl(fake.path, "--json", "namespace", "create", "more", "--nvme-guaranteed", "1.5GiB"))
    assert made["quota"]["nvme_guaranteed_bytes"] == 3 << 29


def reversed_pairs(options: tuple[str, ...]) -> list[str]:
    return [word for pair in reversed(list(zip(options[::2], options[1::2], strict=True))) for word in pair]


@pytest.mark.parametrize(
    "command",
    [
        ["namespace", "attach", "llm", "--fingerprint", "model=qwen"],
        ["invalidate", "--namespace", "llm", "--if-fingerprint", "model=qwen"],
    ],
)
def test_another_fingerprint_has_a_status_of_its_own(fake: Daemon, command: list[str]) -> None:
    refused = kvctl(fake.path, *command)
    assert (refused.returncode, refused.stdout) == (MISMATCH, "")
    assert refused.stderr.startswith("kvctl: llm: another fingerprint")
    assert "model: here 'llama', offered 'qwen'; tp: here '8', offered missing" in refused.stderr
    refused = kvctl(fake.path, "--json", *command)
    assert refused.returncode == MISMATCH
    assert document(refused)["error"]["code"] == "EKEYREJECTED"
    told = kvctl(fake.path, "status").stdout
    assert "2 wrong fingerprints offered" in told
    assert "Wrong fingerprints\n" in told
    assert "1500 names of invalidated content left, 64 gone" in told
    assert "30 dropped (3.0 GiB not written), 12 written, 4 at once" in told


@pytest.mark.parametrize(
    ("command", "status", "words"),
    [
        (["namespace", "show", "nope"], 4, "no such namespace"),
        (["namespace", "attach", "nope", *PRINT], 4, "no such namespace"),
        (["invalidate", "--namespace", "nope"], 4, "no such namespace"),
        (["namespace", "create", "llm"], 1, "is a namespace already"),
        (["namespace", "remove", "llm"], 1, "has content; --force"),
        (["namespace", "set", "llm"], 2, "nothing to change"),
        (["namespace", "set", "llm", "--ddr-limit", "much"], 2, "--ddr-limit much"),
        (["namespace", "set", "llm", "--on-full", "cry"], 2, "cry"),
        (["namespace", "set", "llm", "--ddr-guaranteed", "1TiB"], 6, "can't be guaranteed"),
        (["namespace", "quota", "nope"], 4, "no such namespace"),
        (["namespace", "set", "llm", "--admit", "some"], 2, "some"),
        (["namespace", "create", "x", "--fingerprint", "model"], 2, "write KEY=VALUE"),
        (["namespace", "create", "x", "--fingerprint", "a=1", "--fingerprint", "a=2"], 2, "given twice"),
        (["namespace", "create", "x", "--fingerprint", "mo del=1"], 2, "no key of a fingerprint"),
        (["namespace", "create", "x", "--mode", "99"], 2, "write octal"),
        (["namespace", "create", "x", "--owner", "no-such-user"], 2, "no-such-user"),
        (["namespace", "create", "x", "--owner", "0:no-such-group"], 2, "no-such-group"),
        (["invalidate"], 2, "namespace"),
    ],
)
def test_what_can_not_be_done(fake: Daemon, command: list[str], status: int, words: str) -> None:
    done = kvctl(fake.path, *command)
    assert done.returncode == status, done.stderr
    assert words in done.stderr


def test_the_owner_is_who_calls_or_who_is_named(fake: Daemon) -> None:
    made = document(kvctl(fake.path, "--json", "namespace", "create", "mine"))
    assert (made["uid"], made["gid"], made["mode"]) == (os.geteuid(), os.getegid(), 0o755)
    made = document(kvctl(fake.path, "--json", "namespace", "create", "named", "--owner", "root:0"))
    assert (made["uid"], made["gid"]) == (0, 0)


def test_a_name_need_not_be_utf8(fake: Daemon) -> None:
    made = kvctl(fake.path, "--json", "namespace", "create", b"not-\xff")
    assert document(made)["name"] == "not-\udcff"
    assert kvctl(fake.path, "namespace", "show", b"/not-\xff").stdout.startswith("not-\\xff\n")
