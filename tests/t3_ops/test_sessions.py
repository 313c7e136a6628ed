"""Sessions of objects without a mount: who is in which, what state that makes, what clients may ask, and what a restart keeps."""

from __future__ import annotations

import pytest
import trio

from kvd.errors import BusyError, NotFoundError
from kvd.fs.hot_table import HOT_FH
from kvd.policy.ageing import Hint
from kvd.session.machine import RefusedError
from kvd.session.sessions import AGE_TICK_S
from kvd.session.verbs import NoSessionError
from kvdriver import Tier
from kvdriver.abi import State
from support.fake_kernel import Kernel
from support.session_space import CONTENT, space_at, until


async def test_a_file_is_a_session_and_goes_through_its_life(root, mock_clock) -> None:
    async with space_at(root) as space:
        objects, seen = space.tiers.objects, []
        space.verbs.parts.watchers.add(lambda change: seen.append(change.after.name.lower()))
        ino = await space.begin(b"a")
        assert space.state(ino) is State.FILLING
        space.tiers.write(ino, CONTENT)
        await objects.release(ino, write=True)
        assert space.state(ino) is State.IDLE
        await objects.open(ino, write=False)
        assert space.state(ino) is State.ACTIVE
        await objects.release(ino, write=False)
        assert space.state(ino) is State.IDLE
        mock_clock.jump(AGE_TICK_S - 1)
        await space.verbs.parts.look()
        assert space.state(ino) is State.IDLE
        mock_clock.jump(2)
        await space.verbs.parts.look()
        assert space.state(ino) is State.COOLING
        await objects.demote(ino)
        assert space.state(ino) is State.COLD
        assert ino not in space.verbs.parts.by_ino
        assert await space.tiers.read(ino) == CONTENT
        assert space.state(ino) is State.IDLE
        await objects.open(ino, write=True)
        assert space.state(ino) is State.FILLING
        await objects.release(ino, write=True)
        life = ["filling", "active", "idle", "active", "idle", "cooling", "cold", "warming", "idle", "active", "idle"]
        assert seen == [*life, "filling", "active", "idle"]
        assert not space.verbs.parts.machine.refused


async def test_a_directory_is_one_session_however_many_objects_it_has(root) -> None:
    async with space_at(root) as space:
        names, objects = space.tiers.catalog.names, space.tiers.objects
        deep = names.make(space.folder, b"deep", mode=0o40755, uid=0, gid=0, now_ns=1)
        inos = [await space.store(b"a", space.folder), await space.store(b"b", deep.ino)]
        alone = await space.store(b"alone", space.dirs)
        parts = space.verbs.parts
        assert [parts.of(ino) for ino in (*inos, alone)] == [space.folder, space.folder, alone]
        assert sorted(parts.by_ino) == sorted([space.folder, alone])
        await objects.open(inos[0], write=False)
        await objects.open(inos[1], write=False)
        await objects.release(inos[0], write=False)
        assert space.state(space.folder) is State.ACTIVE
        await objects.release(inos[1], write=False)
        assert space.state(space.folder) is State.IDLE
        await objects.demote(inos[0])
        assert space.state(space.folder) is State.IDLE
        await objects.demote(inos[1])
        assert space.state(space.folder) is State.COLD
        assert sorted(parts.by_ino) == [alone]


async def test_an_object_goes_with_its_name_and_a_policy_regroups_all(root) -> None:
    async with space_at(root) as space:
        names, parts = space.tiers.catalog.names, space.verbs.parts
        ino = await space.store(b"a", space.folder)
        names.rename(space.folder, b"a", space.dirs, b"a", 0, 2)
        assert parts.of(ino) == ino
        assert space.state(space.folder) is State.NEW
        names.rename(space.dirs, b"a", space.folder, b"b", 0, 2)
        assert parts.of(ino) == space.folder
        other = names.make(space.dirs, b"t", mode=0o40755, uid=0, gid=0, now_ns=1)
        names.rename(space.dirs, b"s", other.ino, b"s", 0, 2)
        await parts.look()
        assert parts.of(ino) == other.ino
        await space.tiers.objects.namespacing.set(b"dirs", {"session": "file"})
        parts.regroup()
        await parts.look()
        assert parts.of(ino) == ino


async def test_what_the_data_plane_opens_by_itself_is_seen_within_a_second(root) -> None:
    async with space_at(root) as space:
        kernel, objects, parts = Kernel(space.tiers), space.tiers.objects, space.verbs.parts
        ino = await kernel.write(b"a", CONTENT)
        assert await kernel.lookup(b"a") == ino
        await kernel.release(await kernel.open(ino))
        assert objects.lives.peek(ino).shared
        handle = await kernel.open(ino)
        assert handle & HOT_FH
        objects.sharing.drain()
        await parts.look()
        assert space.state(ino) is State.ACTIVE
        await kernel.release(handle)
        await parts.look()
        assert space.state(ino) is State.IDLE
        handle = await kernel.open(ino)
        with pytest.raises(BusyError, match="open or mapped"):
            await space.verbs.close_session(b"/a")
        await kernel.release(handle)
        await kernel.forget_all()


