"""A full twin of `kvd.api.backend.Control` in memory, and a program that serves it: ``fake_control.py SOCKET``."""

from __future__ import annotations

import argparse
import errno
import os
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import trio

sys.path.insert(0, str(Path(__file__).parents[1]))  # it is a program, too

from kvd.api.app import serve
from kvd.api.backend import (
    Directory,
    Engine,
    Entry,
    Fault,
    FeatureOff,
    Finding,
    Index,
    Scrubbing,
    Status,
    Step,
    TierUsage,
)
from kvd.api.namespaces import AdmissionStatus, NamespaceStatus
from kvd.api.sessions import SessionStatus
from kvd.errors import (
    BusyError,
    DamagedError,
    KvdError,
    NoSpaceError,
    NotFoundError,
)
from support.fake_sessions import FakeSessions
from support.fake_spaces import FakeSpaces

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

MIB = 1 << 20
GIB = 1 << 30

WELL = Engine(
    wanted="vfio-user:/run/card.sock",
    transport="vfio-user",
    state="ok",
    reason="",
    since_s=1_700_000_000.0,
    faults={"timeout": 1},
    replayed=3,
    taken_back=1,
    losses=(),
    losses_count=0,
)

PLACE = "/data/a/objects/05/00/5.1 at 196608"

SCRUB = Scrubbing(
    rate_bytes=32 * MIB,
    period_s=604_800.0,
    began_s=1_700_000_000.0,
    ended_s=1_699_000_000.0,
    objects=5,
    pass_objects=4,
    verified_bytes=3 * GIB,
    bad_pages=2,
    healed=1,
    quarantined=1,
    unreadable=0,
    descriptions=0,
)

WELL_DRIVE = Directory(
    path="/data/a", state="online", reason="", since_s=1.7e9, offline_count=0, direct=True, free_bytes=900 * GIB
)
HUNG_DRIVE = replace(WELL_DRIVE, path="/data/b", state="offline", reason="no answer within 30 s", offline_count=1)

TREE = {
    b"/model": None,
    b"/model/a.bin": 3 * MIB,
    b"/model/b.bin": 512 * 1024,
    b"/model/leased.bin": 64 * 1024,
    b"/model/damaged.bin": 64 * 1024,
    b"/model/huge.bin": 900 * GIB,
    b"/model/name with space+plus.bin": 4096,
    b"/model/not-utf8-\xff\xfe.bin": 4096,
    "/model/größe-鍵.bin".encode(): 4096,
    b"/empty": None,
}


