"""Forks of sessions, without a mount: what is in them, and that each goes its way."""

from __future__ import annotations

import itertools
import os
from functools import partial
from typing import TYPE_CHECKING

import pytest

from kvd.api.sessions import ForkPoint
from kvd.catalog.records import Said
from kvd.errors import (
    BusyError,
    NoSpaceError,
)
from kvd.tier import cloning
from kvdriver import Tier
from kvdriver.abi import State
from support.forked import ALL, BLOCKS, content, fill, fork, nothing_is_left, write
from support.formatted import LAYOUT, opaque
from support.ladder_space import ladder_at
from support.session_space import space_at
from support.tiers import MIB

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("how", ["hot", "clean", "cold"])
async def test_a_fork_has_what_the_session_has_and_then_each_goes_its_way(root, how) -> None:
    async with space_at(root) as space:
        objects, inos = space.tiers.objects, await fill(space)
        for ino in inos.values():
            if how != "hot":
                await (objects.demote if how == "cold" else objects.sync)(ino)
        folder = await fork(space)
        assert space.state(folder) is State.COLD
        assert list(await content(space, folder)) == list(BLOCKS)
        assert await content(space, folder) == BLOCKS
        theirs = {each.name: each.inode.ino for each in space.tiers.catalog.names.listing(folder)}
        await write(space, inos[b"b0"], b"the parent's own")
        await write(space, theirs[b"b1"], b"the child's own", truncate=True)
        ours, forked = await content(space, space.folder), await content(space, folder)
        assert ours == {**BLOCKS, b"b0": b"the parent's own" + BLOCKS[b"b0"][16:]}
        assert forked == {**BLOCKS, b"b1": b"the child's own"}


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))), ids=str)
async def test_sessions_forked_of_each_other_end_in_any_order(root, order) -> None:
    paths = ["/dirs/s", "/dirs/f", "/dirs/g"]
    async with space_at(root) as space:
        await fill(space)
        folders = [space.folder, await fork(space), await fork(space, "/dirs/f", "/dirs/g", ForkPoint(count=2))]
        left = dict(enumerate(folders))
        for number in order:
            await space.verbs.close_session(paths[number].encode())
            del left[number]
            await space.reap()
            for other, folder in left.items():
                assert await content(space, folder) == dict(list(BLOCKS.items())[: 2 if other == 2 else 4])
        assert space.tiers.objects.lives.count == 0
        await nothing_is_left(space, 0, 0)


async def test_readers_of_the_old_bytes_keep_them_while_both_are_written(root) -> None:
    async with space_at(root) as space:
        objects, inos = space.tiers.objects, await fill(space)
        folder = await fork(space)
        theirs = {each.name: each.inode.ino for each in space.tiers.catalog.names.listing(folder)}
        await objects.open(theirs[b"b0"], write=False)
        await write(space, inos[b"b0"], b"x" * 100, truncate=True)
        assert space.tiers.see(theirs[b"b0"]) == BLOCKS[b"b0"]
        await objects.release(theirs[b"b0"], write=False)


async def test_holes_stripes_and_empty_objects(root) -> None:
    blocks = {b"empty": b"", b"large": os.urandom(3 * MIB + 5), b"sparse": bytes(MIB) + b"end"}
    async with space_at(root, nvme_dirs=2) as space:
        inos = await fill(space, blocks)
        await space.tiers.objects.truncate(inos[b"sparse"], 2 * MIB)
        blocks[b"sparse"] = blocks[b"sparse"].ljust(2 * MIB, b"\0")
        hot = await fork(space)
        for ino in inos.values():
            await space.tiers.objects.demote(ino)
        nvme_blocks = await space.tiers.used_blocks(Tier.NVME)
        cold = await fork(space, new="/dirs/g")
        assert await space.tiers.used_blocks(Tier.NVME) == nvme_blocks * 3 // 2, "each is charged what it takes"
        placements = space.tiers.catalog.placements
        for folder in (hot, cold):
            made = {each.name: each.inode.ino for each in space.tiers.catalog.names.listing(folder)}
            assert len(placements.copy(made[b"large"]).dirs) == 2
            assert await content(space, folder) == blocks
            for ino in made.values():
                await space.tiers.objects.demote(ino)


async def test_where_files_can_share_their_storage_nothing_is_copied(root, monkeypatch) -> None:
    shared = []

    def share(source: Path, to: Path) -> bool:  # as a file system with FICLONE
        shared.append(to)
        to.write_bytes(source.read_bytes())
        return True

    monkeypatch.setattr(cloning, "_share", share)
    async with space_at(root) as space:
        inos = await fill(space)
        for ino in list(inos.values())[:2]:
            await space.tiers.objects.sync(ino)
        await space.tiers.objects.demote(inos[b"b0"])
        moved_bytes = space.tiers.objects.moves.counts.demoted_bytes
        folder = await fork(space)
        assert len(shared) == 2, "what NVMe has already, in DDR or not"
        copied = sum(len(BLOCKS[name]) for name in (b"b2", b"b3"))
        assert space.tiers.objects.moves.counts.demoted_bytes - moved_bytes == copied
        assert await content(space, folder) == BLOCKS


