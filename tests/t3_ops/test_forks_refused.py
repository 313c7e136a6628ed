"""Forks that can not be: nobody sees half of one, and nothing is left of it."""

from __future__ import annotations

import errno
import os
from functools import partial

import pytest
import trio
import trio.testing

from kvd.api.sessions import ForkPoint
from kvd.errors import (
    BusyError,
    DamagedError,
    ExistsError,
    InvalidError,
    KvdError,
    MismatchError,
    NoSpaceError,
    NotFoundError,
)
from kvd.session import forks
from kvd.tier import cloning
from kvdriver import BLOCK_BYTES, Tier
from support.forked import ALL, BLOCKS, content, during, fill, fork, nothing_is_left, write
from support.session_space import space_at
from support.tiers import PAGE_BYTES


@pytest.mark.parametrize(
    ("path", "new", "at", "error", "words"),
    [
        ("/dirs/s", "/dirs/s", ALL, ExistsError, "there already"),
        ("/dirs/s", "/nope/f", ALL, NotFoundError, "no such directory"),
        ("/dirs/s", "/files/a/f", ALL, NotFoundError, "no such directory"),
        ("/dirs/nope", "/dirs/f", ALL, NotFoundError, "no such file"),
        ("/dirs/s", "/files/f", ALL, InvalidError, "right below a namespace"),
        ("/dirs/s", "/dirs/s/f", ALL, InvalidError, "right below a namespace"),
        ("/dirs/s", "/f", ALL, InvalidError, "right below a namespace"),
        ("/files/a", "/dirs/s/f", ALL, InvalidError, "not within a session"),
        ("/files/a", "/.kvd", ALL, InvalidError, "can't name"),
        ("/dirs/s", "/dirs/" + "f" * 256, ALL, InvalidError, "can't name"),
        ("/dirs/s", "/dirs/f", ForkPoint(until="b9"), NotFoundError, "no such block"),
        ("/dirs/s", "/dirs/f", ForkPoint(count=5), InvalidError, "4 blocks, not 5"),
        ("/dirs/s", "/dirs/f", ForkPoint(count=-1), InvalidError, "4 blocks, not -1"),
        ("/dirs/s", "/dirs/f", ForkPoint(tokens=1), InvalidError, "forked at a block"),
        ("/files/a", "/files/f", ForkPoint(until="b1"), InvalidError, "no blocks with names"),
        ("/files/a", "/files/f", ForkPoint(count=1 << 40), InvalidError, "65536 bytes, not"),
        ("/files/a", "/files/f", ForkPoint(tokens=3), InvalidError, "where a token ends"),
        ("/files/a", "/files/f", ForkPoint(tokens=-1, bytes_per_token=8), InvalidError, "from 0"),
        ("/files/a", "/files/f", ForkPoint(tokens=-1, bytes_per_token=-8), InvalidError, "from 0"),
        ("/files/a", "/print/f", ALL, MismatchError, "another fingerprint"),
    ],
)
async def test_what_makes_no_sense_is_refused_and_nothing_is_made(root, path, new, at, error, words) -> None:
    async with space_at(root) as space:
        await fill(space)
        await space.store(b"a")
        await space.tiers.objects.namespacing.create(
            b"print", fingerprint={"model": "x"}, policies={}, mode=0o755, uid=0, gid=0
        )
        before = await space.tiers.used_blocks(Tier.DDR)
        with pytest.raises(error, match=words):
            await fork(space, path, new, at)
        await nothing_is_left(space, before, 0)


async def test_more_names_than_can_be_read_at_one_go_are_refused(root, monkeypatch) -> None:
    monkeypatch.setattr(forks, "NAMES_MAX", 3)
    async with space_at(root) as space:
        await fill(space)
        with pytest.raises(InvalidError, match="at most 3 names"):
            await fork(space)


