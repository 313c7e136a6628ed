"""What is on NVMe at a start: not looked at before the daemon serves, looked at when it is wanted or its turn comes."""

from __future__ import annotations

import errno
from contextlib import asynccontextmanager

import pytest
import trio

from kvd.errors import DamagedError, VanishedError
from kvd.tier.health import Gone
from kvd.tier.index import ROWS_AT_ONCE
from kvdriver import Tier
from support.many import CountingDevice, filled, statements
from support.tiers import tiers_at

MANY = 20_000
SOME = 600
START_COMMANDS_MAX = 16
START_STATEMENTS_MAX = 48
"""Whatever is on NVMe."""


@asynccontextmanager
async def counted(root, *, sessions_max=MANY + 64, **settings):
    made = []

    async def open_device(capacity):
        made.append(CountingDevice(capacity, sessions_max=sessions_max))
        return made[0]

    async with tiers_at(root, open_device=open_device, nvme_mib=4096, **settings) as tiers:
        yield tiers, made[0]


def vanish(tiers, many, number):
    path = tiers.nvme.file(0, many.first_ino + number, 1)
    path.unlink()
    return many.first_ino + number


async def test_a_start_does_nothing_for_each_cold_object(scratch, monkeypatch):
    many = filled(scratch, MANY, files=False)
    with statements(monkeypatch) as executed:
        async with counted(scratch, check=False) as (tiers, device):
            assert device.commands <= START_COMMANDS_MAX
            assert executed.count <= START_STATEMENTS_MAX
            assert tiers.objects.lives.sessions == {}
            assert tiers.objects.lives.count == MANY == many.objects
            state = tiers.objects.index.state
            assert (state.checked, state.done, state.total) == (False, 0, MANY)


async def test_what_is_not_looked_at_counts_in_the_books(scratch):
    filled(scratch, SOME)
    async with tiers_at(scratch, nvme_mib=4096, check=False) as tiers:
        before = await tiers.books.tier(Tier.NVME)
        await tiers.objects.index.run()
        await tiers.objects.room.resize_nvme()
        after = await tiers.books.tier(Tier.NVME)
        charged = tiers.catalog.db.scalar("SELECT sum(blocks) FROM copy")
        assert before.used_blocks == after.used_blocks == charged
        assert before.capacity_blocks == after.capacity_blocks
        assert tiers.books.unadopted_blocks == 0


async def test_nothing_more_fits_than_the_tier_can_hold_with_what_is_not_looked_at(scratch):
    filled(scratch, SOME)
    async with tiers_at(scratch, nvme_mib=4096, check=False) as tiers:
        held = (await tiers.books.tier(Tier.NVME)).used_blocks
        await tiers.books.resize(Tier.NVME, held + 1)
        ino = await tiers.make(b"new", b"x" * 5000)
        with pytest.raises(OSError, match="No space") as refused:
            await tiers.objects.demote(ino)
        assert refused.value.errno == errno.ENOSPC


async def test_the_check_takes_two_commands_an_object_in_bounded_batches(scratch):
    filled(scratch, SOME)
    async with counted(scratch, check=False) as (tiers, device):
        before, batches = device.commands, device.batches
        await tiers.objects.index.run()
        assert device.commands - before <= 2 * SOME + 4 * (device.batches - batches)
        assert device.largest <= ROWS_AT_ONCE
        found = tiers.recovered
        assert (found.on_nvme, found.dropped, found.damaged, found.swept) == (SOME, 0, 0, 0)
        assert tiers.objects.index.state.checked
        assert tiers.objects.lives.finder is None


async def test_an_object_that_is_wanted_is_looked_at_first(scratch):
    many = filled(scratch, SOME, folders=7)
    async with tiers_at(scratch, nvme_mib=4096, check=False) as tiers:
        for number in (3, SOME - 1):
            assert await tiers.read(many.first_ino + number) == many.content(number)
        assert set(tiers.objects.lives.sessions) == {many.first_ino + 3, many.first_ino + SOME - 1}
        assert tiers.objects.index.state.done == 2
        await tiers.objects.index.run()
        assert await tiers.read(many.first_ino + 5) == many.content(5)


