"""The mirror's address out of a machine's apt sources, in both formats."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from vm import sources
from vm.error import BedError
from vm.sources import Source

if TYPE_CHECKING:
    from pathlib import Path

DEB822 = """\
# Debian
Types: deb deb-src
# an older address
URIs: http://one.example/debian
 http://two.example/debian
Suites: bookworm bookworm-updates
Components: main contrib
Signed-By: /usr/share/keyrings/x.gpg

Types: deb-src
URIs: http://source.example/debian
Suites: bookworm
Components: main

Enabled: no
Types: deb
URIs: http://off.example/debian
Suites: bookworm
Components: main
"""

ONE_LINE = """\
# deb http://comment.example/debian bookworm main
deb-src http://source.example/debian bookworm main
deb http://vendor.example/apt stable stable
deb http://security.example/debian-security bookworm-security main
deb [arch=amd64 signed-by=/usr/share/keyrings/x.gpg] http://three.example/debian bookworm main non-free # ours
"""


@pytest.fixture
def apt(tmp_path: Path) -> Path:
    folder = tmp_path / "etc/apt/sources.list.d"
    folder.mkdir(parents=True)
    return folder


def test_deb822():
    found = list(sources.parse_deb822(DEB822))
    assert [(source.uri, source.suite) for source in found] == [
        ("http://one.example/debian", "bookworm"),
        ("http://one.example/debian", "bookworm-updates"),
        ("http://two.example/debian", "bookworm"),
        ("http://two.example/debian", "bookworm-updates"),
    ]
    assert {source.components for source in found} == {("main", "contrib")}


def test_one_line():
    assert list(sources.parse_list(ONE_LINE))[-1] == Source(
        uri="http://three.example/debian", suite="bookworm", components=("main", "non-free")
    )
    assert len(list(sources.parse_list(ONE_LINE))) == 3


def test_the_mirror_is_the_first_archive_that_is_debians(tmp_path: Path, apt: Path):
    (apt / "a.list").write_text(ONE_LINE)
    (apt / "b.sources").write_text(DEB822)
    assert sources.mirror(tmp_path) == "http://three.example/debian"
    (apt / "a.list").rename(apt / "c.list")
    assert sources.mirror(tmp_path) == "http://one.example/debian"


def test_the_old_single_file_counts_first(tmp_path: Path, apt: Path):
    (apt / "b.sources").write_text(DEB822)
    (apt.parent / "sources.list").write_text("deb http://old.example/debian bookworm main\n")
    assert sources.mirror(tmp_path) == "http://old.example/debian"


def test_files_that_apt_does_not_read_are_not_read(tmp_path: Path, apt: Path):
    (apt / "b.sources.disabled").write_text(DEB822)
    with pytest.raises(BedError, match="no Debian archive"):
        sources.mirror(tmp_path)
