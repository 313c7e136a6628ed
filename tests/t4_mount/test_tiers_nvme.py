"""The NVMe tier: full, spread over two directories, and found again by the next start."""

import errno
import os
import random

import pytest

from support.content import MIB, copy_files, digest, file_bytes, fill, usage, wait_until
from support.mounted import start_kvd


@pytest.mark.parametrize("passthrough", ["auto", "off"])
def test_a_full_nvme_refuses_and_harms_nothing_and_recovers(passthrough):
    settings = {
        "fuse": {"passthrough": passthrough, "write_wait": "200ms"},
        "ddr": {"budget": 16 * MIB, "burst": 8 * MIB, "idle": "50ms"},
        "nvme": {"capacity": 10 * MIB, "on_full": "refuse"},
    }
    with start_kvd(settings) as running:
        running.claim("demotion failed")
        kvd, root = running.kvd, running.root
        stored = {root / f"{index}": fill(root / f"{index}", 4 * MIB, index) for index in range(3)}
        for name in ("0", "1"):
            kvd.kvctl("demote", str(root / name))
        for attempt in range(2):
            fd = os.open(root / "2", os.O_RDONLY)
            with pytest.raises(OSError, match="No space") as info:
                os.fsync(fd)
            os.close(fd)
            assert info.value.errno == errno.ENOSPC, attempt
        assert kvd.kvctl("sync", str(root / "2"), check=False).returncode == 6
        status = kvd.status()
        assert status["state"] == "degraded"
        assert any("nvme" in reason for reason in status["reasons"]), status["reasons"]
        refused = 0
        for index in range(4, 12):  # until both tiers are full
            path = root / f"{index}"
            try:
                stored[path] = fill(path, 4 * MIB, index)
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
                refused += 1
                path.unlink()
        assert refused
        for path, expected in stored.items():
            assert digest(path) == expected, path.name
        for name in ("0", "1"):
            stored.pop(root / name)
            (root / name).unlink()
        wait_until(lambda: kvd.kvctl("sync", str(root / "2"), check=False).returncode == 0, "there is room again")
        assert kvd.status()["state"] == "ok"
        for path in [path for path in stored if path.name != "2"]:
            path.unlink()
        wait_until(lambda: kvd.kvctl("demote", str(root), check=False).returncode == 0, "and for all that is left")
        assert digest(root / "2") == stored[root / "2"]


def test_objects_are_spread_over_two_directories_and_found_again():
    with start_kvd({"ddr": {"budget": 32 * MIB}}, nvme_dirs=2) as running:
        kvd, root = running.kvd, running.root
        sizes = random.Random(3).choices((1, 5000, 65536, 70000, MIB), k=24)
        stored = {root / f"{index}": fill(root / f"{index}", size, index) for index, size in enumerate(sizes)}
        kvd.kvctl("demote", str(root))
        counts = [sum(1 for path in (top / "objects").rglob("*.*")) for top in kvd.nvme_dirs]
        assert sum(counts) == len(stored)
        assert min(counts) >= len(stored) // 4, counts
        assert all(len(copy_files(kvd, path)) == 1 for path in stored)
        for ending in ("stop", "kill"):
            getattr(kvd, ending)()
            kvd.start()
            assert usage(kvd, "nvme")["used_bytes"] == sum(file_bytes(top / "objects") for top in kvd.nvme_dirs)
            for path, expected in stored.items():
                assert digest(path) == expected, f"{path.name} after {ending}"


def test_a_start_finds_pins_hits_names_and_attributes_again():
    with start_kvd() as running:
        kvd, root = running.kvd, running.root
        (root / "folder").mkdir(mode=0o750)
        path = root / "folder" / "a"
        expected = fill(path, 100_000)
        path.chmod(0o640)
        os.utime(path, ns=(111, 222))
        os.setxattr(path, "user.mine", b"value")
        os.link(path, root / "twin")
        path.read_bytes()
        kvd.kvctl("pin", str(path))
        for ending in ("stop", "kill"):
            getattr(kvd, ending)()
            kvd.start()
            info = path.stat()
            assert (info.st_mode & 0o777, info.st_mtime_ns, info.st_nlink) == (0o640, 222, 2), ending
            assert (root / "twin").stat().st_ino == info.st_ino
            assert os.getxattr(path, "user.mine") == b"value"
            assert os.getxattr(path, "user.kvd.pin") == b"1"
            assert digest(path) == expected
        kvd.kvctl("unpin", str(path))
