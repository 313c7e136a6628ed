"""Who may do what, owners, modes and times; each case does what it does on ext4."""

from __future__ import annotations

import os
import stat

import pytest

from support.posix import NOBODY, UTIME_NOW, UTIME_OMIT, child, tried, utimensat


def as_nobody(folder, code):
    """Run code as another user in `folder`; return what it puts into `out`."""
    text = (
        f"os.chdir(sys.argv[1])\nout = []\ndef t(f, *a, **k): out.append(tried(f, *a, **k))\n{code}\nprint(repr(out))"
    )
    return child(text, folder, uid=NOBODY).stdout


def modes(folder):
    return {p.name: (oct(p.lstat().st_mode), p.lstat().st_uid, p.lstat().st_gid) for p in sorted(folder.iterdir())}


def test_modes_bind_other_users(same):
    def case(d):
        d.chmod(0o755)
        for mode in (0o600, 0o604, 0o602, 0o606, 0o640):
            (d / f"f{mode:o}").write_bytes(b"x")
            (d / f"f{mode:o}").chmod(mode)
        for mode in (0o700, 0o704, 0o701, 0o705, 0o707):
            (d / f"d{mode:o}").mkdir()
            (d / f"d{mode:o}/in").write_bytes(b"x")
            (d / f"d{mode:o}").chmod(mode)
        code = (
            "for name in sorted(os.listdir('.')):\n"
            "  if name[0] == 'f':\n"
            "    for flags in (os.O_RDONLY, os.O_WRONLY, os.O_RDWR, os.O_RDONLY | os.O_TRUNC):\n"
            "      r = tried(os.open, name, flags)\n"
            "      out.append(r if isinstance(r, str) else 'opened')\n"
            "    t(os.truncate, name, 1); t(os.chmod, name, 0o666); t(os.utime, name); t(os.utime, name, ns=(1, 1))\n"
            "    t(os.chown, name, 65534, 65534); t(os.access, name, os.R_OK | os.W_OK); t(os.link, name, 'x')\n"
            "    t(os.setxattr, name, 'user.x', b'1'); t(os.getxattr, name, 'user.x'); t(os.unlink, name)\n"
            "  else:\n"
            "    t(os.listdir, name); t(os.path.getsize, name + '/in'); t(os.mkdir, name + '/new'); t(os.rmdir, name + '/new')\n"
            "    t(os.rename, name + '/in', name + '/moved'); t(os.rename, name + '/moved', name + '/in')\n"
            "    t(os.access, name, os.X_OK); t(os.rmdir, name); t(os.rename, name, 'y')\n"
        )
        return as_nobody(d, code), modes(d)

    same(case)


def test_the_umask_and_the_maker_count(same):
    def case(d):
        d.chmod(0o777)
        code = (
            "os.umask(0o027)\n"
            "os.close(os.open('file', os.O_CREAT | os.O_WRONLY, 0o7777)); os.mkdir('folder', 0o7777)\n"
            "os.mkfifo('pipe', 0o666); os.symlink('x', 'link')\n"
            "fd = os.open('readonly', os.O_CREAT | os.O_RDWR, 0o400); t(os.write, fd, b'made it')\n"
            "os.close(fd); t(os.open, 'readonly', os.O_WRONLY); t(os.open, 'none', os.O_CREAT | os.O_RDWR, 0)\n"
        )
        return as_nobody(d, code), modes(d)

    same(case)


def test_a_sticky_folder_keeps_names_for_their_owners(same):
    def case(d):
        d.chmod(0o1777)
        (d / "root").write_bytes(b"x")
        (d / "roots").mkdir()
        code = (
            "os.close(os.open('mine', os.O_CREAT | os.O_WRONLY)); os.mkdir('minefolder')\n"
            "t(os.unlink, 'root'); t(os.rmdir, 'roots'); t(os.rename, 'root', 'x'); t(os.rename, 'mine', 'root')\n"
            "t(os.rename, 'mine', 'mine2'); t(os.unlink, 'mine2'); t(os.rmdir, 'minefolder')\n"
        )
        return as_nobody(d, code), modes(d)

    same(case)


def test_a_setgid_folder_gives_its_group_on(same):
    def case(d):
        shared = d / "shared"
        shared.mkdir()
        os.chown(shared, 0, 1234)
        shared.chmod(0o2777)
        code = (
            "os.chdir('shared')\nos.mkdir('sub'); os.mkdir('sub/sub'); os.close(os.open('f', os.O_CREAT, 0o2775))\n"
            "os.close(os.open('g', os.O_CREAT, 0o2755)); os.mkfifo('p'); os.symlink('x', 'l')\n"
            "for n in ('sub', 'sub/sub', 'f', 'g', 'p', 'l'): s = os.lstat(n); out.append((oct(s.st_mode), s.st_gid))\n"
            "t(os.chmod, 'g', 0o2775); out.append(oct(os.stat('g').st_mode))\n"
        )
        return as_nobody(d, code), modes(shared)

    same(case)


