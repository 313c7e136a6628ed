"""Operations on namespaces without a mount: fingerprints, alarms, invalidation and what is deleted after it."""

from __future__ import annotations

import errno
import os
from contextlib import asynccontextmanager

import pytest
import trio

from kvd.catalog.schema import ROOT_INO
from kvd.errors import (
    ExistsError,
    InvalidError,
    KvdError,
    MismatchError,
    NotEmptyError,
    NotFoundError,
    VanishedError,
)
from kvd.fs.guard import errno_of
from kvd.fs.xattrs import FINGERPRINT, Xattrs
from kvdriver import Tier
from support.tiers import tiers_at

LLAMA = {"model": "llama", "dtype": "fp8"}
QWEN = {"model": "qwen", "dtype": "fp8"}
CONTENT = os.urandom(100_000)


async def create(tiers, name: bytes = b"ns", fingerprint=LLAMA, **policies):
    return await tiers.objects.namespacing.create(
        name, fingerprint=fingerprint, policies=policies, mode=0o1777, uid=3, gid=4
    )


async def store(tiers, folder: int, name: bytes, content: bytes = CONTENT) -> int:
    names = tiers.catalog.names
    with tiers.catalog.db.transaction():
        inode = names.make(folder, name, mode=0o100644, uid=0, gid=0, now_ns=1)
        tiers.catalog.placements.add(inode.ino)
    await tiers.objects.create(inode.ino, folder)
    tiers.write(inode.ino, content)
    await tiers.objects.release(inode.ino, write=True)
    return inode.ino


@asynccontextmanager
async def reaping(tiers):
    async with trio.open_nursery() as nursery:
        nursery.start_soon(tiers.objects.reaper.run)
        yield
        with trio.fail_after(20):
            await tiers.objects.reaper.idle()
        nursery.cancel_scope.cancel()


# -- making and comparing ---------------------------------------------------------------------------------------------


async def test_a_namespace_is_made_with_its_directory(root) -> None:
    async with tiers_at(root) as tiers:
        made = await create(tiers, admit="reused")
        inode, found = tiers.objects.namespacing.find(b"/ns")
        assert found == made
        assert (inode.mode & 0o7777, inode.uid, inode.gid) == (0o1777, 3, 4)
        assert (made.admit, made.durability, made.on_fault) == ("reused", "back", "eio")
        with pytest.raises(ExistsError):
            await create(tiers)
    async with tiers_at(root) as tiers:
        assert tiers.objects.namespacing.find(b"ns")[1] == made


async def test_an_empty_directory_becomes_one_and_one_with_content_gets_no_fingerprint(root) -> None:
    async with tiers_at(root) as tiers:
        names = tiers.catalog.names
        for name in (b"empty", b"full"):
            folder = names.make(ROOT_INO, name, mode=0o40700, uid=0, gid=0, now_ns=1)
        await store(tiers, folder.ino, b"x")
        assert (await create(tiers, b"empty")).ino == names.lookup(ROOT_INO, b"empty").ino
        with pytest.raises(NotEmptyError):
            await create(tiers, b"full")
        assert (await create(tiers, b"full", {})).fingerprint == ""  # a policy alone is safe
        await tiers.make(b"file", b"x")
        with pytest.raises(ExistsError):
            await create(tiers, b"file")


@pytest.mark.parametrize("name", [b"", b"/", b".", b"..", b".kvd", b"a/b", b"x" * 256, b"a\0b"])
async def test_names_that_no_namespace_can_have(root, name) -> None:
    async with tiers_at(root) as tiers:
        with pytest.raises(InvalidError):
            await create(tiers, name)


async def test_policies_change_and_the_fingerprint_stays(root) -> None:
    async with tiers_at(root) as tiers:
        made = await create(tiers)
        changed = await tiers.objects.namespacing.set(b"ns", {"durability": "through", "on_fault": "miss"})
        assert (changed.fingerprint, changed.admit, changed.durability) == (made.fingerprint, "all", "through")
        for wrong in ({"admit": "some"}, {"fingerprint": "x"}):
            with pytest.raises(InvalidError):
                await tiers.objects.namespacing.set(b"ns", wrong)
        with pytest.raises(NotFoundError):
            await tiers.objects.namespacing.set(b"other", {"admit": "all"})


