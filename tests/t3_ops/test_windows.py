"""A window slides over a session: what it leaves behind goes in both tiers, and nothing else; whatever comes in between."""

from __future__ import annotations

import mmap
import os

import pytest

from kvd import fsck
from kvd.errors import InvalidError
from kvd.fs.hot_table import HOT_FH
from kvd.fs.xattrs import Xattrs
from kvd.session import windows
from kvdriver import BLOCK_BYTES, Tier
from support.fake_kernel import Kernel
from support.session_space import space_at
from support.sliding import (
    PAGE,
    SINK,
    TOKEN,
    WINDOW,
    append,
    check,
    data_bytes,
    ddr_file,
    kept,
    nvme_files,
    say,
    tokens,
    told,
    valid,
)

LENGTH = 400
KEPT_BLOCKS = sum(end - start for start, end in kept(LENGTH)) * TOKEN // BLOCK_BYTES


async def faults_of(space):
    return await fsck.check(space.tiers.config, page_bytes=PAGE, data=True)


async def stored(space, name=b"a", count=LENGTH):
    return await space.store(name, content=tokens(count))


async def test_what_slides_out_of_a_growing_file_goes_while_its_writer_goes_on(root):
    async with space_at(root) as space:
        windows_, objects = space.verbs.windows, space.tiers.objects
        ino = await space.begin(b"a")
        await say(space, ino)
        for length in (30, 120, 121, 250, LENGTH):
            before = len(os.pread(space.tiers.plane.objects[ino].fd, 1 << 30, 0)) // TOKEN
            append(space, ino, length - before, first=before)
            await objects.writing.sample(objects.lives.by_ino[ino])
            await windows_.step()
            check(space.tiers.see(ino), length)
            assert await valid(space, ino) == told(kept(length))
            expected = sum(end - start for start, end in kept(length)) * TOKEN
            assert data_bytes(ddr_file(space, ino)) == expected
            live = objects.lives.by_ino[ino]
            assert live.mapped_blocks + live.reserved_blocks >= expected // BLOCK_BYTES
            assert space.tiers.plane.limits[ino] == (live.mapped_blocks + live.reserved_blocks) * BLOCK_BYTES
        await objects.release(ino, write=True)
        assert await space.tiers.used_blocks(Tier.DDR) == KEPT_BLOCKS
        check(await space.tiers.read(ino), LENGTH)
        assert windows_.counts.ddr_bytes == LENGTH * TOKEN - KEPT_BLOCKS * BLOCK_BYTES
        assert (await space.verbs.session_detail(b"/files/a")).given_bytes == windows_.counts.ddr_bytes
        assert space.verbs.status().given_ddr_bytes == windows_.counts.ddr_bytes
    assert await faults_of(space) == []


async def test_a_step_in_which_no_page_slid_out_touches_nothing(root):
    async with space_at(root) as space:
        ino = await space.begin(b"a")
        await say(space, ino)
        append(space, ino, 100, first=0)
        await space.verbs.windows.step()
        before = space.tiers.catalog.given.of(ino), ddr_file(space, ino).stat().st_ctime_ns
        append(space, ino, 1, first=100)
        changed = ddr_file(space, ino).stat().st_ctime_ns
        await space.verbs.windows.step()
        assert (space.tiers.catalog.given.of(ino), changed) == (before[0], ddr_file(space, ino).stat().st_ctime_ns)
        await space.tiers.objects.release(ino, write=True)


async def test_a_reader_in_the_window_is_not_disturbed_and_one_outside_sees_zeroes(root):
    async with space_at(root) as space:
        objects = space.tiers.objects
        ino = await stored(space)
        await objects.open(ino, write=False)
        with mmap.mmap(space.tiers.plane.objects[ino].fd, 0, mmap.MAP_SHARED, mmap.PROT_READ) as mapped:
            inside = mapped[-WINDOW * TOKEN :]
            outside = mapped[40 * TOKEN : 60 * TOKEN]
            await say(space, ino)
            await space.verbs.windows.step()
            assert mapped[-WINDOW * TOKEN :] == inside
            assert outside != mapped[40 * TOKEN : 60 * TOKEN] == bytes(20 * TOKEN)
            check(mapped[:], LENGTH)
            assert await valid(space, ino) == told(kept(LENGTH)), "zeroes that a mapping made are no tokens"
        await objects.release(ino, write=False)
        await space.verbs.windows.step()
        assert await space.tiers.used_blocks(Tier.DDR) == KEPT_BLOCKS, "what the mapping touched is given back again"
        assert data_bytes(ddr_file(space, ino)) == KEPT_BLOCKS * BLOCK_BYTES
        assert await valid(space, ino) == told(kept(LENGTH))
    assert await faults_of(space) == []


