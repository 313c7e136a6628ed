"""Opens that the data plane answers by itself: what they hold, and how objects are taken back from it."""

import os
import random
from functools import partial

import pytest
import trio

from kvd.catalog.schema import ROOT_INO
from kvd.control import DaemonControl
from kvd.errors import BusyError, DamagedError
from kvd.fs.hot_table import HOT_FH
from kvd.tier.sharing import SHARED_MAX, shared_max
from kvdriver import QuerySession, Tier
from support.fake_kernel import Kernel
from support.fake_plane import FakePlane
from support.tiers import MIB, tiers_at

random_bytes = random.Random(4).randbytes
CONTENT = b"x" * 4096


async def shared(kernel, name=b"a", content=CONTENT):
    """Make an object that the data plane opens; nobody has it open."""
    await kernel.lookup(name)
    ino = await kernel.write(name, content)
    await kernel.release(await kernel.open(ino))
    assert kernel.tiers.objects.lives.by_ino[ino].shared
    return ino


async def leases_of_engine(tiers, ino):
    [found] = await tiers.device.submit([QuerySession(session=tiers.objects.lives.sessions[ino])])
    return found.session.leases


async def test_what_was_written_is_opened_by_the_data_plane_at_once(scratch):
    async with tiers_at(scratch) as tiers:
        kernel = Kernel(tiers)
        ino = await shared(kernel)
        for _ in range(5):
            fh = await kernel.open(ino)
            assert fh == HOT_FH | ino
            assert tiers.see(ino) == CONTENT
            await kernel.release(fh)
        assert kernel.forwarded["open"] == 0
        assert kernel.forwarded["release"] == 1  # the writer's
        live = tiers.objects.lives.by_ino[ino]
        assert live.ddr_fd == -1
        assert await leases_of_engine(tiers, ino) == 1
        tiers.objects.sharing.drain()
        assert live.hits == 6


@pytest.mark.parametrize("passthrough", [True, False])
async def test_a_writer_has_the_object_back_and_readers_keep_their_handles(scratch, passthrough):
    async with tiers_at(scratch, plane=FakePlane(passthrough=passthrough)) as tiers:
        kernel = Kernel(tiers)
        ino = await shared(kernel)
        readers = [await kernel.open(ino) for _ in range(3)]
        mode = tiers.plane.objects[ino].mode
        writer = await kernel.open(ino, os.O_WRONLY)
        live = tiers.objects.lives.by_ino[ino]
        assert (live.readers, live.writers, live.shared) == (3, 1, False)
        assert tiers.plane.objects[ino].mode is mode
        tiers.write(ino, b"yyyy")
        await kernel.operations.fsync(readers[0], False)
        for fh in readers:
            await kernel.release(fh)
        await kernel.release(writer)
        assert (live.readers, live.writers, live.shared) == (0, 0, True)
        assert tiers.plane.objects[ino].mode is mode
        assert await leases_of_engine(tiers, ino) == 1
        assert await tiers.read(ino) == b"yyyy" + CONTENT[4:]


async def test_handles_of_before_and_after_are_the_same_to_the_one_who_counts(scratch):
    async with tiers_at(scratch) as tiers:
        kernel = Kernel(tiers)
        ino = await shared(kernel)
        first = await kernel.open(ino)
        await kernel.release(await kernel.open(ino, os.O_WRONLY))
        again = await kernel.open(ino)  # it was taken back: answered by the control plane, and shared from here on
        more = await kernel.open(ino)
        assert first == more == HOT_FH | ino
        for fh in (first, again, more):
            await kernel.release(fh)
        live = tiers.objects.lives.by_ino[ino]
        assert (live.readers, kernel.table.leases(ino)) == (0, 0)


async def test_idle_ones_are_demoted_and_leased_ones_are_not(scratch):
    async with tiers_at(scratch) as tiers:
        kernel = Kernel(tiers)
        ino = await shared(kernel)
        fh = await kernel.open(ino)
        with pytest.raises(BusyError):
            await tiers.objects.demote(ino)
        assert tiers.objects.sharing.opens(tiers.objects.lives.by_ino[ino]) == 1
        await kernel.release(fh)
        assert await tiers.objects.demote(ino) == len(CONTENT)
        assert ino not in tiers.plane.objects
        assert not await kernel.open(ino) & HOT_FH
        await kernel.forget_all()


