"""Leases through the API: they keep what they are of where it is, until a deadline, or the death of their process."""

from __future__ import annotations

import os
import signal
import socket
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from kvd.errors import BusyError, InvalidError, NotFoundError
from kvd.session import leases
from kvd.session.leases import TooManyLeasesError
from kvdriver import Tier
from support.session_space import CONTENT, space_at, until


@asynccontextmanager
async def leasing(root):
    async with space_at(root) as space, trio.open_nursery() as nursery:
        nursery.start_soon(space.verbs.leases.run)
        await trio.testing.wait_all_tasks_blocked()
        ours, theirs = socket.socketpair()
        with ours, theirs:
            yield space, ours
        nursery.cancel_scope.cancel()


async def test_a_lease_keeps_an_object_or_a_session_where_it_is(root) -> None:
    async with leasing(root) as (space, sock):
        objects = space.tiers.objects
        ino, other = await space.store(b"a", space.folder), await space.store(b"b")
        for path, kept in ((b"/dirs/s/a", ino), (b"/dirs/s", ino), (b"/files/b", other)):
            lease = space.verbs.lease(path, 60.0, sock).lease
            assert not objects.lives.peek(kept).movable
            with pytest.raises(BusyError, match="leased through the API"):
                await objects.demote(kept)
            late = await space.store(b"late", space.folder)
            assert objects.lives.peek(late).held == (path == b"/dirs/s")
            if path != b"/dirs/s/a":
                with pytest.raises(BusyError, match="leased"):
                    await space.verbs.close_session(path)
            space.verbs.end_lease(lease, sock)
            assert objects.lives.peek(kept).movable
            assert objects.lives.peek(late).movable
            with pytest.raises(NotFoundError):
                space.verbs.end_lease(lease, sock)
            await objects.demote(kept)
            await objects.promote(kept)
            space.tiers.catalog.names.unlink(space.folder, b"late", 9)
            await space.keeper.discard(late)


async def test_a_deadline_ends_a_lease_and_a_renewal_puts_it_off(root, mock_clock) -> None:
    async with leasing(root) as (space, sock):
        ino = await space.store(b"a")
        first, second = (space.verbs.lease(b"/files/a", for_s, sock).lease for for_s in (5.0, 8.0))
        mock_clock.jump(4)
        await trio.testing.wait_all_tasks_blocked()
        space.verbs.renew_lease(first, 9.0, sock)
        mock_clock.jump(5)
        await trio.testing.wait_all_tasks_blocked()
        assert len(space.verbs.leases) == 1
        with pytest.raises(NotFoundError):
            space.verbs.renew_lease(second, 5.0, sock)
        assert not space.tiers.objects.lives.peek(ino).movable
        mock_clock.jump(5)
        await trio.testing.wait_all_tasks_blocked()
        assert len(space.verbs.leases) == 0
        assert space.tiers.objects.lives.peek(ino).movable
        assert space.verbs.leases.counts.overdue == 2


async def test_a_client_that_is_killed_loses_its_leases_and_others_keep_theirs(root) -> None:
    async with leasing(root) as (space, sock):
        ino, other = await space.store(b"a"), await space.store(b"b")
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(str(root / "s"))
        listener.listen()
        child = os.fork()
        if child == 0:
            client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            client.connect(str(root / "s"))
            signal.pause()
            os._exit(0)
        theirs, _ = listener.accept()
        with listener, theirs:
            for _ in range(3):
                space.verbs.lease(b"/files/a", 3600.0, theirs)
            mine = space.verbs.lease(b"/files/b", 3600.0, sock).lease
            with pytest.raises(NotFoundError):
                space.verbs.end_lease(mine, theirs)
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            await until(lambda: len(space.verbs.leases) == 1)
            assert space.tiers.objects.lives.peek(ino).movable
            assert not space.tiers.objects.lives.peek(other).movable
            assert space.verbs.status().leases_lost == 3


async def test_what_expires_while_it_is_leased_lives_until_the_lease_ends(root) -> None:
    async with leasing(root) as (space, sock):
        ino = await space.store(b"a")
        lease = space.verbs.lease(b"/files/a", 60.0, sock).lease
        space.verbs.live_session(b"/files/a", 1.0, refresh=False)
        await space.pass_time(1.1)
        await space.reap()
        assert not space.has(b"a")
        assert await space.tiers.read(ino) == CONTENT
        space.verbs.end_lease(lease, sock)
        await space.reap()
        assert space.tiers.objects.lives.count == 0
        assert await space.tiers.used_blocks(Tier.DDR) == 0


async def test_there_are_bounds(root, monkeypatch) -> None:
    monkeypatch.setattr(leases, "CLIENT_LEASES_MAX", 3)
    async with leasing(root) as (space, sock):
        await space.store(b"a")
        for for_s in (0.0, -1.0, float("inf"), float("nan")):
            with pytest.raises(InvalidError):
                space.verbs.lease(b"/files/a", for_s, sock)
        for _ in range(3):
            space.verbs.lease(b"/files/a", 1.0, sock)
        with pytest.raises(TooManyLeasesError):
            space.verbs.lease(b"/files/a", 1.0, sock)
        monkeypatch.setattr(leases, "CLIENTS_MAX", 1)
        assert len(space.verbs.leases) == 3
