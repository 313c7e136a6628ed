"""Extended attributes: the stored ones as on ext4, and those by which kvd tells and is steered."""

from __future__ import annotations

import os

import pytest

from support.posix import NOBODY, child, tried


@pytest.fixture
def file(folder):
    path = folder / "f"
    path.write_bytes(b"x" * 1000)
    return path


def kinds(d):
    (d / "file").write_bytes(b"x")
    (d / "folder").mkdir()
    os.mkfifo(d / "pipe")
    (d / "link").symlink_to("file")
    return [d / name for name in ("file", "folder", "pipe", "link")]


@pytest.mark.parametrize("space", ["user", "trusted", "security"])
def test_each_namespace_on_each_kind(same, space):
    def case(d):
        results = []
        for path in kinds(d):
            name = f"{space}.some"
            results += [
                tried(os.getxattr, path, name, follow_symlinks=False),
                tried(os.setxattr, path, name, b"replace", os.XATTR_REPLACE, follow_symlinks=False),
                tried(os.setxattr, path, name, b"first", os.XATTR_CREATE, follow_symlinks=False),
                tried(os.setxattr, path, name, b"second", os.XATTR_CREATE, follow_symlinks=False),
                tried(os.getxattr, path, name, follow_symlinks=False),
                tried(os.setxattr, path, name, b"third", os.XATTR_REPLACE, follow_symlinks=False),
                tried(os.setxattr, path, f"{name}.more", b"", follow_symlinks=False),
                tried(os.getxattr, path, f"{name}.more", follow_symlinks=False),
                tried(lambda path=path: sorted(os.listxattr(path, follow_symlinks=False))),
                tried(os.removexattr, path, name, follow_symlinks=False),
                tried(os.removexattr, path, name, follow_symlinks=False),
                tried(os.getxattr, path, name, follow_symlinks=False),
                tried(lambda path=path: sorted(os.listxattr(path, follow_symlinks=False))),
            ]
        return results

    same(case)


def test_odd_names_and_values(same):
    def case(d):
        (d / "f").touch()
        long = "user." + "n" * 250
        binary = bytes(range(256))
        return [
            tried(os.setxattr, d / "f", name, binary)
            for name in (long, long + "n", "user.", "user", "none.x", "", "system.x", "USER.x", "user.\udcff\u00e9", "user./x")
        ] + [
            tried(os.getxattr, d / "f", long) == binary,
            tried(os.getxattr, d / "f", "user.\udcff\u00e9") == binary,
            tried(os.setxattr, d / "f", "/user.x", b"1"),
            tried(os.setxattr, d / "f", "user.a", b"v" * 1_000_000),
            tried(os.setxattr, d / "f", "user.a", b"v" * 65537),
            sorted(os.listxattr(d / "f")) == sorted([long, "user.\udcff\u00e9", "user./x"]),
        ]  # fmt: skip

    same(case)


def test_the_names_between_split_and_daemon_are_not_for_clients(file):
    assert tried(os.setxattr, file, "/kvd.grow", b"x" * 32) == "ENOTSUP"
    assert tried(os.getxattr, file, "/kvd.grow") == "ENODATA"
    assert tried(os.removexattr, file, "/kvd.grow") == "ENODATA"


def test_values_up_to_what_linux_allows(folder):
    (folder / "f").touch()
    value = os.urandom(65536)
    os.setxattr(folder / "f", "user.large", value)
    assert os.getxattr(folder / "f", "user.large") == value
    code = (
        "import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\npath = os.fsencode(sys.argv[1])\n"
        "small = ctypes.create_string_buffer(10)\n"
        "assert libc.getxattr(path, b'user.large', None, 0) == 65536\n"
        "assert libc.getxattr(path, b'user.large', small, 10) == -1 and ctypes.get_errno() == 34\n"
        "assert libc.listxattr(path, None, 0) == 11\n"
        "assert libc.listxattr(path, small, 10) == -1 and ctypes.get_errno() == 34\n"
    )
    child(code, folder / "f")


