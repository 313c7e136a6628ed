"""Names: renaming, links, symlinks, what is no file, long and strange names, deep and wide folders."""

from __future__ import annotations

import errno
import itertools
import os
import socket
import stat
import threading
from pathlib import Path

import pytest

from support.posix import RENAME_EXCHANGE, RENAME_NOREPLACE, RENAME_WHITEOUT, child, rename2, tried

KINDS = ("none", "file", "link", "empty", "full", "symlink", "fifo")
MODES = (0, RENAME_NOREPLACE, RENAME_EXCHANGE, RENAME_NOREPLACE | RENAME_EXCHANGE, RENAME_WHITEOUT | RENAME_EXCHANGE)


def make(path, kind):
    match kind:
        case "file":
            path.write_bytes(b"content of " + path.name.encode())
        case "link":
            (path.parent / "shared").touch()
            os.link(path.parent / "shared", path)
        case "empty" | "full":
            path.mkdir()
            if kind == "full":
                (path / "inside").write_bytes(b"in")
        case "symlink":
            path.symlink_to("shared")
        case "fifo":
            os.mkfifo(path)


def tree(folder):
    """Return everything below a folder with kind, links and content."""
    found = {}
    for at, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = os.path.join(at, name)
            info = os.lstat(path)
            content = Path(path).read_bytes() if stat.S_ISREG(info.st_mode) else None
            links = info.st_nlink if not stat.S_ISDIR(info.st_mode) else count_links(path)
            found[os.path.relpath(path, folder)] = stat.S_IFMT(info.st_mode), links, content
    return found


def count_links(path):
    """Return a folder's link count; it must be what its folders make it."""
    folders = sum(entry.is_dir(follow_symlinks=False) for entry in os.scandir(path))
    assert os.stat(path).st_nlink == 2 + folders
    return 2 + folders


@pytest.mark.parametrize("flags", MODES)
def test_renaming_everything_onto_everything(same, flags):
    def case(d):
        results = {}
        for across, (source, goal) in itertools.product((False, True), itertools.product(KINDS, KINDS)):
            here = d / f"{source}-{goal}-{across}"
            there = here / "other" if across else here
            there.mkdir(parents=True)
            make(here / "old", source)
            make(there / "new", goal)
            outcome = tried(rename2, here / "old", there / "new", flags)
            results[source, goal, across] = outcome, tree(here), count_links(here)
        return results

    same(case)


def test_renaming_oddly(same):
    def case(d):
        (d / "a/b/c").mkdir(parents=True)
        (d / "f").write_bytes(b"f")
        os.link(d / "f", d / "g")
        return (
            tried(os.rename, d / "a", d / "a/b/x"),
            tried(os.rename, d / "a", d / "a/x"),
            tried(os.rename, d / "a", d / "a"),
            tried(rename2, d / "a", d / "a/b/c", RENAME_EXCHANGE),
            tried(rename2, d / "a/b/c", d / "a", RENAME_EXCHANGE),
            tried(os.rename, d / "a/b/c", d / "a"),
            tried(os.rename, d / "f", d / "g"),  # one file: both names stay
            tried(os.rename, d / "f", d / "f"),
            tried(os.rename, d / "f", d / "f/x"),
            tried(os.rename, d / "f", d / "none/x"),
            tried(os.rename, d / "f", f"{d}/x/"),
            tried(os.rename, d / "a/.", d / "x"),
            tried(os.rename, d / "a/b/..", d / "x"),
            tried(os.rename, d / "f", d / ("n" * 256)),
            tree(d),
        )

    same(case)


