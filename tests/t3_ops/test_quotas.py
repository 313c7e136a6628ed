"""Quotas of namespaces without a mount: what is counted, who is chosen, who is refused."""

from __future__ import annotations

import errno

import pytest
import trio

from kvd.catalog.schema import ROOT_INO
from kvd.errors import InvalidError, OverCommittedError
from kvd.fs.xattrs import PARENT, QUOTA, Xattrs
from kvdriver import Tier
from support.quota_spaces import BLOCKS, mib, spaces_at
from support.tiers import MIB

# -- counting ---------------------------------------------------------------------------------------------------------


async def test_what_a_namespace_has_is_counted_in_both_tiers_and_over_a_restart(root) -> None:
    async with spaces_at(root) as spaces:
        one = await spaces.make(b"one")
        two = await spaces.make(b"two")
        inos = await spaces.flood(b"one", 3)
        await spaces.check()
        assert (spaces.quotas.used(Tier.DDR, one), spaces.quotas.used(Tier.NVME, one)) == (3 * BLOCKS, 0)
        await spaces.tiers.objects.fsync(inos[0])
        await spaces.tiers.objects.demote(inos[1])
        assert (spaces.quotas.used(Tier.DDR, one), spaces.quotas.used(Tier.NVME, one)) == (2 * BLOCKS, 2 * BLOCKS)
        await spaces.tiers.objects.promote(inos[1])
        spaces.tiers.catalog.charges.rename(one, b"0", two, b"0", 0, 9)
        await spaces.check()
        assert (spaces.quotas.used(Tier.DDR, two), spaces.quotas.used(Tier.NVME, two)) == (BLOCKS, BLOCKS)
        await spaces.tiers.objects.truncate(inos[0], 0)
        spaces.names.unlink(one, b"1", 9)
        await spaces.tiers.objects.discard(inos[1])
        await spaces.check()
        assert (spaces.quotas.used(Tier.DDR, one), spaces.quotas.used(Tier.NVME, one)) == (BLOCKS, 0)
        await spaces.tiers.objects.demote(inos[2])
        await spaces.store(b"two", b"more")
    async with spaces_at(root) as spaces:
        spaces.folders = {b"one": one, b"two": two}
        await spaces.check()
        assert (spaces.quotas.used(Tier.DDR, one), spaces.quotas.used(Tier.NVME, one)) == (0, BLOCKS)
        # The one that was emptied keeps its older copy until there is another one.
        assert (spaces.quotas.used(Tier.DDR, two), spaces.quotas.used(Tier.NVME, two)) == (BLOCKS, BLOCKS)


async def test_a_directory_with_content_that_becomes_a_namespace_is_counted(root) -> None:
    async with spaces_at(root) as spaces:
        await spaces.make(b"other")
        folder = spaces.names.make(ROOT_INO, b"dir", mode=0o40755, uid=0, gid=0, now_ns=1).ino
        spaces.folders[b"dir"] = folder
        ino = await spaces.store(b"dir", b"x")
        await spaces.tiers.objects.fsync(ino)
        await spaces.make(b"dir")
        assert (spaces.quotas.used(Tier.DDR, folder), spaces.quotas.used(Tier.NVME, folder)) == (BLOCKS, BLOCKS)


async def test_a_file_without_a_name_counts_where_it_was_made(root) -> None:
    async with spaces_at(root) as spaces:
        one = await spaces.make(b"one", **mib(ddr_limit=2))
        with spaces.tiers.catalog.db.transaction():
            ino = spaces.names.make(one, None, mode=0o100644, uid=0, gid=0, now_ns=1).ino
            spaces.tiers.catalog.placements.add(ino)
        await spaces.tiers.objects.create(ino, one)
        await spaces.tiers.objects.grow(ino, MIB)
        assert spaces.quotas.used(Tier.DDR, one) >= BLOCKS
        spaces.tiers.write(ino, bytes(MIB))
        spaces.tiers.catalog.charges.link(ino, one, b"named", 9)
        await spaces.tiers.objects.release(ino, write=True)
        assert spaces.quotas.used(Tier.DDR, one) == BLOCKS


