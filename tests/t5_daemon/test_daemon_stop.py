"""The way down: signals, the flush and its bound, unmounts by the operator, clients that stay; and the start after it."""

from __future__ import annotations

import mmap
import os
import signal
import subprocess
from typing import TYPE_CHECKING

import pytest
from private_kvd import BIN

from support.daemons import daemon, mounted_at, until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.daemons import Daemon

MIB = 1 << 20


@pytest.fixture
def kvd() -> Iterator[Daemon]:
    with daemon() as made:
        yield made


def test_a_stop_in_the_middle_of_a_start_leaves_nothing(kvd: Daemon) -> None:
    with kvd.log.open("wb") as log:
        process = subprocess.Popen([BIN / "kvd", "--config", kvd.config], stdout=log, stderr=log)
    until(lambda: "ddr tmpfs" in kvd.log.read_text(), "the first step of the start")
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 0
    assert kvd.mounts() == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_a_stop_flushes_and_the_next_start_has_everything(kvd: Daemon, number: signal.Signals) -> None:
    kvd.up()
    (kvd.mount / "folder").mkdir(mode=0o750)
    os.symlink("folder/object", kvd.mount / "link")
    content = kvd.write("folder/object", os.urandom(3 * MIB + 5))
    kvd.write("empty", b"")
    os.utime(kvd.mount / "folder/object", ns=(1_000_000_007, 2_000_000_009))
    os.setxattr(kvd.mount / "folder/object", "user.mine", b"\0\xff")
    kvd.send(number)
    assert kvd.ended() == 0
    assert kvd.mounts() == []
    assert any("flushed" in line and "objects=2" in line and "left=0" in line for line in kvd.lines())
    kvd.up()
    assert (kvd.tier("folder/object"), kvd.read("link"), kvd.read("empty")) == ("nvme", content, b"")
    info = (kvd.mount / "folder/object").stat()
    assert (info.st_mtime_ns, info.st_size) == (2_000_000_009, len(content))
    assert (kvd.mount / "folder").stat().st_mode & 0o7777 == 0o750
    assert os.getxattr(kvd.mount / "folder/object", "user.mine") == b"\0\xff"


def test_a_flush_that_is_cut_short_keeps_the_tmpfs_and_the_next_start_finds_all(kvd: Daemon) -> None:
    kvd.set("daemon", flush="1ms")
    kvd.up()
    contents = {f"object{number}": kvd.write(f"object{number}", os.urandom(2 * MIB)) for number in range(20)}
    kvd.claims.append("objects could not be flushed")
    assert kvd.stop() == 74
    (line,) = [line for line in kvd.lines() if "objects could not be flushed" in line]
    assert "[daemon] flush: 0.001 s were not enough" in line
    assert str(kvd.ddr) in line
    assert kvd.mounts() == [str(kvd.ddr)]
    kvd.set("daemon", flush="30s")
    kvd.up()
    assert {name: kvd.read(name) for name in contents} == contents


def test_a_second_signal_gives_the_flush_up_at_once(kvd: Daemon) -> None:
    kvd.up()
    names = [f"object{number}" for number in range(20)]
    contents = {name: kvd.write(name, os.urandom(2 * MIB)) for name in names}
    with (kvd.mount / names[0]).open("rb"):  # its release is waited for, so the flush can't be over yet
        kvd.send(signal.SIGTERM)
        until(lambda: mounted_at(kvd.mount) == [], "unmount")
        kvd.send(signal.SIGTERM)
        assert kvd.ended() == 74
    sentence = "kvd: told twice to stop, so the flush was given up; what is only in DDR stays there for the next start"
    assert kvd.lines()[-1] == sentence
    assert kvd.mounts() == [str(kvd.ddr)]
    kvd.up()
    assert {name: kvd.read(name) for name in names} == contents


def test_a_second_signal_in_the_middle_of_copies_does_not_wait_for_them(kvd: Daemon) -> None:
    kvd.up()
    contents = {f"object{number}": kvd.write(f"object{number}", os.urandom(16 * MIB)) for number in range(4)}
    kvd.send(signal.SIGTERM)
    begun = kvd.nvme_dirs[0] / "objects"
    until(lambda: any(begun.rglob("*.*")) or not kvd.running, "the first copy")
    if kvd.running:
        kvd.send(signal.SIGTERM)
    deadline_before = 8  # below the mover's patience with moves that do not end
    assert kvd._process is not None
    assert kvd._process.wait(deadline_before) in {0, 74}
    kvd.up()
    assert {name: kvd.read(name) for name in contents} == contents


