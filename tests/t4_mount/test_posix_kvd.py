"""What is kvd's own in the tree, what never reaches the daemon, and that no request can end the mount."""

from __future__ import annotations

import fcntl
import json
import os
import random
import threading
import time

import pytest

from support.posix import child, tried

MIB = 1 << 20
STORM_S = 5.0
STORM_THREADS = 64


def stats(mounted):
    return json.loads((mounted.root / ".kvd/stats").read_text())


def test_the_virtual_files_tell(mounted, folder):
    (folder / "open").touch()
    with open(folder / "open", "ab"):
        sessions = [json.loads(line) for line in (mounted.root / ".kvd/sessions").read_text().splitlines()]
    assert [s["state"] for s in sessions if s["path"] == f"/{folder.name}/open"] == ["filling"]
    told = stats(mounted)
    assert told["mount"] == str(mounted.root)
    assert told["pid"] == mounted.kvd.pid
    assert (mounted.root / ".kvd/version").read_text().startswith("kvd ")
    assert sorted(os.listdir(mounted.root / ".kvd")) == ["sessions", "stats", "version"]
    assert ".kvd" not in os.listdir(mounted.root)
    first = os.open(mounted.root / ".kvd/stats", os.O_RDONLY)
    whole = os.pread(first, MIB, 0)
    assert whole == b"".join(os.pread(first, 7, at) for at in range(0, len(whole), 7))
    os.close(first)


def test_the_virtual_files_stay_as_they_are(mounted, folder):
    own = mounted.root / ".kvd"
    (folder / "f").touch()
    file = own / "stats"
    refused = {
        "write": tried(os.open, file, os.O_WRONLY),
        "append": tried(os.open, file, os.O_RDWR | os.O_APPEND),
        "truncate": tried(os.truncate, file, 0),
        "create": tried(os.open, own / "new", os.O_CREAT | os.O_WRONLY),
        "tmpfile": tried(os.open, own, os.O_TMPFILE | os.O_WRONLY),
        "mkdir": tried(os.mkdir, own / "new"),
        "mknod": tried(os.mknod, own / "new"),
        "symlink": tried(os.symlink, "x", own / "new"),
        "unlink": tried(os.unlink, file),
        "rmdir": tried(os.rmdir, own),
        "rename it": tried(os.rename, own, mounted.root / "kvd"),
        "rename out": tried(os.rename, file, folder / "stats"),
        "rename over": tried(os.rename, folder / "f", file),
        "rename into": tried(os.rename, folder / "f", own / "f"),
        "link out": tried(os.link, file, folder / "stats"),
        "link in": tried(os.link, folder / "f", own / "f"),
        "chmod": tried(os.chmod, file, 0o777),
        "chown": tried(os.chown, own, 1, 1),
        "utime": tried(os.utime, file),
        "setxattr": tried(os.setxattr, file, "user.x", b"1"),
    }
    assert {what: how for what, how in refused.items() if how not in ("EPERM", "EACCES")} == {}
    assert tried(os.mkdir, own) == "EEXIST"
    assert tried(os.stat, own / "none") == "ENOENT"
    assert tried(os.listxattr, file) == []
    assert tried(os.getxattr, file, "user.kvd.tier") == "ENODATA"
    assert os.listdir(folder) == ["f"]
    json.loads(file.read_text())


def test_an_ioctl_is_not_for_files(folder):
    (folder / "f").write_bytes(b"x")
    for path in (folder / "f", folder):
        fd = os.open(path, os.O_RDONLY)
        assert tried(fcntl.ioctl, fd, 0x80086601, b"\0" * 8) == "ENOTTY"  # FS_IOC_GETFLAGS
        assert tried(fcntl.ioctl, fd, 0x5401, b"\0" * 64) == "ENOTTY"
        os.close(fd)


