"""The configuration file: what it accepts, and what it says about what it does not."""

from __future__ import annotations

import os
import re
import socket
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvd import config, config_check, config_memory, config_schema, config_units
from kvd.config_memory import Memory
from kvd.errors import ConfigError, ExitCode
from kvd.mountinfo import MountEntry, source_name

GIB = 2**30
MEMORY = Memory(total_bytes=64 * GIB)


def mounted(path: Path, *, fstype: str, source: str) -> MountEntry:
    return MountEntry(
        mount_id=2,
        parent_id=1,
        device="0:99",
        root="/",
        mount_point=path,
        options=("rw",),
        fstype=fstype,
        source=source,
        super_options=("rw",),
    )


def test_defaults():
    made = config.parse("", MEMORY)
    assert made.daemon.mount == Path("/mnt/kvd")
    assert made.daemon.flush_s == 300
    assert made.ddr.budget_bytes == 16 * GIB
    assert made.ddr.burst_bytes == 2 * GIB
    assert made.nvme.dirs == (Path("/var/lib/kvd/nvme"),)
    assert made.nvme.capacity_bytes == 0
    assert made.nvme.reserve_bytes == GIB
    assert made.fuse.write_wait_s == 10
    assert made.fuse.read_wait_s == 30


def test_printed_configuration_is_accepted_and_is_the_default():
    text = config_schema.render(config_schema.File())
    assert config.parse(text, MEMORY) == config.parse("", MEMORY)


def test_printed_configuration_has_every_key_with_a_comment_above_it():
    lines = config_schema.render(config_schema.File()).splitlines()
    for table in config_schema.TABLES:
        start = lines.index(f"[{table}]")
        for key in config_schema.keys_of(table):
            at = next(n for n in range(start, len(lines)) if lines[n].startswith(f"{key} = "))
            assert lines[at - 1].startswith("# ")
    assert sum(" = " in line and not line.startswith("#") for line in lines) == sum(
        len(config_schema.keys_of(table)) for table in config_schema.TABLES
    )


@pytest.mark.parametrize(
    ("value", "size_bytes"),
    [
        ("8GiB", 8 * GIB),
        ("512MiB", 2**29),
        ("1.5TiB", 3 * 2**39),
        ("2 GB", 2 * 10**9),
        ("7KB", 7000),
        (4096, 4096),
        ("0B", 0),
    ],
)
def test_sizes(value, size_bytes):
    assert config_units.parse_size(value) == size_bytes


@pytest.mark.parametrize("value", ["8", "8G", "8gib", "GiB", "-1GiB", "1e3MiB", "", "10%", -1, "99999999TiB"])
def test_wrong_sizes(value):
    with pytest.raises(ValueError, match=re.escape(str(value)) or "not a size"):
        config_units.parse_size(value)


@pytest.mark.parametrize(
    ("value", "seconds"), [("250ms", 0.25), ("10s", 10), ("5min", 300), ("1h", 3600), ("1.5 s", 1.5)]
)
def test_durations(value, seconds):
    assert config_units.parse_duration(value) == seconds


@pytest.mark.parametrize("value", ["10", "10sec", "s", "0s", "-1s", "", "8d", "200h"])
def test_wrong_durations(value):
    with pytest.raises(ValueError, match=re.escape(value) or "not a duration"):
        config_units.parse_duration(value)