def test_acls_are_refused(folder):
    acl = b"\2\0\0\0" + b"\1\0\6\0\xff\xff\xff\xff" + b"\4\0\4\0\xff\xff\xff\xff" + b"\x20\0\4\0\xff\xff\xff\xff"
    (folder / "f").touch()
    for name in ("system.posix_acl_access", "system.posix_acl_default"):
        for path in (folder, folder / "f"):
            assert tried(os.setxattr, path, name, acl) in ("ENOTSUP", "EACCES")  # EACCES: default ACL of a file
            assert tried(os.getxattr, path, name) in ("ENOTSUP", "ENODATA")
    assert tried(os.setxattr, folder / "f", "system.posix_acl_access", acl) == "ENOTSUP"
    assert oct(os.stat(folder / "f").st_mode) == oct(0o100644)


def test_file_capabilities_are_refused_on_a_mount_where_they_have_no_effect(folder):
    (folder / "f").touch()
    capability = bytes.fromhex("0100000200200000000000000000000000000000")
    assert tried(os.setxattr, folder / "f", "security.capability", capability) == "ENOTSUP"
    assert tried(os.getxattr, folder / "f", "security.capability") == "ENODATA"
    assert tried(os.removexattr, folder / "f", "security.capability") == "ENODATA"


def test_attributes_go_with_their_file(same):
    def case(d):
        (d / "f").touch()
        os.setxattr(d / "f", "user.a", b"1")
        os.link(d / "f", d / "g")
        os.rename(d / "f", d / "h")
        found = os.getxattr(d / "h", "user.a"), os.getxattr(d / "g", "user.a")
        os.unlink(d / "g")
        os.unlink(d / "h")
        (d / "h").touch()
        return found, os.listxattr(d / "h")

    same(case)


def test_kvd_tells_of_an_object(file, folder, mounted):
    def told(name):
        return os.getxattr(file, f"user.kvd.{name}")

    assert (told("tier"), told("state"), told("clean"), told("pin")) == (b"ddr", b"sealed", b"0", b"0")
    hits = int(told("hits"))
    file.read_bytes()
    assert int(told("hits")) == hits + 1
    fd = os.open(file, os.O_RDWR)
    assert told("state") == b"filling"
    os.write(fd, b"y")
    os.fsync(fd)
    os.close(fd)
    assert told("state") == b"sealed"
    mounted.kvd.kvctl("demote", str(file))
    assert (told("tier"), told("clean")) == (b"nvme", b"1")
    assert os.listxattr(file) == []
    for name in ("tier", "state", "hits", "clean", "pin"):
        assert tried(os.getxattr, folder, f"user.kvd.{name}") == "ENODATA"
    assert tried(os.getxattr, file, "user.kvd.other") == "ENODATA"


def test_only_the_pin_can_be_set(file, folder, mounted):
    for name in ("tier", "state", "hits", "clean"):
        assert tried(os.setxattr, file, f"user.kvd.{name}", b"1") == "EPERM"
        assert tried(os.removexattr, file, f"user.kvd.{name}") == "ENODATA"
    assert tried(os.setxattr, file, "user.kvd.other", b"1") == "ENOTSUP"
    assert tried(os.setxattr, folder, "user.kvd.pin", b"1") == "EPERM"
    for wrong in (b"", b"2", b"yes", b"1\n"):
        assert tried(os.setxattr, file, "user.kvd.pin", wrong) == "EINVAL"
    os.setxattr(file, "user.kvd.pin", b"1")
    assert os.getxattr(file, "user.kvd.pin") == b"1"
    assert mounted.kvd.kvctl("demote", str(file), check=False).returncode != 0
    assert os.getxattr(file, "user.kvd.tier") == b"ddr"
    os.removexattr(file, "user.kvd.pin")
    assert os.getxattr(file, "user.kvd.pin") == b"0"
    os.setxattr(file, "user.kvd.pin", b"1")
    os.setxattr(file, "user.kvd.pin", b"0")
    mounted.kvd.kvctl("demote", str(file))


def test_a_pin_is_for_those_who_may_write(file):
    code = (
        "print(tried(os.setxattr, sys.argv[1], 'user.kvd.pin', b'1'), tried(os.getxattr, sys.argv[1], 'user.kvd.tier'))"
    )
    assert child(code, file, uid=NOBODY).stdout == "EACCES b'ddr'\n"
