"""Objects that DDR has no room for are read where they are, and their drive hangs: no reader waits for it without a bound."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from hashlib import sha256

import pytest

from support.content import MIB, wait_until
from support.drives import BOUND_S, DEADLINE_S, OFFLINE, Drives, drives

SIZE = 4 * MIB + 777
PINNED = 14 * MIB
DDR = {"budget": 16 * MIB, "burst": 8 * MIB}
AT_ONCE = 24
"""Far more than the split has readers, or threads for a drive."""

READER = """
import sys
with open(sys.argv[1], "rb", buffering=0) as file:
    file.read(1)
    print(flush=True)
    sys.stdin.read(1)
    file.read(1)
"""


def data_plane(made: Drives) -> dict[str, int]:
    told: dict[str, int] = json.loads((made.root / ".kvd" / "stats").read_text())["data_plane"]
    return told


def fill_up(made: Drives) -> tuple[list, list]:
    """Store objects on both drives and fill DDR with another; return those on the bad one and those on the good one."""
    cold = []
    for number in range(4):
        cold.append(made.fill(f"cold{number}", SIZE, number))
        made.mounted.kvd.kvctl("demote", str(cold[-1]))
    pinned = made.fill("pinned", PINNED, 9)
    made.mounted.kvd.kvctl("pin", str(pinned))
    bad, good = made.on_bad(cold), made.on_good(cold)
    assert len(bad) == len(good) == 2
    return bad, good


@contextmanager
def opened(paths):
    with ExitStack() as stack:
        yield [stack.enter_context(path.open("rb", buffering=0)) for path in paths]


def read_all(file) -> str:
    parts, at = [], 0
    while part := os.pread(file.fileno(), MIB, at):
        parts.append(part)
        at += len(part)
    return sha256(b"".join(parts)).hexdigest()


def fails(file, offset: int) -> float:
    """Read and return how long that took until it was EIO, in seconds."""
    began_s = time.monotonic()
    with pytest.raises(OSError, match="Input/output error") as info:
        os.pread(file.fileno(), 65536, offset)
    assert info.value.errno == errno.EIO
    return time.monotonic() - began_s


def test_reads_of_what_is_open_on_a_drive_that_hangs():
    with drives(ddr=DDR) as made:
        bad, good = fill_up(made)
        with opened([*bad, *good]) as files, ThreadPoolExecutor(AT_ONCE) as pool:
            before = data_plane(made)["reads"]
            for path, file in zip([*bad, *good], files, strict=True):
                assert read_all(file) == made.stored[path]
            assert data_plane(made)["reads"] >= before + 4 * SIZE // MIB, "they are read where they are"
            made.disk.hang("read")
            waiting = [pool.submit(fails, files[number % 2], number * 65536) for number in range(AT_ONCE)]
            wait_until(made.disk.waiting, "a read hangs")
            for path, file in zip(good, files[2:], strict=True):
                assert read_all(file) == made.stored[path], "the other drive's readers go on"
            assert len(list(made.root.iterdir())) == len(made.stored)
            assert all(each.result(timeout=BOUND_S) < BOUND_S for each in waiting)
            made.wait_state("offline", "probing")
            status = made.mounted.kvd.status()
            assert status["state"] == "degraded"
            assert all(fails(file, MIB) < DEADLINE_S for file in files[:2]), "at once, also where it is open"
            made.disk.heal()
            made.wait_state("online")
            for path, file in zip([*bad, *good], files, strict=True):
                assert read_all(file) == made.stored[path]
            wait_until(lambda: data_plane(made)["cold_given_up"] == 0, "the drive has given all of them back")
        made.mounted.kvd.kvctl("unpin", str(made.root / "pinned"))


def test_a_reader_whom_a_drive_keeps_can_be_killed_and_its_object_closed():
    with drives(ddr=DDR, claims=(), deadline="60s") as made:
        (path, *_), _good = fill_up(made)
        reader = subprocess.Popen(
            [sys.executable, "-c", READER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert reader.stdin
        assert reader.stdout
        assert reader.stdout.readline() == "\n"
        made.disk.hang("read")
        reader.stdin.write("x")
        reader.stdin.close()
        wait_until(made.disk.waiting, "a read hangs")
        began_s = time.monotonic()
        reader.kill()
        reader.wait(timeout=BOUND_S)
        reader.stdout.close()
        made.mounted.kvd.kvctl("unpin", str(made.root / "pinned"))
        made.check([made.root / "pinned"])
        assert time.monotonic() - began_s < BOUND_S
        assert data_plane(made)["cold_given_up"] >= 1
        wait_until(lambda: data_plane(made)["cold_reading"] == 0, "nobody waits for it")
        made.disk.heal()
        wait_until(lambda: data_plane(made)["cold_given_up"] == 0, "the drive has given it back")


def test_a_stop_while_a_drive_keeps_a_read():
    with drives(ddr=DDR, only_bad=True, claims=(OFFLINE, "could not be flushed")) as made:
        path = made.fill("cold", SIZE)
        made.mounted.kvd.kvctl("demote", str(path))
        made.fill("pinned", PINNED, 9)
        kvd = made.mounted.kvd
        kvd.kvctl("pin", str(made.root / "pinned"))
        with opened([path]) as (file,), ThreadPoolExecutor(1) as pool:
            read_all(file)
            made.disk.hang("read", "write")
            waiting = pool.submit(fails, file, 0)
            wait_until(made.disk.waiting, "a read hangs")
            began_s = time.monotonic()
            kvd.ask_to_stop()
            assert waiting.result(timeout=BOUND_S) < BOUND_S
        wait_until(lambda: "could not be flushed" in kvd.log.read_text(), "the flush is given up")
        wait_until(lambda: str(kvd.mount) not in kvd.mounts(), "it is unmounted")
        assert time.monotonic() - began_s < 3 * BOUND_S
        made.disk.heal()
        assert kvd.stop() == 74
        kvd.start()
        made.wait_state("online")
        kvd.kvctl("unpin", str(made.root / "pinned"))
        made.check()
