"""Objects without a mount whose files are damaged, gone or can't be written."""

import errno
import os
import random

import pytest

from kvd.errors import DamagedError, NotFoundError
from kvdriver import Tier
from support.bad_disk import flip_bit
from support.tiers import PAGE_BYTES, tiers_at

random_bytes = random.Random(1).randbytes


def copy_file(tiers, ino):
    copy = tiers.catalog.placements.copy(ino)
    return tiers.nvme.file(copy.dir_index, copy.ino, copy.gen)


@pytest.mark.parametrize("where", [0, PAGE_BYTES + 1, 3 * PAGE_BYTES + 776])
async def test_a_flipped_bit_is_eio_and_quarantine(root, claim_log, where):
    claim_log("object quarantined")
    async with tiers_at(root) as tiers:
        ino = await tiers.make(b"a", random_bytes(3 * PAGE_BYTES + 777))
        await tiers.objects.demote(ino)
        file = copy_file(tiers, ino)
        flip_bit(file, where, bit=2)
        for _ in range(2):
            with pytest.raises(DamagedError):
                await tiers.objects.open(ino, write=False)
        assert await tiers.used_blocks(Tier.DDR) == 0
        (fault,) = tiers.catalog.placements.faults(10)
        assert (fault.path, fault.page, fault.what) == (b"/a", where // PAGE_BYTES, "checksum differs")
        assert fault.place == f"{file} at {where // PAGE_BYTES * PAGE_BYTES}"
        await tiers.objects.open(ino, write=True, truncate=True)
        tiers.write(ino, b"new")
        await tiers.objects.release(ino, write=True)
        assert await tiers.read(ino) == b"new", "new bytes end the quarantine"


async def test_a_truncated_file_is_eio(root, claim_log):
    claim_log("object quarantined")
    async with tiers_at(root) as tiers:
        ino = await tiers.make(b"a", random_bytes(3 * PAGE_BYTES))
        await tiers.objects.demote(ino)
        os.truncate(copy_file(tiers, ino), PAGE_BYTES)
        with pytest.raises(DamagedError):
            await tiers.objects.open(ino, write=False)


async def test_a_vanished_file_is_a_miss(root, claim_log):
    claim_log("object lost")
    async with tiers_at(root) as tiers:
        ino = await tiers.make(b"a", b"abc")
        await tiers.objects.demote(ino)
        copy_file(tiers, ino).unlink()
        with pytest.raises(NotFoundError):
            await tiers.objects.open(ino, write=False)
        assert tiers.catalog.names.lookup(1, b"a") is None
        with pytest.raises(NotFoundError):
            await tiers.objects.open(ino, write=False)
        assert await tiers.used_blocks(Tier.NVME) == 0


async def test_a_write_that_fails_on_nvme_leaves_the_older_copy(root, monkeypatch):
    async with tiers_at(root) as tiers:
        ino = await tiers.make(b"a", b"old" * 100)
        await tiers.objects.fsync(ino)
        old = tiers.catalog.placements.copy(ino)
        await tiers.objects.open(ino, write=True)
        tiers.write(ino, b"new" * 100)

        async def broken(*args, **more):
            raise OSError(errno.EIO, "device")

        monkeypatch.setattr(tiers.objects.moves._mover, "demote", broken)
        with pytest.raises(OSError, match="device"):
            await tiers.objects.fsync(ino)
        monkeypatch.undo()
        assert tiers.catalog.placements.copy(ino).gen == old.gen
        assert copy_file(tiers, ino).read_bytes() == b"old" * 100
        assert len((await tiers.nvme.files())[0]) == 1
        await tiers.objects.release(ino, write=True)
        await tiers.objects.demote(ino)
        assert await tiers.read(ino) == b"new" * 100
