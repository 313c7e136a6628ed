"""Quotas of namespaces on NVMe: whose objects a full tier, or a limit that is reached, lets go."""

from __future__ import annotations

import errno
import os
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from kvdriver import Tier
from support.quota_spaces import BLOCKS, mib, spaces_at
from support.tiers import MIB


@asynccontextmanager
async def evicting(spaces):
    objects = spaces.tiers.objects
    async with trio.open_nursery() as nursery:
        nursery.start_soon(objects.evicting.run)
        nursery.start_soon(objects.reaper.run)
        await trio.testing.wait_all_tasks_blocked()
        with trio.fail_after(60):
            yield
        nursery.cancel_scope.cancel()


async def test_a_flood_of_both_tiers_takes_nothing_of_what_is_guaranteed(root) -> None:
    async with spaces_at(root, ddr_mib=6, nvme_mib=8) as spaces, evicting(spaces):
        await spaces.make(b"kept", **mib(ddr_guaranteed=2, nvme_guaranteed=4))
        await spaces.make(b"flood")
        kept = await spaces.flood(b"kept", 5)
        flood = await spaces.flood(b"flood", 40)
        assert spaces.present(kept) == kept
        assert spaces.in_ddr(kept) >= 2
        assert flood[-1] in spaces.present(flood)
        assert len(spaces.present(flood)) < 15
        for ino in kept:
            assert await spaces.tiers.read(ino) == spaces.contents[ino]
        assert spaces.present(kept) == kept


async def test_a_namespace_at_its_limit_on_nvme_loses_its_own_oldest(root) -> None:
    async with spaces_at(root, ddr_mib=8, nvme_mib=64) as spaces, evicting(spaces):
        one = await spaces.make(b"one", **mib(ddr_limit=2, nvme_limit=3))
        await spaces.make(b"two")
        others = await spaces.flood(b"two", 4)
        for ino in others:
            await spaces.tiers.objects.demote(ino)
        inos = await spaces.flood(b"one", 12)
        assert spaces.present(others) == others
        left = spaces.present(inos)
        assert left == inos[-len(left) :]
        assert 4 <= len(left) <= 5
        assert spaces.quotas.used(Tier.NVME, one) <= 3 * BLOCKS
        for ino in left:
            if spaces.present([ino]):  # to read one may cost another
                assert await spaces.tiers.read(ino) == spaces.contents[ino]
        assert spaces.present(others) == others


async def test_each_namespace_says_what_a_full_tier_means(root, claim_log) -> None:
    claim_log("demotion failed")
    async with spaces_at(root, ddr_mib=8, nvme_mib=4) as spaces, evicting(spaces):
        await spaces.make(b"refuses", on_full="refuse")
        await spaces.make(b"evicts", on_full="evict")
        inos = await spaces.flood(b"refuses", 4)
        for ino in inos:
            await spaces.tiers.objects.demote(ino)
        late = await spaces.store(b"refuses", b"late")
        with pytest.raises(OSError, match=f"Errno {errno.ENOSPC}\\]"):
            await spaces.tiers.objects.fsync(late)
        assert spaces.present(inos) == inos
        other = await spaces.store(b"evicts", b"late")
        await spaces.tiers.objects.fsync(other)
        assert len(spaces.present(inos)) in (2, 3)  # some is made free ahead


async def test_what_a_namespace_has_borrowed_on_nvme_goes_by_priority(root) -> None:
    async with spaces_at(root, ddr_mib=16, nvme_mib=8) as spaces, evicting(spaces):
        await spaces.make(b"high", priority=5, **mib(nvme_guaranteed=1))
        await spaces.make(b"low", **mib(nvme_guaranteed=1))
        low, high = await spaces.flood(b"low", 3), await spaces.flood(b"high", 5)
        for ino in (*high, *low):
            await spaces.tiers.objects.demote(ino)
        more = await spaces.store(b"high", b"more")
        await spaces.tiers.objects.fsync(more)
        assert spaces.present(high) == high
        assert len(spaces.present(low)) in (1, 2)


async def test_a_chain_that_was_said_goes_from_its_tail(root) -> None:
    async with spaces_at(root, ddr_mib=16, nvme_mib=6) as spaces, evicting(spaces):
        one = await spaces.make(b"one")
        chain = []
        for number in range(6):
            with spaces.tiers.catalog.db.transaction():
                ino = spaces.names.make(one, b"c%d" % number, mode=0o100644, uid=0, gid=0, now_ns=1).ino
                spaces.tiers.catalog.placements.add(ino)
            if chain:
                spaces.tiers.catalog.chains.put(ino, chain[-1])
            await spaces.tiers.objects.create(ino, one)
            await spaces.tiers.objects.grow(ino, MIB)
            spaces.contents[ino] = os.urandom(MIB)
            spaces.tiers.write(ino, spaces.contents[ino])
            await spaces.tiers.objects.release(ino, write=True)
            chain.append(ino)
        for ino in reversed(chain):
            await spaces.tiers.objects.demote(ino)
        for number in range(3):
            await spaces.tiers.objects.fsync(await spaces.store(b"", b"plain%d" % number))
            left = spaces.present(chain)
            assert left == chain[: len(left)]
        assert len(left) < 6
