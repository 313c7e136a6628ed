"""A full NVMe lets go of what is worth least there, or refuses, or has writers wait."""

import random
from contextlib import asynccontextmanager

import pytest
import trio

from kvd.config import AdmissionConfig
from kvd.errors import NotFoundError
from kvdriver import BLOCK_BYTES, Tier
from support.session_space import space_at, until
from support.tiers import MIB, tiers_at

WAIT_S = 30
BLOCKS = MIB // BLOCK_BYTES
content_of = [random.Random(number).randbytes(MIB) for number in range(40)]


@asynccontextmanager
async def evicting(objects):
    async with trio.open_nursery() as nursery:
        nursery.start_soon(objects.evicting.run)
        nursery.start_soon(objects.reaper.run)
        await trio.testing.wait_all_tasks_blocked()
        with trio.fail_after(WAIT_S):
            yield
        nursery.cancel_scope.cancel()


def there(tiers, ino):
    return ino in tiers.objects.lives.sessions


async def flood(tiers, first, count):
    return [await tiers.make(b"%d" % number, content_of[number]) for number in range(first, first + count)]


async def check(tiers, inos):
    """Return which objects are there, each what was written; the others are no more, in the catalogue and on NVMe."""
    left = [number for number, ino in enumerate(inos) if there(tiers, ino)]
    for number, ino in enumerate(inos):
        if there(tiers, ino):  # to read one may cost another
            assert await tiers.read(ino) == content_of[number]
    for number, ino in enumerate(inos):
        if not there(tiers, ino):
            assert tiers.catalog.names.lookup(1, b"%d" % number) is None
            with pytest.raises(LookupError):
                tiers.catalog.placements.get(ino)
    files, _ = await tiers.nvme.files()
    assert {ino for _, ino, _ in files} <= {ino for ino in inos if there(tiers, ino)}
    return left


async def test_a_flood_of_what_nobody_reads_loses_the_oldest_and_nothing_new(scratch):
    async with tiers_at(scratch, ddr_mib=4, nvme_mib=8) as tiers, evicting(tiers.objects):
        inos = []
        for number in range(30):
            inos += await flood(tiers, number, 1)
            gone = [at for at, ino in enumerate(inos) if not there(tiers, ino)]
            assert gone == list(range(len(gone))), "the oldest went first"
            assert len(gone) <= max(0, number + 1 - 8), "no more than had to"
        counts = tiers.objects.admission.counts
        assert (counts.evicted, counts.evicted_bytes, counts.dropped) == (len(gone), len(gone) * MIB, 0)
        assert len(gone) <= 20, "both tiers are full"
        assert await check(tiers, inos) == list(range(len(gone), 30))


@pytest.mark.parametrize("policy", ["default", "lru"])
async def test_what_is_read_stays(scratch, policy):
    async with tiers_at(scratch, ddr_mib=4, nvme_mib=8, policy=policy) as tiers, evicting(tiers.objects):
        hot, *_ = inos = await flood(tiers, 0, 1)
        for number in range(1, 25):
            inos += await flood(tiers, number, 1)
            assert await tiers.read(hot) == content_of[0]
        assert 0 in await check(tiers, inos)


async def test_what_is_used_pinned_or_leased_stays_whatever_comes(scratch):
    async with tiers_at(scratch, ddr_mib=4, nvme_mib=8) as tiers, evicting(tiers.objects):
        inos = await flood(tiers, 0, 5)
        pinned, leased, opened = inos[:3]
        for ino in inos[:3]:
            if tiers.catalog.placements.get(ino).tier != Tier.NVME:
                await tiers.objects.demote(ino)
        await tiers.objects.pin(pinned, pinned=True)
        tiers.sessions.parts.hold(leased, 1)
        await tiers.objects.open(opened, write=False)
        inos += await flood(tiers, 5, 20)
        await tiers.objects.release(opened, write=False)
        assert {0, 1, 2} <= set(await check(tiers, inos))


async def test_refuse_is_no_space_left(scratch, claim_log):
    claim_log("demotion failed")
    async with tiers_at(scratch, ddr_mib=4, nvme_mib=2, on_full="refuse") as tiers, evicting(tiers.objects):
        inos = await flood(tiers, 0, 2)
        for ino in inos:
            await tiers.objects.fsync(ino)
        late = await flood(tiers, 2, 1)
        with pytest.raises(OSError, match="No space"):
            await tiers.objects.fsync(late[0])
        assert await check(tiers, inos + late) == [0, 1, 2]


async def test_block_waits_for_room_and_then_for_its_deadline(scratch):
    settings = {"ddr_mib": 8, "nvme_mib": 2, "on_full": "block", "write_wait_s": 0.3}
    async with tiers_at(scratch, **settings) as tiers, evicting(tiers.objects):
        inos = await flood(tiers, 0, 3)
        for ino in inos[:2]:
            await tiers.objects.fsync(ino)
        began_s = trio.current_time()
        with pytest.raises(OSError, match="No space"):
            await tiers.objects.fsync(inos[2])
        assert trio.current_time() - began_s >= 0.3
        async with trio.open_nursery() as nursery:
            nursery.start_soon(tiers.objects.fsync, inos[2])
            await trio.testing.wait_all_tasks_blocked(0.05)
            tiers.catalog.names.unlink(1, b"0", 5)
            await tiers.objects.discard(inos[0])
        assert tiers.catalog.placements.copy(inos[2]) is not None
        tiers.objects.evicting.stop()
        late = await flood(tiers, 3, 1)
        with trio.fail_after(5), pytest.raises(OSError, match="No space"):
            await tiers.objects.fsync(late[0])


