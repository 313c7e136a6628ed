"""What becomes of objects by policy: dropped or written, written through, EIO or a miss. Without a mount."""

from __future__ import annotations

import errno
import os
from contextlib import asynccontextmanager

import pytest
import trio

from kvd.catalog.records import Namespace
from kvd.catalog.schema import ROOT_INO
from kvd.config import AdmissionConfig
from kvd.errors import DamagedError, NotFoundError
from kvdriver import Tier
from support.tiers import MIB, tiers_at

CONTENT = os.urandom(MIB)
WAIT_S = 20.0


async def until(condition) -> None:
    with trio.fail_after(WAIT_S):
        while not condition():
            await trio.sleep(0.005)


class Keeper:
    """Remembers what it was told to forget."""

    def __init__(self, objects, names) -> None:
        self._objects = objects
        self._names = names
        self.told: list[tuple[int, bytes]] = []

    def forget_name(self, parent: int, name: bytes) -> None:
        self.told.append((parent, name))

    async def forget_names(self, names) -> None:
        await trio.lowlevel.checkpoint()
        self.told += names

    async def forget_tree(self, parent: int, name: bytes) -> None:
        await trio.lowlevel.checkpoint()
        self.told.append((parent, name))

    async def discard(self, ino: int) -> None:
        try:
            inode = self._names.inode(ino)
        except OSError:
            return
        if inode.is_file and not inode.nlink:
            await self._objects.discard(ino)
        elif not inode.nlink:
            self._names.remove(ino)


class Space:
    """A namespace and the tiers."""

    def __init__(self, tiers, **policies) -> None:
        self.tiers = tiers
        self.names = tiers.catalog.names
        self.admission = tiers.objects.admission
        self.ino = self.names.make(ROOT_INO, b"ns", mode=0o40755, uid=0, gid=0, now_ns=1).ino
        self.keeper = tiers.objects.reaper.keeper = Keeper(tiers.objects, self.names)
        self.set(**policies)

    def set(self, *, admit: str = "all", durability: str = "back", on_fault: str = "eio") -> None:
        self.tiers.catalog.namespaces.put(
            Namespace(ino=self.ino, fingerprint="", admit=admit, durability=durability, on_fault=on_fault, created_ns=1)
        )

    async def store(self, name: bytes, content: bytes = CONTENT) -> int:
        """Store an object as engines do: under another name first."""
        with self.tiers.catalog.db.transaction():
            inode = self.names.make(self.ino, b".tmp", mode=0o100644, uid=0, gid=0, now_ns=1)
            self.tiers.catalog.placements.add(inode.ino)
        await self.tiers.objects.create(inode.ino, self.ino)
        self.tiers.write(inode.ino, content)
        await self.tiers.objects.release(inode.ino, write=True)
        self.names.rename(self.ino, b".tmp", self.ino, name, 0, 2)
        return inode.ino

    async def let_go(self, ino: int) -> bool:
        """Let DDR give an object up, as `Room` does; whether it is still there, on NVMe."""
        async with self.tiers.objects.lives.hold(ino) as live:
            await self.admission.let_go(live)
        if ino not in self.tiers.objects.lives.sessions:
            return False
        assert self.tiers.catalog.placements.get(ino).tier == Tier.NVME
        return True

    def has(self, name: bytes) -> bool:
        return self.names.lookup(self.ino, name) is not None


@asynccontextmanager
async def space_at(root, **policies):
    async with tiers_at(root, **({"ddr_mib": policies.pop("ddr_mib")} if "ddr_mib" in policies else {})) as tiers:
        yield Space(tiers, **policies)


# -- admission --------------------------------------------------------------------------------------------------------


async def test_what_was_never_used_again_is_dropped(root) -> None:
    async with space_at(root, admit="reused") as space:
        ino = await space.store(b"once")
        assert not await space.let_go(ino)
        assert not space.has(b"once")
        assert space.keeper.told == [(space.ino, b"once")]
        counts = space.admission.counts
        assert (counts.dropped, counts.admitted, counts.saved_bytes) == (1, 0, MIB)
        assert await space.tiers.used_blocks(Tier.DDR) == await space.tiers.used_blocks(Tier.NVME) == 0
        with pytest.raises(NotFoundError):
            await space.tiers.read(ino)


async def test_what_was_read_is_written(root) -> None:
    async with space_at(root, admit="reused") as space:
        ino = await space.store(b"read")
        assert await space.tiers.read(ino) == CONTENT
        assert await space.let_go(ino)
        assert (space.admission.counts.dropped, space.admission.counts.admitted) == (0, 1)
        assert await space.tiers.read(ino) == CONTENT


async def test_a_name_that_is_stored_again_after_it_was_dropped_is_written(root) -> None:
    async with space_at(root, admit="reused") as space:
        assert not await space.let_go(await space.store(b"again"))
        assert await space.let_go(await space.store(b"again"))
        assert not await space.let_go(await space.store(b"other"))


