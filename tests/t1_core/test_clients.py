"""The clients' socket, with both clients, over a fake daemon in the test's own loop."""

from __future__ import annotations

import socket
import stat
import tempfile
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest
import trio
import trio.testing

from kvd.api import clients
from kvd.api.clients import serve_clients
from kvd.api.sessions import ForkPoint
from kvd.client import Client, ClientError, aio, calls
from kvd.client.mapping import Mapping
from kvd.client.paths import append, inside, store
from support.fake_control import FakeControl

WAIT_S = 20.0
KNOWN = ["/model/a.bin", "/model/größe-鍵.bin", "/model/not-utf8-\udcff\udcfe.bin"]


@asynccontextmanager
async def served(control=None):
    with tempfile.TemporaryDirectory(prefix="kvd") as name:
        path = Path(name) / "kvd.client"
        async with trio.open_nursery() as nursery:
            await nursery.start(serve_clients, control or FakeControl(), Path("/mnt/kvd"), path, "no-such-group")
            with trio.fail_after(WAIT_S):
                yield path
            nursery.cancel_scope.cancel()
        assert not path.exists()


def in_thread(path, use):
    def run():
        with Client(path) as client:
            return use(client)

    return trio.to_thread.run_sync(run)


async def test_names_are_asked_of_many_at_once() -> None:
    async with served() as path:
        hashes = ["a.bin", "b.bin", "nope", "huge.bin"]

        def use(client):
            assert client.mount == "/mnt/kvd"
            there = client.exists([*KNOWN, "/mnt/kvd/model/b.bin", "/nope"])
            return there, client.match_prefix("/model", hashes), client.match_prefix("/model/", hashes[:2])

        expected = ([True] * 4 + [False], 2, 2)
        assert await in_thread(path, use) == expected
        async with aio.connect(path) as client:
            there = await client.exists([*KNOWN, "/mnt/kvd/model/b.bin", "/nope"])
            assert (there, await client.match_prefix("/model", hashes)) == expected[:2]


async def test_more_names_than_fit_into_a_question_are_asked_in_parts() -> None:
    async with served() as path, aio.connect(path) as client:
        assert await client.exists(["/model/a.bin", "/nope"] * calls.NAMES_MAX) == [True, False] * calls.NAMES_MAX
        assert await client.match_prefix("/model", ["a.bin"] * 10000) == 10000


async def test_what_is_asked_of_a_session() -> None:
    async with served() as path:

        def use(client):
            session = client.open("/model/a.bin")
            assert session.describe().state == "idle"
            assert session.release() == "released"
            assert client.prefetch(session.path) == "warming"
            assert session.resume() == "idle"
            assert client.ttl(session.path, 5.0, refresh=True) == 1_700_000_005.0
            assert client.pin(session.path, for_s=5.0) == 2
            assert client.session("/mnt/kvd/model/a.bin").pin_until_s == 1_700_000_005.0
            client.end("/model/s-\udcff")
            for path, code in (("/model/a.bin", "EBUSY"), ("/nope", "ENOENT"), ("relative", "EINVAL")):
                with pytest.raises(ClientError) as refused:
                    client.end(path)
                assert refused.value.code == code

        await in_thread(path, use)
        async with aio.connect(path) as client:
            assert await client.release("/model/a.bin") == "released"
            assert await client.ttl("/model/a.bin", 0.0) == 0.0
            assert await client.pin("/model/a.bin", "none") == 2


async def test_a_session_is_forked() -> None:
    control = FakeControl()
    async with served(control) as path:

        def use(client):
            session = client.open("/model/a.bin")
            assert session.fork("/mnt/kvd/model/b", until="block-3").path == "/model/b"
            assert client.fork("/model/a.bin", "/model/c", until=7).describe().state == "cold"
            with pytest.raises(ClientError) as taken:
                session.fork("/model/c", tokens=5, bytes_per_token=8)
            assert taken.value.code == "EEXIST"

        await in_thread(path, use)
        async with aio.connect(path) as client:
            assert (await client.fork("/model/a.bin", "/model/d", tokens=5, bytes_per_token=8)).path == "/model/d"
        assert control.sessions.forked == [
            ForkPoint(until="block-3"),
            ForkPoint(count=7),
            ForkPoint(tokens=5, bytes_per_token=8),
        ]


async def test_leases_are_given_back() -> None:
    control = FakeControl()
    async with served(control) as path:

        def use(client):
            with client.lease("/model/a.bin", 5.0) as lease:
                lease.renew(9.0)
                assert control.sessions.leases == {1: 9.0}
            assert control.sessions.leases == {}
            lease.end()
            with pytest.raises(ClientError, match="no lease"):
                lease.renew(1.0)

        await in_thread(path, use)
        async with aio.connect(path) as client:
            async with client.lease("/model/a.bin", 5.0) as number:
                await client.renew(number, 7.0)
                assert control.sessions.leases == {number: 7.0}
            assert control.sessions.leases == {}