async def test_attach_compares_and_a_wrong_one_is_an_alarm(root, claim_log) -> None:
    claim_log("wrong fingerprint offered")
    async with tiers_at(root) as tiers:
        await create(tiers)
        spaces = tiers.objects.namespacing
        assert spaces.attach(b"ns", dict(reversed(LLAMA.items()))).fingerprint
        assert spaces.mismatches == 0
        for _ in range(3):
            with pytest.raises(MismatchError) as caught:
                spaces.attach(b"ns", {"model": "qwen", "tp": "2"})
            assert str(caught.value) == (
                "ns: another fingerprint: dtype: here 'fp8', offered missing;"
                " model: here 'llama', offered 'qwen'; tp: here missing, offered '2'"
            )
        assert spaces.mismatches == 3
        assert len(spaces.alarms) == 1
        with pytest.raises(MismatchError):
            spaces.attach(b"ns", {})
        assert len(spaces.alarms) == 2
        for number in range(100):
            with pytest.raises(MismatchError):
                spaces.attach(b"ns", {"model": str(number)})
        assert spaces.mismatches == 104
        assert len(spaces.alarms) == spaces.alarms.maxlen


# -- by xattrs --------------------------------------------------------------------------------------------------------


async def test_a_client_makes_a_namespace_by_an_xattr(root, claim_log) -> None:
    claim_log("wrong fingerprint offered")
    async with tiers_at(root) as tiers:
        names = tiers.catalog.names
        xattrs = Xattrs(tiers.catalog, tiers.objects, tiers.sessions)
        folder = names.make(ROOT_INO, b"ns", mode=0o40755, uid=0, gid=0, now_ns=1)

        async def refused(inode, value: bytes, name: bytes = FINGERPRINT) -> str:
            with pytest.raises((KvdError, OSError)) as caught:
                await xattrs.set(inode, name, value)
            return errno.errorcode[errno_of(caught.value) or 0]

        with pytest.raises(OSError, match="No data"):
            xattrs.get(folder, FINGERPRINT)
        assert await refused(folder, b"all", b"user.kvd.admit") == "ENOTSUP"
        await xattrs.set(folder, FINGERPRINT, b"model=llama\ndtype=fp8\n")
        told = xattrs.get(folder, FINGERPRINT)
        assert told == b'{"dtype":"fp8","model":"llama"}'
        await xattrs.set(folder, FINGERPRINT, told)
        assert await refused(folder, b"model=qwen") == "EEXIST"
        assert tiers.objects.namespacing.mismatches == 1
        assert await refused(folder, b"model") == "EINVAL"
        assert await refused(folder, b"") == "EINVAL"
        await xattrs.set(folder, b"user.kvd.admit", b"reused")
        assert xattrs.get(folder, b"user.kvd.admit") == b"reused"
        assert await refused(folder, b"x", b"user.kvd.on_fault") == "EINVAL"
        with pytest.raises(PermissionError):
            await xattrs.remove(folder, FINGERPRINT)
        sub = names.make(folder.ino, b"sub", mode=0o40755, uid=0, gid=0, now_ns=1)
        assert xattrs.get(sub, FINGERPRINT) == told
        assert await refused(sub, b"model=llama") == "ENOTSUP"
        assert await refused(names.inode(ROOT_INO), b"model=llama") == "ENOTSUP"
        file = names.inode(await store(tiers, folder.ino, b"x"))
        assert xattrs.get(file, FINGERPRINT) == told
        assert await refused(file, b"model=llama") == "ENOTSUP"
        full = names.make(ROOT_INO, b"full", mode=0o40755, uid=0, gid=0, now_ns=1)
        await store(tiers, full.ino, b"x")
        assert await refused(full, b"model=llama") == "ENOTEMPTY"
        assert FINGERPRINT not in xattrs.list(folder)


# -- invalidation -----------------------------------------------------------------------------------------------------


async def test_invalidation_frees_everything_and_the_directory_stays(root) -> None:
    async with tiers_at(root) as tiers, reaping(tiers):
        made = await create(tiers, admit="reused")
        sub = tiers.catalog.names.make(made.ino, b"sub", mode=0o40755, uid=0, gid=0, now_ns=1)
        inos = [await store(tiers, made.ino, b"a%d" % number) for number in range(10)]
        inos += [await store(tiers, sub.ino, b"b%d" % number) for number in range(10)]
        for ino in inos[::3]:
            await tiers.objects.demote(ino)
        kept = await tiers.make(b"kept", CONTENT)
        assert await tiers.objects.namespacing.invalidate(b"ns", fingerprint=QWEN, present=LLAMA) == 11
        now = tiers.objects.namespacing.attach(b"ns", QWEN)
        assert now.admit == "reused"
        assert tiers.catalog.names.listing(now.ino) == []
        with trio.fail_after(20):
            await tiers.objects.reaper.idle()
        assert set(tiers.objects.lives.sessions) == {kept}
        assert await tiers.used_blocks(Tier.NVME) == 0
        for ino in inos:
            with pytest.raises(VanishedError):
                await tiers.read(ino)
        found = tiers.objects.reaper.statistics()
        assert (found.graves, found.names_left, found.names_gone) == (0, 0, 21)
        assert await tiers.read(kept) == CONTENT
        assert tiers.catalog.names.orphans() == []