def test_an_open_file_is_itself_under_each_name(same):
    def case(d):
        fd = os.open(d / "a", os.O_RDWR | os.O_CREAT)
        os.write(fd, b"one")
        os.rename(d / "a", d / "b")
        os.write(fd, b"two")
        (d / "c").write_bytes(b"gone")
        lost = os.open(d / "c", os.O_RDWR)
        os.rename(d / "b", d / "c")
        os.write(fd, b"three")
        results = os.pread(lost, 9, 0), os.fstat(lost).st_nlink, os.pread(fd, 99, 0), (d / "c").read_bytes()
        results += os.write(lost, b"still writes"), os.fstat(lost).st_size
        os.close(fd)
        os.close(lost)
        return results, tree(d)

    same(case)


def test_hard_links(same):
    def case(d):
        (d / "a").write_bytes(b"a")
        (d / "folder").mkdir()
        (d / "to").symlink_to("a")
        os.link(d / "a", d / "folder/b")
        os.link(d / "to", d / "to2", follow_symlinks=False)
        refused = (
            tried(os.link, d / "folder", d / "x"),
            tried(os.link, d / "a", d / "folder/b"),
            tried(os.link, d / "none", d / "x"),
            tried(os.link, d / "a", d / "none/x"),
            tried(os.link, d / "a", "/dev/shm/x"),
        )
        with open(d / "folder/b", "ab") as file:
            file.write(b"b")
        counts = [os.lstat(d / name).st_nlink for name in ("a", "folder/b", "to", "to2")]
        os.rename(d / "folder/b", d / "c")
        counts.append(os.stat(d / "a").st_nlink)
        os.unlink(d / "a")
        counts.append(os.stat(d / "c").st_nlink)
        (d / "z").write_bytes(b"z")
        os.rename(d / "z", d / "c")
        return refused, counts, os.path.samefile(d / "to", d / "to") if (d / "a").exists() else None, tree(d)

    same(case)


def test_removed_and_open_it_lives_on(same):
    def case(d):
        fd = os.open(d / "a", os.O_RDWR | os.O_CREAT)
        os.write(fd, b"x" * 100_000)
        os.unlink(d / "a")
        results = [os.fstat(fd).st_nlink, tried(os.stat, d / "a"), os.pread(fd, 2, 99_998)]
        os.pwrite(fd, b"y" * 100_000, 100_000)
        os.ftruncate(fd, 150_000)
        os.fchmod(fd, 0o604)
        os.utime(fd, ns=(5, 6))
        (d / "a").write_bytes(b"another")
        info = os.fstat(fd)
        results += [info.st_size, oct(info.st_mode), info.st_mtime_ns, os.pread(fd, 1, 149_999), tried(os.fsync, fd)]
        proc = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY)
        results.append(os.pread(proc, 3, 99_999))
        os.close(fd)
        results.append(os.pread(proc, 3, 99_999))
        os.close(proc)
        return results, (d / "a").read_bytes()

    same(case)


def test_removed_folders_take_nothing_new(same):
    def case(d):
        (d / "sub").mkdir()
        fd = os.open(d / "sub", os.O_RDONLY)
        results = [tried(os.unlink, d / "sub"), tried(os.rmdir, d / "sub"), os.listdir(fd), os.fstat(fd).st_nlink]
        making = (
            lambda: os.open("x", os.O_CREAT | os.O_WRONLY, dir_fd=fd),
            lambda: os.mkdir("x", dir_fd=fd),
            lambda: os.symlink("t", "x", dir_fd=fd),
            lambda: os.mknod("x", dir_fd=fd),
            lambda: os.stat("x", dir_fd=fd),
        )
        results += [tried(make_one) for make_one in making]
        os.close(fd)
        (d / "f").touch()
        results += [tried(os.rmdir, d / "f"), tried(os.rmdir, d / "none"), tried(os.rmdir, d / "f/x")]
        return results

    same(case)