# -- limits -----------------------------------------------------------------------------------------------------------


async def test_a_namespace_above_its_limit_in_ddr_demotes_its_own(root) -> None:
    async with spaces_at(root, ddr_mib=16) as spaces:
        await spaces.make(b"one", **mib(ddr_limit=3))
        await spaces.make(b"two")
        others = await spaces.flood(b"two", 4)
        inos = await spaces.flood(b"one", 8)
        assert spaces.in_ddr(inos) == 3
        assert spaces.in_ddr(others) == 4
        await spaces.read_all()
        assert spaces.in_ddr(inos) <= 3
        assert spaces.in_ddr(others) == 4


async def test_at_its_limits_in_both_tiers_a_writer_gets_no_space(root) -> None:
    async with spaces_at(root, ddr_mib=16) as spaces:
        one = await spaces.make(b"one", **mib(ddr_limit=2, nvme_limit=3), on_full="refuse")
        inos = await spaces.flood(b"one", 5)
        assert (spaces.in_ddr(inos), spaces.quotas.used(Tier.NVME, one)) == (2, 3 * BLOCKS)
        with pytest.raises(OSError, match=f"Errno {errno.ENOSPC}\\]"):
            await spaces.store(b"one", b"more")
        await spaces.store(b"", b"others have room")
        with pytest.raises(OSError, match="limit on nvme"):
            await spaces.tiers.objects.demote(inos[4])
        spaces.names.unlink(one, b"0", 9)
        await spaces.tiers.objects.discard(inos[0])
        del spaces.contents[inos[0]]
        spaces.names.unlink(one, b"more", 9)
        await spaces.store(b"one", b"again")
        await spaces.read_all()


async def test_a_copy_that_is_made_anew_needs_no_room_beside_the_old_one(root) -> None:
    async with spaces_at(root) as spaces:
        one = await spaces.make(b"one", **mib(nvme_limit=1))
        ino = await spaces.store(b"one", b"x")
        await spaces.tiers.objects.fsync(ino)
        await spaces.tiers.objects.open(ino, write=True)
        await spaces.tiers.objects.release(ino, write=True)
        await spaces.tiers.objects.fsync(ino)
        assert spaces.quotas.used(Tier.NVME, one) == BLOCKS
        assert spaces.tiers.catalog.charges.making_blocks(one) == 0


async def test_a_limit_that_is_lowered_is_kept_in_the_background(root) -> None:
    async with spaces_at(root, ddr_mib=16) as spaces:
        await spaces.make(b"one")
        inos = await spaces.flood(b"one", 5)
        await spaces.tiers.objects.namespacing.set(b"one", mib(ddr_limit=2))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(spaces.tiers.objects.room.run)
            with trio.fail_after(20):
                while spaces.in_ddr(inos) > 2:
                    await trio.sleep(0.01)
            nursery.cancel_scope.cancel()
        await spaces.read_all()


async def test_a_writer_that_could_pass_the_limit_goes_through_the_split(root) -> None:
    async with spaces_at(root, ddr_mib=64, burst_mib=32) as spaces:
        await spaces.make(b"one", **mib(ddr_limit=9))
        live = None
        for name in (b"a", b"b", b"c"):
            await spaces.store(b"one", name, mib=2)
        for name, free in ((b"tight", True), (b"roomy", False)):
            if not free:
                await spaces.tiers.objects.namespacing.set(b"one", mib(ddr_limit=0))
            folder = spaces.folders[b"one"]
            with spaces.tiers.catalog.db.transaction():
                ino = spaces.names.make(folder, name, mode=0o100644, uid=0, gid=0, now_ns=1).ino
                spaces.tiers.catalog.placements.add(ino)
            await spaces.tiers.objects.create(ino, folder)
            live = spaces.tiers.objects.lives.by_ino[ino]
            assert spaces.tiers.objects.lives.is_passthrough(ino) != free, live
            await spaces.tiers.objects.release(ino, write=True)