@pytest.mark.parametrize(
    ("packet", "code"),
    [
        (b"{", "EINVAL"),
        (b"[]", "EINVAL"),
        (b"{}", "EINVAL"),
        (b'{"op":"dance"}', "EINVAL"),
        (b'{"op":"dance","path":"/model/a.bin"}', "EINVAL"),
        (b'{"op":"session","path":"../etc"}', "EINVAL"),
        (b'{"op":"session","path":5}', "EINVAL"),
        (b"[" * 100_000, "EINVAL"),
        (b'{"op":"exists","names":[%s]}' % b",".join([b'"/a"'] * 5000), "EMSGSIZE"),
        (b'{"op":"exists","names":["%s"]}' % (b"a" * (clients.PACKET_BYTES_MAX)), "EMSGSIZE"),
    ],
)
async def test_a_packet_that_makes_no_sense_is_answered_and_the_connection_lives(packet, code) -> None:
    import json

    async with served() as path:
        sock = trio.socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with sock:
            await sock.connect(str(path))
            for _ in range(2):
                await sock.send(packet)
                assert json.loads(await sock.recv(65536))["error"]["code"] == code
            await sock.send(b'{"op":"hello"}')
            assert json.loads(await sock.recv(65536))["mount"] == "/mnt/kvd"


async def test_a_bug_is_one_answer_and_stays_in_the_log(claim_log) -> None:
    claim_log("question failed")
    control = FakeControl()
    control.sessions.session = None  # type: ignore[method-assign,assignment]
    async with served(control) as path, aio.connect(path) as client:
        with pytest.raises(ClientError, match="the daemon failed") as failed:
            await client.session("/model/a.bin")
        assert failed.value.code == "INTERNAL"
        assert await client.release("/model/a.bin") == "released"


async def test_who_comes_when_all_places_are_taken_waits(monkeypatch) -> None:
    monkeypatch.setattr(clients, "CONNECTIONS_MAX", 1)
    async with served() as path, aio.connect(path) as client, trio.open_nursery() as nursery:
        second = trio.Event()

        async def come() -> None:
            async with aio.connect(path):
                second.set()

        nursery.start_soon(come)
        await trio.testing.wait_all_tasks_blocked()
        assert not second.is_set()
        assert await client.exists(["/model/a.bin"]) == [True]
        client._socket.close()
        await second.wait()


def test_no_daemon_is_said_so(tmp_path) -> None:
    with pytest.raises(ClientError, match="can't reach a daemon") as refused:
        Client(tmp_path / "nobody")
    assert refused.value.code == "NO_DAEMON"


async def test_only_its_group_may_connect() -> None:
    async with served() as path:
        assert stat.S_IMODE(path.stat().st_mode) == 0o660


# -- bytes ------------------------------------------------------------------------------------------------------------


def test_arrays_are_on_the_mapping_itself(tmp_path) -> None:
    content = np.arange(4096, dtype="float32")
    store(tmp_path / "a", content.tobytes())
    mapping = Mapping(tmp_path / "a")
    array = mapping.numpy("float32", (64, 64))
    assert np.array_equal(array, content.reshape(64, 64))
    assert not array.flags.owndata
    assert not array.flags.writeable
    assert np.array_equal(mapping.numpy("float32", (2,), offset=8), content[2:4])
    with (tmp_path / "a").open("r+b") as file:
        file.write(np.float32(7).tobytes())
    assert array[0, 0] == 7  # the same pages, not a copy
    with pytest.raises(BufferError):
        mapping.close()
    del array
    mapping.close()
    assert [each.name for each in tmp_path.iterdir()] == ["a"]


def test_empty_objects_and_appending(tmp_path) -> None:
    store(tmp_path / "empty", b"")
    with Mapping(tmp_path / "empty") as mapping:
        assert (len(mapping), bytes(mapping.view()), mapping.numpy("uint8").size) == (0, b"", 0)
    append(tmp_path / "log", b"one")
    append(tmp_path / "log", b"two")
    with Mapping(tmp_path / "log") as mapping:
        assert bytes(mapping.view()) == b"onetwo"


def test_a_store_that_fails_leaves_nothing(tmp_path) -> None:
    (tmp_path / "taken").mkdir()
    with pytest.raises(OSError, match="directory"):
        store(tmp_path / "taken", b"x")
    assert [each.name for each in tmp_path.iterdir()] == ["taken"]


@pytest.mark.parametrize(
    ("path", "expected"),
    [("/mnt/kvd", "/"), ("/mnt/kvd/a", "/a"), ("/a", "/a"), ("/mnt/kvdx", "/mnt/kvdx"), ("/mnt/kvd/", "/")],
)
def test_paths_of_the_mount_are_taken_too(path, expected) -> None:
    assert inside(path, "/mnt/kvd") == expected