async def test_an_object_that_the_data_plane_has_opened_is_taken_back_first(root):
    async with space_at(root) as space:
        kernel = Kernel(space.tiers)
        await kernel.lookup(b"a")
        ino = await kernel.write(b"a", tokens(LENGTH))
        await kernel.release(await kernel.open(ino))
        live = space.tiers.objects.lives.by_ino[ino]
        assert live.shared
        fh = await kernel.open(ino)
        assert fh & HOT_FH
        await say(space, ino, window=LENGTH)
        await space.verbs.windows.step()
        assert live.shared, "nothing slid out"
        await say(space, ino)
        await space.verbs.windows.step()
        assert (live.shared, live.readers) == (False, 1)
        check(space.tiers.see(ino), LENGTH)
        await kernel.release(fh)
        assert not live.attached
        assert await space.tiers.used_blocks(Tier.DDR) == KEPT_BLOCKS


@pytest.mark.parametrize("dirs", [1, 2])
async def test_both_tiers_hold_less_and_what_is_left_is_as_it_was(root, dirs):
    async with space_at(root, nvme_dirs=dirs) as space:
        objects = space.tiers.objects
        ino = await stored(space)
        await objects.fsync(ino)
        full = sum(map(data_bytes, nvme_files(space, ino)))
        assert len(nvme_files(space, ino)) == dirs
        await objects.open(ino, write=False)
        await say(space, ino)
        await space.verbs.windows.step()
        check(space.tiers.see(ino), LENGTH)
        await objects.release(ino, write=False)
        assert await space.tiers.used_blocks(Tier.DDR) == KEPT_BLOCKS
        assert await space.tiers.used_blocks(Tier.NVME) == KEPT_BLOCKS
        assert sum(map(data_bytes, nvme_files(space, ino))) == full - (LENGTH * TOKEN - KEPT_BLOCKS * BLOCK_BYTES)
        assert space.verbs.windows.counts.nvme_bytes == LENGTH * TOKEN - KEPT_BLOCKS * BLOCK_BYTES
        assert objects.lives.by_ino[ino].clean
        assert await objects.scrub.scrub(ino) == KEPT_BLOCKS * BLOCK_BYTES
        assert await objects.demote(ino)
        assert await space.tiers.used_blocks(Tier.DDR) == 0
        check(await space.tiers.read(ino), LENGTH)
        assert await space.tiers.used_blocks(Tier.DDR) == KEPT_BLOCKS
        assert await valid(space, ino) == told(kept(LENGTH))
    async with space_at(root, nvme_dirs=dirs) as space:
        check(await space.tiers.read(ino), LENGTH)
        assert await valid(space, ino) == told(kept(LENGTH))
    assert await faults_of(space) == []


@pytest.mark.parametrize("dirs", [1, 2])
async def test_a_cold_object_gives_back_where_it_is(root, dirs):
    async with space_at(root, nvme_dirs=dirs) as space:
        objects = space.tiers.objects
        ino = await stored(space)
        await objects.demote(ino)
        full = sum(map(data_bytes, nvme_files(space, ino)))
        used_ns = space.tiers.catalog.db.scalar("SELECT used_ns FROM copy")
        await say(space, ino)
        await space.verbs.windows.step()
        assert await space.tiers.used_blocks(Tier.NVME) == KEPT_BLOCKS
        assert full - sum(map(data_bytes, nvme_files(space, ino))) == LENGTH * TOKEN - KEPT_BLOCKS * BLOCK_BYTES
        assert space.tiers.catalog.db.scalar("SELECT used_ns FROM copy") == used_ns
        assert await valid(space, ino) == told(kept(LENGTH))
        assert await objects.scrub.scrub(ino) == KEPT_BLOCKS * BLOCK_BYTES
        assert not ddr_file(space, ino).exists()
    async with space_at(root, nvme_dirs=dirs) as space:
        assert await valid(space, ino) == told(kept(LENGTH))
        check(await space.tiers.read(ino), LENGTH)
        assert await space.tiers.used_blocks(Tier.DDR) == KEPT_BLOCKS
    assert await faults_of(space) == []


