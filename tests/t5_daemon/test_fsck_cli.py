"""`kvd --fsck`: what an operator runs on a stopped kvd."""

import subprocess

import pytest
from private_kvd import BIN, PrivateKvd


def fsck(kvd):
    return subprocess.run(
        [str(BIN / "kvd"), "--config", str(kvd.config), "--fsck"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.fixture
def kvd():
    with PrivateKvd() as private:
        yield private


def files(kvd):
    ours = (
        path for path in kvd.root.rglob("*") if path.is_file() and "sqlite" not in path.name and path.name != "lock"
    )
    return {path: path.stat().st_mtime_ns for path in ours}


def test_a_clean_state_a_running_daemon_and_a_flipped_bit(kvd):
    kvd.start()
    (kvd.mount / "a").write_bytes(bytes(100_000))
    running = fsck(kvd)
    assert running.returncode == 69
    assert running.stderr.count("\n") == 1
    assert f"pid {kvd.pid}" in running.stderr
    assert kvd.stop() == 0
    before = files(kvd)
    clean = fsck(kvd)
    assert (clean.returncode, clean.stdout, clean.stderr) == (0, "clean\n", "")
    assert files(kvd) == before
    (copy,) = kvd.nvme_dirs[0].glob("objects/*/*/*")
    copy.write_bytes(bytes(70_000) + b"x" + bytes(29_999))
    broken = fsck(kvd)
    assert broken.returncode == 1
    assert broken.stdout.splitlines()[-1] == "1 fault"
    assert "page 1" in broken.stdout


def test_without_a_catalogue_it_says_so_and_makes_none(kvd):
    missing = fsck(kvd)
    assert missing.returncode == 1
    assert "there is no catalogue" in missing.stdout
    assert not (kvd.root / "state" / "catalog.sqlite").exists()
    assert list(kvd.nvme_dirs[0].iterdir()) == []
