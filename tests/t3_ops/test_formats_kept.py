"""Who looks after what is stored knows formats: streams, the scrubber, checks, and the making anew of a lost catalogue."""

from __future__ import annotations

import os

import pytest
import trio

from kvd.errors import DamagedError
from kvd.fsck import examine
from kvd.fsck.rebuild import rebuild
from kvd.tier import recoding
from kvdriver import Tier
from support.formatted import KINDS, LAYOUT, noise, opaque
from support.ladder_space import NAME, ladder_at
from support.streaming import settled
from support.tiers import MIB, PAGE_BYTES, config_at, tiers_at


@pytest.fixture(autouse=True)
def short_pieces(monkeypatch):
    monkeypatch.setattr(recoding, "PIECE_BYTES", 4 * PAGE_BYTES)


async def streamed(space, nursery) -> None:
    space.tiers.objects.streaming.bytes_min = 3 * PAGE_BYTES
    nursery.start_soon(space.tiers.objects.streaming.run)


class Gate:
    """Lets the mover's promotions go one by one."""

    def __init__(self, space) -> None:
        self._promote = space.tiers.mover.promote
        self.jobs: list[dict] = []
        self.opened = trio.Event()
        space.tiers.mover.promote = self.promote

    async def promote(self, **job):
        self.jobs.append(job)
        if len(self.jobs) > 2:  # the head and the first piece come by themselves
            await self.opened.wait()
        return await self._promote(**job)


async def until(condition) -> None:
    with trio.fail_after(10):
        while not condition():
            await trio.sleep(0.002)


async def test_a_long_object_is_read_while_it_is_decoded(root):
    stored = opaque(tokens=2048)
    async with ladder_at(root, "int8", LAYOUT, ddr_mib=32) as space, trio.open_nursery() as nursery:
        await streamed(space, nursery)
        ino = await space.make(b"f", stored.content)
        await space.tiers.objects.demote(ino)
        gate = Gate(space)
        await space.tiers.objects.open(ino, write=False)
        stream = space.tiers.objects.lives.by_ino[ino].streaming.stream
        await until(lambda: stream.landed == 4)
        assert stream.n_pages == len(stored.content) // PAGE_BYTES
        first = os.pread(space.tiers.plane.objects[ino].fd, 4 * PAGE_BYTES, 0)
        gate.opened.set()
        await settled(space.tiers, ino)
        content = space.tiers.see(ino)
        stored.check(content, "int8")
        assert content[: 4 * PAGE_BYTES] == first
        await space.tiers.objects.release(ino, write=False)
        assert space.tier(ino) is Tier.DDR
        assert (await space.tiers.books.tier(Tier.DDR)).reserved_blocks == 0
        nursery.cancel_scope.cancel()


async def test_pieces_come_where_a_reader_waits(root):
    stored = opaque(tokens=2048)
    async with ladder_at(root, "int8", LAYOUT, ddr_mib=32) as space, trio.open_nursery() as nursery:
        await streamed(space, nursery)
        ino = await space.make(b"f", stored.content)
        await space.tiers.objects.demote(ino)
        gate = Gate(space)
        await space.tiers.objects.open(ino, write=False)
        stream = space.tiers.objects.lives.by_ino[ino].streaming.stream
        await until(lambda: len(gate.jobs) == 3)  # the second piece is on its way
        stream.want(50)
        gate.opened.set()
        await settled(space.tiers, ino)
        firsts = [job["runs"][0][0] for job in gate.jobs]
        after = firsts[3:5]
        assert max(after) > firsts[2] + 8, "it went on from there"
        assert firsts != sorted(firsts)
        stored.check(space.tiers.see(ino), "int8")
        await space.tiers.objects.release(ino, write=False)
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("how", ["flip", "cancel"])
async def test_a_stream_that_fails_leaves_nothing(root, how, claim_log):
    stored = opaque(tokens=2048)
    async with ladder_at(root, "int8", LAYOUT, ddr_mib=32) as space, trio.open_nursery() as nursery:
        await streamed(space, nursery)
        ino = await space.make(b"f", stored.content)
        await space.tiers.objects.demote(ino)
        if how == "flip":
            with space.file(ino).open("r+b") as file:
                file.seek(-1000, os.SEEK_END)
                file.write(b"?????")
            claim_log("object quarantined")
        gate = Gate(space)
        await space.tiers.objects.open(ino, write=False)
        if how == "cancel":
            await space.tiers.objects.release(ino, write=False)
            await space.tiers.objects.demote(ino)  # ends what nobody reads
        else:
            gate.opened.set()
            await settled(space.tiers, ino)
            assert space.tiers.objects.lives.by_ino[ino].damaged
            await space.tiers.objects.release(ino, write=False)
        info = await space.tiers.books.tier(Tier.DDR)
        assert (info.used_blocks, info.reserved_blocks) == (0, 0)
        assert space.ddr_names() == []
        assert space.tier(ino) is Tier.NVME
        nursery.cancel_scope.cancel()