# -- guarantees -------------------------------------------------------------------------------------------------------


async def test_a_flood_takes_nothing_of_what_is_guaranteed_in_ddr(root) -> None:
    async with spaces_at(root, ddr_mib=8) as spaces:
        await spaces.make(b"one", **mib(ddr_guaranteed=3))
        await spaces.make(b"two")
        kept = await spaces.flood(b"one", 3)  # the oldest of all
        flood = await spaces.flood(b"two", 24)
        assert spaces.in_ddr(kept) == 3
        assert spaces.in_ddr(flood) <= 5
        await spaces.read_all()


async def test_what_was_borrowed_is_given_back_first(root) -> None:
    async with spaces_at(root, ddr_mib=8) as spaces:
        await spaces.make(b"one", **mib(ddr_guaranteed=5))
        await spaces.make(b"two")
        flood = await spaces.flood(b"two", 8)
        assert spaces.in_ddr(flood) >= 7  # nobody else wanted it
        kept = await spaces.flood(b"one", 5)
        assert spaces.in_ddr(kept) == 5
        assert spaces.in_ddr(flood) == 3


async def test_the_lower_priority_gives_first(root) -> None:
    async with spaces_at(root, ddr_mib=8) as spaces:
        await spaces.make(b"high", priority=9, **mib(ddr_guaranteed=1))
        await spaces.make(b"low", **mib(ddr_guaranteed=1))
        high, low = await spaces.flood(b"high", 4), await spaces.flood(b"low", 4)
        more = await spaces.store(b"high", b"more")
        assert spaces.in_ddr([*high, more]) == 5
        assert spaces.in_ddr(low) == 3


async def test_watermarks_leave_guaranteed_objects_alone(root) -> None:
    async with spaces_at(root, ddr_mib=8, idle_s=0.01) as spaces:
        await spaces.make(b"one", **mib(ddr_guaranteed=7))
        kept = await spaces.flood(b"one", 6)
        other = await spaces.store(b"", b"other")
        await spaces.store(b"", b"another")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(spaces.tiers.objects.room.run)
            with trio.fail_after(20):
                while spaces.in_ddr([other]):
                    await trio.sleep(0.01)
            await trio.sleep(0.3)
            nursery.cancel_scope.cancel()
        assert spaces.in_ddr(kept) == 6


# -- saying and telling -----------------------------------------------------------------------------------------------


async def test_no_more_is_guaranteed_than_there_is(root) -> None:
    async with spaces_at(root, ddr_mib=8, nvme_mib=64) as spaces:
        await spaces.make(b"one", **mib(ddr_guaranteed=5, nvme_guaranteed=60))
        with pytest.raises(OverCommittedError, match=r"ddr: 4MiB can't be guaranteed: the tier has 8MiB, and 5MiB"):
            await spaces.make(b"two", **mib(ddr_guaranteed=4))
        assert spaces.names.lookup(ROOT_INO, b"two") is None
        await spaces.make(b"two", **mib(ddr_guaranteed=3))
        namespacing = spaces.tiers.objects.namespacing
        with pytest.raises(OverCommittedError, match=r"nvme: 5MiB can't.*--nvme-guaranteed"):
            await namespacing.set(b"two", mib(nvme_guaranteed=5))
        with pytest.raises(OverCommittedError, match="above the limit"):
            await namespacing.set(b"one", mib(ddr_limit=4))
        await namespacing.set(b"one", mib(ddr_guaranteed=8) | mib(ddr_guaranteed=2))
        await namespacing.set(b"two", mib(ddr_guaranteed=6))
        spaces.names.rmdir(ROOT_INO, b"two", 9)  # as a client does
        spaces.names.remove(spaces.folders.pop(b"two"))
        await namespacing.set(b"one", mib(ddr_guaranteed=8))
        for wrong in ({"priority": 256}, {"priority": "1"}, {"ddr_limit_bytes": 4095}, {"ddr_limit_bytes": -1}):
            with pytest.raises(InvalidError):
                await namespacing.set(b"one", wrong)


