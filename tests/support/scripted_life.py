"""A scripted life of the tiers, and what a start may find after it ended anywhere: the oracle of the crash tests.

Each step has an action on the tiers and an effect on a model. A crash during a step may leave what was before it or
what is after it, for all names together, by the documented rule: a sealed object whose DDR file lives is whole; any
other is its last copy on NVMe, or absent.
"""

from __future__ import annotations

import copy
import os
import random
import zlib
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from typing import TYPE_CHECKING

from kvd.catalog.schema import ROOT_INO
from kvd.format.store import encode, open_stored, plan_file
from kvd.policy.formats import Formats
from kvd.tier import recoding, storing
from kvdriver import BLOCK_BYTES, Tier
from support.formatted import LAYOUT, opaque
from support.tiers import MIB, PAGE_BYTES, Tiers

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

DDR_MIB = 4


@dataclass
class Thing:
    """What an object should be: `content` once sealed, `copy` what NVMe surely has."""

    content: bytes = b""
    copy: bytes | None = None
    sealed: bool = False

    def __repr__(self) -> str:
        copy = "none" if self.copy is None else brief(self.copy)
        return f"{brief(self.content)} {'sealed' if self.sealed else 'filling'} copy {copy}"

    def after_crash(self, *, ddr_lost: bool) -> set[bytes | None]:
        """Return what may be found; None: nothing. What policy moved to NVMe meanwhile may be there too."""
        if not self.sealed:
            return {self.copy}
        return {self.content, self.copy} if ddr_lost else {self.content}


@dataclass
class Model:
    """What there should be; `also` tells what else may come back for bytes that went to NVMe: what a lossy format gives."""

    things: dict[bytes, Thing] = field(default_factory=dict)
    also: Callable[[bytes], bytes] | None = None

    def allows(self, found: dict[bytes, bytes], *, ddr_lost: bool) -> bool:
        """Whether a start may find this, if the crash came when things were so."""
        return found.keys() <= self.things.keys() and all(
            found.get(name) in self._either(thing.after_crash(ddr_lost=ddr_lost)) for name, thing in self.things.items()
        )

    def _either(self, contents: set[bytes | None]) -> set[bytes | None]:
        if self.also is None:
            return contents
        return contents | {self.also(content) for content in contents if content is not None}


@dataclass
class Life:
    """The steps, in order; `run` tells `done` the number of each that ended."""

    steps: list[tuple[str, Callable[[Tiers], Awaitable[object]], Callable[[Model], None]]] = field(default_factory=list)
    also: Callable[[bytes], bytes] | None = None

    def add(self, what: str, act: Callable[[Tiers], Awaitable[object]], effect: Callable[[Model], None]) -> None:
        self.steps.append((what, act, effect))

    def models(self) -> list[Model]:
        """Return the model before the first step and after each."""
        states = [Model(also=self.also)]
        for _, _, effect in self.steps:
            states.append(copy.deepcopy(states[-1]))
            effect(states[-1])
        return states

    # -- kinds of steps ------------------------------------------------------------------------------------------

    def begin(self, name: bytes) -> None:
        self.add(f"create {name!r}", lambda t: t.begin(name), lambda m: m.things.update({name: Thing()}))

    def write(self, name: bytes, data: bytes, at: int = 0) -> None:
        def effect(model: Model) -> None:
            thing = model.things[name]
            thing.content = thing.content[:at].ljust(at, b"\0") + data + thing.content[at + len(data) :]

        async def act(tiers: Tiers) -> None:
            tiers.write(ino_of(tiers, name), data, at)

        self.add(f"write {name!r}", act, effect)

    def open(self, name: bytes, *, truncate: bool = False, was_cold: bool = False) -> None:
        def effect(model: Model) -> None:
            thing = model.things[name]
            thing.sealed = False
            if truncate:
                thing.content = b""
            else:  # what was sealed is copied before a writer may change it
                thing.copy = thing.content
            if truncate and was_cold:
                thing.copy = None

        self.add(
            f"open {name!r} truncate={truncate}",
            lambda t: t.objects.open(ino_of(t, name), write=True, truncate=truncate),
            effect,
        )

    def close(self, name: bytes) -> None:
        def effect(model: Model) -> None:
            model.things[name].sealed = True

        self.add(f"seal {name!r}", lambda t: t.objects.release(ino_of(t, name), write=True), effect)

    def durable(self, name: bytes, how: str) -> None:
        def effect(model: Model) -> None:
            model.things[name].copy = model.things[name].content

        self.add(f"{how} {name!r}", lambda t: getattr(t.objects, how)(ino_of(t, name)), effect)

    def same(self, what: str, act: Callable[[Tiers], Awaitable[object]]) -> None:
        self.add(what, act, lambda _: None)

    def make(self, name: bytes, data: bytes) -> None:
        self.begin(name)
        self.write(name, data)
        self.close(name)

    def truncate(self, name: bytes, size: int) -> None:
        def effect(model: Model) -> None:
            thing = model.things[name]
            thing.content = thing.content[:size].ljust(size, b"\0")

        self.add(f"truncate {name!r} {size}", lambda t: t.objects.truncate(ino_of(t, name), size), effect)

    def rename(self, old: bytes, new: bytes) -> None:
        async def act(tiers: Tiers) -> None:
            lost = tiers.catalog.names.rename(ROOT_INO, old, ROOT_INO, new, 0, 7)
            if lost is not None:
                await tiers.objects.discard(lost.ino)

        self.add(f"rename {old!r} {new!r}", act, lambda m: m.things.update({new: m.things.pop(old)}))

    def move(self, old: bytes, new: bytes) -> None:
        async def act(tiers: Tiers) -> None:
            folder, _, name = new.rpartition(b"/")
            tiers.catalog.names.rename(ROOT_INO, old, ino_of(tiers, folder), name, 0, 7)

        self.add(f"move {old!r} {new!r}", act, lambda m: m.things.update({new: m.things.pop(old)}))

    def unlink(self, name: bytes) -> None:
        async def act(tiers: Tiers) -> None:
            await tiers.objects.discard(tiers.catalog.names.unlink(ROOT_INO, name, 7).ino)

        self.add(f"unlink {name!r}", act, lambda m: m.things.pop(name))