def test_symlinks(same):
    def case(d):
        long = "x/" * 2000 + "y"
        targets = {"long": long, "dangling": "none", "loop1": "loop2", "loop2": "loop1", "up": "..", "abs": "/"}
        for name, target in targets.items():
            os.symlink(target, d / name)
        (d / "real").mkdir()
        (d / "dir").symlink_to("real")
        (d / "dir/f").write_bytes(b"f")
        chain = [(d / f"chain{n}").symlink_to(f"chain{n + 1}" if n < 45 else "real") for n in range(46)]
        return (
            [os.readlink(d / name) == target for name, target in targets.items()],
            [os.lstat(d / name).st_size for name in targets],
            [oct(os.lstat(d / name).st_mode) for name in targets],
            [tried(lambda name=name: stat.S_IFMT(os.stat(d / name).st_mode)) for name in targets],
            tried(os.open, d / "loop1", os.O_RDONLY),
            tried(os.readlink, d / "real"),
            (d / "dir/../real/f").read_bytes(),
            tried(lambda: len(os.listdir(d / "chain10"))),
            tried(os.listdir, d / "chain0"),
            tried(os.symlink, "", d / "empty"),
            tried(os.symlink, "z" * 5000, d / "toolong"),
            tried(os.symlink, "z" * 4095, d / "longest"),
            tried(os.symlink, "a", d / "up"),
            tried(os.open, d / "dir", os.O_RDONLY | os.O_NOFOLLOW),
            len(chain),
        )

    same(case)


def test_pipes_sockets_and_devices(same):
    def case(d):
        os.mkfifo(d / "pipe", 0o604)
        os.mknod(d / "null", 0o600 | stat.S_IFCHR, os.makedev(1, 3))
        os.mknod(d / "disk", 0o600 | stat.S_IFBLK, os.makedev(7, 77))
        os.mknod(d / "file", 0o640 | stat.S_IFREG)
        with socket.socket(socket.AF_UNIX) as listener:
            os.chdir(d)  # a socket's path has 107 bytes at most
            listener.bind("socket")
            listener.listen()
            with socket.socket(socket.AF_UNIX) as client:
                client.connect("socket")
            os.chdir("/")
        reader = os.open(d / "pipe", os.O_RDONLY | os.O_NONBLOCK)
        writer = os.open(d / "pipe", os.O_WRONLY)
        os.write(writer, b"through")
        got = os.read(reader, 10)
        os.close(reader)
        os.close(writer)
        (d / "file").write_bytes(b"regular")
        infos = [(name, os.lstat(d / name)) for name in ("pipe", "null", "disk", "socket", "file")]
        return got, [(name, oct(i.st_mode & ~0o777), i.st_rdev, i.st_nlink, i.st_size) for name, i in infos]

    same(case)


def test_names_of_every_length_and_byte(same):
    def case(d):
        root = os.fsencode(d)
        for length in (1, 254, 255):
            os.mkdir(root + b"/" + b"n" * length)
        odd = [bytes([value]) * 3 for value in range(1, 256) if value not in (0x2E, 0x2F)]
        odd += ["é".encode(), b"\xff\xfe", b"...", b" ", b"new\nline", b"\xed\xa0\x80", "日本".encode() * 40]
        for name in odd:
            with open(root + b"/" + name, "wb") as file:
                file.write(name)
        listed = sorted(os.listdir(root))
        read = all(Path(os.fsdecode(root + b"/" + name)).read_bytes() == name for name in odd)
        too_long = [tried(os.mkdir, root + b"/" + b"n" * length) for length in (256, 300, 1000, 1025, 4000)]
        too_long.append(tried(os.stat, root + b"/" + b"n" * 256))
        too_long.append(tried(os.rename, root + b"/n", root + b"/" + b"n" * 256))
        too_long.append(tried(os.link, root + b"/...", root + b"/" + b"n" * 256))
        too_long.append(tried(os.symlink, b"t", root + b"/" + b"n" * 256))
        too_long.append(tried(os.unlink, root + b"/" + b"n" * 256))
        return listed, read, too_long

    same(case)