def test_umount_by_the_operator_flushes_and_ends(kvd: Daemon) -> None:
    kvd.up()
    content = kvd.write("object", os.urandom(MIB))
    kvd.claims.append("unmounted from outside, stopping")
    subprocess.run(["umount", kvd.mount], check=True, timeout=20)
    assert kvd.ended() == 69, "so that systemd starts it again: nobody told it to stop"
    assert any("unmounted from outside, stopping" in line and str(kvd.mount) in line for line in kvd.lines())
    assert kvd.mounts() == []
    kvd.up()
    assert kvd.read("object") == content


def test_a_lazy_umount_lets_open_files_finish(kvd: Daemon) -> None:
    kvd.up()
    content = kvd.write("object", os.urandom(MIB))
    kvd.claims.append("unmounted from outside, stopping")
    with (kvd.mount / "object").open("rb") as file:
        refused = subprocess.run(["umount", kvd.mount], check=False, capture_output=True, text=True, timeout=20)
        assert (refused.returncode, "busy" in refused.stderr) == (32, True)
        subprocess.run(["umount", "-l", kvd.mount], check=True, timeout=20)
        assert file.read() == content
        assert kvd.running
    assert kvd.ended() == 69, "so that systemd starts it again: nobody told it to stop"
    kvd.up()
    assert kvd.read("object") == content


def test_clients_that_stay_do_not_keep_a_stop_waiting(kvd: Daemon) -> None:
    kvd.up()
    content = kvd.write("read", os.urandom(MIB))
    kvd.write("written", b"sealed before")
    with (kvd.mount / "written").open("r+b", buffering=0) as synced:
        synced.write(b"fsynced first")
        os.fsync(synced.fileno())
    with (
        (kvd.mount / "read").open("rb") as reader,
        (kvd.mount / "written").open("r+b") as writer,
        mmap.mmap(reader.fileno(), 0, prot=mmap.PROT_READ) as mapping,
    ):
        writer.write(b"not yet ended")
        writer.flush()
        assert kvd.stop() == 0
        # The kernel was given the file in DDR: what is open outlives the daemon.
        assert mapping[:] == content
    assert kvd.mounts() == []
    kvd.up()
    assert kvd.read("read") == content
    assert kvd.read("written") == b"fsynced first"


def test_progress_is_told_while_a_flush_takes_time(kvd: Daemon) -> None:
    kvd.up()
    for number in range(1500):
        (kvd.mount / f"{number}").write_bytes(b"%d" % number)
    kvd.send(signal.SIGTERM)
    assert kvd.ended() == 0
    done = [int(line.split("NVMe: ")[1].split()[0]) for line in kvd.lines() if "flushing to NVMe: " in line]
    (flushed,) = [line for line in kvd.lines() if "flushed " in line]
    assert (done[0], "objects=1500" in flushed) == (0, True)
    assert done == sorted(set(done))
    assert done[-1] < 1500


def test_a_stop_without_anything_to_flush_says_so_in_one_line(kvd: Daemon) -> None:
    kvd.up()
    assert kvd.stop() == 0
    (line,) = [line for line in kvd.lines() if "flush" in line]
    assert "objects=0" in line


def test_a_stop_under_open_files_leaves_a_clean_state(kvd: Daemon) -> None:
    kvd.up()
    kvd.write("read", os.urandom(MIB))
    kvd.write("rewritten", b"before")
    kvd.kvctl("sync", str(kvd.mount))
    for name in ("unnamed", "unnamed on NVMe"):
        kvd.write(name, b"gone")
    kvd.kvctl("sync", str(kvd.mount / "unnamed on NVMe"))
    (kvd.mount / "folder").mkdir()
    folder = os.open(kvd.mount / "folder", os.O_RDONLY)
    with (
        (kvd.mount / "read").open("rb"),
        (kvd.mount / "rewritten").open("wb", buffering=0) as rewritten,
        (kvd.mount / "new").open("wb", buffering=0) as new,
        (kvd.mount / "unnamed").open("rb"),
        (kvd.mount / "unnamed on NVMe").open("rb"),
    ):
        rewritten.write(b"never ended")
        new.write(b"never ended")
        for name in ("unnamed", "unnamed on NVMe"):
            (kvd.mount / name).unlink()
        (kvd.mount / "folder").rmdir()
        assert kvd.stop() == 0
        assert kvd.faults() == []
    os.close(folder)
    kvd.up()
    assert {"read"} <= set(os.listdir(kvd.mount)) <= {"read", "rewritten"}