async def test_attributes_come_along_and_what_was_said_of_its_life_does_not(root) -> None:
    async with space_at(root) as space:
        names, rows = space.tiers.catalog.names, space.tiers.catalog.sessions
        inos = await fill(space)
        names.setattr(inos[b"b0"], mode=0o100600, uid=5, gid=6, mtime_ns=77)
        names.set_xattr(inos[b"b0"], b"user.model", b"llama", 5)
        names.make(space.folder, b"link", mode=0o120777, uid=1, gid=2, now_ns=9, target=b"b0")
        rows.put(Said(ino=space.folder, priority=3, window=4096, sink=4, ttl_ns=10**12, expire_ns=10**19 // 2))
        await space.verbs.pin_session(b"/dirs/s", "hard")
        folder = await fork(space)
        child = names.lookup(folder, b"b0")
        assert (child.mode, child.uid, child.gid, child.mtime_ns, child.nlink) == (0o100600, 5, 6, 77, 1)
        assert names.xattr(child.ino, b"user.model") == b"llama"
        assert names.lookup(folder, b"link").target == b"b0"
        assert rows.get(folder) == Said(ino=folder, priority=3, window=4096, sink=4)
        assert not space.tiers.catalog.placements.get(child.ino).pinned
        assert names.inode(space.dirs).nlink == 2 + 2
        assert names.inode(folder).nlink == 2


@pytest.mark.parametrize(
    ("at", "names"),
    [
        (ForkPoint(until="b1"), [b"b0", b"b1"]),
        (ForkPoint(until="./b3"), [b"b0", b"b1", b"b2", b"b3"]),
        (ForkPoint(count=1), [b"b0"]),
        (ForkPoint(count=0), []),
        (ForkPoint(until="deep/down/c"), [b"b0", b"b1", b"b2", b"b3", b"deep/down/c"]),
        (ForkPoint(count=6), [b"b0", b"b1", b"b2", b"b3", b"deep/down/c", b"late"]),
        (ALL, [b"b0", b"b1", b"b2", b"b3", b"deep/down/c", b"late", b"void/"]),
    ],
)
async def test_up_to_a_block(root, at, names) -> None:
    async with space_at(root) as space:
        tree = space.tiers.catalog.names
        folder = partial(tree.make, mode=0o40755, uid=0, gid=0, now_ns=1)
        await fill(space)
        down = folder(folder(space.folder, b"deep").ino, b"down").ino
        await space.store(b"c", down)
        tree.rename(space.folder, b"deep", space.folder, b"moved", 0, 3)  # it is younger than what is in it
        tree.rename(space.folder, b"moved", space.folder, b"deep", 0, 3)
        await space.store(b"late", space.folder)
        folder(space.folder, b"void")
        made = await fork(space, at=at)
        found = []
        for batch in tree.walk(made):
            found += [tree.path(each.ino).removeprefix(b"/dirs/f/") for each in batch]
        found += [
            each.name + b"/" for each in tree.listing(made) if each.inode.is_dir and not tree.listing(each.inode.ino)
        ]
        assert sorted(found) == names


@pytest.mark.parametrize("cold", [False, True])
async def test_what_is_kept_in_a_lossy_format_is_the_same_of_both(root, cold) -> None:
    stored = opaque()
    async with ladder_at(root, "int8", LAYOUT) as space:
        ino = await space.make(b"a", stored.content)
        if cold:
            await space.tiers.objects.demote(ino)
        child = (await space.tiers.sessions.fork_session(b"/ns/a", b"/ns/b", ALL)).ino
        assert space.copy(child).format == ("int8" if cold else "raw")
        assert await space.tiers.read(child) == await space.tiers.read(ino)
        assert (await space.tiers.read(child) == stored.content) is not cold, "a fork loses nothing by itself"


# -- files ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cold", [False, True])
@pytest.mark.parametrize(
    ("at", "size"),
    [
        (ALL, 200_000),
        (ForkPoint(count=200_000), 200_000),
        (ForkPoint(count=70_001), 70_001),
        (ForkPoint(count=0), 0),
        (ForkPoint(tokens=0, bytes_per_token=4096), 0),
        (ForkPoint(tokens=3, bytes_per_token=4096), 12288),
        (ForkPoint(tokens=10), 64 + 10 * 8 * 16 * 2),
    ],
)
async def test_a_file_is_forked_at_a_byte_or_a_token(root, cold, at, size) -> None:
    data = os.urandom(200_000)
    async with space_at(root) as space:
        names, objects = space.tiers.catalog.names, space.tiers.objects
        await objects.namespacing.set(b"files", {"layout": "fp16 header=64 blocks tokens=16 heads=8 dim=16"})
        ino = await space.store(b"a", content=data)
        if cold:
            await objects.demote(ino)
        child = await fork(space, "/files/a", "/files/b", at)
        assert child == names.lookup(space.files, b"b").ino
        assert names.inode(child).size == size
        assert await space.tiers.read(child) == data[:size]
        assert space.tiers.catalog.placements.copy(child).current, "it is durable"
        await write(space, ino, b"other", truncate=True)
        await space.verbs.close_session(b"/files/a")
        await space.reap()
        await objects.demote(child)
        assert await space.tiers.read(child) == data[:size]


async def test_holes_of_a_file_that_is_cut_stay_holes(root) -> None:
    async with space_at(root) as space:
        ino = await space.store(b"a", content=b"begin")
        await space.tiers.objects.truncate(ino, 4 * MIB)
        child = await fork(space, "/files/a", "/files/b", ForkPoint(count=3 * MIB))
        assert await space.tiers.read(child) == b"begin".ljust(3 * MIB, b"\0")
        assert space.tiers.objects.lives.held_blocks(child) == 1


async def test_a_file_is_cut_only_where_ddr_has_room_for_both(root) -> None:
    async with space_at(root, ddr_mib=4) as space:
        data = os.urandom(3 * MIB)
        ino = await space.store(b"a", content=data)
        before = await space.tiers.used_blocks(Tier.DDR)
        with pytest.raises((NoSpaceError, BusyError)):
            await fork(space, "/files/a", "/files/b", ForkPoint(count=2 * MIB))
        await space.reap()
        assert not space.has(b"b")
        assert await space.tiers.read(ino) == data
        assert await space.tiers.used_blocks(Tier.DDR) == before