@given(st.integers(0, 2**50), st.sampled_from(["B", "KiB", "MiB", "KB", "MB"]))
def test_whole_sizes_are_exact(number, unit):
    expected = number * config_units.BYTES_OF_UNIT[unit]
    if expected <= config_units.SIZE_BYTES_MAX:
        assert config_units.parse_size(f"{number}{unit}") == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[ddr]\nbudgt = 1", '[ddr] budgt: no such key; set "budget" instead'),
        ("[ddr]\nddr_idle_s = '1s'", '[ddr] ddr_idle_s: no such key; set "idle" instead'),
        ("[ddr]\nreserve = 1", "[ddr] reserve: no such key; set it below [nvme]"),
        ("[ddr]\nzzzzzz = 1", "[ddr] zzzzzz: no such key; the keys are path, budget"),
        ("[dr]", "[dr]: no such table; set it below [ddr]"),
        ("[zzzzzz]", "[zzzzzz]: no such table; the tables are daemon"),
        ("budget = 1", "[budget]: no such table; set budget below [ddr]"),
        ("ddr = 1", "[ddr]: is a table, not a value; write [ddr]"),
        ("[ddr]\nbudget = true", '[ddr] budget: expected int | str, got bool; set budget = "25%"'),
        ("[fuse]\nreaders = '4'", "[fuse] readers: expected int, got str; set readers = 4"),
        ("[fuse]\nallow_other = 1", "[fuse] allow_other: expected bool, got int; set allow_other = true"),
        ("[nvme]\ndirs = [1]", '[nvme] dirs: expected str, got int; set dirs = ["/var/lib/kvd/nvme"]'),
        ("[ddr]\nidle = 10", '[ddr] idle: expected str, got int; set idle = "60s"'),
        ("[ddr]\nidle = '10 sec'", '[ddr] idle: "10 sec" has the unknown unit "sec"; set idle = "60s"'),
        ("[ddr]\nbudget = '8G'", '[ddr] budget: "8G" has the unknown unit "G"; set budget = "25%"'),
        ("[ddr]\nbudget = 4096", "[ddr] budget: 4096 bytes is too little; set 1MiB or more"),
        (
            "[ddr]\nbudget = '64GiB'",
            "[ddr] budget: with burst it is 72.0GiB, more than this machine's RAM, 64.0GiB; set less",
        ),
        (
            "[ddr]\nlow_watermark = 0.95",
            "[ddr] low_watermark: 0.95 is not between 0 and high_watermark; set it below 0.9",
        ),
        ("[ddr]\nhigh_watermark = 1.5", "[ddr] high_watermark: 1.5 is not between 0 and 1; set 0.9"),
        ("[ddr]\nhigh_watermark = nan", "[ddr] high_watermark: nan is not between 0 and 1; set 0.9"),
        ("[fuse]\nreaders = 0", "[fuse] readers: 0 is out of range; set 1 to 64"),
        ("[fuse]\nhot_names = -1", "[fuse] hot_names: -1 is out of range; set 0 to 67108864"),
        ("[fuse]\npassthrough = 'on'", '[fuse] passthrough: "on" is not one of "auto", "off"; set "auto"'),
        ("[log]\nlevel = 'loud'", '[log] level: "loud" is not one of "debug"'),
        ("[daemon]\nmount = 'kvd'", '[daemon] mount: "kvd" is not absolute; set a path that starts with "/"'),
        ("[daemon]\nmount = '/a/../b'", '[daemon] mount: "/a/../b" is not absolute; set a path that starts with "/"'),
        ("[daemon]\nstate = ''", '[daemon] state: is no path; set state = "/var/lib/kvd"'),
        ("[daemon]\nstate = '/mnt/kvd'", "[daemon] state: is /mnt/kvd, which is [daemon] mount; set a path apart"),
        ("[daemon]\nsocket = '/mnt/kvd/s'", "[daemon] socket: /mnt/kvd/s is inside /mnt/kvd, which is [daemon] mount"),
        ("[daemon]\nmount = '/var/lib/kvd/nvme/m'", "[daemon] mount: /var/lib/kvd/nvme/m is inside /var/lib/kvd/nvme"),
        ("[nvme]\ndirs = ['/a', '/a/b']", "[nvme] dirs: /a/b is inside /a, which is [nvme] dirs"),
        ("[nvme]\ndirs = ['/a', '//a/']", "[nvme] dirs: /a is there more than once; set each directory once"),
        ("[nvme]\ndirs = []", "[nvme] dirs: has 0 directories; set 1 to 64"),
        ("[nvme]\ncapacity = 1", "[nvme] capacity: 1 bytes is too little"),
        (f"[daemon]\nsocket = '/{'s' * 107}'", "[daemon] socket: the path has more than 107 bytes; set a shorter one"),
        ("[ddr", "configuration: Expected ']' at the end of a table declaration"),
    ],
)
def test_faults_are_one_line_that_names_key_and_mend(text, message):
    with pytest.raises(ConfigError) as caught:
        config.parse(text, MEMORY)
    said = str(caught.value)
    assert said.startswith(message)
    assert "\n" not in said
    assert "; " in said
    assert caught.value.exit_code == ExitCode.CONFIG


def test_budget_is_a_share_of_the_cgroups_limit_and_kept_below_it():
    memory = Memory(total_bytes=64 * GIB, limit_bytes=8 * GIB, limited_by="/sys/fs/cgroup/memory.max")
    assert config.parse("", memory).ddr.budget_bytes == 2 * GIB
    with pytest.raises(
        ConfigError, match=r"more than the memory limit of this cgroup \(/sys/fs/cgroup/memory.max\), 8"
    ):
        config.parse("[ddr]\nbudget = '8GiB'", memory)


