"""``kvctl engine fsck``, as a user runs it, on tables in every state."""

from __future__ import annotations

import mmap
import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from kvdriver.enginefsck import Findings, TablesError, Trouble, fsck
from kvdriver.inprocess import check_tables
from support import engine_files, unprivileged
from support.kvctl_runs import KVCTL, WAIT_S, document, environment, kvctl

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any, Never

KILLS_MAX = 300
DESCRIPTORS_MAX = 1024
COMMANDS_MIN = 200
"""What a process executes before it is killed."""


@pytest.fixture
def tables(scratch: Path) -> Path:
    return engine_files.make(scratch / "tables")


def run(path: Path | str, *options: str) -> tuple[int, list[str]]:
    done = kvctl(None, "engine", "fsck", str(path), *options)
    assert done.stderr == ""
    return done.returncode, done.stdout.splitlines()


def refused(path: Path | str, *options: str) -> tuple[int, str]:
    done = kvctl(None, "engine", "fsck", str(path), *options)
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("kvctl: ")
    return done.returncode, done.stderr.removeprefix("kvctl: ").rstrip("\n")


# --- tables that are whole --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [(), ("--repair",)])
def test_clean_tables_are_not_written(tables: Path, options: tuple[str, ...]) -> None:
    before = tables.read_bytes()
    told = f"{tables}: pages of 64.0 KiB, 4 sessions, 2800 pages mapped, 8 commands executed"
    assert run(tables, *options) == (0, [told, "clean"])
    found = document(kvctl(None, "--json", "engine", "fsck", str(tables), *options))
    assert (found["result"], found["sound"], found["in_use"]) == ("clean", True, False)
    assert (found["faults"], found["repair"], found["commands"]) == ([], None, 8)
    assert tables.read_bytes() == before


def test_tables_of_one_who_died_between_commands(tables: Path) -> None:
    engine_files.put_head(tables, "in_use", 1)
    status, lines = run(tables)
    assert (status, lines[-1]) == (0, "clean")
    assert lines[1].startswith("not left in order: ")
    assert run(tables, "--repair")[1][-1] == "repaired, nothing lost"
    assert engine_files.head(tables, "in_use") == 0
    assert len(run(tables)[1]) == 2


# --- tables of one who was killed -------------------------------------------------------------------------------------


def killed_in_the_middle(path: Path) -> Findings:
    """Kill processes at work on tables until one leaves a command half done; every time the tables must be mended."""
    for _ in range(KILLS_MAX):
        path.unlink(missing_ok=True)
        with engine_files.process(lambda: engine_files.execute_for_ever(path)) as child:
            end_s = time.monotonic() + WAIT_S
            while not path.exists() or engine_files.head(path, "sequence") < COMMANDS_MIN:
                assert time.monotonic() < end_s, f"process {child} executes nothing"
        found = fsck(path)
        assert found.in_use
        assert found.holders == ()
        if any("half done" in fault for fault in found.faults):
            return found
        mended = fsck(path, repair=True)
        assert mended.repair is not None
        assert mended.sound
    pytest.fail(f"none of {KILLS_MAX} processes was killed in a command")


def test_killed_in_the_middle_of_a_command(scratch: Path) -> None:
    path = scratch / "tables"
    found = killed_in_the_middle(path)
    sequence = found.commands
    before = path.read_bytes()
    status, lines = run(path)
    assert status == 1
    assert lines[1].startswith("not left in order: ")
    assert lines[2].startswith(f"command {sequence + 1} (")
    assert lines[-1] == f"{len(found.faults)} fault{'s' if len(found.faults) > 1 else ''}"
    assert path.read_bytes() == before
    status, lines = run(path, "--repair")
    assert (status, lines[-1]) == (0, "repaired, nothing lost")
    ended = lines[-2] == "the command that was half done is brought to its end"
    assert ended or lines[-2] == "the command that was half done is taken back"
    told = fsck(path)
    assert (told.faults, told.in_use, told.commands) == ((), False, sequence + ended)
    assert told.mapped_pages in {engine_files.PAGES * count for count in (3, 4)}


# --- tables that are damaged ------------------------------------------------------------------------------------------


def test_derived_words_are_made_anew(tables: Path) -> None:
    engine_files.put_head(tables, "mapped_pages", 5)
    status, lines = run(tables)
    assert (status, lines[-1]) == (1, "1 fault")
    assert "the books say 5, the tables 2800" in lines[1]
    assert run(tables, "--repair") == (0, [*lines[:-1], "repaired, nothing lost"])
    assert run(tables)[1][-1] == "clean"


def test_what_is_damaged_is_cut_out_and_told(tables: Path) -> None:
    first = engine_files.head(tables, "heap_at")
    damaged = (0x5A5A << 48).to_bytes(8, "little") * 512
    engine_files.write(tables, first, damaged)
    before = tables.read_bytes()
    status, lines = run(tables)
    assert (status, tables.read_bytes()) == (1, before)
    assert lines[-1] == f"{len(lines) - 2} faults"
    found = document(kvctl(None, "--json", "engine", "fsck", str(tables), "--repair"))
    losses = len(found["repair"]["losses"])
    assert losses
    assert found["result"] == f"repaired; {losses} loss{'es' if losses > 1 else ''}"
    assert (found["sound"], found["left"]) == (False, [])
    assert any("are lost: " in loss for loss in found["repair"]["losses"])
    assert run(tables)[1][-1] == "clean"
    assert fsck(tables).mapped_pages < found["mapped_pages"]