@pytest.mark.parametrize("change", ["write", "truncate", "chown", "chgrp", "trunc-open", "append", "fallocate"])
def test_set_id_bits_go_when_others_change_the_file(same, change):
    def case(d):
        d.chmod(0o777)
        results = []
        for mode in (0o6777, 0o4777, 0o2777, 0o4767):  # setgid without group execution means nothing, and FUSE keeps it
            (d / "f").write_bytes(b"x" * 10)
            os.chown(d / "f", NOBODY if change.startswith("ch") else 0, NOBODY if change == "chgrp" else 0)
            (d / "f").chmod(mode)
            code = {
                "write": "fd = os.open('f', os.O_RDWR); t(os.write, fd, b'y')",
                "append": "fd = os.open('f', os.O_WRONLY | os.O_APPEND); t(os.write, fd, b'y'); t(os.write, fd, b'z')",
                "truncate": "t(os.truncate, 'f', 3)",
                "chown": "t(os.chown, 'f', 65534, 65534)",
                "chgrp": "t(os.chown, 'f', -1, 65534)",
                "trunc-open": "fd = os.open('f', os.O_WRONLY | os.O_TRUNC)",
                "fallocate": "fd = os.open('f', os.O_RDWR); t(fallocate, fd, 0, 0, 99)",
            }[change]
            results.append((oct(mode), as_nobody(d, code), oct(os.stat(d / "f").st_mode)))
            os.unlink(d / "f")
        return results

    same(case)


def test_set_id_bits_go_with_an_open_where_the_kernel_would_not_see_the_write(folder):
    folder.chmod(0o777)
    (folder / "f").write_bytes(b"x")
    (folder / "f").chmod(0o6777)
    as_nobody(folder, "os.close(os.open('f', os.O_RDONLY))")
    assert oct(os.stat(folder / "f").st_mode) == "0o106777"
    as_nobody(folder, "os.close(os.open('f', os.O_RDWR))")
    # What is small is written through kvd, also where larger objects are passed through.
    assert oct(os.stat(folder / "f").st_mode) == "0o100777"


def test_set_id_bits_stay_when_root_writes(same):
    def case(d):
        (d / "f").write_bytes(b"x")
        (d / "f").chmod(0o6777)
        with open(d / "f", "r+b") as file:
            file.write(b"y")
        os.truncate(d / "f", 0)
        after_write = oct(os.stat(d / "f").st_mode)
        os.chown(d / "f", 5, 6)
        return after_write, oct(os.stat(d / "f").st_mode)

    same(case)


def test_owners_and_modes_change(same):
    def case(d):
        (d / "f").touch()
        (d / "folder").mkdir()
        (d / "link").symlink_to("f")
        os.chown(d / "f", 1, 2)
        os.chown(d / "folder", 3, -1)
        os.lchown(d / "link", 4, 5)
        os.chown(d / "link", -1, 7)
        for mode in (0, 0o7777, 0o640):
            os.chmod(d / "f", mode)
            os.chmod(d / "folder", mode)
        before = os.stat(d / "f")
        os.chmod(d / "f", 0o641)
        after = os.stat(d / "f")
        changed = after.st_ctime_ns > before.st_ctime_ns, after.st_mtime_ns == before.st_mtime_ns
        os.chown(d / "f", 4294967294, 4294967294)
        return changed, modes(d), tried(os.chown, d / "none", 1, 1)

    same(case)


TIMES = [(0, 0), (1, 999_999_999), (1_700_000_000, 123_456_789), (-1, 5), (-(1 << 31) + 5, 0), (9_000_000_000, 1)]


@pytest.mark.parametrize("kind", ["file", "folder", "link", "open"])
def test_times_to_the_nanosecond(same, kind):
    def case(d):
        path = d / "x"
        fd = None
        if kind == "folder":
            path.mkdir()
        elif kind == "link":
            path.symlink_to("nowhere")
        else:
            path.write_bytes(b"x")
        if kind == "open":
            fd = os.open(path, os.O_RDWR)
            os.write(fd, b"yy")
        found = []
        for seconds, ns in TIMES:
            times = seconds * 10**9 + ns, seconds * 10**9 + ns + 7
            os.utime(path, ns=times, follow_symlinks=False)
            info = path.lstat()
            found.append((info.st_atime_ns, info.st_mtime_ns))
        if fd is not None:
            os.close(fd)
            found.append(os.stat(path).st_mtime_ns)
        return found

    same(case)


