"""What the data plane answers of names, attributes and opens, on a mount: that it does, and that it is true."""

import json
import os
import signal
import subprocess
import sys

import pytest

from support.content import wait_until
from support.mounted import start_kvd
from support.posix import tried

OPENS = 40
HOLD = """
import os, sys, time
fds = [os.open(path, os.O_RDONLY) for path in sys.argv[1:] for _ in range(2)]
print(len(fds), flush=True)
time.sleep(600)
"""


def served(mounted, *counters):
    told = json.loads((mounted.root / ".kvd" / "stats").read_text())["data_plane"]
    return [told[counter] for counter in counters]


def told_of(mounted, path):
    return mounted.kvd.entry(str(path.relative_to(mounted.root)))


def made(folder, count):
    paths = [folder / f"f{index}" for index in range(count)]
    for path in paths:
        path.write_bytes(path.name.encode())
    return paths


def use(paths):
    for path in paths:
        assert path.read_bytes() == path.name.encode()


def quiet(mounted):
    wait_until(lambda: mounted.kvd.status()["leased"] == 0, "nothing is open")


def test_opens_of_sealed_objects_are_not_forwarded(mounted, folder):
    paths = made(folder, 10)
    quiet(mounted)  # the writers are gone
    use(paths)
    quiet(mounted)
    before = served(mounted, "hot_opens", "hot_releases")
    for _ in range(OPENS // len(paths)):
        use(paths)
    quiet(mounted)
    after = served(mounted, "hot_opens", "hot_releases")
    assert [now - then for now, then in zip(after, before, strict=True)] == [OPENS, OPENS]


def test_misses_and_listings_of_a_directory_that_was_made_here(mounted, folder):
    made(folder, 3)
    before = served(mounted, "hot_negatives", "hot_readdirs")
    for index in range(10):
        assert tried(os.stat, folder / f"never{index}") == "ENOENT"
    assert sorted(os.listdir(folder)) == ["f0", "f1", "f2"]
    negatives, readdirs = served(mounted, "hot_negatives", "hot_readdirs")
    assert negatives - before[0] >= 10
    assert readdirs > before[1]


def test_changes_are_seen_at_once(mounted, folder):
    path, other = folder / "a", folder / "b"
    path.write_bytes(b"12345")
    assert path.stat().st_size == 5
    os.truncate(path, 3)
    assert path.stat().st_size == 3
    path.chmod(0o600)
    assert path.stat().st_mode & 0o7777 == 0o600
    os.utime(path, ns=(5, 7))
    assert path.stat().st_mtime_ns == 7
    os.link(path, other)
    assert path.stat().st_nlink == 2
    path.unlink()
    assert tried(os.stat, path) == "ENOENT"
    assert other.stat().st_nlink == 1
    other.rename(path)
    assert tried(os.stat, other) == "ENOENT"
    assert path.read_bytes() == b"123"
    before = folder.stat()
    (folder / "sub").mkdir()
    assert folder.stat().st_nlink == before.st_nlink + 1
    (folder / "sub").rmdir()
    assert folder.stat().st_nlink == before.st_nlink
    assert os.listdir(folder) == ["a"]


@pytest.mark.parametrize("depth", [1, 300])
def test_a_listing_goes_on_while_names_come_and_go(mounted, folder, depth):
    made(folder, depth)
    seen = set()
    with os.scandir(folder) as entries:
        for number, entry in enumerate(entries):
            seen.add(entry.name)
            (folder / f"more{number}").write_bytes(b"")
            if number % 2:
                os.unlink(entry.path)
            if number > 3 * depth:
                break
    assert {f"f{index}" for index in range(depth)} <= seen


def test_leases_of_a_killed_client_come_back(mounted, folder):
    paths = made(folder, 20)
    quiet(mounted)
    use(paths)
    quiet(mounted)
    client = subprocess.Popen([sys.executable, "-c", HOLD, *map(str, paths)], stdout=subprocess.PIPE)
    assert client.stdout.readline() == b"40\n"
    assert mounted.kvd.status()["leased"] == len(paths)
    assert told_of(mounted, paths[0])["opens"] == 2
    refused = mounted.kvd.kvctl("demote", str(paths[0]), check=False)
    assert refused.returncode != 0
    client.send_signal(signal.SIGKILL)
    client.wait()
    client.stdout.close()
    quiet(mounted)
    assert told_of(mounted, paths[0])["hits"] == 3


def test_shared_idle_objects_are_demoted_and_come_back(mounted, folder):
    paths = made(folder, 10)
    quiet(mounted)
    for _ in range(2):
        use(paths)
    quiet(mounted)
    mounted.kvd.kvctl("demote", str(folder))
    for path in paths:
        assert told_of(mounted, path)["tier"] == "nvme"
    for _ in range(2):
        use(paths)
    assert told_of(mounted, paths[0])["tier"] == "ddr"


def test_a_writer_among_readers_of_a_shared_object(mounted, folder):
    [path] = made(folder, 1)
    quiet(mounted)
    use([path])
    readers = [os.open(path, os.O_RDONLY) for _ in range(3)]
    with path.open("r+b") as file:
        file.write(b"new and longer")
    for fd in readers:
        assert os.pread(fd, 100, 0) == b"new and longer"
        os.fsync(fd)
        os.close(fd)
    assert path.read_bytes() == b"new and longer"
    quiet(mounted)


def test_an_unlinked_object_is_readable_to_its_last_close(mounted, folder):
    [path] = made(folder, 1)
    quiet(mounted)
    use([path])
    objects = mounted.kvd.status()["objects"]
    fds = [os.open(path, os.O_RDONLY) for _ in range(2)]
    path.unlink()
    for fd in fds:
        assert os.pread(fd, 100, 0) == b"f0"
        os.close(fd)
    wait_until(lambda: mounted.kvd.status()["objects"] == objects - 1, "the object is deleted")


def test_the_virtual_folder_beside_a_complete_root(mounted):
    for _ in range(3):
        assert ".kvd" not in os.listdir(mounted.root)
        assert (mounted.root / ".kvd" / "version").read_text().startswith("kvd")
        assert tried(os.stat, mounted.root / "no such name") == "ENOENT"


@pytest.mark.parametrize("links", [0, 100])
def test_names_that_vanish_are_forgotten_by_the_kernel(mounted, folder, claim_daemon_log, links):
    claim_daemon_log("object lost")
    [path] = made(folder, 1)
    for index in range(links):
        os.link(path, folder / f"link{index}")
    quiet(mounted)
    mounted.kvd.kvctl("demote", str(path))
    ino = path.stat().st_ino
    [copy] = (mounted.kvd.nvme_dirs[0] / "objects").rglob(f"{ino:x}.*")
    copy.unlink()
    assert tried(os.open, path, os.O_RDONLY) in ("ENOENT", "ESTALE")
    for each in (path, *(folder / f"link{index}" for index in range(links))):
        wait_until(lambda each=each: tried(os.stat, each) == "ENOENT", "the kernel has forgotten the name")
    assert os.listdir(folder) == []


def test_without_a_table_all_is_forwarded():
    with start_kvd({"fuse": {"hot_names": 0}}) as running:
        folder = running.root / "folder"
        folder.mkdir()
        paths = made(folder, 3)
        for _ in range(3):
            use(paths)
            assert len(os.listdir(folder)) == len(paths)
            assert tried(os.stat, folder / "none") == "ENOENT"
        told = json.loads((running.root / ".kvd" / "stats").read_text())["data_plane"]
        assert not [name for name, count in told.items() if name.startswith("hot_") and count]
