"""``kvctl bench`` of the data plane, with little data: that it measures, what it says, and that it leaves nothing behind.

Not how fast this machine is: no test looks at a ratio.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

import pytest

from kvctl.benches.loads import PROGRAM, Load
from kvctl.benches.outcome import Series, Sizes, lowest, ratio
from kvctl.benches.sessions import percentile
from kvctl.exits import CtlError, UsageError
from support.daemons import until
from support.kvctl_runs import KVCTL
from support.mounted import start_kvd
from support.needs import need_fuse

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.timeout(300)

RUN_S = 240
NOWHERE = "/nope"
LITTLE = ("--size", "8MiB", "--rounds", "1")
KEYS = {
    "read": ["read_ratio", "read_1_ratio", "read_8_ratio", "mmap_ratio", "touch_ratio", "mmap_vs_memory"],
    "write": ["write_ratio", "small_bytes"],
    "cold": ["cold_ratio", "cold_vs_buffered", "big_first_ms", "big_ratio"],
    "sustained": ["sustained_ratio", "sustained_errors"],
    "meta": ["meta_vs_python", "meta_ops", "stat_ops", "stat_missing_ops", "stale"],
    "sessions": ["session_p50_us", "session_p99_us"],
}
NOT_IN_ALL = {"sessions"}
MORE = {"write": ("--objects", "200"), "meta": ("--ms", "30"), "sessions": ("--objects", "200", "--ms", "30")}
ZERO = {"sustained_errors", "stale"}
PROMISED = {
    "read_ratio",
    "mmap_ratio",
    "write_ratio",
    "cold_ratio",
    "cold_vs_buffered",
    "sustained_ratio",
    "meta_vs_python",
    "meta_ops",
}


@pytest.fixture
def disk() -> Iterator[Path]:
    """Return a folder on a disk that is empty at the end, with nothing mounted or running below it."""
    need_fuse(root=True)
    with tempfile.TemporaryDirectory(prefix="kvd-b", dir="/var/tmp") as name:
        yield Path(name)
        assert left_of(name) == []
        assert not list(Path(name).glob("kvd-bench-*"))


def left_of(root: str) -> list[str]:
    """Return the mounts and processes that have `root` in their name."""
    found = [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if root in line]
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = process.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if root in command:
            found.append(command)
    return found


def run(*words: object) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [KVCTL, "--socket", NOWHERE, *map(str, words)], capture_output=True, text=True, timeout=RUN_S, check=False
    )
    assert "Traceback" not in done.stderr
    return done


def check_numbers(found: dict[str, Any], keys: list[str]) -> None:
    for key in keys:
        detail = found["details"][key]
        assert detail["value"] == found[key]
        if found[key] is None:
            assert "not available" in detail["note"]
        elif key in ZERO:
            assert found[key] == 0, detail
        else:
            assert found[key] > 0, detail


@pytest.mark.parametrize("what", KEYS)
def test_each_measures_and_says_what(disk: Path, what: str) -> None:
    done = run("--json", "bench", what, *LITTLE, *MORE.get(what, ()), "--scratch", disk)
    assert (done.returncode, done.stderr, done.stdout.count("\n")) == (0, "", 1)
    found = json.loads(done.stdout)
    assert list(found["details"]) == [key for key in found if key in found["details"]]
    assert set(found["details"]) - {"meta_1_vs_python", "meta_4_vs_python"} == set(KEYS[what])
    check_numbers(found, KEYS[what])
    assert (found["size_bytes"], found["rounds"]) == (8 << 20, 1)
    assert {"cpu", "cpus", "memory_bytes", "kernel", "load"} == set(found["machine"])
    if what not in NOT_IN_ALL:
        assert found["file_systems"]["mount"]["type"] == "fuse.kvd"


def test_all_of_it_with_a_picture(disk: Path, tmp_path: Path) -> None:
    picture = tmp_path / "all.svg"
    few = ("--objects", "200", "--ms", "30")
    done = run("bench", "all", *LITTLE, *few, "--scratch", disk, "--plot", picture, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    assert found.keys() >= PROMISED
    for what, keys in KEYS.items():
        if what not in NOT_IN_ALL:
            check_numbers(found, keys)
    assert ET.parse(picture).getroot().tag == "{http://www.w3.org/2000/svg}svg"
    text = "".join(ET.parse(picture).getroot().itertext())
    assert all(key in text for key in ("read_ratio", "sustained_ratio", "meta_ops"))


def test_text_says_machine_bars_and_both_sides(disk: Path) -> None:
    done = run("bench", "read", *LITTLE, "--scratch", disk)
    assert (done.returncode, done.stderr) == (0, "")
    machine, scratch, mount, plain, size, head, *lines = done.stdout.splitlines()
    assert "GiB, Linux " in machine
    assert scratch.startswith(f"scratch: {disk}/kvd-bench-")
    assert ", fuse.kvd (" in mount
    assert ", tmpfs (" in plain
    assert "1 rounds" in size
    assert head.split() == ["KEY", "MEASURED", "BAR", "KVD", "PEER", "WHAT"]
    assert [line.split()[0] for line in lines] == KEYS["read"]
    assert all((" pass " in line or " missed " in line) and " GB/s (" in line for line in lines)


def test_in_the_mount_of_a_kvd_that_runs(disk: Path) -> None:
    with start_kvd({"ddr": {"budget": "64MiB", "burst": "16MiB"}}) as mounted:
        for what in ("read", "cold"):
            words = ("bench", what, *LITTLE, "--scratch", disk, "--mount", mounted.root)
            command = [KVCTL, "--socket", str(mounted.kvd.socket), "--json", *map(str, words)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_S, check=False)
            assert (done.returncode, done.stderr) == (0, "")
            check_numbers(json.loads(done.stdout), KEYS[what])
            assert os.listdir(mounted.root) == [".kvd"] or os.listdir(mounted.root) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
@pytest.mark.parametrize("moment", ["plain", "kvd-bench"])
def test_an_interruption_leaves_nothing(disk: Path, moment: str, number: signal.Signals) -> None:
    command = [KVCTL, "bench", "read", "--size", "256MiB", "--rounds", "1000", "--scratch", str(disk)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        if moment == "plain":
            until(lambda: any("/plain " in line for line in left_of(str(disk))), "a tmpfs")
        else:
            until(lambda: children(process.pid, PROGRAM.name), "a load")
        process.send_signal(number)
        out, err = process.communicate(timeout=RUN_S)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, out, err) == (130, "", "kvctl: interrupted\n")


def children(pid: int, name: str) -> list[int]:
    """Return the children of a process that run a program."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            head, _, rest = stat.read_text().rpartition(")")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if head.endswith(f"({name}") and int(rest.split()[1]) == pid:
            found.append(int(stat.parent.name))
    return found


@pytest.mark.parametrize(
    ("words", "status", "told"),
    [
        (("--size", "1KiB"), 2, "the benchmark takes"),
        (("--size", "much"), 2, "--size much"),
        (("--rounds", "0"), 2, "at least 1"),
        (("--scratch", "/dev/shm"), 2, "name a folder on a disk"),
        (("--scratch", "/nope"), 2, "no such folder"),
        (("--plot", "/tmp/picture.png"), 2, "SVG"),
        (("--plot", "/nope/picture.svg"), 2, "no folder"),
        (("--mount", "/mnt"), 3, "no daemon"),
        (("--size", "512GiB"), 1, "ddr] budget"),
    ],
)
def test_what_can_not_be_is_one_sentence(words: tuple[str, ...], status: int, told: str) -> None:
    need_fuse(root=True)
    done = run("bench", "read", *words)
    assert (done.returncode, done.stdout) == (status, "")
    assert told in done.stderr


def test_a_picture_without_the_library_is_one_sentence(tmp_path: Path) -> None:
    program = (
        "import sys; sys.modules['matplotlib'] = None; from kvctl.__main__ import main; "
        f"sys.argv = ['kvctl', 'bench', 'read', '--plot', {str(tmp_path / 'p.svg')!r}]; main()"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", program], capture_output=True, text=True, timeout=RUN_S, check=False
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "kvctl: --plot needs matplotlib, which is not installed: pip install 'kvd[plot]'\n"


def test_a_load_finds_other_bytes_than_were_written(tmp_path: Path) -> None:
    files = [tmp_path / name for name in "ab"]
    written = Load(kind="write", file_bytes=1 << 20).run(files)
    assert (written.bytes, written.ops, written.errors) == (2 << 20, 2, 0)
    for kind in ("read", "direct-read"):
        assert Load(kind=kind, stamped=True, depth=4).run(files).flawless(kind).bytes == 2 << 20
    files[1].write_bytes(files[0].read_bytes())
    for kind in ("read", "direct-read"):
        swapped = Load(kind=kind, stamped=True, depth=4).run(files)
        assert (swapped.errors, swapped.error) == (1, "EBADMSG")
        with pytest.raises(CtlError, match="not those that were written"):
            swapped.flawless(kind)


def test_loads_count_what_fails(tmp_path: Path) -> None:
    there, absent = tmp_path / "there", tmp_path / "absent"
    there.write_bytes(bytes(4096))
    for kind in ("read", "map", "direct-read"):
        tally = Load(kind=kind).run([there, absent])
        assert (tally.ops, tally.errors, tally.error, tally.bytes) == (2, 1, "ENOENT", 4096)
    assert Load(kind="stat", duration_ms=1).run([absent]).errors > 0
    assert Load(kind="miss", duration_ms=1).run([there]).error == "EEXIST"
    assert Load(kind="miss", duration_ms=1).run([absent]).errors == 0
    with pytest.raises(CtlError, match="files are needed"):
        Load(kind="read").run([])


def test_changes_are_seen_on_a_plain_file_system(tmp_path: Path) -> None:
    tally = Load(kind="watch", rounds=3).run([tmp_path])
    assert (tally.ops, tally.errors) == (18, 0)
    (tmp_path / "two").write_bytes(b"")  # in the way of what a change expects
    assert Load(kind="watch", rounds=1).run([tmp_path]).errors > 0


def test_every_worker_works(tmp_path: Path) -> None:
    files = [tmp_path / str(number) for number in range(16)]
    Load(kind="write", workers=8, file_bytes=1 << 16).run(files).flawless("write")
    began_s = time.monotonic()
    tally = Load(kind="open", workers=4, duration_ms=50).run(files).flawless("open")
    assert 0.05 <= tally.seconds <= time.monotonic() - began_s
    assert Load(kind="read", workers=8).run(files).bytes == 1 << 20


def test_ratio_is_of_medians() -> None:
    ours = Series(name="kvd", unit="GB/s", values=(1.0, 9.0, 4.0))
    peer = Series(name="peer", unit="GB/s", values=(2.0, 2.0, 50.0))
    one = ratio("one", "w", 2.0, ours, peer)
    assert (one.value, one.passed, one.document()["ours"]["low"]) == (2.0, True, 1.0)
    other = ratio("other", "w", 2.0, peer, ours)
    assert (lowest("both", "w", [one, other]).value, other.passed) == (0.5, False)


def test_sizes_come_from_one_number() -> None:
    sizes = Sizes.of(1 << 30)
    assert (sizes.cold_object_bytes, sizes.write_object_bytes, sizes.sustained_objects) == (16 << 20, 16 << 20, 256)
    small = Sizes.of(8 << 20)
    assert small.sustained_objects * small.write_object_bytes == 32 << 20
    with pytest.raises(UsageError):
        Sizes.of(0)


def test_percentiles_are_values_that_were_measured() -> None:
    values = [float(number) for number in range(100, 0, -1)]
    assert [percentile(values, percent) for percent in (1, 50, 99, 100)] == [1.0, 50.0, 99.0, 100.0]
    assert percentile([7.0], 99) == 7.0
