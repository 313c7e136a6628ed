"""Setting the bed up: once, whole or not at all."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

import pytest

from vm import bed, sources, steps
from vm.bed import set_up
from vm.error import BedError
from vm.packages import Package

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


class FakeApt:
    """The archive: one QEMU, one kernel."""

    def __init__(self, root: Path, mirror: str, suites: Sequence[str], say: object) -> None:
        assert mirror == "http://mirror.example/debian"
        self.root = root
        root.mkdir(parents=True, exist_ok=True)

    def update(self) -> None:
        pass

    def plan(self, wanted: Sequence[str], *, release: str) -> list[Package]:
        if list(wanted) == [bed.KERNEL]:
            names = ["linux-image-6.12.1-amd64", "linux-image-amd64", "kmod"]
        else:
            names = ["libc6", "qemu-system-x86"]
        return [Package(file=f"{name}_1:1_amd64.deb", size_bytes=1 << 20) for name in names]

    def download(self, wanted: Sequence[Package]) -> list[Path]:
        return [self.root / package.file for package in wanted]


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture(autouse=True)
def unpacked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the packages that were unpacked."""
    done: list[str] = []

    def unpack(package: Path, folder: Path) -> None:
        done.append(f"{package.name.partition('_')[0]} -> {folder.name}")
        for name in ("boot/vmlinuz-6", "usr/lib/modules/6/x"):
            if folder.name == "kernel":
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (folder / name).touch()

    monkeypatch.setattr(bed, "Apt", FakeApt)
    monkeypatch.setattr(bed, "_unpack", unpack)
    monkeypatch.setattr(sources, "mirror", lambda _: "http://mirror.example/debian")
    return done


def test_it_is_set_up_once(tmp_path: Path, said: list[str], unpacked: list[str]):
    made = set_up(tmp_path, said.append)
    assert unpacked == ["libc6 -> tree", "qemu-system-x86 -> tree", "linux-image-6.12.1-amd64 -> kernel"]
    assert made.kernel == tmp_path / "bed/kernel/boot/vmlinuz-6"
    assert made.modules == tmp_path / "bed/kernel/usr/lib/modules/6"
    assert made.versions()["qemu-system-x86"] == "1:1"
    assert made.qemu[0].startswith(f"{tmp_path}/bed/tree/")
    assert said[-1].startswith("bed ready in")
    assert [path.name for path in tmp_path.iterdir()] == ["bed"]
    said.clear()
    assert set_up(tmp_path, said.append) == made
    assert said == []


@pytest.mark.parametrize("stamp", ["{", "{}", json.dumps({"recipe": {"format": 0}, "packages": []})])
def test_another_recipe_sets_it_up_anew(tmp_path: Path, said: list[str], unpacked: list[str], stamp: str):
    made = set_up(tmp_path, said.append)
    (made.folder / bed.STAMP).write_text(stamp)
    (made.folder / "old").touch()
    unpacked.clear()
    set_up(tmp_path, said.append)
    assert unpacked
    assert not (made.folder / "old").exists()


def test_a_set_up_that_breaks_off_leaves_no_bed(tmp_path: Path, said: list[str], monkeypatch: pytest.MonkeyPatch):
    def full(package: Path, folder: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(bed, "_unpack", full)
    with pytest.raises(BedError, match="the disk is full"):
        set_up(tmp_path, said.append)
    assert list(tmp_path.iterdir()) == []


def test_a_disk_without_room_is_named_before_anything_is_fetched(
    tmp_path: Path, said: list[str], unpacked: list[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10, 0, 1 << 20))
    with pytest.raises(BedError, match="has 1 MiB free, the bed needs 12 MiB"):
        set_up(tmp_path, said.append)
    assert unpacked == []


def test_a_folder_in_use_is_named(tmp_path: Path):
    with bed.locked(tmp_path), pytest.raises(BedError, match="another vm-test"), bed.locked(tmp_path):
        pytest.fail("two have it")
    with bed.locked(tmp_path):
        pass


def test_a_bed_with_two_kernels_is_named(tmp_path: Path, said: list[str]):
    made = set_up(tmp_path, said.append)
    (made.folder / "kernel/boot/vmlinuz-7").touch()
    with pytest.raises(BedError, match="has 2 boot/vmlinuz"):
        _ = made.kernel


def test_a_package_that_is_none_cannot_be_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.undo()
    (tmp_path / "x.deb").write_bytes(b"not a package")
    with pytest.raises(BedError, match=r"x\.deb cannot be unpacked"):
        bed._unpack(tmp_path / "x.deb", tmp_path / "tree")


def test_the_guests_steps_are_read(pytestconfig: pytest.Config):
    found = steps.read(pytestconfig.rootpath)
    assert [step.name for step in found][:2] == ["bed", "edu"]
    assert len({step.name for step in found}) == len(found)
    assert all(step.timeout_s > 0 and not {" ", "\n"} & set(step.name) for step in found)


def test_steps_whose_tests_are_not_there_are_named(pytestconfig: pytest.Config, tmp_path: Path):
    step = steps.Step(name="lost", command=("pytest", "tests/vm/guest/test_lost.py"), timeout_s=1.0)
    with pytest.raises(BedError, match="tests of step lost cannot be collected"):
        steps.collect(pytestconfig.rootpath, [step], tmp_path / "compiled")