def machine(root: Path, *, cgroup: str, mounts: str, limits: dict[str, str]) -> Path:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/meminfo").write_text("MemFree: 1 kB\nMemTotal:       16777216 kB\n")
    (root / "proc/self/cgroup").write_text(cgroup)
    (root / "proc/self/mountinfo").write_text(mounts)
    for name, text in limits.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


V2 = "30 20 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
V1 = "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n36 31 0:33 / /sys/fs/cgroup/cpu rw - cgroup c rw,cpu\n"


@pytest.mark.parametrize(
    ("cgroup", "mounts", "limits", "limit_bytes"),
    [
        ("0::/a/b\n", V2, {"sys/fs/cgroup/a/b/memory.max": "max\n", "sys/fs/cgroup/a/memory.max": "4096\n"}, 4096),
        ("0::/a/b\n", V2, {"sys/fs/cgroup/a/b/memory.max": "4096\n", "sys/fs/cgroup/a/memory.max": "8192\n"}, 4096),
        ("0::/\n", V2, {"sys/fs/cgroup/memory.max": "12288\n"}, 12288),
        ("0::/\n", V2, {}, None),
        ("0::/a\n", V2, {"sys/fs/cgroup/a/memory.max": "99999999999999\n"}, None),
        ("4:memory:/a\n0::/\n", V1, {"sys/fs/cgroup/memory/a/memory.limit_in_bytes": "4096\n"}, 4096),
        ("4:memory:/a\n0::/\n", V1, {"sys/fs/cgroup/memory/a/memory.limit_in_bytes": "9223372036854771712\n"}, None),
        # A container without a cgroup name space: its mount shows only its own part.
        ("0::/docker/x\n", V2.replace(" / ", " /docker/x ", 1), {"sys/fs/cgroup/memory.max": "4096\n"}, 4096),
        ("0::/../x\n", V2.replace(" / ", " /other ", 1), {"sys/fs/cgroup/memory.max": "4096\n"}, 4096),
    ],
)
def test_cgroup_limits(tmp_path, cgroup, mounts, limits, limit_bytes):
    memory = config_memory.read(machine(tmp_path, cgroup=cgroup, mounts=mounts, limits=limits))
    assert memory.total_bytes == 16 * GIB
    assert memory.limit_bytes == limit_bytes
    assert memory.usable_bytes == (limit_bytes or 16 * GIB)


def test_this_machine_has_memory():
    assert config_memory.read().usable_bytes > 2**20


@pytest.fixture
def usable(scratch):
    """A configuration whose directories can all be made in `scratch`."""
    (scratch / "mnt").mkdir()
    text = f"""
[daemon]
mount = "{scratch}/mnt"
state = "{scratch}/state"
socket = "{scratch}/run/kvd.sock"
[ddr]
path = "{scratch}/run/ddr"
[nvme]
dirs = ["{scratch}/state/nvme"]
"""
    return config.parse(text, MEMORY)


def test_directories_are_made_where_their_parent_is_there(usable):
    config_check.check(usable, [])
    assert not usable.daemon.state.exists()
    config_check.make_directories(usable)
    config_check.check(usable, [])
    assert usable.daemon.state.stat().st_mode & 0o777 == 0o700
    assert usable.daemon.socket.parent.stat().st_mode & 0o777 == 0o755
    assert usable.ddr.path.is_dir()
    assert usable.nvme.dirs[0].is_dir()


def test_no_directory_is_made_without_its_parent(usable):
    nvme = replace(usable.nvme, dirs=(usable.daemon.state.parent / "no" / "nvme",))
    with pytest.raises(ConfigError, match=r"^\[nvme\] dirs: .*/no is not there; make it, or set dirs elsewhere$"):
        config_check.check(replace(usable, nvme=nvme), [])


def test_a_file_is_no_directory(usable):
    usable.daemon.state.write_text("")
    with pytest.raises(ConfigError, match=r"^\[daemon\] state: .* is not a directory; set state"):
        config_check.check(usable, [])


def test_what_lies_where_the_socket_goes(usable):
    config_check.make_directories(usable)
    path = usable.daemon.socket
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(os.fspath(path))
    config_check.check(usable, [])  # a dead daemon's gives way
    path.unlink()
    path.mkdir()
    with pytest.raises(ConfigError, match=r"^\[daemon\] socket: .* is there and is not a socket; remove it or"):
        config_check.check(usable, [])


