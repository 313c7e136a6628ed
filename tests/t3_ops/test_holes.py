"""Holes that get memory because a reader's shared mapping touched them, as the kernel does in passthrough."""

import mmap

import pytest

from kvdriver import BLOCK_BYTES, Tier
from support.tiers import PAGE_BYTES, tiers_at

SIZE = 20 * PAGE_BYTES
EVERY_BLOCK = SIZE // BLOCK_BYTES


async def make_sparse(tiers):
    ino = await tiers.begin(b"a")
    tiers.write(ino, b"end", SIZE - 3)
    await tiers.objects.release(ino, write=True)
    assert await tiers.used_blocks(Tier.DDR) == 1
    return ino


async def read_all_mapped(tiers, ino):
    await tiers.objects.open(ino, write=False)
    with mmap.mmap(tiers.plane.objects[ino].fd, 0, mmap.MAP_SHARED, mmap.PROT_READ) as mapped:
        data = mapped[:]
        await tiers.objects.writing.sample(tiers.objects.lives.by_ino[ino])
        info = await tiers.books.tier(Tier.DDR)
        assert info.used_blocks + info.reserved_blocks == EVERY_BLOCK, "promised while it is mapped"
    await tiers.objects.release(ino, write=False)
    return data


@pytest.mark.parametrize("synced", [False, True])
async def test_memory_behind_holes_is_charged_and_given_back(root, synced):
    async with tiers_at(root) as tiers:
        ino = await make_sparse(tiers)
        expected = bytes(SIZE - 3) + b"end"
        if synced:
            await tiers.objects.fsync(ino)
        assert await read_all_mapped(tiers, ino) == expected
        assert await tiers.used_blocks(Tier.DDR) == EVERY_BLOCK
        await tiers.objects.demote(ino)
        assert await tiers.used_blocks(Tier.DDR) == 0
        assert await tiers.used_blocks(Tier.NVME) == (PAGE_BYTES if synced else SIZE) // BLOCK_BYTES
        assert await tiers.read(ino) == expected
        held = (tiers.config.ddr.path / f"{ino:x}").stat().st_blocks * 512 // BLOCK_BYTES
        assert await tiers.used_blocks(Tier.DDR) == held
        await tiers.objects.demote(ino)
        assert await tiers.used_blocks(Tier.DDR) == 0


async def test_an_object_of_holes_only_can_be_demoted_after_they_were_read(root):
    async with tiers_at(root) as tiers:
        ino = await tiers.make(b"a", b"")
        await tiers.objects.truncate(ino, SIZE)
        await tiers.objects.fsync(ino)
        await read_all_mapped(tiers, ino)
        await tiers.objects.demote(ino)
        assert await tiers.used_blocks(Tier.DDR) == 0
        assert await tiers.read(ino) == bytes(SIZE)
