"""Packages by apt, with a program in apt-get's place on the PATH: what is asked of it, and what its failures mean."""

from __future__ import annotations

import os
import textwrap
from typing import TYPE_CHECKING

import pytest

from vm import packages
from vm.error import BedError
from vm.packages import Apt, Package

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

MIRROR = "http://mirror.example/debian"
PLAN = f"""\
'{MIRROR}/pool/main/q/qemu_11.1%2bds-1_amd64.deb' qemu_1%3a11.1+ds-1_amd64.deb 1048576 SHA256:0
'{MIRROR}/pool/main/b/busybox_1.37-6_amd64.deb' busybox_1.37-6_amd64.deb 2097152 SHA256:0
"""
QEMU = Package(file="qemu_1:11.1+ds-1_amd64.deb", size_bytes=1 << 20)
BUSYBOX = Package(file="busybox_1.37-6_amd64.deb", size_bytes=2 << 20)


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Return a function that puts a script in apt-get's place; what it is asked goes to the file returned."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")

    def place(script: str) -> Path:
        asked = tmp_path / "asked"
        (folder / "apt-get").write_text(f'#!/bin/sh\necho "$@" >> {asked}\n{textwrap.dedent(script)}')
        (folder / "apt-get").chmod(0o755)
        return asked

    return place


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def apt(tmp_path: Path, said: list[str], fake: Callable[[str], Path]) -> Apt:
    fake("exit 0")
    return Apt(tmp_path / "apt", MIRROR, ["trixie", "trixie-backports"], said.append)


def test_apt_sees_only_what_it_is_given(tmp_path: Path, apt: Apt):
    assert apt.archives.is_dir()
    assert (tmp_path / "apt/sources.list").read_text().splitlines() == [
        f"deb [signed-by={packages.KEYRING}] {MIRROR} trixie main",
        f"deb [signed-by={packages.KEYRING}] {MIRROR} trixie-backports main",
    ]
    configuration = (tmp_path / "apt/apt.conf").read_text()
    assert f'Dir::State::status "{tmp_path}/apt/status";' in configuration
    assert '"Acquire::AllowInsecureRepositories "true"' not in configuration
    assert "#clear APT::Update::Post-Invoke;" in configuration


def test_plan(apt: Apt, fake: Callable[[str], Path], tmp_path: Path):
    asked = fake(f"cat <<'E'\nNOTE: this is only a plan\n{PLAN}E\n")
    assert apt.plan(["qemu"], release="trixie-backports") == [QEMU, BUSYBOX]
    assert [package.name for package in (QEMU, BUSYBOX)] == ["qemu", "busybox"]
    assert f"-c={tmp_path}/apt/apt.conf" in asked.read_text()
    assert "-t trixie-backports --print-uris -qq -y install qemu" in asked.read_text()


def test_download_fetches_these_versions_and_takes_nothing_that_lay_there(apt: Apt, fake: Callable[[str], Path]):
    asked = fake("touch qemu_1%3a11.1+ds-1_amd64.deb busybox_1.37-6_amd64.deb")
    assert [path.name for path in apt.download([BUSYBOX, QEMU])] == [
        "busybox_1.37-6_amd64.deb",
        "qemu_1%3a11.1+ds-1_amd64.deb",
    ]
    assert asked.read_text().endswith("-qq download busybox=1.37-6 qemu=1:11.1+ds-1\n")
    fake("exit 0")
    with pytest.raises(BedError, match="did not fetch qemu"):
        apt.download([QEMU])


def test_what_did_not_come_is_named(apt: Apt):
    with pytest.raises(BedError, match="did not fetch qemu_1:11"):
        apt.download([QEMU])


def test_it_tells_how_far_it_is(
    apt: Apt, fake: Callable[[str], Path], said: list[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(packages, "PROGRESS_S", 0.1)
    fake("truncate -s 1M busybox_1.37-6_amd64.deb; sleep 1; touch qemu_1%3a11.1+ds-1_amd64.deb")
    apt.download([BUSYBOX, QEMU])
    assert "fetched 1 of 3 MiB" in said


def test_a_mirror_that_hangs_is_given_up(apt: Apt, fake: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(packages, "PROGRESS_S", 0.1)
    monkeypatch.setattr(packages, "INDEX_S_MAX", 0.3)
    fake("exec sleep 60")
    with pytest.raises(BedError, match="took more than"):
        apt.update()


@pytest.mark.parametrize(
    ("output", "what"),
    [
        ("E: Write error - write (28: No space left on device)", "the disk is full"),
        ("W: GPG error: trixie InRelease: public key is not available: NO_PUBKEY 0E98404D386FA1D9", "is not signed"),
        ("E: The repository 'x trixie Release' is not signed.", "is not signed"),
        ("E: The repository 'x trixie-backports Release' does not have a Release file.", "lacks what vm-test needs"),
        ("E: Unable to locate package qemu-system-x86", "lacks what vm-test needs"),
        ("E: Failed to fetch x  Temporary failure resolving 'mirror.example'", "cannot be reached"),
        ("E: The method driver /usr/lib/apt/methods/x could not be found.", "apt-get failed"),
    ],
)
def test_failures_are_named_and_say_what_mends_them(apt: Apt, fake: Callable[[str], Path], output: str, what: str):
    fake(f"cat <<'E'\nReading package lists...\n{output}\nE\nexit 100")
    with pytest.raises(BedError, match=what) as caught:
        apt.update()
    assert output in caught.value.what
    assert caught.value.mend


def test_a_machine_without_the_keys_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(packages, "KEYRING", tmp_path / "none.gpg")
    with pytest.raises(BedError, match="install the package debian-archive-keyring"):
        Apt(tmp_path / "apt", MIRROR, ["trixie"], print)


def test_a_machine_without_apt_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BedError, match="the program apt-get is not there"):
        Apt(tmp_path / "apt", MIRROR, ["trixie"], print)