async def test_one_whose_directory_is_forgotten_stays_in_the_table_while_it_is_shared(scratch):
    async with tiers_at(scratch) as tiers:
        kernel = Kernel(tiers)
        ino = await shared(kernel)
        fh = await kernel.open(ino)
        await tiers.hot._folders._forget(ROOT_INO)
        await kernel.release(fh)
        assert await kernel.open(ino) == fh
        await kernel.release(fh)
        await tiers.objects.demote(ino)
        assert ino not in kernel.table.inodes
        await kernel.unlink(b"a")
        await kernel.forget(ino)
        assert ino not in tiers.objects.lives.sessions


async def test_room_is_made_of_idle_ones_the_least_used_first(scratch):
    async with tiers_at(scratch, ddr_mib=4, plane=FakePlane(passthrough=False)) as tiers:
        kernel = Kernel(tiers)
        inos = [await shared(kernel, b"%d" % index, random_bytes(MIB)) for index in range(3)]
        held = await kernel.open(inos[0])
        tiers.objects.sharing.drain()
        await trio.sleep(0.01)
        await kernel.release(await kernel.open(inos[1]))
        writer = await tiers.begin(b"w")
        await tiers.objects.grow(writer, 2 * MIB)
        assert [tiers.catalog.placements.get(ino).tier for ino in inos] == [Tier.DDR, Tier.DDR, Tier.NVME]
        await tiers.objects.release(writer, write=True)
        await kernel.release(held)


async def test_who_waits_for_room_is_woken_by_a_release_in_the_data_plane(scratch):
    plane = FakePlane(passthrough=False)
    async with tiers_at(scratch, ddr_mib=4, write_wait_s=30, plane=plane) as tiers:
        kernel = Kernel(tiers)
        ino = await shared(kernel, b"held", random_bytes(4 * MIB))
        fh = await kernel.open(ino)
        writer = await tiers.begin(b"w")
        with trio.fail_after(20):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(tiers.objects.grow, writer, MIB)
                await trio.testing.wait_all_tasks_blocked(0.05)
                assert plane.hot.watched
                await kernel.release(fh)
                tiers.objects.room.changed()  # what the event does
        await tiers.objects.release(writer, write=True)
        assert tiers.catalog.placements.get(ino).tier == Tier.NVME


async def test_an_unlinked_object_stays_until_its_last_lease(scratch):
    async with tiers_at(scratch) as tiers:
        kernel = Kernel(tiers)
        ino = await shared(kernel)
        handles = [await kernel.open(ino) for _ in range(2)]
        await kernel.unlink(b"a")
        await kernel.forget(ino)
        assert tiers.see(ino) == CONTENT
        for fh in handles:
            assert ino in tiers.objects.lives.sessions
            await kernel.release(fh)
        assert ino not in tiers.objects.lives.sessions
        assert ino not in tiers.plane.objects


async def test_an_unlinked_idle_one_goes_at_once(scratch):
    async with tiers_at(scratch) as tiers:
        kernel = Kernel(tiers)
        ino = await shared(kernel)
        await kernel.unlink(b"a")
        await tiers.objects.sharing.tend()
        assert ino not in tiers.plane.objects
        await kernel.forget(ino)
        assert ino not in tiers.objects.lives.sessions


async def test_a_quarantined_one_is_opened_no_more(scratch, claim_log):
    claim_log("object quarantined")
    async with tiers_at(scratch) as tiers:
        kernel = Kernel(tiers)
        ino = await shared(kernel)
        fh = await kernel.open(ino)
        tiers.objects.bad_page(ino, 0)
        with pytest.raises(DamagedError):
            await tiers.objects.open(ino, write=False)
        assert not kernel.table.open(ino)
        await kernel.release(fh)
        assert ino not in tiers.plane.objects


