"""Mounting on a machine that is a list: what kvd asks of it, and what it says when refused."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path

import pytest

from fake_system import FUSE_FD, FakeSystem
from kvd import config, mount
from kvd.config_memory import Memory
from kvd.errors import ConfigError, UnavailableError
from kvd.mount_system import FusermountError, Usage

MIB = 2**20
CONFIG = config.parse("", Memory(total_bytes=64 * 2**30))
POINT = CONFIG.daemon.mount
NAME = "kvd@/var/lib/kvd"
TMPFS = Path("/run/kvd/ddr")


def os_error(number: int) -> OSError:
    return OSError(number, os.strerror(number))


def test_root_mounts_by_itself():
    system = FakeSystem()
    mounted = mount.mount_fuse(system, CONFIG)
    assert mounted == mount.Mounted(fd=FUSE_FD, features_off=())
    assert system.calls == [
        "mount fuse.kvd 6 fd=7,rootmode=40000,user_id=0,group_id=0,default_permissions,allow_other,max_read=1048576"
    ]
    assert system.table[0].source == NAME


def test_allow_other_is_left_out_when_not_wanted():
    system = FakeSystem()
    mount.mount_fuse(system, replace(CONFIG, fuse=replace(CONFIG.fuse, allow_other=False)))
    assert "allow_other" not in system.calls[0]


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (errno.ENOENT, "^/dev/fuse is not there; load it"),
        (errno.ENODEV, "^/dev/fuse is not there; load it"),
        (errno.EPERM, "^can't open /dev/fuse: Operation not permitted; let kvd's user"),
    ],
)
def test_no_device(number, message):
    system = FakeSystem()
    system.fails["open_fuse"] = [os_error(number)]
    with pytest.raises(UnavailableError, match=message):
        mount.mount_fuse(system, CONFIG)
    assert system.table == []


def test_a_refused_mount_leaks_no_descriptor():
    system = FakeSystem()
    system.fails["mount"] = [os_error(errno.EPERM)]
    with pytest.raises(
        UnavailableError, match=r"^can't mount at /mnt/kvd: Operation not permitted; in a container allow"
    ):
        mount.mount_fuse(system, CONFIG)
    assert system.open_fds == set()


def test_without_root_the_helper_mounts_and_says_what_is_off():
    system = FakeSystem(admin=False)
    mounted = mount.mount_fuse(system, CONFIG)
    assert [off.feature for off in mounted.features_off] == ["passthrough", "allow_other"]
    assert all(off.reason for off in mounted.features_off)
    assert system.calls == [f"fusermount fsname={NAME},subtype=kvd,default_permissions,max_read=1048576"]


def test_the_helper_gives_allow_other_where_fuse_conf_does():
    system = FakeSystem(admin=False)
    system.allow_other = True
    mounted = mount.mount_fuse(system, CONFIG)
    assert [off.feature for off in mounted.features_off] == ["passthrough"]
    assert system.calls[0].endswith(",allow_other")


def test_the_helpers_option_list_is_quoted():
    system = FakeSystem(admin=False)
    mount.mount_fuse(system, replace(CONFIG, daemon=replace(CONFIG.daemon, state=Path("/s,allow_other\\"))))
    assert system.calls[0].startswith(r"fusermount fsname=kvd@/s\,allow_other\\,subtype=kvd")


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (FileNotFoundError(), "^fusermount3 is not installed; install the package fuse3"),
        (
            FusermountError("bad mount point"),
            "^fusermount3 can't mount at /mnt/kvd: bad mount point; own the mount point",
        ),
        (TimeoutError("timed out"), "^fusermount3 can't mount at /mnt/kvd: timed out; "),
    ],
)
def test_the_helper_refuses(error, message):
    system = FakeSystem(admin=False)
    system.fails["fusermount"] = [error]
    with pytest.raises(UnavailableError, match=message):
        mount.mount_fuse(system, CONFIG)


@pytest.mark.parametrize(("admin", "call"), [(True, "umount 2"), (False, "fusermount -u -z")])
def test_all_dead_mounts_of_ours_are_detached_and_nothing_else(admin, call):
    system = FakeSystem(admin=admin)
    system.add(Path("/mnt"), fstype="ext4", source="/dev/x")
    for _ in range(3):
        system.add(POINT, fstype="fuse.kvd", source=NAME)
    system.add(Path("/mnt/kvd2"), fstype="fuse.kvd", source=NAME)
    assert mount.detach_dead(system, CONFIG) == 3
    assert system.calls == [call] * 3
    assert [entry.mount_point for entry in system.table] == [Path("/mnt"), Path("/mnt/kvd2")]


def test_a_foreign_mount_is_left_alone():
    system = FakeSystem()
    system.add(POINT, fstype="fuse.kvd", source=NAME)
    system.add(POINT, fstype="nfs4", source="server:/x")
    with pytest.raises(ConfigError, match=r"^\[daemon\] mount: .* not this kvd's: nfs4 'server:/x'; unmount it"):
        mount.detach_dead(system, CONFIG)
    assert system.calls == []
    assert mount.unmount(system, CONFIG) is False


def test_a_foreign_mount_below_a_dead_one_is_named():
    system = FakeSystem()
    system.add(POINT, fstype="tmpfs", source="somebody")
    system.add(POINT, fstype="fuse.kvd", source=NAME)
    with pytest.raises(ConfigError, match="tmpfs 'somebody'"):
        mount.detach_dead(system, CONFIG)
    assert [entry.source for entry in system.table] == ["somebody"]


def test_the_number_of_dead_mounts_is_bounded():
    system = FakeSystem()
    for _ in range(mount.STACK_MAX + 1):
        system.add(POINT, fstype="fuse.kvd", source=NAME)
    with pytest.raises(UnavailableError, match="more than 64 dead mounts"):
        mount.detach_dead(system, CONFIG)


@pytest.mark.parametrize(("admin", "method"), [(True, "umount"), (False, "fusermount_unmount")])
def test_a_mount_that_does_not_go(admin, method):
    system = FakeSystem(admin=admin)
    system.add(POINT, fstype="fuse.kvd", source=NAME)
    system.fails[method] = [os_error(errno.EPERM)] * 2
    with pytest.raises(UnavailableError, match=r"^can't unmount /mnt/kvd: .*; unmount it \(umount -l /mnt/kvd\)"):
        mount.detach_dead(system, CONFIG)
    with pytest.raises(UnavailableError):
        mount.unmount(system, CONFIG)


@pytest.mark.parametrize("fails", [[], [os_error(errno.EBUSY)]])
def test_the_mount_of_a_dying_daemon_is_aborted(fails):
    system = FakeSystem()
    system.add(POINT, fstype="fuse.kvd", source=NAME)
    system.fails["umount"] = [*fails]
    mount.abort_dead(system, CONFIG)
    assert system.calls == ([] if fails else ["umount 1"])


@pytest.mark.parametrize(("admin", "source"), [(False, NAME), (True, "kvd@/another"), (True, None)])
def test_nothing_is_aborted_that_is_not_ours_to_abort(admin, source):
    system = FakeSystem(admin=admin)
    if source is not None:
        system.add(POINT, fstype="fuse.kvd", source=source)
    mount.abort_dead(system, CONFIG)
    assert system.calls == []


def test_unmount_takes_one_and_knows_when_there_is_none():
    system = FakeSystem()
    mount.mount_fuse(system, CONFIG)
    assert mount.unmount(system, CONFIG) is True
    assert mount.unmount(system, CONFIG) is False


@pytest.mark.parametrize(("huge", "word"), [(True, "within_size"), (False, "never")])
def test_tmpfs_is_mounted_once(huge, word):
    system = FakeSystem()
    for _ in range(2):
        assert mount.mount_tmpfs(system, TMPFS, 8 * MIB, huge=huge) == ()
    assert system.calls == [f"mount tmpfs 14 size=8388608,mode=0700,nr_inodes=0,huge={word}"]
    assert mount.unmount_tmpfs(system, TMPFS) is True
    assert mount.unmount_tmpfs(system, TMPFS) is False


def test_tmpfs_is_resized_but_not_below_what_it_holds():
    system = FakeSystem()
    mount.mount_tmpfs(system, TMPFS, 8 * MIB, huge=True)
    system.usages[TMPFS] = Usage(total_bytes=8 * MIB, used_bytes=5 * MIB)
    mount.mount_tmpfs(system, TMPFS, 6 * MIB, huge=True)
    assert system.calls[-1].startswith("mount tmpfs 46 size=6291456,")
    with pytest.raises(
        ConfigError, match=r"^\[ddr\] budget: with burst it is 4.0MiB, less than the 5.0MiB .*; set more"
    ):
        mount.mount_tmpfs(system, TMPFS, 4 * MIB, huge=True)
    assert system.usages[TMPFS].total_bytes == 6 * MIB
    assert len(system.table) == 1


def test_tmpfs_of_another_page_size_is_remounted():
    system = FakeSystem()
    mount.mount_tmpfs(system, TMPFS, 8 * MIB, huge=False)
    mount.mount_tmpfs(system, TMPFS, 8 * MIB, huge=True)
    assert system.calls[-1].endswith("huge=within_size")


def test_tmpfs_without_huge_pages_says_so():
    system = FakeSystem()
    system.has_huge = False
    assert [off.feature for off in mount.mount_tmpfs(system, TMPFS, 8 * MIB, huge=True)] == ["huge pages"]
    assert system.calls[-1].endswith("huge=never")


def test_tmpfs_refused_by_the_kernel():
    system = FakeSystem()
    system.fails["mount"] = [os_error(errno.EPERM)]
    with pytest.raises(UnavailableError, match=r"^can't mount a tmpfs at /run/kvd/ddr: Operation not permitted; "):
        mount.mount_tmpfs(system, TMPFS, 8 * MIB, huge=True)


def test_tmpfs_over_a_foreign_mount():
    system = FakeSystem()
    system.add(TMPFS, fstype="tmpfs", source="tmpfs")
    with pytest.raises(ConfigError, match=r"^\[ddr\] path: .* not kvd's: tmpfs 'tmpfs'; unmount it"):
        mount.mount_tmpfs(system, TMPFS, 8 * MIB, huge=True)
    assert mount.unmount_tmpfs(system, TMPFS) is False


def test_tmpfs_that_does_not_go():
    system = FakeSystem()
    mount.mount_tmpfs(system, TMPFS, 8 * MIB, huge=True)
    system.fails["umount"] = [os_error(errno.EPERM)]
    with pytest.raises(UnavailableError, match="can't unmount /run/kvd/ddr"):
        mount.unmount_tmpfs(system, TMPFS)


def test_without_root_the_path_must_be_on_a_tmpfs_that_is_large_enough():
    system = FakeSystem(admin=False)
    system.usages[TMPFS] = Usage(total_bytes=16 * MIB, used_bytes=0)
    assert [off.feature for off in mount.mount_tmpfs(system, TMPFS, 8 * MIB, huge=True)] == ["private tmpfs"]
    assert mount.unmount_tmpfs(system, TMPFS) is False
    with pytest.raises(ConfigError, match=r"^\[ddr\] budget: .* more than the tmpfs .* 16.0MiB; set less"):
        mount.mount_tmpfs(system, TMPFS, 32 * MIB, huge=True)
    system.on_tmpfs = False
    with pytest.raises(ConfigError, match=r"^\[ddr\] path: .* is not on a tmpfs, .*; set a directory on a tmpfs"):
        mount.mount_tmpfs(system, TMPFS, 8 * MIB, huge=True)
    system.fails["is_tmpfs"] = [os_error(errno.EACCES)]
    with pytest.raises(ConfigError, match=r"^\[ddr\] path: .*Permission denied; set a directory"):
        mount.mount_tmpfs(system, TMPFS, 8 * MIB, huge=True)