async def test_many_who_want_the_same_object_find_it_once(scratch):
    many = filled(scratch, 8)
    async with tiers_at(scratch, nvme_mib=4096, check=False) as tiers:
        async with trio.open_nursery() as nursery:
            for _ in range(6):
                nursery.start_soon(tiers.objects.index.find, many.first_ino)
            nursery.start_soon(tiers.objects.index.run)
        assert len(tiers.objects.lives.sessions) == tiers.objects.lives.count == 8


async def test_a_vanished_file_is_a_miss_when_it_is_wanted(scratch, claim_log):
    claim_log("object lost")
    many = filled(scratch, 8)
    async with tiers_at(scratch, nvme_mib=4096, check=False) as tiers:
        before = (await tiers.books.tier(Tier.NVME)).used_blocks
        ino = vanish(tiers, many, 4)
        blocks = tiers.catalog.placements.copy_blocks(ino)
        with pytest.raises(VanishedError):
            await tiers.objects.open(ino, write=False)
        assert len(tiers.catalog.names.orphans()) == 0
        assert tiers.catalog.names.path(ino) is None
        assert tiers.objects.lives.count == 7
        assert (await tiers.books.tier(Tier.NVME)).used_blocks == before - blocks
        assert tiers.recovered.dropped == 1
        await tiers.objects.index.run()
        assert tiers.recovered.dropped == 1


async def test_a_vanished_file_is_found_in_turn(scratch, claim_log):
    claim_log("object lost")
    many = filled(scratch, SOME)
    async with tiers_at(scratch, nvme_mib=4096, check=False) as tiers:
        gone = vanish(tiers, many, 77)
        await tiers.objects.index.run()
        assert tiers.catalog.names.path(gone) is None
        assert tiers.objects.lives.count == len(tiers.objects.lives.sessions) == SOME - 1
        [fault] = tiers.catalog.placements.faults(10)
        assert "vanished" in fault.what


@pytest.mark.parametrize("wanted", [True, False], ids=["wanted", "in-turn"])
async def test_a_file_of_the_wrong_length_is_quarantined(scratch, claim_log, wanted):
    claim_log("object quarantined")
    many = filled(scratch, 8)
    async with tiers_at(scratch, nvme_mib=4096, check=False) as tiers:
        ino = many.first_ino + 6
        with tiers.nvme.file(0, ino, 1).open("ab") as file:
            file.write(b"more")
        if not wanted:
            await tiers.objects.index.run()
        with pytest.raises(DamagedError):
            await tiers.objects.open(ino, write=False)
        assert tiers.recovered.damaged == 1
        assert tiers.catalog.placements.count_damaged() == 1
        await tiers.objects.index.run()
        assert tiers.recovered.damaged == 1


async def test_an_object_is_deleted_before_its_turn(scratch):
    many = filled(scratch, 8)
    async with tiers_at(scratch, nvme_mib=4096, check=False) as tiers:
        tiers.catalog.names.unlink(tiers.catalog.names.parent(many.first_ino), b"00000000", 1)
        await tiers.objects.discard(many.first_ino)
        assert not tiers.nvme.file(0, many.first_ino, 1).exists()
        assert tiers.objects.lives.count == 7
        await tiers.objects.index.run()
        charged = tiers.catalog.db.scalar("SELECT sum(blocks) FROM copy")
        assert await tiers.used_blocks(Tier.NVME) == charged


