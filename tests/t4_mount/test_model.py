"""File operations drawn by Hypothesis, on a mount and on a model in a dict: same bytes, same sizes, same names.

A life also has demotions, restarts and kills. After a kill sealed objects are whole; one with a writer is what its last
fsync made it, or absent. Hypothesis prints a failure as the shortest program that shows it.
"""

import mmap
import os
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from support.content import MIB, wait_until
from support.mounted import start_kvd

EXAMPLES = 2
STEPS = 30
SIZE_MAX = 300_000
names = st.sampled_from(["a", "b", "c"])
offsets = st.one_of(st.integers(0, SIZE_MAX), st.sampled_from([0, 4095, 4096, 65535, 65536, 131072]))
data = st.builds(lambda unit, count: (unit * count)[:200_000], st.binary(min_size=1, max_size=50), st.integers(1, 5000))


@dataclass
class File:
    """An inode: its bytes, what NVMe surely has (None: nothing), and what it may have."""

    content: bytes = b""
    synced: bytes | None = None
    maybe: set[bytes] = field(default_factory=set)

    def sync(self):
        self.synced, self.maybe = self.content, set()

    def empty(self):
        """Its bytes are given up, and with a cold object's also its copy."""
        if self.synced is not None:
            self.maybe.add(self.synced)
        self.synced = None


def patched(content, offset, new):
    return content[:offset].ljust(offset, b"\0") + new + content[offset + len(new) :]


class MountModel(RuleBasedStateMachine):
    running = None
    number = 0

    def __init__(self):
        super().__init__()
        MountModel.number += 1
        self.kvd = self.running.kvd
        self.folder = self.running.root / f"model{MountModel.number}"
        self.folder.mkdir()
        self.files = {}
        self.handles = []  # (descriptor, file)

    def path(self, name):
        return self.folder / name

    @rule(name=names, offset=offsets, new=data)
    def write(self, name, offset, new):
        fd = os.open(self.path(name), os.O_WRONLY | os.O_CREAT, 0o644)
        assert os.pwrite(fd, new, offset) == len(new)
        os.close(fd)
        file = self.files.setdefault(name, File())
        file.content = patched(file.content, offset, new)

    @rule(name=names, new=data)
    def append(self, name, new):
        with self.path(name).open("ab") as file:
            file.write(new)
        kept = self.files.setdefault(name, File())
        kept.content += new

    @rule(name=names, new=data)
    def replace(self, name, new):
        self.path(name).write_bytes(new)
        file = self.files.setdefault(name, File())
        file.empty()
        file.content = new

    @rule(name=names, size=offsets)
    def truncate(self, name, size):
        if name in self.files:
            os.truncate(self.path(name), size)
            file = self.files[name]
            if not size:
                file.empty()
            file.content = file.content[:size].ljust(size, b"\0")

    @rule(name=names, offset=offsets, new=data)
    def write_mapped(self, name, offset, new):
        if name not in self.files or offset + len(new) > len(self.files[name].content):
            return
        with self.path(name).open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
            mapped[offset : offset + len(new)] = new
            mapped.flush()
        self.files[name].content = patched(self.files[name].content, offset, new)

    @rule(old=names, new=names)
    def rename(self, old, new):
        if old in self.files and self.files.get(new) is not self.files[old]:
            self.path(old).rename(self.path(new))
            self.files[new] = self.files.pop(old)

    @rule(old=names, new=names)
    def link(self, old, new):
        if old in self.files and new not in self.files:
            os.link(self.path(old), self.path(new))
            self.files[new] = self.files[old]

    @rule(name=names)
    def unlink(self, name):
        if self.files.pop(name, None):
            self.path(name).unlink()

    @rule(name=names)
    def fsync(self, name):
        if name in self.files:
            fd = os.open(self.path(name), os.O_RDONLY)
            os.fsync(fd)
            os.close(fd)
            self.files[name].sync()

    @precondition(lambda self: len(self.handles) < 3)
    @rule(name=names)
    def keep_open(self, name):
        if name in self.files:
            self.handles.append((os.open(self.path(name), os.O_RDWR), self.files[name]))

    @precondition(lambda self: self.handles)
    @rule(offset=offsets, new=data, sync=st.booleans())
    def write_kept(self, offset, new, sync):
        fd, file = self.handles[0]
        assert os.pwrite(fd, new, offset) == len(new)
        file.content = patched(file.content, offset, new)
        if sync:
            os.fsync(fd)
            file.sync()

    @precondition(lambda self: self.handles)
    @rule()
    def close(self):
        os.close(self.handles.pop(0)[0])

    @rule(what=st.sampled_from(["demote", "promote", "sync", "pin", "unpin"]))
    def control(self, what):
        done = self.kvd.kvctl(what, str(self.folder), check=False)
        assert done.returncode in (0, 5), done
        for file in self.files.values():
            if what == "sync":
                file.sync()
            else:
                file.maybe.add(file.content)

    def close_all(self):
        while self.handles:
            self.close()

    @rule()
    def restart(self):
        self.close_all()
        assert self.kvd.stop() == 0
        self.kvd.start()
        for file in self.files.values():
            file.maybe.add(file.content)

    @rule()
    def kill(self):
        """Who has a file open for writing when the daemon dies has it as its last fsync left it, or not at all."""
        written = [file for _, file in self.handles]
        self.kvd.kill()
        for fd, _ in self.handles:
            os.close(fd)
        self.handles = []
        self.kvd.start()
        for name, file in list(self.files.items()):
            if any(file is each for each in written):
                if self.path(name).exists():
                    found = self.path(name).read_bytes()
                    assert found == file.synced or found in file.maybe, name
                    file.content = found
                else:
                    assert file.synced is None, f"{name} was synced and is gone"
                    del self.files[name]

    @invariant()
    def same(self):
        assert {path.name for path in self.folder.iterdir()} == set(self.files)
        for name, file in self.files.items():
            assert self.path(name).read_bytes() == file.content, name
            assert self.path(name).stat().st_size == len(file.content)
        for fd, file in self.handles:
            assert os.pread(fd, len(file.content) + 1, 0) == file.content

    def teardown(self):
        for fd, _ in self.handles:
            os.close(fd)
        if self.kvd.running:
            self.kvd.kvctl("unpin", str(self.folder))
            wait_until(lambda: self.kvd.status()["leased"] == 0, "nothing is open")
            for path in list(self.folder.iterdir()):
                path.unlink()


@pytest.mark.parametrize("passthrough", ["auto", "off"])
def test_a_mount_behaves_like_a_dict_of_bytes(passthrough):
    with start_kvd({"fuse": {"passthrough": passthrough}, "ddr": {"budget": 32 * MIB}}) as running:
        MountModel.running = running
        run_state_machine_as_test(
            MountModel,
            settings=settings(
                max_examples=EXAMPLES,
                stateful_step_count=STEPS,
                deadline=None,
                derandomize=True,
                phases=(Phase.generate,),
                suppress_health_check=list(HealthCheck),
            ),
        )
