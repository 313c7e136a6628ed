"""A scripted life with forks of sessions; see `support.scripted_life`."""

from __future__ import annotations

import random

import trio

from kvd.api.sessions import ForkPoint
from support.scripted_life import Life, Model, Thing, ino_of
from support.tiers import PAGE_BYTES, Tiers


def a_forked_life() -> Life:
    """Return a life in which sessions are forked, and each goes its way."""
    life = Life()
    bytes_of = random.Random(7).randbytes
    life.make(b"file", bytes_of(2 * PAGE_BYTES + 77))
    fork(life, b"file", b"whole", ForkPoint())
    fork(life, b"file", b"cut", ForkPoint(count=PAGE_BYTES + 5), PAGE_BYTES + 5)
    life.open(b"file")
    life.write(b"file", bytes_of(100))
    life.close(b"file")
    life.durable(b"file", "demote")
    fork(life, b"file", b"cold", ForkPoint())
    life.unlink(b"file")
    life.same("a namespace", _namespace)
    for name in (b"a", b"b"):
        life.make(name, bytes_of(PAGE_BYTES + 3))
        life.move(name, b"dirs/s/" + name)
    life.durable(b"dirs/s/a", "demote")
    fork(life, b"dirs/s", b"dirs/f", ForkPoint())
    life.open(b"dirs/f/a")
    life.write(b"dirs/f/a", bytes_of(10))
    life.close(b"dirs/f/a")
    end(life, b"dirs/s")
    life.durable(b"dirs/f/a", "demote")
    end(life, b"dirs/f")
    return life


async def _namespace(tiers: Tiers) -> None:
    names = tiers.catalog.names
    policies = {"session": "directory"}
    await tiers.objects.namespacing.create(b"dirs", fingerprint={}, policies=policies, mode=0o755, uid=0, gid=0)
    names.make(ino_of(tiers, b"dirs"), b"s", mode=0o40755, uid=0, gid=0, now_ns=7)


def fork(life: Life, old: bytes, new: bytes, at: ForkPoint, size: int | None = None) -> None:
    """Fork a session, a file or a directory; a file is cut at `size`."""

    def effect(model: Model) -> None:
        for name, thing in list(model.things.items()):
            if name == old or name.startswith(old + b"/"):
                content = thing.content[:size]
                model.things[new + name[len(old) :]] = Thing(content=content, copy=content, sealed=True)

    life.add(f"fork {old!r} {at}", lambda t: t.sessions.fork_session(b"/" + old, b"/" + new, at), effect)


def end(life: Life, name: bytes) -> None:
    """End a session that is a directory, and delete what was in it."""

    def effect(model: Model) -> None:
        for each in [each for each in model.things if each.startswith(name + b"/")]:
            del model.things[each]

    async def act(tiers: Tiers) -> None:
        await tiers.sessions.close_session(b"/" + name)
        await reap(tiers)

    life.add(f"end {name!r}", act, effect)


async def reap(tiers: Tiers) -> None:
    """Delete what is below graves."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(tiers.objects.reaper.run)
        await tiers.objects.reaper.idle()
        nursery.cancel_scope.cancel()