async def test_a_cold_object_that_is_read_keeps_its_pages_until_it_is_closed(root):
    async with space_at(root, ddr_mib=1, burst_mib=1) as space:
        objects = space.tiers.objects
        ino = await stored(space, count=240)
        await objects.demote(ino)
        other = await space.begin(b"other")
        space.tiers.write(other, bytes(1 << 20))
        await objects.grow(other, 1 << 20)
        await objects.open(ino, write=False)
        assert objects.lives.by_ino[ino].tier is Tier.NVME
        await say(space, ino)
        await space.verbs.windows.step()
        assert space.tiers.see(ino) == tokens(240)
        assert await space.tiers.used_blocks(Tier.NVME) == 240 * TOKEN // BLOCK_BYTES
        await objects.release(ino, write=False)
        await space.verbs.windows.step()
        assert await space.tiers.used_blocks(Tier.NVME) < 240 * TOKEN // BLOCK_BYTES
        await objects.release(other, write=True)


async def test_a_crash_while_it_is_written_gives_the_last_sealed_bytes_and_what_is_true_of_them(root):
    async with space_at(root) as space:
        objects = space.tiers.objects
        ino = await stored(space, count=200)
        await say(space, ino)
        await objects.fsync(ino)
        await space.verbs.windows.step()
        await objects.open(ino, write=True)
        append(space, ino, LENGTH - 200, first=200)
        await space.verbs.windows.step()
        assert await valid(space, ino) == told(kept(LENGTH))
        check(space.tiers.see(ino), LENGTH)
        # the life ends here, with a writer
    async with space_at(root) as space:
        assert await valid(space, ino) == told(kept(200))
        check(await space.tiers.read(ino), 200)
        await space.verbs.windows.step()
        await space.tiers.objects.describer._sweep(pause=0)  # as after each real crash
    assert await faults_of(space) == []


async def test_what_was_never_copied_before_its_window_slid_comes_back_whole_from_the_copy(root):
    async with space_at(root) as space:
        ino = await stored(space, count=200)
        await space.tiers.objects.fsync(ino)
        await space.tiers.objects.open(ino, write=True)
        await say(space, ino)
        append(space, ino, 100, first=200)
        await space.verbs.windows.step()
        assert await valid(space, ino) == told(kept(300))
    async with space_at(root) as space:
        assert await valid(space, ino) == b"0-200"
        assert await space.tiers.read(ino) == tokens(200)
        space.verbs.windows.look_soon(ino)  # as `Windows.run` does, and each release
        await space.verbs.windows.step()
        check(await space.tiers.read(ino), 200)


async def test_tokens_that_are_written_anew_after_a_truncation_are_valid(root):
    async with space_at(root) as space:
        objects = space.tiers.objects
        ino = await space.begin(b"a")
        await say(space, ino)
        append(space, ino, 200, first=0)
        await space.verbs.windows.step()
        await objects.truncate(ino, 72 * TOKEN)
        append(space, ino, 30, first=72)
        await space.verbs.windows.step()
        assert await valid(space, ino) == b"0-16 72-102"
        assert space.tiers.see(ino)[72 * TOKEN :] == tokens(30, first=72)
        await objects.truncate(ino, 0)
        append(space, ino, 50, first=0)
        await space.verbs.windows.step()
        assert await valid(space, ino) == b"0-50"
        assert space.tiers.see(ino) == tokens(50)
        await objects.release(ino, write=True)
        await objects.fsync(ino)
        await objects.open(ino, write=True, truncate=True)
        append(space, ino, 20, first=0)
        assert await valid(space, ino) == b"0-20"
        await objects.release(ino, write=True)


async def test_a_file_that_got_its_length_ahead_slides_as_it_is_filled(root):
    async with space_at(root) as space:
        ino = await space.begin(b"a")
        await say(space, ino)
        await space.tiers.objects.truncate(ino, LENGTH * TOKEN)
        for first, length in ((0, 50), (50, 120)):
            append(space, ino, length - first, first=first)
            await space.verbs.windows.step()
            check(space.tiers.see(ino)[: length * TOKEN], length)
            assert await valid(space, ino) == told(kept(length))
        append(space, ino, LENGTH - 120, first=120)
        await space.tiers.objects.release(ino, write=True)
        await space.verbs.windows.step()
        check(await space.tiers.read(ino), LENGTH)


