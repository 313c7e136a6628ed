"""What is generated from driver/spec/kvd.rdl is what the compiled engine has, and drift is found."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kvdriver import abi
from kvdriver._engine import ffi, lib

ROOT = Path(__file__).parents[2]
MADE = ("csrc/abi/abi.h", "driver/kvdriver/abi.py", "tests/c/test_abi.c", "docs/device.md")
CTYPES = {"uint16_t": "H", "uint32_t": "I", "uint64_t": "Q"}


@pytest.mark.parametrize(
    ("enum", "prefix"), [(abi.Op, "KVD_OP_"), (abi.Status, "KVD_STATUS_"), (abi.Tier, "KVD_TIER_")]
)
def test_enums_are_the_engines(enum, prefix):
    names = [name for name in dir(lib) if name.startswith(prefix) and name != "KVD_TIER_COUNT"]
    assert {name.removeprefix(prefix): getattr(lib, name) for name in names} == {m.name: m.value for m in enum}


@pytest.mark.parametrize(
    ("name", "mask"),
    [
        ("KVD_MAP_RESERVED", abi.CMD_FLAGS_MAP_RESERVED_MASK),
        ("KVD_REMAP_KEEP", abi.CMD_FLAGS_REMAP_KEEP_MASK),
        ("KVD_REMAP_TAKE", abi.CMD_FLAGS_REMAP_TAKE_MASK),
    ],
)
def test_flags_are_the_engines(name, mask):
    assert getattr(lib, name) == mask


@pytest.mark.parametrize("name", ["cmd", "cpl", "map_run", "run", "tier_info", "session_info"])
def test_structures_are_the_engines(name):
    kind = ffi.typeof(f"struct kvd_engine_{name}")
    codes = ""
    for _, member in kind.fields:
        array = member.type.kind == "array"
        item = member.type.item if array else member.type
        codes += (str(member.type.length) if array else "") + CTYPES[item.cname]
    layout = getattr(abi, name.upper())
    assert layout.format == "<" + codes
    assert layout.size == ffi.sizeof(kind)
    assert getattr(abi, f"{name.upper()}_OFFSETS") == {field: member.offset for field, member in kind.fields}


@pytest.fixture
def tree(tmp_path):
    for name in ("pyproject.toml", "driver/spec/generate.py", "driver/spec/kvd.rdl", *MADE):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def generate(tree: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(tree / "driver/spec/generate.py"), *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("name", MADE)
def test_a_changed_file_is_drift(tree, name):
    before = (tree / name).read_text()
    (tree / name).write_text(before.replace("session", "sessiom"))
    done = generate(tree, "--check")
    assert (done.returncode, done.stdout) == (1, f"{name}: not what driver/spec/kvd.rdl says; run `make abi`\n")
    if name != "docs/device.md":
        assert generate(tree).returncode == 0
        assert (tree / name).read_text() == before


def test_a_changed_description_is_drift_everywhere(tree):
    description = tree / "driver/spec/kvd.rdl"
    description.write_text(description.read_text().replace("resize = 11", "resize = 12"))
    done = generate(tree, "--check")
    assert done.returncode == 1
    assert [line.split(":")[0] for line in done.stdout.splitlines()] == [n for n in MADE if n != "tests/c/test_abi.c"]


def test_a_hole_is_refused(tree):
    description = tree / "driver/spec/kvd.rdl"
    description.write_text(description.read_text().replace("u64 result1 @0x10", "u64 result1 @0x18"))
    done = generate(tree, "--check")
    assert done.returncode == 1
    assert "cpl.result1: at 24, not 16" in done.stderr