def brief(data: bytes) -> str:
    return f"{len(data)} bytes {zlib.crc32(data):08x}"


def show(state: dict[bytes, bytes]) -> str:
    return str({name: brief(data) for name, data in sorted(state.items())})


def ino_of(tiers: Tiers, name: bytes) -> int:
    ino = tiers.catalog.names.number(b"/" + name)
    assert ino is not None, name
    return ino


async def _tmpfile(tiers: Tiers) -> None:
    ino = await tiers.begin(None)
    tiers.write(ino, b"nobody sees it")
    await tiers.objects.fsync(ino)
    await tiers.objects.release(ino, write=True)
    await tiers.objects.discard(ino)


def _read(name: bytes) -> Callable[[Tiers], Awaitable[object]]:
    return lambda tiers: tiers.read(ino_of(tiers, name))


def _open_cold(name: bytes) -> Callable[[Tiers], Awaitable[object]]:
    async def act(tiers: Tiers) -> None:
        await tiers.books.resize(Tier.DDR, tiers.config.ddr.budget_bytes // BLOCK_BYTES)  # as `Room.run` does
        await tiers.objects.open(ino_of(tiers, name), write=False)
        assert not tiers.plane.objects[ino_of(tiers, name)].writable, "from NVMe, for want of room in DDR"

    return act


def a_life() -> Life:
    """Return a life in which everything happens that moves bytes or changes rows."""
    life = Life()
    bytes_of = random.Random(7).randbytes
    _alone(life, bytes_of)
    _together(life, bytes_of)
    return life


def a_stored_life(ladder: str) -> Life:
    """Return a life in a namespace with a ladder of formats; `keep_in_formats` before."""
    life = Life()
    if ladder == "zstd":
        bytes_of = random.Random(7).randbytes
        life.make(b"a", bytes_of(3 * PAGE_BYTES + 777))
        life.durable(b"a", "fsync")
        life.durable(b"a", "demote")
        life.same("promote by a read", _read(b"a"))
        life.open(b"a")
        life.write(b"a", bytes(3000), PAGE_BYTES - 1000)
        life.durable(b"a", "fsync")
        life.write(b"a", bytes_of(10))
        life.close(b"a")
        life.durable(b"a", "demote")
        life.truncate(b"a", 4097)
        life.durable(b"a", "demote")
        life.open(b"a", truncate=True, was_cold=True)
        life.close(b"a")
        life.begin(b"sparse")
        life.write(b"sparse", b"end", 40 * PAGE_BYTES)
        life.close(b"sparse")
        life.durable(b"sparse", "demote")
        life.same("promote by a read", _read(b"sparse"))
        life.durable(b"sparse", "demote")
        life.unlink(b"sparse")
        return life
    life.also = partial(decoded, ladder)
    for name, seed in ((b"a", 1), (b"b", 2)):
        life.make(name, opaque(seed).content)
    life.durable(b"a", "fsync")
    life.durable(b"a", "demote")
    life.durable(b"b", "demote")
    life.same("promote by a read", _read(b"a"))
    life.durable(b"a", "demote")
    life.same("promote", lambda t: t.objects.promote(ino_of(t, b"b")))
    life.open(b"a", truncate=True, was_cold=True)
    life.write(b"a", opaque(3).content)
    life.close(b"a")
    life.durable(b"a", "demote")
    life.durable(b"b", "demote")
    life.unlink(b"b")
    return life


def keep_in_formats(ladder: str) -> None:
    """Let everything of this process be as in a namespace with a ladder, in short pieces."""
    formats = Formats(ladder, LAYOUT)
    storing.formats_of = lambda _namespace: formats
    storing.FORMAT_BYTES_MIN = 1
    recoding.PIECE_BYTES = 2 * PAGE_BYTES


@cache
def decoded(ladder: str, content: bytes) -> bytes:
    """Return what comes back of an object that the ladder's first step is for."""
    with memory(content) as object_fd, memory() as stored_fd, memory() as back_fd:
        encode(object_fd, stored_fd, plan_file(object_fd, Formats(ladder, LAYOUT).leaving(0.0)))
        with open_stored(stored_fd) as stored:
            stored.decode(back_fd)
        return os.pread(back_fd, len(content) + 1, 0)


@contextmanager
def memory(content: bytes = b"") -> Iterator[int]:
    fd = os.memfd_create("kvd-test")
    try:
        os.pwrite(fd, content, 0)
        yield fd
    finally:
        os.close(fd)


def _alone(life: Life, bytes_of: Callable[[int], bytes]) -> None:
    """Objects that have DDR for themselves: all ways of writing, emptying and moving."""
    life.make(b"a", bytes_of(3 * PAGE_BYTES + 777))
    life.durable(b"a", "fsync")
    life.begin(b"b")
    life.write(b"b", bytes_of(5000))
    life.durable(b"b", "fsync")
    life.write(b"b", bytes_of(PAGE_BYTES), 4000)
    life.close(b"b")
    life.durable(b"b", "demote")
    life.same("promote by a read", _read(b"b"))
    life.durable(b"b", "demote")
    life.same("promote", lambda t: t.objects.promote(ino_of(t, b"b")))
    life.open(b"a")
    life.write(b"a", bytes_of(3000), PAGE_BYTES - 1000)
    life.durable(b"a", "fsync")
    life.write(b"a", bytes_of(10))
    life.close(b"a")
    life.durable(b"a", "sync")
    life.open(b"a", truncate=True)
    life.write(b"a", bytes_of(PAGE_BYTES + 1))
    life.close(b"a")
    life.durable(b"a", "demote")
    life.open(b"a", truncate=True, was_cold=True)
    life.write(b"a", bytes_of(70000))
    life.durable(b"a", "fsync")
    life.close(b"a")
    life.durable(b"b", "demote")
    life.truncate(b"b", 4097)
    life.durable(b"b", "demote")
    life.open(b"b", truncate=True, was_cold=True)
    life.close(b"b")
    life.durable(b"b", "demote")


def _together(life: Life, bytes_of: Callable[[int], bytes]) -> None:
    """Renames, holes, and objects that push each other out of DDR."""
    life.make(b"c.tmp", bytes_of(9000))
    life.rename(b"c.tmp", b"a")
    life.same("a file without a name", _tmpfile)
    life.begin(b"sparse")
    life.write(b"sparse", b"end", 40 * PAGE_BYTES)
    life.close(b"sparse")
    life.durable(b"sparse", "demote")
    life.same("promote by a read", _read(b"sparse"))
    life.same("pin", lambda t: t.objects.pin(ino_of(t, b"sparse"), pinned=True))
    for index in range(3):
        life.make(b"big%d" % index, bytes_of(3 * MIB // 2))
    life.same("evicts another", _read(b"big0"))
    life.same("pin", lambda t: t.objects.pin(ino_of(t, b"big0"), pinned=True))
    life.same("read", _read(b"big1"))
    life.same("pin", lambda t: t.objects.pin(ino_of(t, b"big1"), pinned=True))
    life.durable(b"big2", "demote")
    life.same("read from NVMe", _open_cold(b"big2"))
    life.open(b"big2", truncate=True, was_cold=True)
    life.write(b"big2", bytes_of(100))
    life.close(b"big2")
    life.same("end of the reader", lambda t: t.objects.release(ino_of(t, b"big2"), write=False))
    life.same("unpin", lambda t: t.objects.pin(ino_of(t, b"big0"), pinned=False))
    life.durable(b"a", "demote")
    life.unlink(b"a")
    life.unlink(b"sparse")
    life.unlink(b"big1")