def test_a_group_that_was_set_has_to_exist(usable):
    def check(group):
        config_check.check(replace(usable, daemon=replace(usable.daemon, socket_group=group)), [])

    for group in ("", "kvd", "root"):
        check(group)
    with pytest.raises(ConfigError, match=r'^\[daemon\] socket_group: there is no group "nobodys"; make it'):
        check("nobodys")


@pytest.mark.parametrize("there", [True, False])
def test_unwritable_directories(usable, monkeypatch, there):
    if there:
        usable.daemon.state.mkdir()
    monkeypatch.setattr(os, "access", lambda *_args, **_kwargs: False)
    with pytest.raises(ConfigError, match=r"^\[daemon\] state: .* (is not writable|can't be made); "):
        config_check.check(usable, [])


def test_a_directory_that_can_not_be_made_after_all(usable):
    usable.daemon.state.write_text("")
    with pytest.raises(ConfigError, match=r"^\[daemon\] state: can't make .*: File exists; "):
        config_check.make_directories(usable)


def test_mount_point_missing(usable):
    usable.daemon.mount.rmdir()
    with pytest.raises(ConfigError, match=r"^\[daemon\] mount: .* is not there; make it \(mkdir -p "):
        config_check.check(usable, [])


def test_mount_point_is_a_file(usable):
    usable.daemon.mount.rmdir()
    usable.daemon.mount.write_text("")
    with pytest.raises(ConfigError, match=r"^\[daemon\] mount: .* is not a directory; set "):
        config_check.check(usable, [])


def test_mount_point_with_something_in_it(usable):
    (usable.daemon.mount / "x").write_text("")
    with pytest.raises(ConfigError, match=r"^\[daemon\] mount: .* is not empty; empty it"):
        config_check.check(usable, [])


def test_somebodys_mount(usable):
    entry = mounted(usable.daemon.mount, fstype="fuse.sshfs", source="host:/x")
    with pytest.raises(ConfigError, match=r"^\[daemon\] mount: .* not this kvd's: fuse.sshfs 'host:/x'; unmount it"):
        config_check.check(usable, [entry])


def test_another_kvds_mount(usable):
    entry = mounted(usable.daemon.mount, fstype="fuse.kvd", source="kvd@/elsewhere")
    with pytest.raises(ConfigError, match="not this kvd's"):
        config_check.check(usable, [entry])


def test_our_own_mount_is_not_looked_at(usable):
    # A file in its place would be refused if anybody looked.
    usable.daemon.mount.rmdir()
    usable.daemon.mount.write_text("")
    entry = mounted(usable.daemon.mount, fstype="fuse.kvd", source=source_name(usable.daemon.state))
    config_check.check(usable, [entry])


def test_load_names_the_file(scratch):
    with pytest.raises(ConfigError, match=r"no\.toml: No such file or directory; "):
        config.load(scratch / "no.toml")
    (scratch / "latin.toml").write_bytes(b"# \xff")
    with pytest.raises(ConfigError, match="is not UTF-8 at byte 2"):
        config.load(scratch / "latin.toml")


def test_load_follows_links_and_sees_that_two_names_are_one(scratch):
    (scratch / "a").mkdir()
    (scratch / "b").symlink_to("a")
    file = scratch / "kvd.toml"
    file.write_text(f'[nvme]\ndirs = ["{scratch}/b"]\n[daemon]\nmount = "{scratch}/a/m"\nstate = "{scratch}/s"')
    with pytest.raises(ConfigError, match=r"\[daemon\] mount: .*/a/m is inside .*/a, which is \[nvme\] dirs"):
        config.load(file)
    file.write_text(f'[nvme]\ndirs = ["{scratch}/a", "{scratch}/b"]')
    with pytest.raises(ConfigError, match=r"/a is there more than once"):
        config.load(file)


@pytest.mark.parametrize("text", ["in-process", "vfio-user:/run/card.sock", "vfio:0000:01:00.0"])
def test_devices_that_can_be_named(text):
    assert config.parse(f'[daemon]\ndevice = "{text}"', MEMORY).daemon.device == text
    assert config.parse("", MEMORY, device=text).daemon.device == text
    assert config.parse('[daemon]\ndevice = "vfio:0000:02:00.0"', MEMORY, device=text).daemon.device == text


def test_wrong_device_on_the_command_line_is_named():
    with pytest.raises(
        ConfigError, match=r"^\[daemon\] device: \"x\" is no device: write .*; set device = \"in-process\"$"
    ):
        config.parse("", MEMORY, device="x")
