"""What happens to files on NVMe behind the daemon's back: never wrong bytes, EIO or a miss, and a line in the status."""

import errno
import hashlib
import os
import shutil

import pytest

from support.content import WAYS, copy_files, digest, fill, wait_until

SIZE = 3 * 65536 + 777


@pytest.fixture
def cold(mounted, folder):
    """Two cold objects: the victim, and another that must not be harmed."""
    made = {name: fill(folder / name, SIZE, seed) for seed, name in enumerate(("victim", "other"))}
    mounted.kvd.kvctl("demote", str(folder))
    yield folder / "victim"
    assert digest(folder / "other") == made["other"]


def spoil_byte(file):
    with file.open("r+b") as raw:
        raw.seek(65536 + 5)
        byte = raw.read(1)[0]
        raw.seek(65536 + 5)
        raw.write(bytes([byte ^ 1]))


def spoil_length(file):
    os.truncate(file, 65536)


def spoil_zeros(file):
    size = file.stat().st_size
    os.truncate(file, 0)
    os.truncate(file, size)


def spoil_folder(file):
    file.unlink()
    file.mkdir()


def spoil_link(file):
    file.unlink()
    file.symlink_to("/etc/hostname")


def spoil_loop(file):
    file.unlink()
    file.symlink_to(file)


SPOILS = {
    spoil_byte: "checksum differs",
    spoil_length: "checksum differs",
    spoil_zeros: "checksum differs",
    spoil_folder: "can't be read",
    spoil_link: "can't be read",
    spoil_loop: "can't be read",
}


def faults_of(mounted, path):
    name = f"/{path.relative_to(mounted.root)}"
    return [fault for fault in mounted.kvd.status()["faults"] if fault["path"] == name]


@pytest.mark.parametrize("spoil", SPOILS)
def test_spoilt_files_are_eio_and_reported_and_heal_when_rewritten(mounted, cold, claim_daemon_log, spoil):
    claim_daemon_log("quarantined")
    claim_daemon_log("can't be read")
    claim_daemon_log("can't be removed")
    (file,) = copy_files(mounted.kvd, cold)
    spoil(file)
    for way in WAYS:
        with pytest.raises(OSError, match="Input/output error") as info:
            way(cold)
        assert info.value.errno == errno.EIO
    (fault, *_) = faults_of(mounted, cold)
    assert SPOILS[spoil] in fault["what"]
    if SPOILS[spoil] == "checksum differs":
        assert mounted.kvd.status()["state"] == "degraded"
        assert mounted.kvd.entry(str(cold.relative_to(mounted.root)))["state"] == "faulted"
        assert mounted.kvd.kvctl("promote", str(cold), check=False).returncode == 7
    expected = fill(cold, SIZE, 9)
    assert digest(cold) == expected
    assert mounted.kvd.status()["state"] == "ok"
    mounted.kvd.kvctl("demote", str(cold))
    assert digest(cold) == expected
    if file.is_dir():
        shutil.rmtree(file)


def test_a_vanished_file_is_a_miss(mounted, cold, claim_daemon_log):
    claim_daemon_log("object lost")
    (file,) = copy_files(mounted.kvd, cold)
    file.unlink()
    with pytest.raises(FileNotFoundError):
        cold.read_bytes()
    assert [name.name for name in cold.parent.iterdir()] == ["other"]
    (fault,) = faults_of(mounted, cold)
    assert "vanished" in fault["what"]
    expected = fill(cold, 10)
    assert digest(cold) == expected, "its name is free for the next"


def test_a_spoilt_copy_of_a_hot_object_does_no_harm(mounted, folder):
    path = folder / "a"
    expected = fill(path, SIZE)
    mounted.kvd.kvctl("sync", str(path))
    (file,) = copy_files(mounted.kvd, path)
    spoil_byte(file)
    assert digest(path) == expected
    with path.open("ab") as writer:
        writer.write(b"more")
    mounted.kvd.kvctl("demote", str(path))
    assert hashlib.sha256(path.read_bytes()[:-4]).hexdigest() == expected
    assert len(copy_files(mounted.kvd, path)) == 1


def test_a_damaged_object_can_be_deleted(mounted, cold, claim_daemon_log):
    claim_daemon_log("quarantined")
    (file,) = copy_files(mounted.kvd, cold)
    spoil_byte(file)
    with pytest.raises(OSError, match="Input/output"):
        cold.read_bytes()
    cold.unlink()
    wait_until(lambda: not file.exists(), "the kernel forgets the inode soon")
    assert mounted.kvd.status()["state"] == "ok"