async def test_invalidation_only_of_the_present_fingerprint(root) -> None:
    async with tiers_at(root) as tiers:
        made = await create(tiers)
        await store(tiers, made.ino, b"x")
        with pytest.raises(MismatchError):
            await tiers.objects.namespacing.invalidate(b"ns", fingerprint=LLAMA, present=QWEN)
        assert tiers.catalog.names.lookup(made.ino, b"x") is not None
        assert tiers.objects.namespacing.mismatches == 0  # nobody would have read anything
        with pytest.raises(NotFoundError):
            await tiers.objects.namespacing.invalidate(b"other", fingerprint=None, present=None)


async def test_what_is_open_stays_readable_until_its_release(root) -> None:
    async with tiers_at(root) as tiers, reaping(tiers):
        made = await create(tiers)
        ino = await store(tiers, made.ino, b"x")
        await tiers.objects.open(ino, write=False)
        await tiers.objects.namespacing.invalidate(b"ns", fingerprint=None, present=None)
        with trio.fail_after(20):
            await tiers.objects.reaper.idle()
        assert tiers.see(ino) == CONTENT
        await tiers.objects.release(ino, write=False)
        await tiers.objects.reaper.keeper.discard(ino)
        assert tiers.objects.lives.sessions == {}


async def test_what_a_crash_left_is_deleted_by_the_next_start(root) -> None:
    async with tiers_at(root) as tiers:
        made = await create(tiers)
        for number in range(300):
            await store(tiers, made.ino, b"x%d" % number, b"y" * 100)
        await tiers.objects.namespacing.invalidate(b"ns", fingerprint=None, present=None)
    async with tiers_at(root) as tiers:
        assert tiers.objects.reaper.statistics().names_left == 300
        async with reaping(tiers):
            pass
        assert tiers.objects.lives.sessions == {}
        assert tiers.catalog.names.listing(tiers.objects.namespacing.find(b"ns")[0].ino) == []
        assert await tiers.used_blocks(Tier.DDR) == 0
    async with tiers_at(root) as tiers:
        assert tiers.objects.reaper.statistics().graves == 0
        assert tiers.catalog.names.orphans() == []


async def test_an_invalidated_object_is_dropped_rather_than_demoted(root) -> None:
    async with tiers_at(root) as tiers:
        made = await create(tiers)
        ino = await store(tiers, made.ino, b"x")
        await tiers.objects.namespacing.invalidate(b"ns", fingerprint=None, present=None)
        async with tiers.objects.lives.hold(ino) as live:
            await tiers.objects.admission.let_go(live)
        assert tiers.objects.moves.counts.demoted_bytes == 0
        async with reaping(tiers):
            pass
        assert tiers.objects.reaper.statistics().graves == 0


async def test_the_reaper_goes_on_when_the_catalogue_takes_changes_again(root, claim_log, monkeypatch) -> None:
    claim_log("can't be deleted yet")
    async with tiers_at(root) as tiers:
        made = await create(tiers)
        await store(tiers, made.ino, b"x")
        exhume, failures = tiers.catalog.namespaces.exhume, 1

        def failing(grave: int, limit: int):
            nonlocal failures
            failures -= 1
            if failures >= 0:
                raise OSError(errno.ENOSPC, "full")
            return exhume(grave, limit)

        monkeypatch.setattr(tiers.catalog.namespaces, "exhume", failing)
        await tiers.objects.namespacing.invalidate(b"ns", fingerprint=None, present=None)
        async with reaping(tiers):
            pass
        assert tiers.objects.lives.sessions == {}


async def test_a_namespace_with_content_is_removed_only_by_force(root) -> None:
    async with tiers_at(root) as tiers, reaping(tiers):
        made = await create(tiers)
        await store(tiers, made.ino, b"x")
        with pytest.raises(NotEmptyError):
            await tiers.objects.namespacing.remove(b"ns", force=False)
        assert await tiers.objects.namespacing.remove(b"ns", force=True) == 1
        assert tiers.catalog.names.listing(ROOT_INO) == []
        assert tiers.objects.namespacing.all() == []
        await create(tiers, b"ns", QWEN)
        assert await tiers.objects.namespacing.remove(b"ns", force=False) == 0
        with trio.fail_after(20):
            await tiers.objects.reaper.idle()
        assert tiers.catalog.names.orphans() == []
        assert tiers.objects.lives.sessions == {}
