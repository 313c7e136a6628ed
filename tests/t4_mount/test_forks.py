"""Forks of sessions at a mount: contents by digest, under open files and mappings, ended in every order, and by other processes."""

from __future__ import annotations

import hashlib
import itertools
import mmap
import os
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from kvd.client import Client, ClientError
from support.mounted import start_kvd

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from support.mounted import Mounted

WAIT_S = 30.0
BLOCKS = {f"block-{number}": os.urandom((1 << 18) + 4096 * number + number) for number in range(6)}
READER = """
import hashlib, mmap, sys
with open(sys.argv[1], "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapping:
    print(hashlib.sha256(mapping).hexdigest(), flush=True)
    sys.stdin.readline()
    print(hashlib.sha256(mapping).hexdigest(), flush=True)
"""


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


EXPECTED = {name: digest(data) for name, data in BLOCKS.items()}


def digests(folder: Path) -> dict[str, str]:
    return {each.name: digest(each.read_bytes()) for each in sorted(folder.iterdir())}


@pytest.fixture
def client(mounted: Mounted) -> Iterator[Client]:
    with Client(mounted.kvd.socket.with_suffix(".client")) as found:
        yield found


@pytest.fixture
def space(folder: Path) -> Path:
    """A namespace whose sessions are directories, with one of them, ``s``."""
    os.setxattr(folder, "user.kvd.fingerprint", b"model=llama")
    os.setxattr(folder, "user.kvd.sessions", b"directory")
    (folder / "s").mkdir()
    for name, data in BLOCKS.items():
        (folder / "s" / name).write_bytes(data)
    return folder


def test_fork_and_diverge(mounted: Mounted, space: Path, client: Client) -> None:
    ours, forked = space / "s", space / "f"
    assert not forked.exists()  # which the kernel remembers
    session = client.open(ours).fork(forked, until="block-3")
    assert session.describe().state == "cold"
    assert digests(forked) == dict(list(EXPECTED.items())[:4])
    ino = {name: (forked / name).stat().st_ino for name in EXPECTED if (forked / name).exists()}
    assert all((ours / name).stat().st_ino != each for name, each in ino.items())
    (forked / "block-3").write_bytes(b"the child's")
    with (ours / "block-2").open("r+b") as file:
        file.write(b"the parent's")
    os.truncate(ours / "block-1", 10)
    os.utime(ours / "block-0", (1, 1))
    (forked / "block-4").write_bytes(b"another way")
    assert digests(forked) == {
        **dict(list(EXPECTED.items())[:3]),
        "block-3": digest(b"the child's"),
        "block-4": digest(b"another way"),
    }
    assert digests(ours) == {
        **EXPECTED,
        "block-2": digest(b"the parent's" + BLOCKS["block-2"][12:]),
        "block-1": digest(BLOCKS["block-1"][:10]),
    }
    assert (forked / "block-0").stat().st_mtime > 1
    assert [each for each in os.listdir(forked) if each.startswith("block")] == [f"block-{n}" for n in range(5)]


def test_mapped_readers_of_either_keep_what_they_see(mounted: Mounted, space: Path, client: Client) -> None:
    ours, forked = space / "s", space / "f"
    with ExitStack() as stack:
        mappings = {}

        def map_all(folder: Path, names: list[str]) -> None:
            for name in names:
                file = stack.enter_context((folder / name).open("rb"))
                mappings[folder / name] = stack.enter_context(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))

        map_all(ours, list(BLOCKS))
        client.fork(ours, forked)
        map_all(forked, list(BLOCKS))
        for name in BLOCKS:
            (space / "new").write_bytes(b"replaced")
            os.rename(space / "new", (ours if name < "block-3" else forked) / name)
        for path, mapping in mappings.items():
            assert digest(mapping[:]) == EXPECTED[path.name]
        for name in BLOCKS:
            told = {(ours / name).read_bytes() == b"replaced", (forked / name).read_bytes() == b"replaced"}
            assert told == {True, False}
        with (forked / "block-0").open("r+b") as writer:  # in place, with a reader's mapping of the same file
            writer.write(b"in place")
        assert mappings[forked / "block-0"][:8] == b"in place"
        assert digest(mappings[ours / "block-0"][:]) == EXPECTED["block-0"]