def make_entry(path: bytes, ino: int, size: int | None) -> Entry:
    """Make a directory (size None) or a sealed file on NVMe."""
    common = {"path": path, "ino": ino, "uid": 1000, "gid": 1000, "mtime_s": 1_700_000_000.5}
    if size is None:
        return Entry(kind="dir", mode=0o40755, size_bytes=0, **common)
    return Entry(
        kind="file",
        mode=0o100644,
        size_bytes=size,
        tier="nvme",
        state="sealed",
        clean=True,
        pinned=False,
        opens=1 if b"leased" in path else 0,
        hits=7,
        idle_s=4000.0,
        stored_bytes=-(-size // 4096) * 4096,
        **common,
    )


@dataclass
class FakeControl(FakeSpaces):
    """A daemon without data.

    Attributes
    ----------
    gate
        Where set, each step but the first waits for it.
    begun, cancelled
        How many operations began, and how many were cancelled; `on_cancel` hears of the latter.
    on_step
        Hears that an operation waits at the gate.
    fail_at
        The step in whose place an operation raises `bug`, and `die_at` the one in whose place the process ends.
    bug
        Where set, every method raises it (but see `fail_at`).
    endless
        Operations never end.
    """

    mount: str = "/mnt/kvd"
    engine: Engine = WELL
    degraded: bool = False
    gate: trio.Event | None = None
    bug: Exception | None = None
    endless: bool = False
    fail_at: int = 0
    die_at: int = 0
    begun: int = 0
    cancelled: int = 0
    on_cancel: Callable[[], None] | None = None
    on_step: Callable[[], None] | None = None
    entries_by_path: dict[bytes, Entry] = field(default_factory=dict)
    sessions: FakeSessions = field(default_factory=FakeSessions)

    def __post_init__(self) -> None:
        for ino, (path, size) in enumerate(TREE.items(), 2):
            self.entries_by_path[path] = make_entry(path, ino, size)
        self.entries_by_path[b"/"] = make_entry(b"/", 1, None)

    def _find(self, path: bytes) -> Entry:
        if self.bug is not None and not self.fail_at:
            raise self.bug
        found = self.entries_by_path.get(path)
        if found is None:
            raise NotFoundError(f"no such name: {os.fsdecode(path)}")
        return found

    def _files(self, path: bytes) -> list[Entry]:
        found = self._find(path)
        if found.kind == "file":
            return [found]
        below = path.rstrip(b"/") + b"/"
        return [e for p, e in sorted(self.entries_by_path.items()) if p.startswith(below) and e.kind == "file"]

    async def reset_device(self) -> Engine:
        await trio.lowlevel.checkpoint()
        self._find(b"/")
        self.engine = replace(self.engine, taken_back=self.engine.taken_back + 1)
        return self.engine

    async def status(self) -> Status:
        await trio.lowlevel.checkpoint()
        self._find(b"/")
        files = self._files(b"/")
        faults = (
            Fault(
                when_s=1_700_000_100.0,
                path="/model/damaged.bin",
                page=3,
                what="checksum differs: quarantined",
                place=PLACE,
            ),
        )
        return Status(
            state="degraded" if self.degraded else "ok",
            reasons=("nvme /data/b does not answer; it is left out",) if self.degraded else (),
            version="0.1.0",
            pid=os.getpid(),
            uptime_s=93_784.0,
            mount=self.mount,
            device="in-process",
            engine=self.engine,
            kernel="6.18.0",
            features=("passthrough", "direct-io", "io_uring"),
            features_off=(FeatureOff(feature="hugepages", reason="the kernel was built without them"),),
            tiers=tuple(self._tier(tier, files) for tier in ("ddr", "nvme")),
            objects=len(files),
            leased=sum(bool(e.opens) for e in files),
            pinned=sum(bool(e.pinned) for e in files),
            dirty=sum(not e.clean for e in files),
            damaged=int(self.degraded),
            promoted_bytes=5 * GIB,
            demoted_bytes=7 * GIB,
            faults=faults if self.degraded else (),
            faults_count=17,
            namespaces=NamespaceStatus(
                namespaces=len(self.spaces),
                mismatches=len(self.alarms),
                alarms=tuple(self.alarms),
                deleting=1,
                names_left=1500,
                names_deleted=64,
            ),
            admission=AdmissionStatus(
                admitted=12, dropped=30, saved_bytes=3 * GIB, through=4, evicted=7, evicted_bytes=2 * GIB
            ),
            scrub=SCRUB,
            sessions=SessionStatus(
                states={"idle": 3, "cold": 1},
                refused=2,
                expired=9,
                unpinned=1,
                leases=4,
                leases_lost=5,
                given_ddr_bytes=6 * MIB,
                given_nvme_bytes=7 * MIB,
            ),
            directories=(WELL_DRIVE, HUNG_DRIVE if self.degraded else replace(WELL_DRIVE, path="/data/b")),
            index=Index(
                state="checking" if self.degraded else "checked", done=900 if self.degraded else 1000, total=1000
            ),
        )

    def _tier(self, tier: str, files: list[Entry]) -> TierUsage:
        mine = [e for e in files if e.tier == tier]
        return TierUsage(
            tier=tier,
            budget_bytes=64 * GIB if tier == "ddr" else 1900 * GIB,
            capacity_bytes=72 * GIB if tier == "ddr" else 2000 * GIB,
            used_bytes=sum(e.stored_bytes or 0 for e in mine),
            reserved_bytes=2 * MIB if tier == "ddr" else 0,
            objects=len(mine),
            path="/run/kvd/ddr" if tier == "ddr" else "/data/a",
        )

    async def exist(self, paths: Sequence[bytes]) -> list[bool]:
        await trio.lowlevel.checkpoint()
        return [path in self.entries_by_path for path in paths]

    async def match(self, paths: Sequence[bytes]) -> int:
        there = await self.exist(paths)
        return [*there, False].index(False)

    async def entries(self, path: bytes) -> list[Entry]:
        await trio.lowlevel.checkpoint()
        found = self._find(path)
        if found.kind == "file":
            return [found]
        below = path.rstrip(b"/") + b"/"
        return [
            e
            for p, e in sorted(self.entries_by_path.items())
            if p.startswith(below) and p != path and b"/" not in p[len(below) :]
        ]

    async def entry(self, path: bytes) -> Entry:
        await trio.lowlevel.checkpoint()
        return self._find(path)

    def promote(self, paths: Sequence[bytes]) -> AsyncIterator[Step]:
        return self._operate(paths, "ddr")

    def demote(self, paths: Sequence[bytes]) -> AsyncIterator[Step]:
        return self._operate(paths, "nvme")

    def scrub(self, paths: Sequence[bytes]) -> AsyncIterator[Step]:
        return self._operate(paths, None)

    async def fsck(self, *, data: bool, repair: bool) -> AsyncIterator[Finding]:
        await trio.lowlevel.checkpoint()
        self._find(b"/")
        yield Finding(done=1, total=2)
        if data:
            about_it = "quarantined" if repair else ""
            yield Finding(done=1, total=2, kind="data", what="object 5: page 3 failed", done_about_it=about_it)
        if self.degraded:
            yield Finding(done=2, total=2, kind="nvme", what="object 6: is missing", mended=repair)

    def sync(self, paths: Sequence[bytes]) -> AsyncIterator[Step]:
        return self._operate(paths, None)

    async def _operate(self, paths: Sequence[bytes], tier: str | None) -> AsyncIterator[Step]:
        self.begun += 1
        try:
            await trio.lowlevel.checkpoint()
            files = [e for path in paths for e in self._files(path)]
            bytes_done = 0
            done = 0
            while done < len(files) or self.endless:
                entry = files[done % len(files)]
                error = self._why_not(entry, tier)
                if error is None:
                    bytes_done += entry.size_bytes
                    self.entries_by_path[entry.path] = replace(entry, tier=tier or entry.tier, clean=True)
                done += 1
                if done == self.fail_at and self.bug is not None:
                    raise self.bug
                if done == self.die_at:
                    os._exit(1)
                yield Step(
                    done=done,
                    total=max(len(files), done),
                    bytes_done=bytes_done,
                    path=entry.path,
                    error=None if error is None else str(error),
                    code=None if error is None else errno.errorcode[error.errno],
                )
                await trio.lowlevel.checkpoint()
                if self.gate is not None:
                    if self.on_step is not None:
                        self.on_step()
                    await self.gate.wait()
        except (trio.Cancelled, GeneratorExit):
            self.cancelled += 1
            if self.on_cancel is not None:
                self.on_cancel()
            raise

    def _why_not(self, entry: Entry, tier: str | None) -> KvdError | None:
        if tier == "nvme" and entry.opens:
            return BusyError("leased: 1 open")
        if tier == "ddr" and b"huge" in entry.path:
            return NoSpaceError("900 GiB do not fit in ddr")
        if b"damaged" in entry.path:
            return DamagedError("page 3 failed its checksum")
        return None

    async def pin(self, path: bytes, *, pinned: bool) -> int:
        await trio.lowlevel.checkpoint()
        files = self._files(path)
        if not pinned and any(b"leased" in e.path for e in files) and len(files) == 1:
            raise BusyError("leased: 1 open")
        if pinned and any(b"huge" in e.path for e in files) and len(files) == 1:
            raise NoSpaceError("900 GiB do not fit in ddr")
        if any(b"damaged" in e.path for e in files) and len(files) == 1:
            raise DamagedError("page 3 failed its checksum; the object is quarantined")
        changed = [e for e in files if e.pinned != pinned]
        for e in changed:
            self.entries_by_path[e.path] = replace(e, pinned=pinned)
        return len(changed)


def _say(word: str) -> None:
    sys.stdout.write(word + "\n")
    sys.stdout.flush()


async def main(arguments: Sequence[str]) -> None:
    """Serve until killed; say ``ready``, ``step`` when an operation waits at the gate, ``cancelled`` when one was."""
    parser = argparse.ArgumentParser()
    parser.add_argument("socket", type=Path)
    parser.add_argument("--mount", default="/mnt/kvd")
    parser.add_argument("--group", default="no-such-group")
    parser.add_argument("--degraded", action="store_true")
    parser.add_argument("--endless", action="store_true")
    parser.add_argument("--hold", action="store_true", help="stop before the second step of an operation")
    parser.add_argument("--die-at", type=int, default=0)
    parser.add_argument("--fail-at", type=int, default=0)
    parser.add_argument("--bug", action="store_true")
    given = parser.parse_args(arguments)
    control = FakeControl(
        mount=given.mount,
        degraded=given.degraded,
        endless=given.endless,
        gate=trio.Event() if given.hold else None,
        die_at=given.die_at,
        fail_at=given.fail_at,
        bug=RuntimeError("a bug on purpose") if given.bug else None,
        on_cancel=lambda: _say("cancelled"),
        on_step=lambda: _say("step"),
    )
    async with trio.open_nursery() as nursery:
        await nursery.start(serve, control, given.socket, given.group)
        _say("ready")


if __name__ == "__main__":
    trio.run(main, sys.argv[1:])