async def test_release_takes_a_session_out_of_ddr_and_resume_brings_it_back(root) -> None:
    async with space_at(root) as space, trio.open_nursery() as nursery:
        nursery.start_soon(space.verbs.moving.run)
        inos = [await space.store(name, space.folder) for name in (b"a", b"b")]
        placements = space.tiers.catalog.placements
        assert space.verbs.release_session(b"/dirs/s").state == "released"
        await until(lambda: space.state(space.folder) is State.COLD)
        assert [placements.get(ino).tier for ino in inos] == [Tier.NVME, Tier.NVME]
        assert space.verbs.resume_session(b"/dirs/s/a").state == "warming"
        await until(lambda: space.state(space.folder) is State.IDLE)
        await space.verbs.moving.idle()
        assert [placements.get(ino).tier for ino in inos] == [Tier.DDR, Tier.DDR]
        assert space.verbs.resume_session(b"/dirs/s", prefetch=True).state == "idle"
        nursery.cancel_scope.cancel()


async def test_release_and_resume_are_hints_for_the_ageing_policy(root, monkeypatch) -> None:
    async with space_at(root) as space, trio.open_nursery() as nursery:
        nursery.start_soon(space.verbs.moving.run)
        inos = [await space.store(name, space.folder) for name in (b"a", b"b")]
        hints: list[tuple[int, Hint]] = []
        monkeypatch.setattr(space.tiers.objects.worth, "hint", lambda ino, hint: hints.append((ino, hint)))
        space.verbs.release_session(b"/dirs/s")
        await space.verbs.moving.idle()
        space.verbs.resume_session(b"/dirs/s")
        await space.verbs.moving.idle()
        assert hints == [(ino, hint) for hint in (Hint.RELEASE, Hint.RESUME) for ino in inos]
        nursery.cancel_scope.cancel()


async def test_what_cannot_happen_is_refused_and_counted(root) -> None:
    async with space_at(root) as space:
        ino = await space.begin(b"a")
        with pytest.raises(RefusedError, match="release can't happen to a session that is filling"):
            space.verbs.release_session(b"/files/a")
        with pytest.raises(BusyError):
            await space.verbs.close_session(b"/files/a")
        assert space.verbs.status().refused == 1
        assert space.state(ino) is State.FILLING
        await space.tiers.objects.release(ino, write=True)
        for path, error in ((b"/nope", NotFoundError), (b"/dirs", NoSessionError), (b"/", NoSessionError)):
            with pytest.raises(error):
                space.verbs.session(path)


async def test_closing_ends_a_session_with_its_content(root) -> None:
    async with space_at(root) as space:
        await space.store(b"a")
        await space.store(b"b", space.folder)
        await space.verbs.close_session(b"/files/a")
        await space.verbs.close_session(b"/dirs/s/b")
        assert not space.has(b"a")
        assert not space.has(b"s", space.dirs)
        assert not space.has(b"b", space.folder)
        await space.reap()
        assert space.tiers.objects.lives.count == 0
        assert not space.verbs.parts.by_ino
        assert await space.tiers.used_blocks(Tier.DDR) == 0


async def test_a_released_session_is_so_after_a_restart_and_others_are_as_their_objects(root) -> None:
    async with space_at(root) as space:
        released, idle = await space.store(b"a"), await space.store(b"b")
        cold = await space.store(b"c")
        await space.tiers.objects.demote(cold)
        space.verbs.release_session(b"/files/a")
        await space.verbs.parts.look()
    async with space_at(root) as space:
        assert [space.state(ino) for ino in (released, idle, cold)] == [State.RELEASED, State.IDLE, State.COLD]
        await space.tiers.read(released)
        await space.verbs.parts.look()
        assert space.state(released) is State.IDLE
        assert space.tiers.catalog.sessions.get(released).is_nothing


async def test_a_damaged_object_faults_its_session_until_it_is_written_anew(root, claim_log) -> None:
    claim_log("quarantined")
    async with space_at(root) as space:
        objects = space.tiers.objects
        ino = await space.store(b"a", space.folder)
        await objects.demote(ino)
        async with objects.lives.hold(ino) as live:
            objects.moves.damage(live, 0, "for the test")
            assert space.state(space.folder) is State.FAULTED
        await objects.open(ino, write=True, truncate=True)
        space.tiers.write(ino, CONTENT)
        await objects.release(ino, write=True)
        assert space.state(space.folder) is State.IDLE


async def test_sessions_are_told_by_path(root) -> None:
    async with space_at(root) as space:
        for name in (b"a", b"b"):
            await space.store(name)
            await space.store(name, space.folder)
        told = [each async for each in space.verbs.sessions(b"/")]
        assert sorted((each.path, each.kind, each.state) for each in told) == [
            (b"/dirs/s", "dir", "idle"),
            (b"/files/a", "file", "idle"),
            (b"/files/b", "file", "idle"),
        ]
        assert [each.path async for each in space.verbs.sessions(b"/dirs/s/a")] == [b"/dirs/s"]
        detail = await space.verbs.session_detail(b"/dirs/s/b")
        assert (detail.session.path, detail.objects, detail.tiers) == (b"/dirs/s", 2, {"ddr": 2 * len(CONTENT)})


async def test_who_watches_hears_of_changes_below_a_path(root) -> None:
    async with space_at(root) as space, trio.open_nursery() as nursery:
        heard = []

        async def watch() -> None:
            async for change in space.verbs.watch_sessions(b"/files"):
                heard.append((change.path, change.after))  # noqa: PERF401 (it never ends)

        nursery.start_soon(watch)
        await until(lambda: space.verbs.parts.watchers)
        await space.store(b"a", space.folder)
        await space.store(b"a")
        await until(lambda: len(heard) == 3)
        assert heard == [(b"/files/a", "filling"), (b"/files/a", "active"), (b"/files/a", "idle")]
        nursery.cancel_scope.cancel()
    assert not space.verbs.parts.watchers
