"""Objects come into formats when they leave DDR, and back when they are opened. Without a mount."""

from __future__ import annotations

import errno
import os

import pytest
import trio

from kvd.errors import BusyError, DamagedError, NoSpaceError
from kvd.fsck.online import Online
from kvd.tier import recoding
from kvdriver import Tier
from support import formatted
from support.formatted import KINDS, LAYOUT, noise, opaque
from support.ladder_space import ladder_at
from support.tiers import MIB, PAGE_BYTES

LOSSY = ("fp8-e4m3", "fp8-e5m2", "int8", "int4")


async def faults(space) -> list[str]:
    tiers = space.tiers
    online = Online(tiers.catalog, tiers.objects, tiers.books, tiers.device)
    return [each.what async for each in online.run(data=True, repair=False) if each.what]


@pytest.mark.parametrize("name", ["zstd", *LOSSY])
@pytest.mark.parametrize("kind", sorted(KINDS))
async def test_what_comes_back_is_what_the_format_promises(root, kind, name):
    stored = KINDS[kind]()
    async with ladder_at(root, name, LAYOUT if kind == "opaque" else "") as space:
        ino = await space.make(b"f", stored.content)
        assert await space.tiers.objects.demote(ino) == len(stored.content)
        copy = space.copy(ino)
        assert (copy.format, copy.object_bytes, space.tier(ino)) == (name, len(stored.content), Tier.NVME)
        assert copy.size < len(stored.content)
        assert space.file(ino).stat().st_size == copy.size
        assert space.ddr_names() == []
        first = await space.tiers.read(ino)
        stored.check(first, name)
        if name in LOSSY:
            assert copy.form.lossy_bytes
            assert all(0 < each.relative_l2 < 0.2 for each in copy.form.errors.values())
            measured = max(each.relative_l2 for each in copy.form.errors.values())
            assert stored.error(first) <= measured * 1.01
        assert await space.tiers.objects.demote(ino) == len(stored.content)
        assert space.copy(ino) == copy, "what is as small as it gets is not written again"
        assert await space.tiers.read(ino) == first
        assert await faults(space) == []


@pytest.mark.parametrize(("name", "content"), [("raw", noise(MIB)), ("int8", noise(MIB)), ("int8", b"x" * 100)])
async def test_what_nobody_declares_is_kept_exact(root, name, content):
    async with ladder_at(root, name) as space:
        ino = await space.make(b"f", content)
        await space.tiers.objects.demote(ino)
        copy = space.copy(ino)
        assert copy.form is None or (copy.form.lossy_bytes, copy.form.errors, copy.format) == (0, {}, "zstd")
        assert await space.tiers.read(ino) == content


