"""Large cold objects through the mount: read while they come from NVMe.

The daemon's mover lets the first MiB of a streamed object through and the rest when a file, the gate, is gone. So what is
read while the gate is shut can only have come through a stream.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import random
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import support
from support.content import MIB, copy_files, ddr_bytes, digest, file_bytes, wait_until
from support.mounted import start_kvd
from support.posix import tried

GATED = str(Path(support.__path__[0]) / "gated_kvd.py")
SIZE = 24 * MIB + 777
LARGE = 256 * MIB
PAGE = 65536
FIRST = MIB
"""Bytes that a shut gate lets through."""


class Gate:
    """The file that holds promotions up."""

    def __init__(self, path):
        self.path = path

    def shut(self):
        self.path.touch()

    def open(self):
        self.path.unlink(missing_ok=True)


@pytest.fixture(scope="module")
def gate(tmp_path_factory):
    return Gate(tmp_path_factory.mktemp("gate") / "shut")


@pytest.fixture(scope="module", params=["auto", "off"], ids=["passthrough", "served"])
def mounted(request, gate):
    settings = {"fuse": {"passthrough": request.param}, "ddr": {"budget": 768 * MIB, "burst": 64 * MIB}}
    with start_kvd(settings, prefix=(sys.executable, GATED, str(gate.path))) as running:
        yield running


@pytest.fixture
def data():
    return random.Random(3).randbytes(SIZE)


@pytest.fixture
def cold(mounted, folder, data, gate):
    path = folder / "a"
    path.write_bytes(data)
    mounted.kvd.kvctl("demote", str(path))
    gate.shut()
    yield path
    gate.open()


def tier(path):
    return os.getxattr(path, "user.kvd.tier")


def waiting(mounted):
    return json.loads((mounted.root / ".kvd" / "stats").read_text())["data_plane"]["waiting"]


def wait_for_readers(mounted, count):
    wait_until(lambda: waiting(mounted) >= count, "a read waits for its pages")


def wait_for_ddr(path):
    wait_until(lambda: tier(path) == b"ddr", "the promotion has ended")


def read_slowly(path):
    """Read with calls of all sizes, as a client that parses does; return the digest."""
    draw = random.Random(5)
    found = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        while chunk := file.read(draw.choice((100, 4096, PAGE, MIB, 5 * MIB))):
            found.update(chunk)
    return found.hexdigest()


def test_the_first_bytes_are_there_before_the_last_have_come(mounted, cold, data, gate):
    fd = os.open(cold, os.O_RDONLY)
    assert os.pread(fd, FIRST, 0) == data[:FIRST]
    assert os.fstat(fd).st_size == SIZE
    assert tier(cold) == b"nvme"
    with ThreadPoolExecutor(2) as pool:
        later = pool.submit(os.pread, fd, 8 * MIB, 3 * MIB)
        last = pool.submit(os.pread, fd, MIB, SIZE - 5)
        wait_for_readers(mounted, 2)
        assert not later.done()
        assert os.pread(fd, 10, FIRST - 10) == data[FIRST - 10 : FIRST], "others go on"
        gate.open()
        assert later.result(30) == data[3 * MIB : 11 * MIB]
        assert last.result(30) == data[-5:]
    wait_for_ddr(cold)
    assert os.pread(fd, SIZE, 0) == data
    os.close(fd)
    assert cold.read_bytes() == data


def test_holes_are_told_before_they_have_come(mounted, folder, gate):
    path = folder / "a"
    with path.open("wb") as file:
        file.write(b"x" * FIRST)
        file.seek(20 * MIB)
        file.write(b"y" * MIB)
    expected = digest(path)
    mounted.kvd.kvctl("demote", str(path))
    gate.shut()
    with path.open("rb") as file:
        assert os.lseek(file.fileno(), 20 * MIB + 5, os.SEEK_DATA) == 20 * MIB + 5
        assert os.lseek(file.fileno(), 20 * MIB + 5, os.SEEK_HOLE) == 21 * MIB
        gate.open()
        file.seek(0)
        assert hashlib.file_digest(file, "sha256").hexdigest() == expected


def test_a_mapping_waits_for_its_own_pages(mounted, cold, data, gate):
    with cold.open("rb") as file, mmap.mmap(file.fileno(), 0, mmap.MAP_SHARED, mmap.PROT_READ) as mapped:
        mapped.madvise(mmap.MADV_RANDOM)
        assert mapped[:1000] == data[:1000]
        script = "import mmap,sys; f=open(sys.argv[1],'rb'); m=mmap.mmap(f.fileno(),0,prot=1); sys.exit(m[9<<20])"
        with subprocess.Popen([sys.executable, "-c", script, str(cold)]) as other:  # a fault holds its whole process up
            wait_for_readers(mounted, 1)
            assert other.poll() is None
            gate.open()
            assert other.wait(30) == data[9 * MIB]
        assert hashlib.sha256(mapped).digest() == hashlib.sha256(data).digest()
    wait_for_ddr(cold)
    assert cold.read_bytes() == data


def test_many_readers_in_any_order(mounted, folder):
    path = folder / "a"
    draw = random.Random(9)
    block = draw.randbytes(MIB)
    data = b"".join(number.to_bytes(4, "little") + block[4:] for number in range(LARGE // MIB))
    path.write_bytes(data)
    expected = hashlib.sha256(data).hexdigest()
    mounted.kvd.kvctl("demote", str(path))

    def jump(seed):
        order = random.Random(seed)
        with path.open("rb", buffering=0) as file:
            for _ in range(100):
                at, size = order.randrange(LARGE), order.choice((1, PAGE, 3 * MIB))
                if os.pread(file.fileno(), size, at) != data[at : at + size]:
                    return f"wrong bytes at {at}"
        return expected

    def map_it():
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, mmap.MAP_SHARED, mmap.PROT_READ) as mapped:
            return hashlib.sha256(mapped).hexdigest()

    fd = os.open(path, os.O_RDONLY)  # all of them meet the stream
    with ThreadPoolExecutor(6) as pool:
        results = [pool.submit(jump, seed) for seed in range(3)]
        results += [pool.submit(digest, path), pool.submit(read_slowly, path), pool.submit(map_it)]
        assert [result.result(60) for result in results] == [expected] * 6
    os.close(fd)
    wait_for_ddr(path)
    assert digest(path) == expected


def test_a_reader_that_leaves_early_has_made_it_hot(mounted, cold, data, gate):
    with cold.open("rb", buffering=0) as file:
        assert file.read(10) == data[:10]
    assert tier(cold) == b"nvme"
    gate.open()
    wait_for_ddr(cold)
    assert cold.read_bytes() == data


def test_unlinked_it_is_read_to_the_end(mounted, cold, data, gate):
    (file,) = copy_files(mounted.kvd, cold)
    fd = os.open(cold, os.O_RDONLY)
    cold.unlink()
    assert os.pread(fd, 10, 0) == data[:10]
    gate.open()
    assert os.pread(fd, SIZE, 0) == data
    os.close(fd)
    wait_until(lambda: not file.exists(), "nobody has it any more")


def test_deleted_it_stops_coming(mounted, cold):
    (file,) = copy_files(mounted.kvd, cold)
    ino = cold.stat().st_ino
    os.close(os.open(cold, os.O_RDONLY))
    cold.unlink()
    wait_until(lambda: not file.exists(), "the gate is shut, yet it goes")
    assert not (mounted.kvd.ddr / f"{ino:x}").exists()


def test_a_writer_waits_for_the_whole(mounted, cold, data, gate):
    reader = os.open(cold, os.O_RDONLY)

    def write():
        with cold.open("r+b") as file:
            file.seek(5 * MIB)
            file.write(b"new")

    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write)
        assert os.pread(reader, 10, 0) == data[:10]
        assert not writing.done()
        gate.open()
        writing.result(30)
    os.close(reader)
    assert cold.read_bytes() == data[: 5 * MIB] + b"new" + data[5 * MIB + 3 :]


def test_a_truncation_does_not_wait_for_what_nobody_reads(mounted, cold):
    os.close(os.open(cold, os.O_RDONLY))
    cold.write_bytes(b"short")
    assert cold.read_bytes() == b"short"


def test_a_reader_that_is_killed_goes_at_once(mounted, cold):
    script = "import sys; f=open(sys.argv[1],'rb',0); f.seek(9<<20); f.read(1<<20)"
    with subprocess.Popen([sys.executable, "-c", script, str(cold)]) as reader:
        wait_for_readers(mounted, 1)
        reader.send_signal(signal.SIGKILL)
        assert reader.wait(20) == -signal.SIGKILL
    wait_until(lambda: waiting(mounted) == 0, "nobody waits any more")


def test_a_flipped_bit_is_eio_there_and_right_elsewhere(mounted, cold, data, gate, claim_daemon_log):
    claim_daemon_log("quarantined")
    (file,) = copy_files(mounted.kvd, cold)
    bad = 12 * MIB + 5
    with file.open("r+b") as raw:
        raw.seek(bad)
        raw.write(bytes([data[bad] ^ 1]))
    fd = os.open(cold, os.O_RDONLY)
    assert os.pread(fd, FIRST, 0) == data[:FIRST]
    gate.open()
    found = {at // PAGE: tried(os.pread, fd, PAGE, at) for at in range(0, SIZE, PAGE)}
    refused = {page for page, read in found.items() if read == "EIO"}
    assert all(found[page] == data[page * PAGE : (page + 1) * PAGE] for page in found.keys() - refused)
    assert bad // PAGE in refused
    assert not refused & set(range(FIRST // PAGE)), "what has landed stays"
    os.close(fd)
    with pytest.raises(OSError, match="Input/output"):
        cold.read_bytes()
    wait_until(lambda: mounted.kvd.entry(str(cold.relative_to(mounted.root)))["state"] == "faulted", "it is known")
    cold.write_bytes(b"new")
    assert cold.read_bytes() == b"new"


def test_the_files_of_a_small_folder_come_together(mounted, folder, gate):
    made = {}
    for number in range(6):
        path = folder / f"layer{number}"
        path.write_bytes(random.Random(number).randbytes(MIB))
        made[path] = digest(path)
    mounted.kvd.kvctl("demote", str(folder))
    first, *rest = made
    assert digest(first) == made[first]
    for path in rest:
        wait_for_ddr(path)
        assert digest(path) == made[path]


def test_a_kill_in_the_middle_loses_nothing(gate, data):
    with start_kvd(prefix=(sys.executable, GATED, str(gate.path))) as running:
        kvd, path = running.kvd, running.root / "a"
        path.write_bytes(data)
        kvd.kvctl("demote", str(path))
        gate.shut()
        ino = path.stat().st_ino
        fd = os.open(path, os.O_RDONLY)
        assert os.pread(fd, 10, 0) == data[:10]
        assert (kvd.ddr / f"{ino:x}").exists()
        kvd.kill()
        os.close(fd)
        gate.open()
        kvd.start()
        assert not (kvd.ddr / f"{ino:x}").exists()
        assert tier(path) == b"nvme"
        assert path.read_bytes() == data
        wait_for_ddr(path)
        assert ddr_bytes(kvd) >= SIZE


def test_a_stop_in_the_middle_does_not_wait(gate, data):
    with start_kvd(prefix=(sys.executable, GATED, str(gate.path))) as running:
        kvd, path = running.kvd, running.root / "a"
        path.write_bytes(data)
        kvd.kvctl("demote", str(path))
        gate.shut()
        fd = os.open(path, os.O_RDONLY)
        assert os.pread(fd, 10, 0) == data[:10]
        os.close(fd)
        assert tier(path) == b"nvme"
        assert kvd.stop() == 0
        gate.open()
        kvd.start()
        assert path.read_bytes() == data


def test_a_read_has_a_deadline(gate, data):
    settings = {"fuse": {"read_wait": "200ms"}}
    with start_kvd(settings, prefix=(sys.executable, GATED, str(gate.path))) as running:
        running.claim("can't be read")
        kvd, path = running.kvd, running.root / "a"
        path.write_bytes(data)
        kvd.kvctl("demote", str(path))
        gate.shut()
        with path.open("rb", buffering=0) as file:
            assert file.read(10) == data[:10]
            file.seek(9 * MIB)
            with pytest.raises(OSError, match="Input/output"):
                file.read(10)
            gate.open()
            wait_for_ddr(path)
            assert file.read(10) == data[9 * MIB : 9 * MIB + 10]
        (fault,) = kvd.status()["faults"]
        assert "timed out" in fault["what"]
        assert file_bytes(kvd.nvme_dirs[0] / "objects") >= SIZE