async def test_a_name_that_was_removed_or_replaced_counts_as_use(root) -> None:
    async with space_at(root, admit="reused") as space:
        await space.store(b"removed")
        space.names.unlink(space.ino, b"removed", 3)
        space.admission.gone(space.ino, b"removed")
        assert await space.let_go(await space.store(b"removed"))


async def test_an_object_that_is_written_anew_counts_as_used(root) -> None:
    async with space_at(root, admit="reused") as space:
        ino = await space.store(b"anew")
        await space.tiers.objects.open(ino, write=True, truncate=True)
        space.tiers.write(ino, CONTENT)
        await space.tiers.objects.truncate(ino, MIB)  # by its own writer: no second store
        await space.tiers.objects.release(ino, write=True)
        assert space.tiers.catalog.placements.copy(ino) is None
        assert await space.let_go(ino)


async def test_a_first_writer_that_sets_the_length_has_not_stored_twice(root) -> None:
    async with space_at(root, admit="reused") as space:
        with space.tiers.catalog.db.transaction():
            ino = space.names.make(space.ino, b"x", mode=0o100644, uid=0, gid=0, now_ns=1).ino
            space.tiers.catalog.placements.add(ino)
        await space.tiers.objects.create(ino, space.ino)
        await space.tiers.objects.truncate(ino, MIB)
        await space.tiers.objects.release(ino, write=True)
        assert not await space.let_go(ino)


@pytest.mark.parametrize("why", ["fsynced", "fsynced, then written anew", "linked twice", "policy is all"])
async def test_what_is_never_dropped(root, why) -> None:
    async with space_at(root, admit="all" if "policy" in why else "reused") as space:
        ino = await space.store(b"x")
        if "fsynced" in why:
            await space.tiers.objects.fsync(ino)
        if "anew" in why:
            await space.tiers.objects.open(ino, write=True)
            await space.tiers.objects.release(ino, write=True)
        if "linked" in why:
            space.names.link(ino, ROOT_INO, b"y", 3)
        assert await space.let_go(ino)
        assert space.has(b"x")
        assert await space.tiers.read(ino) == CONTENT


async def test_pressure_drops_one_hit_objects_and_keeps_pinned_and_read_ones(root) -> None:
    async with space_at(root, admit="reused", ddr_mib=8) as space:
        read = await space.store(b"read")
        assert await space.tiers.read(read) == CONTENT
        pinned = await space.store(b"pinned")
        await space.tiers.objects.pin(pinned, pinned=True)
        for number in range(20):
            await space.store(b"once%d" % number)
        assert await space.tiers.read(read) == CONTENT
        assert await space.tiers.read(pinned) == CONTENT
        counts = space.admission.counts
        assert counts.dropped >= 20 - 8
        assert space.tiers.objects.moves.counts.demoted_bytes <= 2 * MIB


@pytest.mark.parametrize("admit", ["all", "reused"])
async def test_what_is_in_no_namespace_follows_the_configuration(root, admit) -> None:
    async with tiers_at(root, admission=AdmissionConfig(admit=admit)) as tiers:
        ino = await tiers.make(b"plain", CONTENT)
        async with tiers.objects.lives.hold(ino) as live:
            assert tiers.objects.admission.refuses(live) == (admit == "reused")


async def test_a_catalogue_that_takes_no_change_keeps_the_object(root, monkeypatch) -> None:
    async with space_at(root, admit="reused") as space:
        ino = await space.store(b"x")

        def full(*_args):
            raise OSError(errno.ENOSPC, "catalogue")

        monkeypatch.setattr(space.tiers.catalog.names, "remove", full)
        with pytest.raises(OSError, match="catalogue"):
            await space.let_go(ino)
        monkeypatch.undo()
        assert space.has(b"x")
        assert space.keeper.told == []
        assert await space.tiers.read(ino) == CONTENT


# -- durability -------------------------------------------------------------------------------------------------------


async def test_through_writes_right_after_the_seal(root) -> None:
    async with space_at(root, durability="through") as space, trio.open_nursery() as nursery:
        nursery.start_soon(space.admission.run)
        inos = [await space.store(b"x%d" % number) for number in range(5)]
        copies = space.tiers.catalog.placements.copy
        await until(lambda: all((copy := copies(ino)) and copy.current for ino in inos))
        await until(lambda: space.admission.counts.through == 5)
        moved = space.tiers.objects.moves.counts.demoted_bytes
        assert await space.let_go(inos[0])  # free
        assert space.tiers.objects.moves.counts.demoted_bytes == moved
        assert space.admission.counts.admitted == 0
        nursery.cancel_scope.cancel()


async def test_a_new_policy_holds_for_what_is_there(root) -> None:
    async with space_at(root) as space, trio.open_nursery() as nursery:
        nursery.start_soon(space.admission.run)
        ino = await space.store(b"x")
        space.set(durability="through")
        space.admission.policies_changed()
        await until(lambda: space.tiers.catalog.placements.copy(ino) is not None)
        nursery.cancel_scope.cancel()