async def test_the_books_have_what_the_files_take(root):
    stored = opaque()
    async with ladder_at(root, "int8", LAYOUT) as space:
        ino = await space.make(b"f", stored.content)
        in_ddr = await space.tiers.used_blocks(Tier.DDR)
        await space.tiers.objects.demote(ino)
        blocks = -(-space.copy(ino).size // 4096)
        assert await space.tiers.used_blocks(Tier.NVME) == blocks < in_ddr
        assert space.tiers.objects.lives.held_blocks(ino) == blocks
        assert space.tiers.catalog.placements.formats() == {"int8": (1, blocks)}
        await space.tiers.objects.promote(ino)
        assert await space.tiers.used_blocks(Tier.DDR) == in_ddr
        assert await space.tiers.used_blocks(Tier.NVME) == blocks
        assert (await space.tiers.books.tier(Tier.DDR)).reserved_blocks == 0
        await space.tiers.objects.demote(ino)
        await space.tiers.objects.open(ino, write=True, truncate=True)
        await space.tiers.objects.release(ino, write=True)
        assert space.tiers.catalog.placements.formats() == {}
        assert await space.tiers.used_blocks(Tier.NVME) == 0


async def test_holes_stay_holes(root):
    body = opaque(tokens=64, layers=1).content
    async with ladder_at(root, "int8", "fp16 layers=1 kv=2 tokens heads=4 dim=64", ddr_mib=64) as space:
        ino = await space.begin(b"f")
        space.tiers.write(ino, body)
        space.tiers.write(ino, body, 24 * MIB)
        await space.tiers.objects.release(ino, write=True)
        size = 24 * MIB + len(body)
        await space.tiers.objects.demote(ino)
        assert space.copy(ino).size < MIB
        await space.tiers.objects.promote(ino)
        assert await space.tiers.used_blocks(Tier.DDR) < 2 * MIB // 4096
        content = await space.tiers.read(ino)
        assert len(content) == size
        assert not any(content[len(body) : 24 * MIB])
        assert await faults(space) == []


async def test_what_stays_in_ddr_is_copied_exactly(root):
    stored = opaque()
    async with ladder_at(root, "int8", LAYOUT) as space:
        objects = space.tiers.objects
        ino = await space.make(b"f", stored.content)
        await objects.fsync(ino)
        assert space.copy(ino).format == "raw"
        await objects.open(ino, write=False)
        with pytest.raises(BusyError):
            await objects.demote(ino)
        assert space.copy(ino).format == "raw"
        assert space.tiers.see(ino) == stored.content
        await objects.release(ino, write=False)
        raw = space.file(ino)
        await objects.demote(ino)
        assert space.copy(ino).format == "int8"
        assert not raw.exists()
        stored.check(await space.tiers.read(ino), "int8")


async def test_a_bit_exact_ladder_is_for_what_stays_too(root):
    stored = opaque()
    async with ladder_at(root, "zstd", LAYOUT) as space:
        ino = await space.make(b"f", stored.content)
        await space.tiers.objects.fsync(ino)
        first = space.copy(ino)
        assert first.format == "zstd"
        await space.tiers.objects.demote(ino)
        assert space.copy(ino) == first


async def test_an_object_with_names_below_two_policies_is_kept_exact(root):
    stored = opaque()
    async with ladder_at(root, "int8", LAYOUT) as space:
        ino = await space.make(b"f", stored.content)
        names = space.tiers.catalog.names
        other = names.make(1, b"other", mode=0o40755, uid=0, gid=0, now_ns=1).ino
        names.link(ino, other, b"g", 2)
        await space.tiers.objects.demote(ino)
        assert space.copy(ino).form is None


async def test_the_age_decides(root):
    stored = opaque()
    async with ladder_at(root, "fp8-e4m3,int4@1h", LAYOUT) as space:
        objects = space.tiers.objects
        ino = await space.make(b"f", stored.content)
        await objects.demote(ino)
        assert space.copy(ino).format == "fp8-e4m3"
        await objects.promote(ino)
        space.age(ino, 3599)
        await objects.demote(ino)
        assert space.copy(ino).format == "fp8-e4m3"
        await objects.promote(ino)
        space.age(ino, 3600)
        await objects.demote(ino)
        assert space.copy(ino).format == "int4"
        await objects.promote(ino)
        await objects.demote(ino)
        assert space.copy(ino).format == "int4", "what was lost does not come back"


async def test_keys_and_values_have_formats_of_their_own(root):
    stored = KINDS["safetensors"]()
    async with ladder_at(root, "int8/int4") as space:
        ino = await space.make(b"f", stored.content)
        await space.tiers.objects.demote(ino)
        copy = space.copy(ino)
        keys, values = (copy.form.errors[role].relative_l2 for role in sorted(copy.form.errors))
        assert copy.format == "int8/int4"
        assert 0 < keys < values / 4


# -- pieces ----------------------------------------------------------------------------------------------------------------


async def test_a_long_object_goes_in_pieces_over_several_drives(root, monkeypatch):
    monkeypatch.setattr(recoding, "PIECE_BYTES", 4 * PAGE_BYTES)
    stored = opaque(tokens=2048)
    async with ladder_at(root, "int8", LAYOUT, ddr_mib=32, nvme_dirs=3) as space:
        ino = await space.make(b"f", stored.content)
        await space.tiers.objects.demote(ino)
        copy = space.copy(ino)
        assert len(copy.dirs) == 3
        assert copy.size > 8 * recoding.PIECE_BYTES
        assert {space.file(ino, part).stat().st_size for part in range(3)} == {copy.size}
        stored.check(await space.tiers.read(ino), "int8")
        assert await faults(space) == []


async def test_nvme_without_room_refuses_and_keeps_the_object(root, monkeypatch):
    monkeypatch.setattr(recoding, "PIECE_BYTES", 4 * PAGE_BYTES)
    stored = opaque(tokens=1024)
    async with ladder_at(root, "int8", LAYOUT, ddr_mib=32, nvme_mib=1) as space:
        ino = await space.make(b"f", stored.content)
        with pytest.raises(OSError, match="nvme tier") as failed:
            await space.tiers.objects.demote(ino)
        assert failed.value.errno == errno.ENOSPC
        assert await space.tiers.used_blocks(Tier.NVME) == 0
        assert space.tier(ino) is Tier.DDR
        assert await space.tiers.read(ino) == stored.content
        assert not [path for path in (space.tiers.config.nvme.dirs[0] / "objects").rglob("*") if path.is_file()]


async def test_a_cancelled_demotion_leaves_nothing(root, monkeypatch):
    monkeypatch.setattr(recoding, "PIECE_BYTES", 4 * PAGE_BYTES)
    stored = opaque(tokens=1024)
    async with ladder_at(root, "int8", LAYOUT, ddr_mib=32) as space:
        ino = await space.make(b"f", stored.content)
        demoting, moves = space.tiers.mover.demote, 0

        async def demote(**job):
            nonlocal moves
            moves += 1
            if moves == 2:
                scope.cancel()
            return await demoting(**job)

        space.tiers.mover.demote = demote
        with trio.CancelScope() as scope:
            await space.tiers.objects.demote(ino)
        assert scope.cancelled_caught
        assert space.tier(ino) is Tier.DDR
        assert space.tiers.catalog.placements.copy(ino) is None
        assert await space.tiers.used_blocks(Tier.NVME) == 0
        assert await space.tiers.read(ino) == stored.content
        await space.tiers.objects.demote(ino)
        stored.check(await space.tiers.read(ino), "int8")


# -- damage and room -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["head", "body", "cut"])
async def test_a_stored_file_that_is_damaged_is_quarantined(root, where, claim_log):
    stored = opaque()
    async with ladder_at(root, "int8", LAYOUT) as space:
        ino = await space.make(b"f", stored.content)
        await space.tiers.objects.demote(ino)
        path, size = space.file(ino), space.copy(ino).size
        at = {"head": 300, "body": size - 2000, "cut": size - 1}[where]
        with path.open("r+b") as file:
            if where == "cut":
                file.truncate(at)
            else:
                file.seek(at)
                byte = file.read(1)
                file.seek(at)
                file.write(bytes([byte[0] ^ 1]))
        with pytest.raises(DamagedError):
            await space.tiers.objects.open(ino, write=False)
        assert space.tiers.catalog.placements.get(ino).damaged
        [fault] = space.tiers.catalog.placements.faults(9)
        assert (fault.what, fault.page) == ("checksum differs", at // PAGE_BYTES)
        assert fault.place.startswith(str(path))
        claim_log("object quarantined")


async def test_a_file_that_is_no_stored_file_is_quarantined(root, claim_log):
    """Its pages have the right sums, and the catalogue says that it is one: what decodes it believes neither."""
    stored = opaque()
    async with ladder_at(root, "raw", LAYOUT) as space:
        ino = await space.make(b"f", stored.content)
        other = await space.make(b"g", stored.content)
        await space.tiers.objects.demote(ino)
        space.set("int8", LAYOUT)
        await space.tiers.objects.demote(other)
        form = space.copy(other).form.pack()
        space.tiers.catalog.db.execute("UPDATE copy SET form=?, format='int8' WHERE ino=?", (form, ino))
        with pytest.raises(DamagedError, match="can't be decoded"):
            await space.tiers.objects.open(ino, write=False)
        assert space.tiers.catalog.placements.get(ino).damaged
        claim_log("object quarantined")


async def test_a_reader_without_room_in_ddr_is_refused_in_time(root):
    stored = opaque(tokens=2048)
    async with ladder_at(root, "int8", LAYOUT, ddr_mib=5, burst_mib=1, write_wait_s=0.1) as space:
        objects = space.tiers.objects
        ino = await space.make(b"f", stored.content)
        await objects.demote(ino)
        blocker = await space.make(b"g", noise(2 * MIB))
        await objects.open(blocker, write=False)
        with pytest.raises(NoSpaceError), trio.fail_after(10):
            await objects.open(ino, write=False)
        await objects.release(blocker, write=False)
        stored.check(await space.tiers.read(ino), "int8")


# -- starts ----------------------------------------------------------------------------------------------------------------


async def test_a_later_life_reads_what_an_earlier_one_stored(root):
    stored = opaque()
    async with ladder_at(root, "int8", LAYOUT) as space:
        ino = await space.make(b"f", stored.content)
        await space.tiers.objects.demote(ino)
        content = await space.tiers.read(ino)
        await space.tiers.objects.demote(ino)
        copy = space.copy(ino)
    async with ladder_at(root, "raw") as space:
        assert space.copy(ino) == copy
        assert space.tiers.catalog.names.inode(ino).size == len(content)
        assert await space.tiers.read(ino) == content
        assert await faults(space) == []


async def test_a_writer_that_died_leaves_the_object_as_it_came_back(root):
    stored = opaque()
    async with ladder_at(root, "int8", LAYOUT) as space:
        ino = await space.make(b"f", stored.content)
        await space.tiers.objects.demote(ino)
        content = await space.tiers.read(ino)
        await space.tiers.objects.open(ino, write=True)
        space.tiers.write(ino, b"other bytes", 5)
        os.ftruncate(space.tiers.plane.objects[ino].fd, 100)
    async with ladder_at(root, "int8", LAYOUT) as space:
        assert space.tier(ino) is Tier.NVME
        assert space.tiers.catalog.names.inode(ino).size == len(content)
        assert await space.tiers.read(ino) == content


def test_the_error_that_tests_bear_is_the_documented_one():
    assert formatted.BOUNDS.keys() == {"zstd", *LOSSY}