def test_a_hundred_levels(same):
    def case(d):
        at = d
        for level in range(100):
            at = at / f"level{level:03}-with-a-longer-name"
            at.mkdir()
        (at / "bottom").write_bytes(b"deep")
        moved = d / "moved"
        os.rename(d / "level000-with-a-longer-name/level001-with-a-longer-name", moved)
        refused = tried(os.rename, moved, moved / "level002-with-a-longer-name/level003-with-a-longer-name/x")
        files = [os.path.relpath(os.path.join(p, f), d) for p, _, names in os.walk(d) for f in names]
        return refused, files, len(list(os.walk(d)))

    same(case)


def test_each_lasting_name_is_listed_once_whatever_comes_and_goes(folder):
    lasting = {f"stays{n:05}" for n in range(3000)}
    for name in sorted(lasting):
        (folder / name).mkdir()
    stop = threading.Event()
    failures = []

    def churn(worker):
        for round_ in itertools.count():
            if stop.is_set():
                return
            try:
                name = folder / f"goes{worker}-{round_}"
                name.touch()
                os.rename(name, folder / f"went{worker}-{round_}")
                os.unlink(folder / f"went{worker}-{round_}")
            except OSError as error:
                failures.append(error)
                return

    workers = [threading.Thread(target=churn, args=(n,)) for n in range(3)]
    for worker in workers:
        worker.start()
    try:
        for _ in range(4):
            listed = [name for name in os.listdir(folder) if name.startswith("stays")]
            assert len(listed) == len(set(listed))
            assert set(listed) == lasting
    finally:
        stop.set()
        for worker in workers:
            worker.join()
    assert failures == []
    assert set(os.listdir(folder)) == lasting


def test_a_listing_goes_on_where_it_was_told(folder):
    for number in range(600):
        (folder / f"{number}").touch()
    code = (
        "import ctypes\n"
        "libc = ctypes.CDLL(None); libc.opendir.restype = libc.readdir.restype = ctypes.c_void_p\n"
        "libc.telldir.restype = ctypes.c_long\n"
        "d = ctypes.c_void_p(libc.opendir(os.fsencode(sys.argv[1])))\n"
        "def names():\n"
        "    found = []\n"
        "    while entry := libc.readdir(d): found.append((ctypes.string_at(entry + 19), libc.telldir(d)))\n"
        "    return found\n"
        "whole = names()\n"
        "assert [n for n, _ in whole][:2] == [b'.', b'..'], whole[:3]\n"
        "assert len(whole) == 602 == len(set(n for n, _ in whole)) == len(set(c for _, c in whole))\n"
        "for at in (0, 1, 2, 300, 500, 601):\n"
        "    libc.seekdir(d, ctypes.c_long(whole[at][1]))\n"
        "    assert names() == whole[at + 1:], at\n"
        "libc.rewinddir(d)\n"
        "os.unlink(sys.argv[1] + '/100'); os.mkdir(sys.argv[1] + '/new')\n"
        "libc.rewinddir(d)\n"
        "assert {n for n, _ in names()} == {n for n, _ in whole} - {b'100'} | {b'new'}"
    )
    child(code, folder)


def test_dot_and_dot_dot_are_this_and_the_parent(folder):
    (folder / "sub/sub").mkdir(parents=True)
    fd = os.open(folder / "sub/sub", os.O_RDONLY)
    assert os.stat(".", dir_fd=fd).st_ino == os.fstat(fd).st_ino == os.stat(folder / "sub/sub").st_ino
    assert os.stat("..", dir_fd=fd).st_ino == os.stat(folder / "sub").st_ino
    os.rename(folder / "sub/sub", folder / "moved")
    assert os.stat("..", dir_fd=fd).st_ino == os.stat(folder).st_ino
    os.close(fd)


def test_too_many_links_is_said(folder, mounted):
    assert errno.EMLINK  # ext4's limit is the catalogue's; its test is tests/t1_core/test_catalog.py
    (folder / "a").touch()
    for number in range(300):
        os.link(folder / "a", folder / f"{number}")
    assert os.stat(folder / "a").st_nlink == 301