async def test_through_has_a_bounded_queue_and_forgets_nobody(root) -> None:
    async with space_at(root, durability="through") as space:
        send, receive = trio.open_memory_channel(2)
        space.admission._send, space.admission._receive = send, receive
        inos = [await space.store(b"x%d" % number, b"y" * 5000) for number in range(8)]
        assert send.statistics().current_buffer_used == 2
        async with trio.open_nursery() as nursery:
            nursery.start_soon(space.admission.run)
            await until(lambda: all(space.tiers.catalog.placements.copy(ino) for ino in inos))
            nursery.cancel_scope.cancel()


async def test_through_tries_again_when_nvme_takes_nothing(root, claim_log, monkeypatch) -> None:
    claim_log("can't be written through now")
    async with space_at(root, durability="through") as space, trio.open_nursery() as nursery:
        copy_out, failures = space.tiers.objects.moves.copy_out, 2

        async def failing(live):
            nonlocal failures
            failures -= 1
            if failures >= 0:
                raise OSError(errno.ENOSPC, "full")
            await copy_out(live)

        monkeypatch.setattr(space.tiers.objects.moves, "copy_out", failing)
        nursery.start_soon(space.admission.run)
        ino = await space.store(b"x")
        await until(lambda: space.tiers.catalog.placements.copy(ino) is not None)
        nursery.cancel_scope.cancel()


# -- faults -----------------------------------------------------------------------------------------------------------


def spoil(space: Space, ino: int) -> None:
    file = space.tiers.nvme.file(0, ino, space.tiers.catalog.placements.copy(ino).gen)
    with file.open("r+b") as raw:
        raw.write(bytes([CONTENT[0] ^ 1]))


@pytest.mark.parametrize("policy", ["eio", "miss"])
async def test_a_page_that_fails_is_eio_or_a_miss(root, claim_log, policy) -> None:
    claim_log("object quarantined")
    async with space_at(root, on_fault=policy) as space, trio.open_nursery() as nursery:
        nursery.start_soon(space.tiers.objects.reaper.run)
        ino = await space.store(b"x")
        await space.tiers.objects.demote(ino)
        spoil(space, ino)
        for _ in range(2):
            with pytest.raises(DamagedError if policy == "eio" else NotFoundError):
                await space.tiers.read(ino)
        assert space.has(b"x") == (policy == "eio")
        assert space.tiers.catalog.placements.count_faults() == 1
        if policy == "miss":
            assert space.keeper.told == [(space.ino, b"x")]
            await until(lambda: ino not in space.tiers.objects.lives.sessions)
            await space.tiers.objects.reaper.idle()
            assert space.tiers.catalog.placements.count_damaged() == 0
            again = await space.store(b"x")  # and so it heals
            assert await space.tiers.read(again) == CONTENT
        nursery.cancel_scope.cancel()


async def test_what_cannot_be_read_now_is_a_miss_and_stays(root, claim_log, monkeypatch) -> None:
    claim_log("object can't be read")
    async with space_at(root, on_fault="miss") as space:
        ino = await space.store(b"x")
        await space.tiers.objects.demote(ino)

        def failing(*_args):
            raise OSError(errno.EIO, "device")

        monkeypatch.setattr(space.tiers.nvme, "open", failing)
        with pytest.raises(NotFoundError):
            await space.tiers.read(ino)
        monkeypatch.undo()
        assert space.has(b"x")
        assert await space.tiers.read(ino) == CONTENT


async def test_a_reader_keeps_what_becomes_a_miss(root, claim_log) -> None:
    claim_log("object quarantined")
    async with space_at(root, on_fault="miss") as space, trio.open_nursery() as nursery:
        nursery.start_soon(space.tiers.objects.reaper.run)
        ino = await space.store(b"x")
        await space.tiers.objects.open(ino, write=False)
        space.tiers.objects.bad_page(ino, 3)
        assert not space.has(b"x")
        await space.tiers.objects.reaper.idle()
        assert space.tiers.see(ino) == CONTENT
        await space.tiers.objects.release(ino, write=False)
        await space.keeper.discard(ino)  # as the release of a mount does
        assert ino not in space.tiers.objects.lives.sessions
        nursery.cancel_scope.cancel()


async def test_the_policy_holds_for_what_was_quarantined_before(root, claim_log) -> None:
    claim_log("object quarantined")
    async with space_at(root) as space, trio.open_nursery() as nursery:
        nursery.start_soon(space.tiers.objects.reaper.run)
        ino = await space.store(b"x")
        space.tiers.objects.bad_page(ino, 0)
        async with space.tiers.objects.lives.hold(ino) as live:
            space.tiers.objects.moves.damage(live, 0, "checksum differs")
        assert space.has(b"x")
        space.set(on_fault="miss")
        space.admission.policies_changed()
        assert not space.has(b"x")
        nursery.cancel_scope.cancel()