async def test_an_object_with_a_writer_is_refused_unless_it_comes_after_the_point(root) -> None:
    async with space_at(root) as space:
        await fill(space)
        ino = await space.begin(b"b9", space.folder)
        with pytest.raises(BusyError, match="/dirs/s/b9: open for writing"):
            await fork(space)
        assert await content(space, await fork(space, at=ForkPoint(count=4))) == BLOCKS
        await space.tiers.objects.release(ino, write=True)
        file = await space.begin(b"f")
        for at in (ALL, ForkPoint(count=0)):
            with pytest.raises(BusyError, match="/files/f: open for writing"):
                await fork(space, "/files/f", "/files/g", at)
        await space.tiers.objects.release(file, write=True)
        await space.reap()


@pytest.mark.parametrize("truncate", [False, True])
async def test_a_writer_that_comes_while_it_is_forked_ends_the_fork(root, truncate, monkeypatch) -> None:
    monkeypatch.setattr(forks, "OBJECTS_AT_ONCE", 1)
    async with space_at(root) as space:
        inos = await fill(space)
        await space.tiers.objects.sync(inos[b"b3"])
        await space.tiers.objects.demote(inos[b"b3"])
        ddr, nvme = await space.tiers.used_blocks(Tier.DDR), await space.tiers.used_blocks(Tier.NVME)
        during(space, partial(write, space, inos[b"b3"], BLOCKS[b"b3"], truncate=truncate))
        with pytest.raises(
            BusyError, match=r"/dirs/s/b3: (written while it was forked|open for writing|written meanwhile)"
        ):
            await fork(space)
        await space.tiers.objects.demote(inos[b"b3"])
        await nothing_is_left(space, ddr, nvme)
        assert await content(space, await fork(space)) == BLOCKS


async def test_a_name_that_comes_while_it_is_forked_is_respected(root) -> None:
    async with space_at(root) as space:
        await fill(space)
        before = await space.tiers.used_blocks(Tier.DDR)

        async def take() -> None:
            await trio.lowlevel.checkpoint()
            space.tiers.catalog.names.make(space.dirs, b"f", mode=0o40755, uid=0, gid=0, now_ns=1)

        during(space, take)
        with pytest.raises(ExistsError):
            await fork(space)
        await nothing_is_left(space, before, 0)


async def test_an_object_that_is_removed_and_a_session_that_ends_meanwhile(root, monkeypatch) -> None:
    monkeypatch.setattr(forks, "OBJECTS_AT_ONCE", 1)
    async with space_at(root) as space:
        inos = await fill(space)

        objects, removed = space.tiers.objects, []

        async def remove() -> None:
            name, ino = next((name, ino) for name, ino in inos.items() if not objects.lives.by_ino[ino].locked)
            space.tiers.catalog.names.unlink(space.folder, name, 5)
            await objects.discard(ino)
            removed.append(ino)

        during(space, remove)
        with pytest.raises(BusyError, match="removed while it was forked"):
            await fork(space)
        assert removed[0] not in objects.lives.sessions

        async def close() -> None:
            await space.verbs.close_session(b"/dirs/s")

        during(space, close)
        with pytest.raises((NotFoundError, BusyError)):
            await fork(space)
        with pytest.raises(NotFoundError, match="no such file"):
            await fork(space)
        await nothing_is_left(space, 0, 0)


async def test_no_half_fork_is_seen_by_path(root) -> None:
    async with space_at(root) as space:
        await fill(space)
        seen = []

        async def look() -> None:
            await trio.lowlevel.checkpoint()
            seen.append(space.has(b"f", space.dirs))
            seen.append([each.path async for each in space.verbs.sessions(b"/")])

        during(space, look)
        await fork(space)
        assert seen == [False, [b"/dirs/s"]]
        assert space.has(b"f", space.dirs)
        assert (space.dirs, b"f") in space.keeper.told, "that it was not there is forgotten"