async def test_clients_go_on_while_the_index_is_checked(scratch):
    """Objects are made, moved and deleted meanwhile; nothing of theirs is taken for rubbish."""
    many = filled(scratch, SOME, folders=3)
    async with tiers_at(scratch, nvme_mib=4096, ddr_mib=32, check=False) as tiers:
        made = []

        async def clients(first):
            for number in range(first, SOME, 23):
                made.append(await tiers.make(b"new%d" % number, b"%d" % number * 999))
                await tiers.objects.demote(made[-1])
                assert await tiers.read(many.first_ino + number) == many.content(number)
                if number % 2:
                    await tiers.objects.demote(many.first_ino + number)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(tiers.objects.index.run)
            for first in (1, 8, 15):
                nursery.start_soon(clients, first)
        assert tiers.recovered.swept == tiers.recovered.dropped == 0
        assert tiers.objects.lives.count == len(tiers.objects.lives.sessions) == SOME + len(made)
        for ino in made:
            assert tiers.nvme.file(0, ino, 1).exists()
        charged = tiers.catalog.db.scalar("SELECT sum(blocks) FROM copy")
        assert await tiers.used_blocks(Tier.NVME) == charged


async def test_a_file_that_is_being_made_is_no_rubbish(scratch):
    filled(scratch, 8)
    async with tiers_at(scratch, nvme_mib=4096, check=False) as tiers:
        ino = await tiers.make(b"new", b"x" * 5000)
        files = await tiers.nvme.create(ino, 1, 5000)
        stray = tiers.nvme.file(0, 0xABCDE, 3)
        stray.parent.mkdir(parents=True, exist_ok=True)
        stray.write_bytes(b"rubbish")
        await tiers.objects.index.run()
        assert tiers.nvme.file(0, ino, 1).exists()
        assert not stray.exists()
        assert tiers.recovered.swept == 1
        await tiers.nvme.discard(files, ino, 1)


async def test_what_is_in_an_offline_directory_is_taken_at_its_word(scratch, claim_log):
    claim_log("nvme directory is offline")
    many = filled(scratch, 64, nvme_dirs=2)
    async with tiers_at(scratch, nvme_mib=4096, nvme_dirs=2, check=False) as tiers:
        tiers.nvme.directories[1].meet(Gone(why="a test says so"))
        await tiers.objects.index.run()
        assert tiers.recovered.on_nvme == 64
        assert tiers.recovered.dropped == tiers.recovered.damaged == 0
        assert await tiers.read(many.first_ino) == many.content(0)


async def test_a_full_engine_leaves_the_others_served(scratch, claim_log):
    claim_log("can't be checked to its end")
    many = filled(scratch, 64)
    async with counted(scratch, sessions_max=40, check=False) as (tiers, _):
        await tiers.objects.index.run()
        state = tiers.objects.index.state
        assert not state.checked
        assert await tiers.read(many.first_ino) == many.content(0)
        assert tiers.objects.lives.count == 64


async def test_a_start_adopts_what_is_in_ddr_in_batches(root):
    async with tiers_at(root, ddr_mib=32) as tiers:
        for number in range(300):
            await tiers.make(b"%d" % number, b"%d" % number * 1500)
            if number % 3 == 0:
                await tiers.objects.sync(number + 2)
    async with counted(root, ddr_mib=32) as (tiers, device):
        assert tiers.recovered.in_ddr == 300
        assert device.batches <= 32
        for number in (0, 1, 299):
            assert await tiers.read(number + 2) == b"%d" % number * 1500
        assert len(tiers.objects.lives.census.resident) == 300
        assert tiers.objects.count_dirty() == 200


async def test_room_looks_only_at_those_that_it_takes(root, monkeypatch):
    async with tiers_at(root, ddr_mib=32, policy="lru") as tiers:
        inos = [await tiers.make(b"%d" % number, b"x" * 4096) for number in range(400)]
        for ino in inos[:50]:
            await tiers.read(ino)
        looked = []
        is_leased = tiers.objects.sharing.is_leased

        def looking(live):
            looked.append(live.ino)
            return is_leased(live)

        monkeypatch.setattr(tiers.objects.sharing, "is_leased", looking)
        for first in (50, 55, 60):
            looked.clear()
            chosen = tiers.objects.room._choose(5, picking=None)
            tiers.objects.room._stay(chosen)  # counts as a use, for a plain order
            assert [live.ino for live, _ in chosen] == inos[first : first + 5], "used longest ago"
            assert len(looked) <= 8