async def test_one_with_holes_is_not_shared(scratch):
    async with tiers_at(scratch) as tiers:
        kernel = Kernel(tiers)
        await kernel.lookup(b"a")
        ino = await kernel.write(b"a", b"x" * 4096)
        await kernel.truncate(ino, MIB)
        fh = await kernel.open(ino)
        live = tiers.objects.lives.by_ino[ino]
        assert not live.shared
        tiers.write(ino, random_bytes(MIB // 2))  # as a reader's mapping would
        await tiers.objects.writing.sample(live)
        await kernel.release(fh)
        assert (live.mapped_blocks, live.reserved_blocks) == (MIB // 2 // 4096, 0)
        assert kernel.table.getattr(ino).held_bytes == MIB // 2


async def test_as_many_are_shared_as_descriptors_allow(scratch, monkeypatch):
    monkeypatch.setattr("kvd.tier.objects.shared_max", lambda _: 8)
    async with tiers_at(scratch) as tiers:
        kernel = Kernel(tiers)
        await kernel.lookup(b"x")
        inos = [await kernel.write(b"%d" % index, CONTENT) for index in range(12)]
        for ino in inos:
            await kernel.release(await kernel.open(ino))
        lives = tiers.objects.lives.by_ino
        assert [lives[ino].shared for ino in inos] == [True] * 8 + [False] * 4
        held = await kernel.open(inos[0])
        await kernel.release(await kernel.open(inos[1]))
        await tiers.objects.sharing.tend()
        assert [lives[ino].shared for ino in inos[:3]] == [True, True, False]
        await kernel.release(await kernel.open(inos[11]))
        assert lives[inos[11]].shared
        await kernel.release(held)


def test_the_bound_of_shared_objects():
    assert shared_max(20000) == 5000
    assert shared_max(1 << 20) == SHARED_MAX


async def test_the_end_of_the_mount_ends_every_lease(scratch):
    async with tiers_at(scratch) as tiers:
        kernel = Kernel(tiers)
        idle, held = await shared(kernel, b"a"), await shared(kernel, b"b")
        for _ in range(3):
            await kernel.open(held)
        await tiers.objects.close_all()
        assert not tiers.plane.objects
        for ino in (idle, held):
            assert await leases_of_engine(tiers, ino) == 0
            await tiers.objects.demote(ino)


@pytest.mark.parametrize("first", ["release", "end"])
@pytest.mark.parametrize("write", [True, False])
async def test_a_release_that_is_on_its_way_when_the_mount_ends_is_one(scratch, write, first):
    async with tiers_at(scratch) as tiers:
        ino = await tiers.make(b"a", b"x" * 100_000)
        await tiers.objects.open(ino, write=write)
        live = tiers.objects.lives.by_ino[ino]
        with trio.fail_after(10):
            async with trio.open_nursery() as nursery, live.lock:
                ends = [partial(tiers.objects.release, ino, write=write), tiers.objects.close_all]
                for end in ends if first == "release" else reversed(ends):
                    nursery.start_soon(end)
                    await trio.testing.wait_all_tasks_blocked()
        assert (live.readers, live.writers, live.sealed) == (0, 0, True)
        assert await leases_of_engine(tiers, ino) == 0


async def test_what_is_told_counts_the_data_planes_opens(scratch):
    async with tiers_at(scratch) as tiers:
        kernel = Kernel(tiers)
        ino = await shared(kernel)
        await shared(kernel, b"idle")
        for _ in range(2):
            await kernel.open(ino)
        control = DaemonControl(
            tiers.config, tiers.catalog, tiers.objects, tiers.sessions, tiers.books, tiers.device, lambda: None
        )
        [line] = [line for line in control.in_memory() if line["ino"] == ino]
        assert line["opens"] == 2
        entry = await control.entry(b"/a")
        assert (entry.opens, entry.hits) == (2, 3)
        assert await kernel.operations.getxattr(ino, b"user.kvd.hits", None) == b"3"
        await kernel.forget_all()


NAMES = (b"a", b"b", b"c", b"d")


class Life:
    """A client's life at random, beside a model of what there is."""

    def __init__(self, kernel, seed):
        self.kernel, self.tiers = kernel, kernel.tiers
        self.draw = random.Random(seed)
        self.folders = [ROOT_INO]
        self.content = {}
        self.there = {}

    def place(self):
        return self.draw.choice(self.folders), self.draw.choice(NAMES)

    async def look(self):
        place = self.place()
        assert await self.kernel.lookup(place[1], place[0]) == self.there.get(place, 0)

    async def change(self):
        place = self.place()
        ino = self.there.get(place)
        if ino is None:
            data = random_bytes(self.draw.choice([0, 5000, 100_000, 600_000]))
            self.there[place] = ino = await self.kernel.write(place[1], data, place[0])
            self.content[ino] = data
        else:
            await self.draw.choice([self.remove, self.rename, self.link, self.attributes, self.resize, self.write])(
                place, ino
            )

    async def remove(self, place, ino):
        await self.kernel.unlink(place[1], place[0])
        del self.there[place]

    async def rename(self, place, ino):
        other = self.place()
        if self.there.get(other) != ino:
            await self.kernel.rename(place[1], other[1], parents=(place[0], other[0]))
            self.there[other] = self.there.pop(place)

    async def link(self, place, ino):
        other = self.place()
        if other not in self.there:
            await self.kernel.link(ino, other[1], other[0])
            self.there[other] = ino

    async def attributes(self, place, ino):
        await self.kernel.chmod(ino, self.draw.choice([0o600, 0o644, 0o4755]))
        await self.kernel.setxattr(ino, b"user.x", b"y")

    async def resize(self, place, ino):
        size = self.draw.randrange(8000)
        await self.kernel.truncate(ino, size)
        self.content[ino] = self.content[ino][:size].ljust(size, b"\0")

    async def write(self, place, ino):
        fh = await self.kernel.open(ino, os.O_RDWR)
        self.tiers.write(ino, b"new")
        self.content[ino] = b"new" + self.content[ino][3:]
        await self.kernel.release(fh)

    async def use(self):
        ino = self.there.get(self.place())
        if len(self.kernel.opens) > 6:
            await self.kernel.release(self.draw.choice(self.kernel.opens))
        if ino is not None:
            await self.kernel.open(ino)
            assert self.tiers.see(ino) == self.content[ino]

    async def control(self):
        ino = self.there.get(self.place())
        objects = self.tiers.objects
        if ino is not None:
            try:
                await self.draw.choice([objects.demote, objects.promote, objects.sync])(ino)
            except BusyError:
                assert objects.sharing.opens(objects.lives.by_ino[ino])

    async def tend(self):
        await self.tiers.objects.sharing.tend()
        await self.tiers.hot._folders.load(self.draw.choice(self.folders))
        await self.kernel.forget(self.draw.choice([*self.there.values(), ROOT_INO]))

    async def end(self):
        for folder in self.folders:
            for name in NAMES:
                assert await self.kernel.lookup(name, folder) == self.there.get((folder, name), 0)
        for parent, name in self.there:
            await self.kernel.unlink(name, parent)
        await self.kernel.forget_all()
        await self.tiers.objects.sharing.tend()


@pytest.mark.parametrize("seed", range(3))
async def test_a_clients_life_at_random(scratch, seed):
    """Whatever a client does: the table is right (`hot_truth`), nothing is lost, and nothing stays."""
    async with tiers_at(scratch, ddr_mib=4, nvme_mib=64) as tiers:
        life = Life(Kernel(tiers), seed)
        life.folders += [await life.kernel.mkdir(b"d1"), await life.kernel.mkdir(b"d2")]
        for _ in range(300):
            await life.draw.choice([life.look, life.look, life.change, life.use, life.use, life.control, life.tend])()
        await life.end()
        assert not tiers.plane.objects
        assert not tiers.objects.lives.sessions
        assert tiers.catalog.names.orphans() == []
        assert not [ino for ino in life.kernel.table.inodes if ino not in life.folders]
