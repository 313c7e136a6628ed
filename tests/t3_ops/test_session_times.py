"""Times to live and pins: exact to a tick, put off by a use where that is said, gone by name and readable until the release."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from kvd.catalog.records import NS, Pin
from kvd.errors import InvalidError
from kvd.fs.xattrs import Xattrs
from kvd.session.lifetimes import GRAVES_MAX, SLICE, TICK_NS
from kvdriver import Tier
from kvdriver.abi import State
from support.session_space import CONTENT, space_at


async def test_a_ttl_ends_at_its_tick_and_not_before(root) -> None:
    async with space_at(root) as space:
        ino = await space.store(b"a")
        space.clock.on(0.03)
        entry = space.verbs.live_session(b"/files/a", 5.0, refresh=False)
        assert entry.expires_s * NS == (space.clock.ns + 5 * NS) // TICK_NS * TICK_NS + TICK_NS
        await space.pass_time(5.0)
        assert space.has(b"a")
        space.clock.ns = int(entry.expires_s * NS) - 1
        await space.pass_time(0)
        assert space.has(b"a")
        await space.pass_time(1 / NS)
        assert not space.has(b"a")
        assert space.keeper.told == [(space.files, b"a")]
        await space.reap()
        assert space.tiers.objects.lives.peek(ino) is None
        assert space.verbs.lifetimes.counts.expired == 1


async def test_what_is_open_or_mapped_loses_its_name_and_lives_until_it_is_released(root) -> None:
    async with space_at(root) as space:
        objects = space.tiers.objects
        ino = await space.store(b"a")
        await objects.open(ino, write=False)
        space.verbs.live_session(b"/files/a", 1.0, refresh=False)
        await space.pass_time(1.1)
        await space.reap()
        assert not space.has(b"a")
        assert space.state(ino) is State.EXPIRED
        assert space.tiers.see(ino) == CONTENT
        await objects.release(ino, write=False)
        await space.keeper.discard(ino)
        assert space.tiers.objects.lives.count == 0
        assert await space.tiers.used_blocks(Tier.DDR) == 0


async def test_a_use_begins_a_refreshed_ttl_anew_and_not_an_absolute_one(root, mock_clock) -> None:
    async with space_at(root) as space:
        for name, refresh in ((b"absolute", False), (b"refreshed", True)):
            ino = await space.store(name)
            space.verbs.live_session(b"/files/" + name, 10.0, refresh=refresh)
            mock_clock.jump(6)
            await space.pass_time(6)
            await space.tiers.read(ino)
            mock_clock.jump(6)
            await space.pass_time(6)
            assert space.has(name) == refresh
        mock_clock.jump(5)
        await space.pass_time(5)
        assert not space.has(b"refreshed")
        assert space.verbs.lifetimes.counts.postponed == 1


async def test_a_use_counts_also_when_the_object_has_left_memory_or_the_daemon_was_down(root, mock_clock) -> None:
    async with space_at(root) as space:
        cold, warm = await space.store(b"cold"), await space.store(b"warm")
        for name in (b"cold", b"warm"):
            space.verbs.live_session(b"/files/" + name, 10.0, refresh=True)
        mock_clock.jump(6)
        space.clock.on(6)
        for ino in (cold, warm):
            await space.tiers.read(ino)
        await space.tiers.objects.demote(cold)
        space.verbs.stop()
        at_ns = space.clock.ns
    async with space_at(root) as space:
        space.clock.ns = at_ns
        mock_clock.jump(9.8)
        await space.pass_time(9.8)
        assert space.has(b"cold")
        assert space.has(b"warm")
        mock_clock.jump(0.4)
        await space.pass_time(0.4)
        assert not space.has(b"cold")


async def test_a_session_expires_with_all_that_is_in_it_and_an_object_by_itself(root) -> None:
    async with space_at(root) as space:
        inos = [await space.store(name, space.folder) for name in (b"a", b"b")]
        space.verbs.live_session(b"/dirs/s/a", 1.0, refresh=False)
        space.verbs.live_session(b"/dirs/s", 3.0, refresh=False)
        await space.tiers.objects.open(inos[1], write=False)
        await space.pass_time(1.1)
        assert (space.has(b"a", space.folder), space.has(b"b", space.folder)) == (False, True)
        await space.pass_time(2)
        assert not space.has(b"s", space.dirs)
        assert not space.has(b"b", space.folder)
        assert space.keeper.trees == [(space.dirs, b"s")]
        assert space.state(space.folder) is State.EXPIRED
        await space.reap()
        assert space.tiers.see(inos[1]) == CONTENT
        await space.tiers.objects.release(inos[1], write=False)
        await space.keeper.discard(inos[1])
        assert space.tiers.objects.lives.count == 0


async def test_many_expire_in_slices_and_directories_as_they_are_deleted(root) -> None:
    async with space_at(root) as space:
        names = space.tiers.catalog.names
        for number in range(GRAVES_MAX + 10):
            names.make(space.dirs, b"d%d" % number, mode=0o40755, uid=0, gid=0, now_ns=1)
            space.verbs.live_session(b"/dirs/d%d" % number, 1.0, refresh=False)
        for number in range(SLICE + 10):
            made = names.make(space.files, b"f%d" % number, mode=0o100644, uid=0, gid=0, now_ns=1)
            space.tiers.catalog.placements.add(made.ino)
            space.verbs.live_session(b"/files/f%d" % number, 1.0, refresh=False)
        space.clock.on(2)
        for _ in range(4):
            while await space.verbs.lifetimes.step():
                assert len(space.tiers.catalog.namespaces.graves) <= GRAVES_MAX
            await space.reap()
        assert space.verbs.lifetimes.counts.expired == GRAVES_MAX + SLICE + 20
        assert names.listing(space.files) == []
        assert [entry.name for entry in names.listing(space.dirs)] == [b"s"]


# -- pins -------------------------------------------------------------------------------------------------------------


async def test_a_pinned_session_keeps_its_objects_in_ddr_and_those_that_come_later(root) -> None:
    async with space_at(root) as space:
        inos = [await space.store(b"a", space.folder)]
        assert await space.verbs.pin_session(b"/dirs/s", "hard") == 1
        inos.append(await space.store(b"b", space.folder))
        assert [space.tiers.catalog.placements.get(ino).pinned for ino in inos] == [True, True]
        assert not any(space.tiers.objects.lives.peek(ino).movable for ino in inos)
        assert space.verbs.session(b"/dirs/s").pin == "hard"
        assert await space.verbs.pin_session(b"/dirs/s", "none") == 2
        inos.append(await space.store(b"c", space.folder))
        assert [space.tiers.catalog.placements.get(ino).pinned for ino in inos] == [False] * 3


async def test_a_soft_pin_ends_by_itself_also_across_a_restart(root) -> None:
    async with space_at(root) as space:
        ino = await space.store(b"a", space.folder)
        await space.verbs.pin_session(b"/dirs/s", "soft", for_s=10.0)
        at_ns = space.clock.ns
    async with space_at(root) as space:
        space.clock.ns = at_ns
        await space.pass_time(9)
        assert (space.verbs.session(b"/dirs/s").pin, space.tiers.objects.lives.peek(ino).pinned) == ("soft", True)
        late = await space.store(b"late", space.folder)
        await space.pass_time(1.1)
        assert space.verbs.session(b"/dirs/s").pin == "none"
        assert [space.tiers.objects.lives.peek(each).movable for each in (ino, late)] == [True, True]


@pytest.mark.parametrize("of", ["object", "session", "by kvctl pin"])
async def test_a_hard_pin_holds_an_end_off_until_it_is_taken_back(root, of) -> None:
    async with space_at(root) as space:
        ino = await space.store(b"a", space.folder)
        await (
            space.tiers.objects.pin(ino, pinned=True)
            if of == "by kvctl pin"
            else space.verbs.pin_session(b"/dirs/s/a" if of == "object" else b"/dirs/s", "hard")
        )
        space.verbs.live_session(b"/dirs/s/a", 1.0, refresh=False)
        await space.pass_time(5)
        assert space.has(b"a", space.folder)
        assert space.tiers.catalog.sessions.next_ns() == 0
        if of == "by kvctl pin":
            await space.tiers.objects.pin(ino, pinned=False)
        else:
            await space.verbs.pin_session(b"/dirs/s/a" if of == "object" else b"/dirs/s", "none")
        await space.pass_time(0.2)
        assert not space.has(b"a", space.folder)


async def test_a_soft_pin_does_not_hold_an_end_off(root) -> None:
    async with space_at(root) as space:
        await space.store(b"a")
        await space.verbs.pin_session(b"/files/a", "soft")
        space.verbs.live_session(b"/files/a", 1.0, refresh=False)
        await space.pass_time(1.1)
        assert not space.has(b"a")


async def test_what_makes_no_sense_is_refused(root) -> None:
    async with space_at(root) as space:
        await space.store(b"a")
        for ttl_s in (-1.0, float("nan"), float("inf")):
            with pytest.raises(InvalidError):
                space.verbs.live_session(b"/files/a", ttl_s, refresh=False)
        for pin, for_s in (("harder", 0), ("hard", 5), ("soft", -1)):
            with pytest.raises(InvalidError):
                await space.verbs.pin_session(b"/files/a", pin, for_s=for_s)
        assert space.tiers.catalog.sessions.next_ns() == 0


async def test_the_queue_runs_by_itself(root, mock_clock) -> None:
    async with space_at(root) as space, trio.open_nursery() as nursery:
        space.verbs.lifetimes.now_ns = lambda: int(trio.current_time() * NS)
        nursery.start_soon(space.verbs.lifetimes.run)
        await space.store(b"a")
        mock_clock.jump(100)
        space.verbs.live_session(b"/files/a", 7.0, refresh=False)
        end_s = space.verbs.session(b"/files/a").expires_s
        for before_s, there in ((0.05, True), (-0.05, False)):
            mock_clock.jump(end_s - before_s - trio.current_time())
            await trio.testing.wait_all_tasks_blocked()
            assert space.has(b"a") == there
        nursery.cancel_scope.cancel()


# -- by xattrs --------------------------------------------------------------------------------------------------------


async def test_xattrs_are_the_api_of_who_has_no_plug_in(root) -> None:
    async with space_at(root) as space:
        xattrs = Xattrs(space.tiers.catalog, space.tiers.objects, space.verbs)
        names = space.tiers.catalog.names
        ino = await space.store(b"a", space.folder)
        file, folder = names.inode(ino), names.inode(space.folder)
        for inode in (file, folder):
            assert xattrs.get(inode, b"user.kvd.session") == b"/dirs/s"
            assert xattrs.get(inode, b"user.kvd.session_state") == b"idle"
            assert await xattrs.find(inode, b"user.kvd.tiers") == b"ddr=%d nvme=0" % len(CONTENT)
            assert xattrs.get(inode, b"user.kvd.ttl") == b"0"
            for name, value in ((b"ttl", b"600 refresh"), (b"priority", b"7"), (b"window", b"4096"), (b"sink", b"4")):
                await xattrs.set(inode, b"user.kvd." + name, value)
                assert xattrs.get(inode, b"user.kvd." + name) == value
            await xattrs.set(inode, b"user.kvd.pin", b"soft 60")
            assert xattrs.get(inode, b"user.kvd.pin") == b"1"
            await xattrs.remove(inode, b"user.kvd.pin")
            assert xattrs.get(inode, b"user.kvd.pin") == b"0"
            await xattrs.remove(inode, b"user.kvd.ttl")
            with pytest.raises(OSError, match="No data"):
                xattrs.get(inode, b"user.kvd.expires")
        assert space.tiers.catalog.sessions.get(space.folder).priority == 7
        await xattrs.set(file, b"user.kvd.release", b"1")
        assert xattrs.get(folder, b"user.kvd.session_state") == b"released"
        await xattrs.set(folder, b"user.kvd.resume", b"1")
        assert xattrs.get(folder, b"user.kvd.session_state") == b"idle"
        assert xattrs.get(folder, b"user.kvd.sessions") == b"directory"


@pytest.mark.parametrize(
    ("name", "value", "errno"),
    [
        (b"ttl", b"soon", "EINVAL"),
        (b"ttl", b"5 often", "EINVAL"),
        (b"ttl", b"-5", "EINVAL"),
        (b"pin", b"hard 5", "EINVAL"),
        (b"pin", b"2", "EINVAL"),
        (b"window", b"many", "EINVAL"),
        (b"release", b"0", "EINVAL"),
        (b"session", b"x", "EPERM"),
        (b"nothing", b"1", "EOPNOTSUPP"),
    ],
)
async def test_xattrs_that_make_no_sense_are_refused_and_change_nothing(root, name, value, errno) -> None:
    import errno as numbers

    async with space_at(root) as space:
        xattrs = Xattrs(space.tiers.catalog, space.tiers.objects, space.verbs)
        file = space.tiers.catalog.names.inode(await space.store(b"a"))
        with pytest.raises(OSError) as refused:  # noqa: PT011 (the errno is looked at)
            await xattrs.set(file, b"user.kvd." + name, value)
        assert refused.value.errno == getattr(numbers, errno)
        assert space.tiers.catalog.sessions.get(file.ino).pin is Pin.NONE
        top = space.tiers.catalog.names.inode(space.dirs)
        with pytest.raises(OSError):  # noqa: PT011 (of a directory that is no session all of it is refused)
            await xattrs.set(top, b"user.kvd." + name, value)