async def test_how_a_namespace_stands_is_told(root) -> None:
    async with spaces_at(root, ddr_mib=8, nvme_mib=64) as spaces:
        await spaces.make(b"one", **mib(ddr_guaranteed=1, ddr_limit=4), priority=3)
        await spaces.make(b"two", **mib(ddr_guaranteed=2))
        ino = (await spaces.flood(b"one", 2))[0]
        await spaces.tiers.objects.fsync(ino)
        ddr, nvme = await spaces.quotas.quota(spaces.tiers.catalog.namespaces.get(spaces.folders[b"one"]))
        assert (ddr.capacity, ddr.guaranteed, ddr.limit) == (8 * BLOCKS, BLOCKS, 4 * BLOCKS)
        assert (ddr.used, ddr.borrowed, ddr.may_take) == (2 * BLOCKS, BLOCKS, 2 * BLOCKS)
        assert (nvme.used, nvme.borrowed, nvme.limit) == (BLOCKS, BLOCKS, 0)
        xattrs = Xattrs(spaces.tiers.catalog, spaces.tiers.objects, spaces.tiers.sessions)
        told = await xattrs.find(spaces.names.inode(ino), QUOTA)
        assert told.splitlines()[0] == b"ddr guaranteed=%d limit=%d used=%d borrowed=%d may_take=%d" % (
            MIB, 4 * MIB, 2 * MIB, MIB, 2 * MIB,
        )  # fmt: skip
        with pytest.raises(OSError, match=f"Errno {errno.EPERM}\\]"):
            await xattrs.set(spaces.names.inode(spaces.folders[b"one"]), QUOTA, b"1")
        with pytest.raises(OSError, match=f"Errno {errno.ENODATA}\\]"):
            await xattrs.find(spaces.names.inode(ROOT_INO), QUOTA)
        plain = await spaces.make(b"plain")
        ddr, _ = await spaces.quotas.quota(spaces.tiers.catalog.namespaces.get(plain))
        assert (ddr.used, ddr.may_take) == (0, 7 * BLOCKS - 0 * BLOCKS)


async def test_a_parent_is_said_by_an_attribute(root) -> None:
    async with spaces_at(root) as spaces:
        one = await spaces.make(b"one")
        first, second = await spaces.flood(b"one", 2)
        xattrs = Xattrs(spaces.tiers.catalog, spaces.tiers.objects, spaces.tiers.sessions)
        inode, folder = spaces.names.inode(second), spaces.names.inode(one)
        with pytest.raises(OSError, match=f"Errno {errno.ENODATA}\\]"):
            await xattrs.find(inode, PARENT)
        await xattrs.set(inode, PARENT, b"0")
        assert await xattrs.find(inode, PARENT) == b"0"
        assert spaces.tiers.catalog.chains.chain(second) == [first, second]
        for code, target, value in (
            (errno.ENOENT, inode, b"none"),
            (errno.ELOOP, spaces.names.inode(first), b"1"),
            (errno.EINVAL, inode, b""),
            (errno.EPERM, folder, b"0"),
        ):
            with pytest.raises(OSError, match=f"Errno {code}\\]"):
                await xattrs.set(target, PARENT, value)
        await xattrs.remove(inode, PARENT)
        for ask in (xattrs.find, xattrs.remove):
            with pytest.raises(OSError, match=f"Errno {errno.ENODATA}\\]"):
                await ask(inode, PARENT)