async def test_a_prefetch_brings_what_is_stored(root):
    stored = opaque()
    async with ladder_at(root, "int8", LAYOUT) as space:
        ino = await space.make(b"f", stored.content)
        await space.tiers.objects.demote(ino)
        await space.tiers.objects._opening.bringing.fetch(ino)
        assert space.tier(ino) is Tier.DDR
        stored.check(await space.tiers.read(ino), "int8")


async def test_short_objects_do_not_wait_for_long_ones(root):
    """Each long one keeps its place until the gate opens; a short one comes all the same."""
    long, short = opaque(tokens=1024), opaque(tokens=64)
    count = recoding.FETCHES_AT_ONCE
    async with ladder_at(root, "int8", LAYOUT, ddr_mib=32) as space, trio.open_nursery() as nursery:
        await streamed(space, nursery)
        longs = [await space.make(b"%d" % number, long.content) for number in range(count)]
        ino = await space.make(b"short", short.content)
        for each in (*longs, ino):
            await space.tiers.objects.demote(each)
        gate, promote = trio.Event(), space.tiers.mover.promote

        async def gated(**job):
            if job["size_bytes"] > space.copy(ino).size:
                await gate.wait()
            return await promote(**job)

        space.tiers.mover.promote = gated
        for each in longs:
            await space.tiers.objects.open(each, write=False)
        with trio.fail_after(10):
            short.check(await space.tiers.read(ino), "int8")
        assert all(space.tier(each) is Tier.NVME for each in longs)
        gate.set()
        for each in longs:
            await settled(space.tiers, each)
            await space.tiers.objects.release(each, write=False)
        nursery.cancel_scope.cancel()


# -- the scrubber and the checks -------------------------------------------------------------------------------------------


async def test_the_scrubber_finds_a_bit_that_differs(root, claim_log):
    stored = opaque()
    async with ladder_at(root, "int8", LAYOUT) as space:
        ino = await space.make(b"f", stored.content)
        await space.tiers.objects.demote(ino)
        assert await space.tiers.objects.scrub.scrub(ino) == space.copy(ino).size
        with space.file(ino).open("r+b") as file:
            file.seek(PAGE_BYTES + 5)
            file.write(b"?????")
        with pytest.raises(DamagedError):
            await space.tiers.objects.scrub.scrub(ino)
        assert space.tiers.catalog.placements.get(ino).damaged
        claim_log("object quarantined")


async def test_the_scrubber_heals_from_ddr_with_what_readers_see(root, claim_log):
    stored = opaque()
    async with ladder_at(root, "int8", LAYOUT) as space:
        ino = await space.make(b"f", stored.content)
        await space.tiers.objects.demote(ino)
        content = await space.tiers.read(ino)
        with space.file(ino).open("r+b") as file:
            file.write(b"?????")
        await space.tiers.objects.scrub.scrub(ino)
        claim_log("")
        assert space.copy(ino).form is None
        assert space.file(ino).read_bytes() == content
        assert await space.tiers.read(ino) == content


@pytest.mark.parametrize("data", [False, True])
async def test_a_lost_catalogue_is_made_anew_with_its_stored_files(root, data):
    made = {}
    async with ladder_at(root, "int8/fp8-e4m3", LAYOUT, nvme_dirs=2) as space:
        for kind in KINDS:
            made[kind] = await space.make(kind.encode(), KINDS[kind](tokens=512).content)
        made["noise"] = await space.make(b"noise", noise(MIB))
        copies, contents = {}, {}
        for kind, ino in made.items():
            await space.tiers.objects.demote(ino)
            copies[kind] = space.copy(ino)
            contents[kind] = await space.tiers.read(ino)
            await space.tiers.objects.demote(ino)
    for path in (root / "state").glob("catalog.sqlite*"):
        path.unlink()
    config = config_at(root, nvme_dirs=2)
    result = await rebuild(config, page_bytes=PAGE_BYTES, data=data)
    assert (result.objects, result.left_out) == (4, [])
    assert await examine(config, page_bytes=PAGE_BYTES, data=True) == []
    async with tiers_at(root, nvme_dirs=2) as tiers:
        namespace = tiers.catalog.namespaces.get(tiers.catalog.names.lookup(1, NAME).ino)
        assert (namespace.format, namespace.layout) == ("int8/fp8-e4m3", LAYOUT)
        for kind, ino in made.items():
            assert tiers.catalog.placements.copy(ino) == copies[kind]
            assert tiers.catalog.names.inode(ino).size == len(contents[kind])
            assert await tiers.read(ino) == contents[kind]