async def test_a_window_that_ends_or_widens_brings_nothing_back_and_tells_so(root):
    async with space_at(root) as space:
        ino = await stored(space)
        await say(space, ino)
        await space.verbs.windows.step()
        await say(space, ino, window=0, sink=0)
        await space.verbs.windows.step()
        assert await valid(space, ino) == told(kept(LENGTH))
        await say(space, ino, window=LENGTH)
        await space.verbs.windows.step()
        check(await space.tiers.read(ino), LENGTH)
        await say(space, ino, window=WINDOW, sink=0)
        await space.verbs.windows.step()
        check(await space.tiers.read(ino), LENGTH, sink=0)
        assert await valid(space, ino) == told(kept(LENGTH, sink=0))


async def test_a_writer_in_a_small_tier_never_runs_out_of_room_as_its_window_slides(root):
    async with space_at(root, ddr_mib=2, burst_mib=1) as space:
        ino = await space.begin(b"a")
        await say(space, ino)
        for at in range(0, 2000, 20):  # 8 MiB, and nobody looks in between
            held = ddr_file(space, ino).stat().st_blocks * 512
            await space.tiers.objects.grow(ino, held + 20 * TOKEN)
            append(space, ino, 20, first=at)
        check_end = space.tiers.see(ino)
        assert check_end[-WINDOW * TOKEN :] == tokens(WINDOW, first=2000 - WINDOW)
        assert check_end[: SINK * TOKEN] == tokens(SINK)
        await space.tiers.objects.release(ino, write=True)
        await space.verbs.windows.step()
        check(await space.tiers.read(ino), 2000)


async def test_each_file_of_a_directory_slides_and_its_namespace_may_say_what_a_token_takes(root):
    async with space_at(root) as space:
        names = space.tiers.catalog.names
        xattrs = Xattrs(space.tiers.catalog, space.tiers.objects, space.verbs)
        inos = [await space.store(name, space.folder, tokens(100)) for name in (b"k", b"v")]
        beside = await space.store(b"index.json", space.folder, tokens(100) + b"\n")
        top, folder = names.inode(space.dirs), names.inode(space.folder)
        await xattrs.set(top, b"user.kvd.bytes_per_token", b"%d" % TOKEN)
        assert xattrs.get(names.inode(inos[0]), b"user.kvd.bytes_per_token") == b"%d" % TOKEN
        await xattrs.set(folder, b"user.kvd.window", b"%d" % WINDOW)
        await space.verbs.windows.step()
        for ino in inos:
            check(await space.tiers.read(ino), 100, sink=0)
            assert await valid(space, ino) == told(kept(100, sink=0))
        assert await space.tiers.read(beside) == tokens(100) + b"\n"
        with pytest.raises(OSError, match="No data"):
            await valid(space, beside)
        detail = await space.verbs.session_detail(b"/dirs/s")
        assert detail.given_bytes == 2 * (100 - sum(end - start for start, end in kept(100, sink=0))) * TOKEN
        await xattrs.remove(top, b"user.kvd.bytes_per_token")
        with pytest.raises(OSError, match="No data"):
            await valid(space, inos[0])


async def test_nothing_goes_where_nobody_has_said_what_a_token_takes_or_it_does_not_fit(root):
    async with space_at(root) as space:
        ino = await stored(space)
        await say(space, ino, token_bytes=0)
        await space.verbs.windows.step()
        assert await space.tiers.read(ino) == tokens(LENGTH)
        with pytest.raises(OSError, match="No data"):
            await valid(space, ino)
        xattrs = Xattrs(space.tiers.catalog, space.tiers.objects, space.verbs)
        inode = space.tiers.catalog.names.inode(ino)
        for value in (b"many", b"-1", b"%d" % (windows.TOKEN_BYTES_MAX + 1)):
            with pytest.raises((OSError, InvalidError)):
                await xattrs.set(inode, b"user.kvd.bytes_per_token", value)
        with pytest.raises(OSError, match="Operation not permitted"):
            await xattrs.set(inode, b"user.kvd.valid", b"0-1")
        assert xattrs.list(inode) == []


async def test_what_was_given_back_while_a_scrub_read_it_is_no_damage(root):
    async with space_at(root) as space:
        objects = space.tiers.objects
        ino = await stored(space)
        await objects.demote(ino)
        await say(space, ino)
        verify = objects.scrub._mover.verify

        async def slow(**job):
            await space.verbs.windows.step()
            return await verify(**job)

        objects.scrub._mover.verify = slow
        try:
            assert await objects.scrub.scrub(ino) == 0
        finally:
            objects.scrub._mover.verify = verify
        assert await objects.scrub.scrub(ino) == KEPT_BLOCKS * BLOCK_BYTES
        assert space.tiers.catalog.placements.count_damaged() == 0
        check(await space.tiers.read(ino), LENGTH)
