"""Reading /proc/self/mountinfo."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvd import mountinfo

PLAIN = b"27 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard\n"
TAGGED = b"61 27 0:45 /sub /mnt/a\\040b rw,nosuid shared:5 master:2 - fuse.kvd kvd@/s\\134t\\011x rw,user_id=0\n"
EMPTY_SOURCE = b"62 27 0:46 / /mnt/e rw - tmpfs  rw,size=4k\n"


def test_fields():
    (entry,) = mountinfo.parse(TAGGED)
    assert (entry.mount_id, entry.parent_id, entry.device, entry.root) == (61, 27, "0:45", "/sub")
    assert entry.mount_point == Path("/mnt/a b")
    assert entry.options == ("rw", "nosuid")
    assert (entry.fstype, entry.source) == ("fuse.kvd", "kvd@/s\\t\tx")
    assert entry.super_options == ("rw", "user_id=0")


def test_an_empty_source_shifts_nothing():
    (entry,) = mountinfo.parse(EMPTY_SOURCE)
    assert (entry.fstype, entry.source, entry.super_options) == ("tmpfs", "", ("rw", "size=4k"))


def test_names_that_are_not_utf8_survive():
    (entry,) = mountinfo.parse(b"1 0 0:1 / /m/\xff rw - tmpfs t rw\n")
    assert os.fsencode(entry.mount_point) == b"/m/\xff"


@pytest.mark.parametrize(
    "line", [b"x", b"1 2 0:1 / / rw tmpfs t rw", b"a 2 0:1 / / rw - tmpfs t rw", b"1 2 0:1 / / rw - tmpfs"]
)
def test_what_is_not_mountinfo(line):
    with pytest.raises(ValueError, match="mountinfo line 2: "):
        mountinfo.parse(PLAIN + line)


# The kernel never shows a zero byte; it escapes what would break the line.
@given(st.binary(min_size=1, max_size=60).filter(lambda name: 0 not in name))
def test_any_name_comes_back(name):
    escaped = b"".join(b"\\%03o" % byte if byte in b" \t\n\\#" else bytes([byte]) for byte in name)
    (entry,) = mountinfo.parse(b"1 0 0:1 / / rw - tmpfs " + escaped + b" rw\n")
    assert os.fsencode(entry.source) == name


def test_stack_has_the_topmost_last(scratch):
    point = scratch / "m"
    lines = [f"{n} 27 0:{n} / {point} rw - tmpfs t{n} rw\n".encode() for n in (70, 71)]
    entries = mountinfo.parse(lines[0] + PLAIN + lines[1])
    assert [entry.source for entry in mountinfo.stack_at(entries, point)] == ["t70", "t71"]
    assert mountinfo.stack_at(entries, scratch) == ()


def test_a_mount_point_is_found_through_a_linked_parent(scratch):
    (scratch / "real").mkdir()
    (scratch / "link").symlink_to("real")
    entries = mountinfo.parse(f"70 27 0:70 / {scratch}/real/m rw - tmpfs t rw\n".encode())
    assert mountinfo.stack_at(entries, scratch / "link/m") == entries


@pytest.mark.parametrize(
    ("fstype", "source", "ours"),
    [
        ("fuse.kvd", "kvd@/s", True),
        ("fuse.kvd", "kvd@/s2", False),
        ("fuse.sshfs", "kvd@/s", False),
        ("fuse", "kvd@/s", False),
    ],
)
def test_ours_is_what_carries_our_name(fstype, source, ours):
    (entry,) = mountinfo.parse(f"1 0 0:1 / /m rw - {fstype} {source} rw\n".encode())
    assert mountinfo.is_ours(entry, Path("/s")) == ours


def test_this_process_has_a_root():
    assert Path("/") in [entry.mount_point for entry in mountinfo.read()]
