"""How the control API bounds, begins and ends: clients that go, stall or are too many; the socket file."""

from __future__ import annotations

import os
import socket
import stat
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
import trio
import trio.testing
from structlog.testing import capture_logs

from kvd.api import answers, routes, stream
from kvd.api import app as app_module
from kvd.api.app import serve
from kvd.errors import ConfigError, UnavailableError
from support.fake_control import FakeControl
from support.serving import WAIT_S, post, read_until, served, talk, until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvd.api.backend import Status


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="kvd") as name:
        yield Path(name)


# --- bounds and ends -----------------------------------------------------------------------------------------------


async def test_a_client_that_goes_cancels_its_operation(folder: Path) -> None:
    control = FakeControl(gate=trio.Event())
    async with served(control, folder / "s") as client:
        async with await trio.open_unix_socket(folder / "s") as leaver:
            await leaver.send_all(post("/v1/demote", b'{"paths": ["/"]}'))
            await read_until(leaver, b"}\n")
            assert control.cancelled == 0
        await until(lambda: control.cancelled == 1)
        control.gate.set()
        assert (await client.post("/v1/demote", json={"paths": ["/"]})).status_code == 200


async def test_a_client_that_goes_after_two_requests_at_once_leaves_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app_module, "CONNECTIONS_MAX", 1)
    monkeypatch.setattr(stream, "HEARTBEAT_S", 0.05)
    control = FakeControl(gate=trio.Event())
    async with served(control, folder / "s") as client:
        async with await trio.open_unix_socket(folder / "s") as leaver:
            await leaver.send_all(2 * post("/v1/sync", b'{"paths": ["/"]}'))
            await read_until(leaver, b"}\n")
        await until(lambda: control.cancelled == 1)
        assert (await client.get("/v1/version")).status_code == 200


async def test_a_client_that_goes_before_its_request_is_whole_is_no_bug(folder: Path) -> None:
    async with served(FakeControl(), folder / "s") as client:
        with capture_logs() as logs:
            await talk(folder / "s", post("/v1/sync", b'{"paths": ["/"]}')[:-3], half_close=True)
            assert (await client.get("/v1/version")).status_code == 200
        assert logs == []


async def test_a_body_that_does_not_come_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "BODY_S_MAX", 0.05)
    async with served(FakeControl(), folder / "s"):
        answer = await talk(folder / "s", post("/v1/sync", b'{"paths": ["/"]}')[:-3])
    assert answer.startswith(b"HTTP/1.1 400")
    assert b"the body was not there" in answer


async def test_an_answer_that_does_not_come_is_an_error(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Hanging(FakeControl):
        async def status(self) -> Status:
            await trio.sleep_forever()
            raise AssertionError

    monkeypatch.setattr(routes, "ANSWER_S_MAX", 0.05)
    async with served(Hanging(), folder / "s") as client:
        answer = await client.get("/v1/status")
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "ENXIO")


async def test_operations_are_bounded(folder: Path) -> None:
    control = FakeControl(gate=trio.Event())
    async with served(control, folder / "s") as client, trio.open_nursery() as nursery:
        for _ in range(routes.OPERATIONS_MAX):
            nursery.start_soon(lambda: client.post("/v1/sync", json={"paths": ["/"]}))
        await until(lambda: control.begun == routes.OPERATIONS_MAX)
        for path, body in (("/v1/sync", {"paths": ["/"]}), ("/v1/pin", {"path": "/"})):
            refused = await client.post(path, json=body)
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "EAGAIN")
        assert (await client.get("/v1/status")).status_code == 200
        control.gate.set()
    assert control.begun == routes.OPERATIONS_MAX


async def test_connections_are_bounded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app_module, "CONNECTIONS_MAX", 2)
    control = FakeControl(gate=trio.Event())
    held: list[httpx.AsyncClient] = []

    async def hold() -> None:
        async with httpx.AsyncClient(
            transport=httpx.AsyncHTTPTransport(uds=str(folder / "s")), timeout=WAIT_S
        ) as other:
            held.append(other)
            await other.post("http://kvd/v1/sync", json={"paths": ["/"]})
        held.remove(other)

    async with served(control, folder / "s"), trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(hold)
        await until(lambda: control.begun == 2)
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert control.begun == 2
        assert len(held) == 3
        control.gate.set()
        await until(lambda: not held)
        assert control.begun == 3