def test_no_byte_and_no_write_reaches_the_daemon_in_passthrough(mounted, folder):
    before = stats(mounted)["data_plane"]
    fd = os.open(folder / "f", os.O_RDWR | os.O_CREAT)
    in_between = stats(mounted)["data_plane"]
    for at in range(64):
        os.pwrite(fd, b"x" * 64 * 1024, at * 64 * 1024)
        os.pread(fd, 64 * 1024, at * 64 * 1024)
    after = stats(mounted)["data_plane"]
    os.close(fd)
    with open(folder / "f", "rb") as file:
        assert len(file.read()) == 4 * MIB
    last = stats(mounted)["data_plane"]
    # Reading .kvd/stats is done with READs that go to the daemon; objects' are counted apart from those.
    for count in ("reads", "writes", "read_bytes", "write_bytes"):
        moved = last[count] - before[count]
        assert (moved == 0) == mounted.passthrough, count
    if mounted.passthrough:
        # ... and what Python is asked for meanwhile is a handful of requests about .kvd/stats, not one a write.
        assert after["forwarded"] - in_between["forwarded"] < 16


def use(path, dice):
    flags = dice.choice((os.O_RDONLY, os.O_RDWR | os.O_CREAT, os.O_RDWR | os.O_CREAT | os.O_TRUNC, os.O_WRONLY))
    fd = os.open(path, flags, 0o644)
    try:
        if flags & os.O_ACCMODE:
            os.pwrite(fd, b"s" * dice.randrange(1, 100_000), dice.randrange(100_000))
        if flags & os.O_ACCMODE != os.O_WRONLY:
            os.pread(fd, 50_000, dice.randrange(100_000))
        if dice.randrange(20) == 0:
            os.fsync(fd)
    finally:
        os.close(fd)


ACTS = (
    *(lambda one, _, dice: use(one, dice),) * 3,
    lambda one, other, _: os.rename(one, other),
    lambda one, *_: os.unlink(one),
    lambda one, other, _: os.link(one, other),
    lambda one, _, dice: os.truncate(one, dice.randrange(200_000)),
    lambda one, *_: os.mkdir(one),
    lambda one, *_: os.rmdir(one),
    lambda one, *_: os.listdir(one.parent),
    lambda one, *_: os.setxattr(one, "user.storm", b"x"),
    lambda one, _, dice: os.chmod(one, dice.choice((0o600, 0o644))),
    lambda one, *_: os.stat(one),
    lambda one, *_: os.statvfs(one),
)
USUAL = {"ENOENT", "EEXIST", "ENOTDIR", "EISDIR", "ENOTEMPTY", "EINVAL", "ENOSPC", "EPERM"}
"""What may come of these by chance; EPERM is a hard link to a folder."""


def test_a_storm_of_everything_meets_no_bug(mounted, folder):
    names = [folder / f"{kind}{number}" for kind in "ab" for number in range(24)]
    strange = []
    end_s = time.monotonic() + STORM_S

    def life(seed):
        dice = random.Random(seed)
        while time.monotonic() < end_s and not strange:
            outcome = tried(dice.choice(ACTS), dice.choice(names), dice.choice(names), dice)
            if isinstance(outcome, str) and outcome not in USUAL:
                strange.append(outcome)

    threads = [threading.Thread(target=life, args=(seed,)) for seed in range(STORM_THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert strange == []
    assert mounted.kvd.status()["state"] == "ok"


def test_the_mount_refuses_what_it_does_not_know_and_goes_on(folder):
    code = (
        "fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)\n"
        "import select\np = select.poll(); p.register(fd, select.POLLIN | select.POLLOUT); assert p.poll(1000)\n"
        "print(tried(os.posix_fadvise, fd, 0, 0, os.POSIX_FADV_DONTNEED), tried(os.lseek, fd, 0, 7))"
    )
    assert child(code, folder / "f").stdout == "None EINVAL\n"
    (folder / "f").write_bytes(b"fine")


@pytest.mark.parametrize("count", [0, 1, 255, 256, 257, 513])
def test_a_folder_of_each_size_around_a_batch_lists_whole(folder, count):
    for number in range(count):
        (folder / f"{number}").mkdir()
    assert sorted(os.listdir(folder), key=int) == [str(number) for number in range(count)]
