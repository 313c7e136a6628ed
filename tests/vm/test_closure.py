"""What of this machine's Python goes into the guest."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import kvdriver
from vm import closure
from vm.error import BedError

if TYPE_CHECKING:
    from collections.abc import Sequence


def names(paths: Sequence[Path]) -> set[str]:
    return {path.name for path in paths}


def test_the_packages_come_with_all_they_require_and_without_programs():
    found = list(closure.packages())
    assert Path(kvdriver.__file__) in found
    assert {"trio", "outcome", "cffi", "structlog", "hypothesis", "_pytest"} <= {path.parent.name for path in found}
    assert any(path.name.startswith("_cffi_backend.") for path in found)
    assert not any(path.suffix == ".pyc" or path.is_relative_to(Path(sys.prefix) / "bin") for path in found)
    assert not any("numpy" in path.parts for path in found)


def test_a_package_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(closure, "DISTRIBUTIONS", ("kvd-of-another-world",))
    with pytest.raises(BedError, match="kvd-of-another-world is not in"):
        list(closure.packages())


def test_the_standard_library_comes_without_its_tests():
    found = list(closure.standard_library())
    assert {"os.py", "selectors.py", "__init__.py"} <= names(found)
    assert any("lib-dynload" in path.parts for path in found)
    assert not any({"test", "site-packages", "dist-packages", "tkinter"} & set(path.parts[-4:]) for path in found)


def test_the_libraries_of_a_program_include_the_loader():
    found = closure.libraries([Path(sys.executable)])
    assert any(path.name.startswith("libc.so") for path in found)
    assert any(path.name.startswith("ld-linux") for path in found)
    assert all(path.exists() for path in found)


def test_a_library_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(closure, "_run", lambda _: "\tlibnone.so.3 => not found\n")
    with pytest.raises(BedError, match="lacks libnone"):
        closure.libraries([Path(sys.executable)])


@pytest.fixture
def module(tmp_path: Path) -> Path:
    path = tmp_path / "module.py"
    path.write_text("X = 1\n")
    return path


def test_what_python_has_not_compiled_is_compiled_elsewhere(tmp_path: Path, module: Path):
    ((name, place),) = closure.compiled_forms(module, tmp_path / "cache")
    assert str(name) == importlib.util.cache_from_source(str(module))
    assert place.is_relative_to(tmp_path / "cache")
    assert not name.exists()
    # The second time it is there, and no longer when the source has changed.
    before = place.stat().st_mtime_ns
    assert list(closure.compiled_forms(module, tmp_path / "cache")) == [(name, place)]
    assert place.stat().st_mtime_ns == before
    module.write_text("X = 1000\n")
    list(closure.compiled_forms(module, tmp_path / "cache"))
    assert b"X" in place.read_bytes()
    assert place.read_bytes()[12:16] == len("X = 1000\n").to_bytes(4, "little")


def test_what_python_has_compiled_is_taken_only_if_it_is_current(tmp_path: Path, module: Path):
    ((name, place),) = closure.compiled_forms(module, tmp_path / "cache")
    name.parent.mkdir()
    place.rename(name)
    assert list(closure.compiled_forms(module, tmp_path / "cache")) == [(name, name)]
    os.utime(module, (1, 1))
    assert list(closure.compiled_forms(module, tmp_path / "cache")) == [(name, place)]


def test_what_pytest_has_compiled_comes_along(tmp_path: Path, module: Path):
    ((name, place),) = closure.compiled_forms(module, tmp_path / "cache")
    rewritten = f"module.{sys.implementation.cache_tag}-pytest-9.9.9.pyc"
    place.with_name(rewritten).write_bytes(b"")
    assert set(closure.compiled_forms(module, tmp_path / "cache")) == {
        (name, place),
        (name.with_name(rewritten), place.with_name(rewritten)),
    }


def test_what_is_no_python_is_passed_over(tmp_path: Path, module: Path):
    module.write_text("{{ template }} def\n")
    assert list(closure.compiled_forms(module, tmp_path / "cache")) == []