async def test_a_client_that_takes_nothing_is_cut_off(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app_module, "SEND_S_MAX", 0.05)
    control = FakeControl(endless=True)
    async with served(control, folder / "s"):
        client = await trio.open_unix_socket(folder / "s")
        async with client:
            await client.send_all(post("/v1/sync", b'{"paths": ["/"]}'))
            await until(lambda: control.cancelled == 1)


async def test_stopping_is_bounded_even_with_a_client_that_takes_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app_module, "GRACE_S", 0.05)
    control = FakeControl(endless=True)
    with socket.socket(socket.AF_UNIX) as client, trio.fail_after(app_module.SEND_S_MAX / 2):
        async with trio.open_nursery() as nursery:
            await nursery.start(serve, control, folder / "s", "no-such-group")
            client.connect(str(folder / "s"))
            client.sendall(post("/v1/sync", b'{"paths": ["/"]}'))
            await until(lambda: control.begun == 1)
            nursery.cancel_scope.cancel()
    assert control.cancelled == 1
    assert not (folder / "s").exists()


async def test_stopping_lets_a_running_request_end(folder: Path) -> None:
    control = FakeControl(gate=trio.Event())
    lines: list[str] = []
    async with trio.open_nursery() as clients:  # noqa: SIM117  the inner one is cancelled alone
        async with trio.open_nursery() as nursery:
            await nursery.start(serve, control, folder / "s", "no-such-group")

            async def ask() -> None:
                transport = httpx.AsyncHTTPTransport(uds=str(folder / "s"))
                async with httpx.AsyncClient(transport=transport, timeout=WAIT_S) as client:
                    lines.extend((await client.post("http://kvd/v1/sync", json={"paths": ["/"]})).text.splitlines())

            clients.start_soon(ask)
            await until(lambda: control.begun == 1)
            nursery.cancel_scope.cancel()
            with trio.CancelScope(shield=True):
                await until(lambda: not (folder / "s").exists())
            control.gate.set()
    assert len(lines) == 8
    assert control.cancelled == 0


async def test_an_operation_without_steps_says_that_it_lives(autojump_clock: trio.testing.MockClock) -> None:
    control = FakeControl(gate=trio.Event())
    sent: list[bytes] = []

    async def send(message: Any) -> None:
        await trio.lowlevel.checkpoint()
        sent.append(message.get("body", b""))
        if sent.count(b"\n") == 3:
            control.gate.set()

    began = trio.current_time()
    operation = stream.Operation(
        lambda: control.sync([b"/model/a.bin", b"/model/b.bin"]), routes.Routes(control)._slot()
    )
    await operation({"type": "http", "method": "POST", "path": "/v1/sync"}, trio.sleep_forever, send)
    assert trio.current_time() - began == pytest.approx(3 * stream.HEARTBEAT_S)
    assert [body[:1] for body in sent if body] == [b"{", b"\n", b"\n", b"\n", b"{"]


# --- the socket ----------------------------------------------------------------------------------------------------


async def test_mode_group_and_removal(folder: Path) -> None:
    path = folder / "made" / "s"
    async with served(FakeControl(), path, group="daemon") as client:
        found = path.stat()
        assert stat.S_IMODE(found.st_mode) == 0o660
        assert found.st_gid == (1 if os.geteuid() == 0 else os.getegid())
        assert (await client.get("/v1/version")).status_code == 200
    assert not path.exists()


async def test_a_stale_socket_gives_way(folder: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(folder / "s"))
    async with served(FakeControl(), folder / "s") as client:
        assert (await client.get("/v1/version")).status_code == 200


async def test_a_live_socket_does_not(folder: Path) -> None:
    async with served(FakeControl(), folder / "s") as client:
        with pytest.raises(UnavailableError, match="another daemon listens"):
            await serve(FakeControl(), folder / "s", "no-such-group")
        assert (await client.get("/v1/version")).status_code == 200


async def test_a_successors_socket_is_left_alone(folder: Path) -> None:
    async with served(FakeControl(), folder / "s"):
        (folder / "s").unlink()
        (folder / "s").touch()
    assert (folder / "s").exists()


async def test_places_that_are_no_good(folder: Path) -> None:
    (folder / "file").touch()
    with pytest.raises(ConfigError, match="is not a socket"):
        await serve(FakeControl(), folder / "file", "no-such-group")
    with pytest.raises(ConfigError, match="107"):
        await serve(FakeControl(), folder / ("x" * 120), "no-such-group")
    for path in (folder / "file" / "s", folder / "no" / "such" / "s"):
        with pytest.raises(UnavailableError, match="can't make"):
            await serve(FakeControl(), path, "no-such-group")
