"""What is generated from driver/spec/kvd.rdl is what the compiled engine has, and drift is found."""

from __future__ import annotations

import shutil
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kvdriver import abi
from kvdriver._engine import ffi, lib

ROOT = Path(__file__).parents[2]
MADE = ("csrc/abi/abi.h", "driver/kvdriver/abi.py", "tests/c/test_abi.c", "docs/device.md", "docs/sessions.md")
CTYPES = {"uint16_t": "H", "uint32_t": "I", "uint64_t": "Q"}


@pytest.mark.parametrize("enum", [abi.Op, abi.Status, abi.Tier, abi.State, abi.Event, abi.Format, abi.Syndrome])
def test_enums_are_the_engines(enum):
    prefix = f"KVD_ABI_{enum.__name__.upper()}_"
    names = [name for name in dir(lib) if name.startswith(prefix) and not name.endswith("_COUNT")]
    assert {name.removeprefix(prefix): getattr(lib, name) for name in names} == {m.name: m.value for m in enum}
    assert getattr(lib, prefix + "COUNT") == max(enum) + 1


def codes(kind: Any) -> str:
    """How `struct` packs a structure, and the structures in it."""
    out = ""
    for _, member in kind.fields:
        array = member.type.kind == "array"
        item = member.type.item if array else member.type
        if item.kind == "struct":
            out += codes(item) * (member.type.length if array else 1)
        else:
            out += (str(member.type.length) if array else "") + CTYPES[item.cname]
    return out


@pytest.mark.parametrize("name", [name for name, value in vars(abi).items() if isinstance(value, struct.Struct)])
def test_structures_are_the_engines(name):
    kind = ffi.typeof(f"struct kvd_abi_{name.lower()}")
    layout = getattr(abi, name)
    assert layout.format == "<" + codes(kind)
    assert layout.size == ffi.sizeof(kind)
    assert getattr(abi, f"{name}_OFFSETS") == {field: member.offset for field, member in kind.fields}


def test_every_state_but_the_last_can_be_left_and_reached():
    reached = {to for row in abi.NEXT_STATE.values() for to in row.values()}
    assert reached == set(abi.State)
    assert [state for state, row in abi.NEXT_STATE.items() if not set(row.values()) - {state}] == [abi.State.CLOSED]


@pytest.fixture
def tree(tmp_path):
    for name in ("pyproject.toml", "driver/spec/generate.py", "driver/spec/kvd.rdl", "driver/spec/session.toml", *MADE):
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
    if not name.startswith("docs/"):
        assert generate(tree).returncode == 0
        assert (tree / name).read_text() == before


def test_a_changed_description_is_drift_everywhere(tree):
    description = tree / "driver/spec/kvd.rdl"
    description.write_text(description.read_text().replace("flush = 23", "flush = 24"))
    done = generate(tree, "--check")
    assert done.returncode == 1
    untouched = ("tests/c/test_abi.c", "docs/sessions.md")
    assert [line.split(":")[0] for line in done.stdout.splitlines()] == [n for n in MADE if n not in untouched]


def test_a_hole_is_refused(tree):
    description = tree / "driver/spec/kvd.rdl"
    description.write_text(description.read_text().replace("u64 scales_bytes @0x18;", "u64 scales_bytes @0x58;"))
    done = generate(tree, "--check")
    assert done.returncode == 1
    assert "transfer.page_offset: at 32, not 24" in done.stderr


def test_a_transition_to_nowhere_is_refused(tree):
    transitions = tree / "driver/spec/session.toml"
    transitions.write_text(transitions.read_text().replace('open = "warming"', 'open = "lukewarm"'))
    done = generate(tree, "--check")
    assert done.returncode == 1
    assert "states or events that kvd.rdl does not have" in done.stderr