def test_a_loss_is_status_1(tables: Path) -> None:
    engine_files.write(tables, engine_files.head(tables, "heap_at"), b"\xff" * 4096)
    status, lines = run(tables, "--repair")
    assert status == 1
    assert any(line.startswith("given up: session ") for line in lines)
    assert lines[-1].startswith("repaired; ")


# --- what can't be checked --------------------------------------------------------------------------------------------


def test_files_that_hold_no_tables(tables: Path, scratch: Path) -> None:
    empty = scratch / "empty"
    empty.touch()
    assert refused(empty) == (2, f"{empty}: it is empty")
    other = scratch / "other"
    other.write_bytes(b"not tables" * 1000)
    assert refused(other) == (2, f"{other}: it holds no tables of the engine")
    assert refused(scratch) == (2, f"{scratch}: it is a directory; tables are in a file")
    pipe = scratch / "pipe"
    os.mkfifo(pipe)
    assert refused(pipe, "--repair") == (2, f"{pipe}: it is a pipe; tables are in a file")
    assert refused("/dev/zero") == (2, "/dev/zero: it is a device; tables are in a file")
    missing = scratch / "missing"
    assert refused(missing, "--repair") == (2, f"{missing}: it can't be opened: No such file or directory")
    assert not missing.exists()
    engine_files.put_head(tables, "heap_at", 64)
    assert refused(tables) == (2, f"{tables}: the head of the tables is damaged, so the rest can't be found")


@pytest.mark.parametrize("count", [100, 4096, engine_files.ARENA_BYTES - 1])
def test_tables_that_are_cut_off(tables: Path, count: int) -> None:
    os.truncate(tables, count)
    wanted = engine_files.ARENA_BYTES
    status, told = refused(tables, "--repair")
    assert status == 2
    assert told == f"{tables}: it is cut off: {count} bytes of {wanted}"
    assert tables.stat().st_size == count


def test_tables_of_another_version(tables: Path) -> None:
    engine_files.put_head(tables, "version", 4711, 4)
    told = f"{tables}: tables of version 4711, which this kvctl does not know"
    assert refused(tables, "--repair") == (2, told)
    done = kvctl(None, "--json", "engine", "fsck", str(tables))
    assert document(done) == {"error": {"code": "VERSION", "message": told}}


def test_tables_that_may_not_be_read_or_written(tables: Path) -> None:
    def run_without_rights(*options: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(unprivileged.__file__), KVCTL, "engine", "fsck", str(tables), *options]
        return subprocess.run(
            command, env=environment(None), capture_output=True, text=True, timeout=WAIT_S, check=False
        )

    tables.chmod(0o400)
    assert run_without_rights().returncode == 0
    denied = (2, f"kvctl: {tables}: it can't be opened: Permission denied\n")
    done = run_without_rights("--repair")
    assert (done.returncode, done.stderr) == denied
    tables.chmod(0)
    done = run_without_rights()
    assert (done.returncode, done.stderr) == denied


# --- tables that somebody has -----------------------------------------------------------------------------------------


def hold(path: Path, *, mapped: bool) -> Never:
    """Have the file open, or mapped and not open, doing nothing."""
    fd = os.open(path, os.O_RDWR)
    if mapped:
        kept = mmap.mmap(fd, 0)
        os.closerange(fd, DESCRIPTORS_MAX)  # also the one that mmap keeps
        assert not kept.closed
    os.kill(os.getpid(), signal.SIGSTOP)
    raise AssertionError


@pytest.mark.parametrize("mapped", [False, True])
def test_a_repair_of_tables_that_another_process_has_is_refused(tables: Path, *, mapped: bool) -> None:
    engine_files.put_head(tables, "mapped_pages", 5)
    with engine_files.process(lambda: hold(tables, mapped=mapped)) as child:
        assert os.WIFSTOPPED(os.waitpid(child, os.WUNTRACED)[1])
        status, lines = run(tables)
        assert (status, lines[-1]) == (1, "1 fault")
        assert f"(process {child})" in lines[1]
        before = tables.read_bytes()
        status, told = refused(tables, "--repair")
        assert status == 5
        assert f"(process {child}) has it open and may write to it" in told
        assert tables.read_bytes() == before
    assert run(tables, "--repair")[0] == 0


def test_tables_in_a_file_without_a_name() -> None:
    fd = os.memfd_create("kvd-tables", os.MFD_CLOEXEC)
    device = engine_files.open_tables(fd)
    path = f"/proc/{os.getpid()}/fd/{fd}"
    status, lines = run(path)
    assert (status, lines[-1]) == (0, "clean")
    assert lines[1].endswith(f"(process {os.getpid()}); in use, or who used them died")
    assert refused(path, "--repair")[0] == 5
    device.close()
    os.close(fd)


def test_tables_that_change_under_the_check(tables: Path) -> None:
    """A check that met a command says nothing of faults."""
    checks = 0

    def check(engine: Any) -> list[str]:
        nonlocal checks
        checks += 1
        if checks < still_after:
            engine_files.put_head(tables, "sequence", engine_files.head(tables, "sequence") + 1)
            return ["torn"]
        return check_tables(engine)

    still_after = 3
    assert fsck(tables, check=check).faults == ()
    assert checks == still_after
    still_after = 1000
    with pytest.raises(TablesError, match="somebody executes commands on it now") as raised:
        fsck(tables, repair=True, check=check)
    assert raised.value.trouble is Trouble.IN_USE