def test_omitting_a_time_and_setting_it_to_now(same):
    def case(d):
        (d / "f").touch()
        os.utime(d / "f", ns=(111, 222))
        utimensat(d / "f", (0, UTIME_OMIT), (5, 6))
        one = os.stat(d / "f")
        utimensat(d / "f", (7, 8), (0, UTIME_OMIT))
        two = os.stat(d / "f")
        utimensat(d / "f", (0, UTIME_OMIT), (0, UTIME_OMIT))
        three = os.stat(d / "f")
        utimensat(d / "f", (0, UTIME_NOW), (0, UTIME_NOW))
        four = os.stat(d / "f")
        return (
            [(s.st_atime_ns, s.st_mtime_ns) for s in (one, two, three)],
            three.st_ctime_ns == two.st_ctime_ns,
            four.st_mtime_ns >= three.st_ctime_ns - 10**8,  # of a clock that ticks a hundred times a second
            abs(four.st_atime_ns - four.st_mtime_ns) < 10**9,
        )

    same(case)


@pytest.mark.parametrize("demoted", [False, True])
def test_a_set_time_outlasts_an_open_that_writes_nothing(same, mounted, demoted):
    def case(d):
        (d / "f").write_bytes(b"x" * 5000)
        os.utime(d / "f", ns=(10**18, 10**18 + 1))
        if demoted and d.is_relative_to(mounted.root):
            mounted.kvd.kvctl("demote", str(d / "f"))
        fd = os.open(d / "f", os.O_RDWR)
        during = os.fstat(fd).st_mtime_ns
        os.close(fd)
        after = os.stat(d / "f").st_mtime_ns
        with open(d / "f", "r+b") as file:
            file.write(b"y")
        return during, after, os.stat(d / "f").st_mtime_ns > 10**18 + 1

    same(case)


def test_what_changes_a_file_or_folder_moves_its_times(same):
    def case(d):
        (d / "sub").mkdir()
        old = 10**18
        results = []

        def stamp(change, *names):
            for name in ("f", "sub", "."):
                if (d / name).exists():
                    os.utime(d / name, ns=(old, old))
            before = {name: os.stat(d / name).st_ctime_ns for name in names if (d / name).exists()}
            change()
            after = {name: os.stat(d / name) for name in names if (d / name).exists()}
            results.append(
                [(n, i.st_mtime_ns > old, i.st_ctime_ns > before.get(n, 0)) for n, i in after.items() if n in before]
            )

        stamp((d / "f").touch, ".", "sub")
        stamp(lambda: (d / "f").write_bytes(b"x"), ".", "f")
        stamp(lambda: os.chmod(d / "f", 0o600), ".", "f")
        stamp(lambda: os.link(d / "f", d / "sub/g"), ".", "f", "sub")
        stamp(lambda: os.rename(d / "f", d / "f2"), ".", "sub", "f2")
        stamp(lambda: os.rename(d / "f2", d / "f"), ".", "f")
        stamp(lambda: os.setxattr(d / "f", "user.a", b"1"), ".", "f")
        stamp(lambda: os.unlink(d / "sub/g"), ".", "f", "sub")
        stamp(lambda: os.rename(d / "sub", d / "sub2"), ".")
        return results

    same(case)


def test_writing_moves_the_time_at_once(folder):
    fd = os.open(folder / "f", os.O_RDWR | os.O_CREAT)
    os.write(fd, b"1")
    os.utime(fd, ns=(0, 0))
    os.write(fd, b"2")
    while_open = os.stat(folder / "f").st_mtime_ns
    os.close(fd)
    assert while_open > 0
    assert os.stat(folder / "f").st_mtime_ns == while_open
    assert stat.S_ISREG(os.stat(folder / "f").st_mode)


@pytest.mark.parametrize(("seconds", "kept"), [(15_000_000_000, (1 << 63) - 1), (-15_000_000_000, -(1 << 63))])
def test_times_that_the_catalogue_cannot_hold_become_the_last_that_it_can(folder, seconds, kept):
    (folder / "f").touch()
    os.utime(folder / "f", (seconds, seconds))
    assert (os.stat(folder / "f").st_atime_ns, os.stat(folder / "f").st_mtime_ns) == (kept, kept)