async def test_a_check_finds_a_length_that_is_not_the_objects(root):
    async with ladder_at(root, "int8", LAYOUT) as space:
        ino = await space.make(b"f", opaque().content)
        await space.tiers.objects.demote(ino)
        config = space.tiers.config
    assert await examine(config, page_bytes=PAGE_BYTES, data=True) == []
    async with ladder_at(root, "int8", LAYOUT) as space:
        space.tiers.catalog.db.execute("UPDATE inode SET size=size-1 WHERE ino=?", (ino,))
    faults = await examine(config, page_bytes=PAGE_BYTES, data=True)
    assert [fault for fault in faults if "its copy has another size" in str(fault)]


# -- ageing ----------------------------------------------------------------------------------------------------------------


def last_used(space, ino) -> int:
    return space.tiers.catalog.db.scalar("SELECT used_ns FROM copy WHERE ino=?", (ino,))


def let_age(space, ino, age_s) -> None:
    space.tiers.catalog.db.execute("UPDATE copy SET used_ns=used_ns-? WHERE ino=?", (int(age_s * 1e9), ino))


async def test_what_grows_old_on_nvme_goes_further_down(root):
    stored = opaque()
    async with ladder_at(root, "fp8-e4m3,int4@1h", LAYOUT) as space:
        descending = space.tiers.objects.descending
        old, young = [await space.make(name, stored.content) for name in (b"old", b"young")]
        for ino in (old, young):
            await space.tiers.objects.demote(ino)
        await descending.round()
        assert descending.gone_down == 0
        let_age(space, old, 3600)
        used_ns = last_used(space, old)
        await descending.round()
        assert (descending.gone_down, space.copy(old).format, space.copy(young).format) == (1, "int4", "fp8-e4m3")
        assert space.tier(old) is Tier.NVME
        assert abs(last_used(space, old) - used_ns) < 60e9, "it was not used by that"
        assert space.ddr_names() == []
        info = await space.tiers.books.tier(Tier.DDR)
        assert (info.used_blocks, info.reserved_blocks) == (0, 0)
        await descending.round()
        assert descending.gone_down == 1
        stored.check(await space.tiers.read(old), "int4")
        await space.tiers.objects.demote(old)
        assert last_used(space, old) > used_ns + 1800e9, "now it was"


async def test_what_was_stored_before_the_ladder_follows_it(root):
    stored = opaque()
    async with ladder_at(root, "raw", LAYOUT) as space:
        ino = await space.make(b"f", stored.content)
        await space.tiers.objects.demote(ino)
        await space.tiers.objects.descending.round()
        assert space.copy(ino).format == "raw"
        space.set("int8", LAYOUT)
        await space.tiers.objects.descending.round()
        assert space.copy(ino).format == "int8"
        stored.check(await space.tiers.read(ino), "int8")


async def test_what_is_in_use_or_pinned_or_without_room_stays(root):
    stored = opaque(tokens=1024)
    async with ladder_at(root, "raw", LAYOUT, ddr_mib=5) as space:
        objects = space.tiers.objects
        inos = {}
        for name in (b"open", b"pinned", b"room"):
            inos[name] = await space.make(name, stored.content)
            await objects.demote(inos[name])
        space.set("int8", LAYOUT)
        await objects.open(inos[b"open"], write=False)
        await objects.pin(inos[b"pinned"], pinned=True)
        blocker = await space.make(b"blocker", noise(5 * MIB // 2))
        await objects.descending.round()
        assert objects.descending.gone_down == 0
        await objects.release(inos[b"open"], write=False)
        assert await space.tiers.read(inos[b"open"]) == stored.content
        assert space.tier(blocker) in (Tier.DDR, Tier.NVME)


async def test_one_that_nvme_has_no_room_for_stays_what_it_was(root):
    stored = opaque()
    async with ladder_at(root, "raw", LAYOUT) as space:
        ino = await space.make(b"f", stored.content)
        await space.tiers.objects.demote(ino)
        space.set("int8", LAYOUT)
        used = await space.tiers.used_blocks(Tier.NVME)
        await space.tiers.books.resize(Tier.NVME, used)
        await space.tiers.objects.descending.round()
        assert (space.copy(ino).format, space.tier(ino)) == ("raw", Tier.NVME)
        assert space.ddr_names() == []
        assert await space.tiers.read(ino) == stored.content
