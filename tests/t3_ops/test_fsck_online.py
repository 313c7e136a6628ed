"""The check of a kvd that runs: broken, found, mended as said, found no more; what is under way is no fault."""

import os
import random

import pytest
import trio

from kvd.fsck.online import OFFLINE, Online
from kvdriver import Lease, Map, MapRun, Tier, Unmap
from support.tiers import PAGE_BYTES, tiers_at

random_bytes = random.Random(3).randbytes
SIZE = 3 * PAGE_BYTES + 777


async def findings(tiers, *, data=True, repair=False):
    online = Online(tiers.catalog, tiers.objects, tiers.books, tiers.device)
    return [found async for found in online.run(data=data, repair=repair) if found.what]


async def life(tiers):
    """Make `hot` in DDR alone, `both` with a copy, `cold` on NVMe."""
    inos = {}
    for name in ("hot", "both", "cold"):
        inos[name] = await tiers.make(name.encode(), random_bytes(SIZE))
    await tiers.objects.fsync(inos["both"])
    await tiers.objects.demote(inos["cold"])
    await tiers.objects.describer.catch_up()
    return inos


def copy_file(tiers, ino):
    copy = tiers.catalog.placements.copy(ino)
    return tiers.nvme.file(copy.dir_index, ino, copy.gen)


async def test_what_is_under_way_is_no_fault(root):
    async with tiers_at(root) as tiers:
        inos = await life(tiers)
        writing = await tiers.begin(b"writing")
        tiers.write(writing, b"x" * 100_000)
        nameless = await tiers.begin(None)
        for ino in inos.values():
            await tiers.objects.open(ino, write=False)
        tiers.catalog.names.unlink(1, b"hot", 5)
        tiers.catalog.names.rename(1, b"cold", 1, b"renamed", 0, 5)
        assert await findings(tiers) == []
        for ino in inos.values():
            await tiers.objects.release(ino, write=False)
        for ino in (writing, nameless):
            await tiers.objects.release(ino, write=True)
        for ino in tiers.catalog.names.orphans():
            await tiers.objects.discard(ino)
        assert await findings(tiers) == []


async def test_progress_is_told(root):
    async with tiers_at(root) as tiers:
        await life(tiers)
        online = Online(tiers.catalog, tiers.objects, tiers.books, tiers.device)
        told = [(found.done, found.total) async for found in online.run(data=False, repair=False)]
        assert told[-1] == (3, 3)


async def test_it_finds_nothing_while_everything_changes(root):
    async with tiers_at(root) as tiers:
        await life(tiers)
        number = 0

        async def change():
            nonlocal number
            while True:
                number += 1
                ino = await tiers.make(b"%d" % number, random_bytes(70_000))
                await (tiers.objects.demote if number % 2 else tiers.objects.fsync)(ino)
                tiers.catalog.names.rename(1, b"%d" % number, 1, b"r%d" % number, 0, number)
                if number % 3 == 0:
                    tiers.catalog.names.unlink(1, b"r%d" % number, 5)
                    await tiers.objects.discard(ino)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(change)
            for _ in range(10):
                assert await findings(tiers) == []
            nursery.cancel_scope.cancel()
        assert number > 3


async def lose_pages(tiers, inos):
    session = tiers.objects.lives.sessions[inos["cold"]]
    await tiers.device.run(Unmap(session=session, slot=0, first_page=1, count=1))


async def other_pages(tiers, inos):
    session = tiers.objects.lives.sessions[inos["hot"]]
    more = MapRun(first_page=50, count=2, blocks=1)
    await tiers.device.run(Map(session=session, slot=0, tier=Tier.DDR, runs=(more,)))


async def a_lease_too_many(tiers, inos):
    await tiers.device.run(Lease(session=tiers.objects.lives.sessions[inos["both"]], delta=1))


async def a_session_of_another(tiers, inos):
    sessions = tiers.objects.lives.sessions
    sessions[inos["hot"]] = tiers.objects.lives.by_ino[inos["hot"]].session = sessions[inos["cold"]]


async def no_copy_file(tiers, inos):
    copy_file(tiers, inos["both"]).unlink()


async def short_copy_file(tiers, inos):
    os.truncate(copy_file(tiers, inos["both"]), 5)


async def bad_page(tiers, inos):
    with copy_file(tiers, inos["both"]).open("r+b") as file:
        file.write(b"not what was there")


