"""Mounting on this machine; needs root and /dev/fuse."""

from __future__ import annotations

import errno
import os
import subprocess
import sys

import pytest

from kvd import config, mount, mountinfo
from kvd.config_memory import Memory
from kvd.errors import ConfigError
from kvd.mount_system import MNT_DETACH, MS_NODEV, System
from support.needs import need_fuse, need_root, need_tool

MIB = 2**20


class Unprivileged(System):
    """The same machine for a process that may not mount."""

    def is_admin(self) -> bool:
        return False


@pytest.fixture
def place(scratch):
    """A configuration in `scratch`; whatever is mounted there is detached before the directory is removed."""
    need_fuse(root=True)
    for name in ("mnt", "ddr", "state,x"):
        (scratch / name).mkdir()
    text = f'[daemon]\nmount = "{scratch}/mnt"\nstate = "{scratch}/state,x"\n[ddr]\npath = "{scratch}/ddr"\n'
    yield config.parse(text, Memory(total_bytes=2**34))
    for entry in reversed(mountinfo.read()):
        if entry.mount_point.is_relative_to(scratch):
            System().umount(entry.mount_point, MNT_DETACH)


def stack(config_):
    return mountinfo.stack_at(mountinfo.read(), config_.daemon.mount)


def test_mount_die_detach(place):
    system = System()
    for _ in range(2):
        mounted = mount.mount_fuse(system, place)
        assert mounted.features_off == ()
        assert not os.get_inheritable(mounted.fd)
        os.close(mounted.fd)
    dead = stack(place)
    assert len(dead) == 2
    assert all(mountinfo.is_ours(entry, place.daemon.state) for entry in dead)
    assert {"nosuid", "nodev"} <= set(dead[0].options)
    assert {"default_permissions", "allow_other"} <= set(dead[0].super_options)
    with pytest.raises(OSError, match="not connected") as caught:
        place.daemon.mount.stat()
    assert caught.value.errno == errno.ENOTCONN
    assert mount.detach_dead(system, place) == 2
    assert stack(place) == ()
    assert list(place.daemon.mount.iterdir()) == []


def test_foreign_mount_stays(place):
    system = System()
    system.mount("somebody", place.daemon.mount, "tmpfs", MS_NODEV, "size=4096")
    with pytest.raises(ConfigError, match="tmpfs 'somebody'"):
        mount.detach_dead(system, place)
    assert [entry.source for entry in stack(place)] == ["somebody"]


def test_the_helper_sends_the_descriptor(place):
    need_tool("fusermount3")
    system = Unprivileged()
    mounted = mount.mount_fuse(system, place)
    assert not os.get_inheritable(mounted.fd)
    assert os.readlink(f"/proc/self/fd/{mounted.fd}") == "/dev/fuse"
    (entry,) = stack(place)
    assert mountinfo.is_ours(entry, place.daemon.state)
    assert mount.unmount(system, place) is True
    assert stack(place) == ()
    os.close(mounted.fd)


def test_the_helper_says_why_it_refuses(place):
    need_tool("fusermount3")
    place.daemon.mount.rmdir()
    with pytest.raises(mount.UnavailableError, match=r"fusermount3 can't mount at .*No such file"):
        mount.mount_fuse(Unprivileged(), place)


def test_tmpfs(place):
    system, path = System(), place.ddr.path
    mount.mount_tmpfs(system, path, 8 * MIB, huge=False)
    assert path.stat().st_mode & 0o777 == 0o700
    assert system.is_tmpfs(path)
    assert not system.is_tmpfs(path.parent)
    (path / "object").write_bytes(bytes(3 * MIB))
    mount.mount_tmpfs(system, path, 4 * MIB, huge=False)
    assert system.usage(path).total_bytes == 4 * MIB
    with pytest.raises(ConfigError, match=r"\[ddr\] budget: .*less than the 3.0MiB"):
        mount.mount_tmpfs(system, path, 2 * MIB, huge=False)
    with pytest.raises(OSError, match="No space left"):
        (path / "more").write_bytes(bytes(2 * MIB))
    assert (path / "object").stat().st_size == 3 * MIB
    (entry,) = mountinfo.stack_at(mountinfo.read(), path)
    assert {"nosuid", "nodev", "noexec"} <= set(entry.options)
    assert mount.unmount_tmpfs(system, path) is True
    assert list(path.iterdir()) == []


def test_capability_is_read_from_the_kernel():
    need_root()
    need_tool("setpriv")
    code = "from kvd.mount_system import System; print(System().is_admin())"
    drop = ["setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin"]
    done = subprocess.run([*drop, sys.executable, "-c", code], check=False, capture_output=True, text=True, cwd="/")
    assert (done.stdout.strip(), done.stderr) == ("False", "")
