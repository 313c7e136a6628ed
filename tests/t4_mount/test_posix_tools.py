"""Programs that people use, inside the mount, and the ways of copying that the kernel offers."""

from __future__ import annotations

import hashlib
import os
import shutil
import sqlite3
import subprocess
import sys

import pytest

from support.posix import syncfs, tried

TOOL_S = 100


def sh(script, cwd, **environ):
    done = subprocess.run(
        ["sh", "-euc", script],
        cwd=cwd,
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        timeout=TOOL_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def source(plain):
    """Return a folder with one of everything."""
    (plain / "a/b/c").mkdir(parents=True)
    for number in range(30):
        (plain / f"a/f{number}").write_bytes(os.urandom(number * 3777))
    (plain / "a/b/empty").touch()
    os.link(plain / "a/f3", plain / "a/b/hard")
    (plain / "a/b/soft").symlink_to("../f4")
    os.mkfifo(plain / "a/pipe")
    with open(plain / "a/sparse", "wb") as file:
        file.seek(10_000_000)
        file.write(b"end")
    os.setxattr(plain / "a/f5", "user.note", b"kept")
    (plain / "a/f6").chmod(0o640)
    os.chown(plain / "a/f7", 12, 34)
    for path in (plain / "a").rglob("*"):
        os.utime(path, ns=(10**18 + 1, 10**18 + 3), follow_symlinks=False)
    return plain / "a"


def listing(folder):
    """Return all that a copy should keep."""
    found = {}
    for path in sorted(folder.rglob("*")):
        info = path.lstat()
        content = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None
        mtime_ns = None if path.is_dir() else info.st_mtime_ns
        links = None if path.is_dir() else info.st_nlink
        target = os.readlink(path) if path.is_symlink() else None
        name = str(path.relative_to(folder))
        found[name] = (oct(info.st_mode), info.st_uid, info.st_gid, links, content, mtime_ns, target)
    return found


def test_cp_keeps_everything_there_and_back(source, folder, plain):
    sh(f"cp -a {source} there && cp -a there {plain}/back", folder)
    assert listing(folder / "there") == listing(source) == listing(plain / "back")
    assert os.getxattr(folder / "there/f5", "user.note") == b"kept"
    assert os.stat(folder / "there/sparse").st_blocks * 512 < 1 << 20
    assert sh(f"diff -r --no-dereference -x pipe {source} there", folder) == ""


def test_tar_in_and_out(source, folder, plain):
    sh(
        f"tar -C {source}/.. --xattrs -cf in.tar a && tar --xattrs -xpf in.tar && tar --xattrs -cf {plain}/out.tar a",
        folder,
    )
    sh("mkdir out && tar --xattrs -C out -xpf out.tar", plain)
    assert listing(folder / "a") == listing(source) == listing(plain / "out/a")


def test_find_du_and_rm(source, folder):
    sh(f"cp -a {source} there", folder)
    assert sh("find there -type f | wc -l", folder) == sh(f"find {source} -type f | wc -l", folder)
    assert sh("find there -name 'f1*' -size +10k | sort", folder).startswith("there/f1")
    assert sh("find there -links 2 -type f | sort", folder) == "there/b/hard\nthere/f3\n"
    assert int(sh("du -s --apparent-size -B1 there", folder).split()[0]) > 10_000_000
    assert int(sh("du -s -B1 there", folder).split()[0]) < 4_000_000
    sh("rm -rf there", folder)
    assert os.listdir(folder) == []


def test_df_shows_the_mount(folder, mounted):
    line = sh("df --output=target,itotal,size -B1 .", folder).splitlines()[1].split()
    numbers = os.statvfs(folder)
    assert line == [str(mounted.root), str(numbers.f_files), str(numbers.f_blocks * numbers.f_frsize)]


def test_git(folder, plain):
    script = (
        "git init -q -b main repo && cd repo && for i in 1 2 3 4 5; do mkdir d$i; seq 1 2000 > d$i/f; git add .;"
        " git commit -qm c$i; done && git mv d1/f d1/g && git commit -qam moved && git gc -q && git fsck --strict"
        " && git clone -q . ../clone && cd ../clone && git log --oneline | wc -l && git status --porcelain | wc -l"
    )
    environ = {"HOME": str(plain), "GIT_CONFIG_NOSYSTEM": "1"}
    for who in ("AUTHOR", "COMMITTER"):
        environ |= {f"GIT_{who}_NAME": "n", f"GIT_{who}_EMAIL": "n@example.org"}
    assert sh(script, folder, **environ).split()[-2:] == ["6", "0"]


SQLITE = """
import sqlite3, sys
db = sqlite3.connect(sys.argv[1], timeout=30, isolation_level=None)
db.execute('CREATE TABLE IF NOT EXISTS t(k INTEGER PRIMARY KEY, v)')
for n in range(100):
    db.execute('BEGIN IMMEDIATE')
    db.executemany('INSERT INTO t(v) VALUES(?)', [(f'{sys.argv[2]} {n} {m}',) for m in range(10)])
    db.execute('COMMIT')
db.close()
"""


def test_sqlite_with_a_write_ahead_log_and_two_writers(folder, mounted):
    db = sqlite3.connect(folder / "db")
    assert db.execute("PRAGMA journal_mode=wal").fetchone() == (
        "wal",
    )  # does not wait for locks, so before the writers
    db.close()
    writers = [subprocess.Popen([sys.executable, "-c", SQLITE, folder / "db", name]) for name in "ab"]
    assert [writer.wait(TOOL_S) for writer in writers] == [0, 0]
    mounted.kvd.kvctl("sync", str(folder))
    db = sqlite3.connect(folder / "db")
    assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    assert db.execute("SELECT count(*), count(DISTINCT v) FROM t").fetchone() == (2000, 2000)
    db.close()


def test_a_program_runs_from_the_mount(folder):
    shutil.copy("/bin/true", folder / "true")
    assert subprocess.run([folder / "true"], check=False, timeout=10).returncode == 0
    with pytest.raises(OSError, match="Text file busy"):
        sh_busy(folder)


def sh_busy(folder):
    shutil.copy("/bin/sleep", folder / "sleep")
    running = subprocess.Popen([folder / "sleep", "100"])
    try:
        os.close(os.open(folder / "sleep", os.O_WRONLY))
    finally:
        running.kill()
        running.wait()


COPIES = {
    "copy_file_range": lambda source, goal, count: os.copy_file_range(source, goal, count, 5, 7),
    "sendfile": lambda source, goal, count: os.sendfile(goal, source, 5, count),
}


@pytest.mark.parametrize("way", COPIES)
@pytest.mark.parametrize("direction", ["in", "out", "within"])
def test_the_kernel_copies(folder, plain, way, direction):
    if way == "copy_file_range" and direction != "within":
        source = folder / "f"
        source.write_bytes(b"x")
        with open(source, "rb") as one, open(plain / "f", "wb") as other:
            assert tried(os.copy_file_range, one.fileno(), other.fileno(), 1) == "EXDEV"  # the VFS says so
        return
    here, there = {"in": (plain, folder), "out": (folder, plain), "within": (folder, folder)}[direction]
    data = os.urandom(300_000)
    (here / "source").write_bytes(data)
    source, goal = os.open(here / "source", os.O_RDONLY), os.open(there / "goal", os.O_RDWR | os.O_CREAT)
    os.lseek(goal, 7, os.SEEK_SET)
    copied = COPIES[way](source, goal, 250_000)
    assert 0 < copied <= 250_000
    assert os.pread(goal, 400_000, 0) == bytes(7) + data[5 : 5 + copied]
    assert tried(os.copy_file_range, goal, source, 10) == "EBADF"
    os.close(source)
    os.close(goal)


def test_splice_to_and_from_a_pipe(folder):
    (folder / "source").write_bytes(b"s" * 60_000)
    source, goal = os.open(folder / "source", os.O_RDONLY), os.open(folder / "goal", os.O_WRONLY | os.O_CREAT)
    out, into = os.pipe()
    moved = os.splice(source, into, 60_000)
    assert os.splice(out, goal, moved) == moved > 0
    for fd in (source, goal, out, into):
        os.close(fd)
    assert (folder / "goal").read_bytes() == b"s" * moved


def test_every_kind_of_sync(folder):
    fd = os.open(folder / "f", os.O_RDWR | os.O_CREAT)
    os.write(fd, b"x" * 10_000)
    os.fsync(fd)
    assert os.getxattr(folder / "f", "user.kvd.clean") == b"0"  # it may still be written
    os.write(fd, b"y")
    os.fdatasync(fd)
    syncfs(fd)
    os.close(fd)
    fd = os.open(folder / "f", os.O_RDONLY)
    os.fsync(fd)
    assert os.getxattr(folder / "f", "user.kvd.clean") == b"1"
    os.close(fd)
    fd = os.open(folder, os.O_RDONLY)
    os.fsync(fd)
    os.fdatasync(fd)
    syncfs(fd)
    os.close(fd)
    os.mkfifo(folder / "pipe")
    assert (folder / "f").read_bytes() == b"x" * 10_000 + b"y"