async def no_ddr_file(tiers, inos):
    tiers.objects.ddr.file(inos["both"]).unlink()


async def stray(tiers, inos):
    path = tiers.nvme.file(0, 0xDEAD, 1)
    path.parent.mkdir(parents=True)
    path.write_bytes(b"?")


async def no_description(tiers, inos):
    os.removexattr(copy_file(tiers, inos["cold"]), "user.kvd")


BROKEN = {
    lose_pages: ("the engine has other pages than its files", "made anew"),
    other_pages: ("the engine has other pages than its files", "made anew"),
    a_lease_too_many: ("the engine counts 1 leases of it", "made anew"),
    a_session_of_another: ("the engine does not know it", "made anew"),
    no_copy_file: ("its file on NVMe is missing", "a new copy was made from DDR"),
    short_copy_file: ("its file on NVMe has 5 bytes", "a new copy was made from DDR"),
    bad_page: ("page 0 failed its checksum", "a new copy was made from DDR"),
    no_ddr_file: ("its file in DDR is missing", "it is its copy now"),
    stray: ("belongs to no object", "removed"),
    no_description: ("the description of its copy is wrong", "described anew"),
}


@pytest.mark.parametrize("spoil", BROKEN)
async def test_a_fault_is_found_then_mended_and_nothing_is_lost(root, spoil, claim_log):
    claim_log("bad copy healed")
    async with tiers_at(root) as tiers:
        inos = await life(tiers)
        contents = {name: await tiers.read(ino) for name, ino in inos.items() if name != "cold"}
        await spoil(tiers, inos)
        what, done = BROKEN[spoil]
        (found, *_) = await findings(tiers)
        assert what in found.what
        assert (found.done_about_it, found.mended) == ("", False)
        mended = await findings(tiers, repair=True)
        assert any(what in found.what and done in found.done_about_it for found in mended), mended
        assert all(found.mended for found in mended), mended
        assert await findings(tiers) == []
        for name, content in contents.items():
            assert await tiers.read(inos[name]) == content
        assert len(await tiers.read(inos["cold"])) == SIZE


async def test_a_cold_object_with_bad_bytes_is_quarantined(root, claim_log):
    claim_log("object quarantined")
    async with tiers_at(root) as tiers:
        inos = await life(tiers)
        with copy_file(tiers, inos["cold"]).open("r+b") as file:
            file.write(b"not what was there")
        (found,) = await findings(tiers, repair=True)
        assert not found.mended
        assert "quarantined" in found.done_about_it
        (found,) = await findings(tiers)
        assert "is quarantined" in found.what


async def test_a_cold_object_without_its_file_is_given_up(root, claim_log):
    claim_log("object lost")
    async with tiers_at(root) as tiers:
        inos = await life(tiers)
        copy_file(tiers, inos["cold"]).unlink()
        (found,) = await findings(tiers, repair=True)
        assert (found.mended, found.done_about_it[:8]) == (True, "given up")
        assert tiers.catalog.names.lookup(1, b"cold") is None
        assert await findings(tiers) == []


async def test_names_are_not_mended_while_the_kernel_knows_them(root):
    async with tiers_at(root) as tiers:
        inos = await life(tiers)
        tiers.catalog.db.execute("UPDATE inode SET nlink=7 WHERE ino=?", (inos["cold"],))
        (found,) = await findings(tiers, repair=True)
        assert "link count 7 instead of 1" in found.what
        assert (found.done_about_it, found.mended) == (OFFLINE, False)
        tiers.catalog.db.execute("UPDATE inode SET nlink=1 WHERE ino=?", (inos["cold"],))


async def test_a_damaged_catalogue_is_said_with_the_rebuild(root):
    async with tiers_at(root) as tiers:
        await life(tiers)
        page = tiers.catalog.db.scalar("SELECT rootpage FROM sqlite_schema WHERE name='dentry_name'")
        size = tiers.catalog.db.scalar("PRAGMA page_size")
        tiers.catalog.db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        with tiers.catalog.db.path.open("r+b") as file:
            file.seek((page - 1) * size + 3)
            good = file.read(2)
            file.seek((page - 1) * size + 3)
            file.write(b"\0\0")
        found = await findings(tiers)
        assert found
        assert all(each.kind == "catalogue" and "kvctl fsck --rebuild" in each.what for each in found)
        with tiers.catalog.db.path.open("r+b") as file:
            file.seek((page - 1) * size + 3)
            file.write(good)