async def test_what_can_never_fit_costs_nobody_anything(scratch):
    async with tiers_at(scratch, ddr_mib=16, nvme_mib=4) as tiers, evicting(tiers.objects):
        inos = await flood(tiers, 0, 3)
        for ino in inos:
            await tiers.objects.fsync(ino)
        large = await tiers.make(b"large", bytes(range(256)) * (6 * MIB // 256))
        with pytest.raises(OSError, match="No space"):
            await tiers.objects.fsync(large)
        assert all(there(tiers, ino) for ino in inos)


async def test_a_directory_session_goes_whole_or_not_at_all(scratch):
    async with space_at(scratch, ddr_mib=4, nvme_mib=8) as space, evicting(space.tiers.objects):
        names, objects = space.tiers.catalog.names, space.tiers.objects
        other = names.make(space.dirs, b"other", mode=0o40755, uid=0, gid=0, now_ns=1).ino
        first = [await space.store(b"%d" % at, space.folder, content_of[at]) for at in range(3)]
        second = [await space.store(b"%d" % at, other, content_of[at]) for at in range(3)]
        for ino in first + second:
            if objects.lives.peek(ino) is not None:
                await objects.demote(ino)
        await objects.open(first[1], write=False)  # the older session is in use
        late = []
        for number in range(12):
            late.append(await space.store(b"%d" % number, space.files, content_of[number]))
            if number % 4 == 0:
                await objects.demote(late[-1])
            assert len({there(space.tiers, ino) for ino in second}) == 1, "a part of a session went"
        await until(lambda: not any(there(space.tiers, ino) for ino in second))
        assert not space.has(b"other", space.dirs)
        assert (space.dirs, b"other") in space.keeper.trees
        assert all(there(space.tiers, ino) for ino in first)
        await objects.release(first[1], write=False)
        assert [await space.tiers.read(ino) for ino in first] == content_of[:3]


async def test_a_crash_between_names_and_bytes_leaves_a_file_that_is_swept(scratch, monkeypatch):
    async with tiers_at(scratch, ddr_mib=4, nvme_mib=8) as tiers, evicting(tiers.objects):
        inos = await flood(tiers, 0, 8)

        async def crash(copy):
            await trio.lowlevel.checkpoint()

        monkeypatch.setattr(tiers.nvme, "remove", crash)  # the files stay, as where the daemon is killed
        inos += await flood(tiers, 8, 12)
        for ino in inos:
            if there(tiers, ino):
                await tiers.objects.demote(ino)
        gone = [number for number, ino in enumerate(inos) if not there(tiers, ino)]
        assert gone
    async with tiers_at(scratch, ddr_mib=4, nvme_mib=8) as tiers:
        assert tiers.objects.index.state.checked
        assert await check(tiers, inos) == [number for number in range(20) if number not in gone]


async def test_after_a_restart_what_was_used_longest_ago_goes_first(scratch):
    async with tiers_at(scratch, ddr_mib=4, nvme_mib=8) as tiers:
        inos = await flood(tiers, 0, 6)
        for ino in inos:
            if tiers.objects.lives.peek(ino) is not None:
                await tiers.objects.demote(ino)
        for place, ino in enumerate([3, 1, 5, 0, 2, 4]):
            used = "UPDATE copy SET used_ns=? WHERE ino=?"
            tiers.catalog.db.execute(used, ((1_700_000_000 + place) * 10**9, inos[ino]))
    async with tiers_at(scratch, ddr_mib=4, nvme_mib=8) as tiers, evicting(tiers.objects):
        await tiers.objects.remember_uses()
        gone = []
        tiers.objects.reaper.keeper.forget_name = lambda _parent, name: gone.append(int(name))
        await flood(tiers, 6, 12)
        assert gone[:6] == [3, 1, 5, 0, 2, 4]


async def test_what_lost_its_names_meanwhile_is_a_miss_for_those_who_wait(scratch):
    async with tiers_at(scratch, ddr_mib=4, nvme_mib=8) as tiers, evicting(tiers.objects):
        inos = await flood(tiers, 0, 20)
        gone = next(ino for ino in inos if not there(tiers, ino))
        with pytest.raises(NotFoundError):
            await tiers.objects.promote(gone)


async def test_writers_at_once_all_get_room(scratch):
    async with tiers_at(scratch, ddr_mib=8, nvme_mib=8, write_wait_s=20) as tiers, evicting(tiers.objects):
        made = {}

        async def write(number):
            made[number] = await tiers.make(b"%d" % number, content_of[number])
            await tiers.objects.fsync(made[number])

        for first in range(0, 32, 4):
            async with trio.open_nursery() as nursery:
                for number in range(first, first + 4):
                    nursery.start_soon(write, number)
        await check(tiers, [made[number] for number in range(32)])
        assert tiers.objects.admission.counts.evicted >= 8


async def test_what_is_hardly_used_again_is_dropped_unless_somebody_was_promised_its_bytes(scratch):
    async with tiers_at(scratch, ddr_mib=4, nvme_mib=64, reuse_min=1.0) as tiers:
        plain, stored, linked, pinned = await flood(tiers, 0, 4)
        await tiers.objects.fsync(stored)
        tiers.catalog.names.link(linked, 1, b"twin", 5)
        await tiers.objects.pin(pinned, pinned=True)
        await flood(tiers, 4, 8)
        assert not there(tiers, plain)
        assert tiers.objects.admission.counts.dropped > 0
        assert [await tiers.read(ino) for ino in (stored, linked, pinned)] == content_of[1:4]


async def test_what_is_written_through_is_not_dropped(scratch):
    through = AdmissionConfig(durability="through")
    async with tiers_at(scratch, ddr_mib=4, nvme_mib=64, reuse_min=1.0, admission=through) as tiers:
        inos = await flood(tiers, 0, 10)
        assert await check(tiers, inos) == list(range(10))
        assert tiers.objects.admission.counts.dropped == 0