def test_another_process_that_maps_a_block_sees_the_old_bytes(mounted: Mounted, space: Path, client: Client) -> None:
    path = space / "s" / "block-5"
    command = [sys.executable, "-c", READER, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as reader:
        assert reader.stdin is not None
        assert reader.stdout is not None
        assert reader.stdout.readline().strip() == EXPECTED["block-5"]
        client.fork(space / "s", space / "f")
        (space / "f" / "block-5").write_bytes(b"x" * 100)
        reader.stdin.write("\n")
        reader.stdin.flush()
        assert reader.stdout.readline().strip() == EXPECTED["block-5"]
    assert digest(path.read_bytes()) == EXPECTED["block-5"]


@pytest.mark.parametrize("order", list(itertools.permutations("sfg")), ids="".join)
def test_ended_in_every_order(mounted: Mounted, space: Path, client: Client, order: tuple[str, ...]) -> None:
    client.fork(space / "s", space / "f")
    client.fork(space / "f", space / "g", until=3)
    left = {"s": EXPECTED, "f": EXPECTED, "g": dict(list(EXPECTED.items())[:3])}
    with (
        (space / order[-1] / "block-0").open("rb") as file,
        mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapping,
    ):
        for name in order[:-1]:
            end(client, space / name)
            del left[name]
            assert not (space / name).exists()
            for other, expected in left.items():
                assert digests(space / other) == expected
        assert digest(mapping[:]) == EXPECTED["block-0"]
    end(client, space / order[-1])
    assert os.listdir(space) == []


def end(client: Client, session: Path) -> None:
    """End a session when the releases of what was read have reached the daemon."""
    deadline_s = time.monotonic() + WAIT_S
    while client.session(session).open_objects:
        assert time.monotonic() < deadline_s
    client.end(session)


def test_with_a_writer_there_is_no_fork(mounted: Mounted, space: Path, client: Client) -> None:
    with (space / "s" / "block-9").open("wb") as file:
        file.write(b"half")
        file.flush()
        with pytest.raises(ClientError, match=r"block-9: open for writing") as refused:
            client.fork(space / "s", space / "f")
        assert refused.value.code == "EBUSY"
        assert not (space / "f").exists()
        client.fork(space / "s", space / "g", until="block-5")
    with pytest.raises(ClientError) as taken:
        client.fork(space / "s", space / "g")
    assert taken.value.code == "EEXIST"
    assert digests(space / "g") == EXPECTED


def test_nobody_sees_half_of_a_fork(mounted: Mounted, space: Path, client: Client) -> None:
    seen: set[int] = set()
    stop = threading.Event()

    def look() -> None:
        while not stop.is_set():
            for name in ("f0", "f1", "f2", "f3"):
                try:
                    seen.add(len(os.listdir(space / name)))
                except FileNotFoundError:
                    seen.add(-1)

    looker = threading.Thread(target=look)
    looker.start()
    for name in ("f0", "f1", "f2", "f3"):
        client.fork(space / "s", space / name)
        assert digests(space / name) == EXPECTED
    stop.set()
    looker.join()
    assert seen <= {-1, len(BLOCKS)}


def test_a_file_is_forked_at_a_byte(mounted: Mounted, folder: Path, client: Client) -> None:
    path, data = folder / "slot.bin", os.urandom(1 << 20)
    path.write_bytes(data)
    for number, cold in enumerate((False, True)):
        if cold:
            os.setxattr(path, "user.kvd.release", b"1")
        for until in (None, 300_001):
            new = folder / f"fork-{number}-{until}"
            client.fork(path, new, until=until)
            assert new.read_bytes() == data[:until]
    with path.open("r+b") as file:
        file.write(b"changed")
    assert (folder / "fork-0-None").read_bytes() == data


def files(nvme: Path) -> set[Path]:
    return {each for each in (nvme / "objects").rglob("*") if each.is_file()}


def test_killed_while_it_forks_a_kvd_has_all_of_it_or_nothing_after_its_start() -> None:
    with start_kvd() as mounted:
        space = mounted.root / "llama"
        space.mkdir()
        os.setxattr(space, "user.kvd.fingerprint", b"model=llama")
        os.setxattr(space, "user.kvd.sessions", b"directory")
        (space / "s").mkdir()
        for name, data in BLOCKS.items():
            (space / "s" / name).write_bytes(data)
        there = []
        for made in range(1, len(BLOCKS) + 1):
            new = space / f"f{made}"
            before, answers = files(mounted.kvd.nvme_dirs[0]), []
            with Client(mounted.kvd.socket.with_suffix(".client")) as client:

                def fork(client: Client = client, new: Path = new, answers: list[str] = answers) -> None:
                    try:
                        client.fork(space / "s", new)
                        answers.append("done")
                    except ClientError as error:
                        answers.append(error.code)

                forking = threading.Thread(target=fork)
                forking.start()
                deadline_s = time.monotonic() + WAIT_S
                while len(files(mounted.kvd.nvme_dirs[0]) - before) < made:
                    assert time.monotonic() < deadline_s
                mounted.kvd.kill()
                forking.join()
            mounted.kvd.start()
            if new.exists():
                there.append(new.name)
                assert digests(new) == EXPECTED
            assert new.exists() or answers == ["NO_DAEMON"]
            assert digests(space / "s") == EXPECTED
        assert sorted(os.listdir(space)) == [*there, "s"]