async def test_without_room_on_nvme_nothing_is_left_of_it(root) -> None:
    async with space_at(root, nvme_mib=1) as space:
        await fill(space)
        before = await space.tiers.used_blocks(Tier.DDR)
        for at in (3, 4):
            await space.tiers.books.resize(Tier.NVME, at * PAGE_BYTES // BLOCK_BYTES)
            with pytest.raises(NoSpaceError):
                await fork(space)
            await nothing_is_left(space, before, 0)
        await space.tiers.books.resize(Tier.NVME, 256)
        assert await content(space, await fork(space)) == BLOCKS


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
async def test_a_cold_origin_whose_file_can_not_be_copied(root, code, monkeypatch, claim_log) -> None:
    claim_log("nvme directory is offline")
    async with space_at(root) as space:
        inos = await fill(space)
        for ino in inos.values():
            await space.tiers.objects.demote(ino)
        nvme = await space.tiers.used_blocks(Tier.NVME)

        def broken(*_: object) -> None:
            raise OSError(code, os.strerror(code))

        with monkeypatch.context() as patch:
            patch.setattr(cloning, "_end", broken)
            with pytest.raises(NoSpaceError if code == errno.ENOSPC else KvdError):
                await fork(space)
        assert not space.has(b"f", space.dirs)
        if code == errno.ENOSPC:
            await nothing_is_left(space, 0, nvme)
            assert await content(space, await fork(space)) == BLOCKS
        else:
            await space.reap()


async def test_a_quarantined_block_is_not_forked(root, claim_log) -> None:
    claim_log("quarantined")
    async with space_at(root) as space:
        inos = await fill(space)
        async with space.tiers.objects.lives.hold(inos[b"b2"]) as live:
            space.tiers.objects.moves.damage(live, 0, "for the test")
        with pytest.raises(DamagedError, match="/dirs/s/b2: quarantined"):
            await fork(space)
        await space.reap()
        assert list(await content(space, await fork(space, at=ForkPoint(until="b1")))) == [b"b0", b"b1"]


async def test_a_fork_that_is_given_up_goes(root, monkeypatch) -> None:
    monkeypatch.setattr(forks, "OBJECTS_AT_ONCE", 1)
    async with space_at(root) as space:
        await fill(space)
        before = await space.tiers.used_blocks(Tier.DDR)
        with trio.CancelScope() as scope:

            async def cancel() -> None:
                scope.cancel()
                await trio.lowlevel.checkpoint()

            during(space, cancel)
            await fork(space)
        assert scope.cancelled_caught
        await nothing_is_left(space, before, 0)
        assert await content(space, await fork(space)) == BLOCKS


async def test_a_start_finds_forks_whole_and_removes_what_was_half_made(root) -> None:
    async with space_at(root) as space:
        await fill(space)
        await fork(space)

        async def stop() -> None:
            raise RuntimeError("the end of the daemon")

        during(space, stop)
        with pytest.RaisesGroup(RuntimeError, flatten_subgroups=True):
            await fork(space, new="/dirs/g")
    async with space_at(root) as space:
        assert space.tiers.catalog.namespaces.graves
        await space.reap()
        folder = space.tiers.catalog.names.lookup(space.dirs, b"f").ino
        assert await content(space, folder) == BLOCKS == await content(space, space.folder)
        assert not space.has(b"g", space.dirs)
        for each in space.tiers.catalog.names.listing(folder):
            await space.tiers.objects.demote(each.inode.ino)
        nvme = await space.tiers.used_blocks(Tier.NVME)
        await nothing_is_left(space, await space.tiers.used_blocks(Tier.DDR), nvme)


async def test_who_waits_for_its_turn_while_the_session_ends_forks_nothing(root, monkeypatch) -> None:
    monkeypatch.setattr(forks, "FORKS_AT_ONCE", 1)
    async with space_at(root) as space:
        await fill(space)
        refused = []

        async def second() -> None:
            with pytest.raises(NotFoundError, match="ended"):
                await fork(space, new="/dirs/g")
            refused.append("g")

        async with trio.open_nursery() as nursery:

            async def meanwhile() -> None:
                nursery.start_soon(second)
                await trio.testing.wait_all_tasks_blocked()
                await space.verbs.close_session(b"/dirs/s")

            during(space, meanwhile)
            with pytest.raises((NotFoundError, BusyError)):
                await fork(space)
        assert refused == ["g"]
        await nothing_is_left(space, 0, 0)
