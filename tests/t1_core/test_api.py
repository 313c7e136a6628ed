"""The control API over a real UNIX socket, in front of a fake daemon."""

from __future__ import annotations

import json
import os
import socket
import stat
import tempfile
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import msgspec
import pytest
import trio
import trio.testing
from structlog.testing import capture_logs

from kvd.api import app as app_module
from kvd.api import routes, stream, wire
from kvd.api.app import build_app, serve
from kvd.api.backend import Status
from kvd.api.routes import ROUTES
from kvd.errors import CatalogError, ConfigError, DamagedError, KvdError, NoSpaceError, UnavailableError
from support.fake_control import FakeControl, make_entry

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

WAIT_S = 20.0


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="kvd") as name:
        yield Path(name)


@asynccontextmanager
async def served(control: FakeControl, path: Path, group: str = "no-such-group") -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.AsyncHTTPTransport(uds=str(path))
    async with trio.open_nursery() as nursery:
        await nursery.start(serve, control, path, group)
        async with httpx.AsyncClient(transport=transport, base_url="http://kvd", timeout=WAIT_S) as client:
            yield client
        nursery.cancel_scope.cancel()


async def until(condition: Any) -> None:
    with trio.fail_after(WAIT_S):
        while not condition():
            await trio.sleep(0.005)


async def talk(path: Path, request: bytes, *, half_close: bool = False) -> bytes:
    """Say something that httpx would not, and return all that comes back."""
    client = await trio.open_unix_socket(path)
    async with client:
        await client.send_all(request)
        if half_close:
            await client.send_eof()
        answer = b""
        with trio.fail_after(WAIT_S):
            while chunk := await client.receive_some():
                answer += chunk
    return answer


async def read_until(client: trio.SocketStream, mark: bytes) -> bytes:
    answer = b""
    with trio.fail_after(WAIT_S):
        while mark not in answer:
            chunk = await client.receive_some()
            assert chunk, answer
            answer += chunk
    return answer


def post(path: str, body: bytes) -> bytes:
    return b"POST %s HTTP/1.1\r\nhost: kvd\r\ncontent-length: %d\r\n\r\n" % (path.encode(), len(body)) + body


# --- answers -------------------------------------------------------------------------------------------------------


async def test_status_is_the_dataclass(folder: Path) -> None:
    control = FakeControl(degraded=True)
    async with served(control, folder / "s") as client:
        answer = await client.get("/v1/status")
        assert answer.status_code == 200
        assert answer.headers["content-type"] == "application/json"
        assert msgspec.json.decode(answer.content, type=Status) == await control.status()


async def test_df_and_version(folder: Path) -> None:
    async with served(FakeControl(mount="/mnt/other"), folder / "s") as client:
        usage = (await client.get("/v1/df")).json()
        assert usage["mount"] == "/mnt/other"
        assert [tier["tier"] for tier in usage["tiers"]] == ["ddr", "nvme"]
        assert (await client.get("/v1/version")).json() == {"version": "0.1.0", "api": 1, "mount": "/mnt/other"}


@pytest.mark.parametrize("name", [b"not-utf8-\xff\xfe.bin", "größe-鍵.bin".encode(), b"name with space+plus.bin"])
async def test_names_are_bytes(folder: Path, name: bytes) -> None:
    path = b"/model/" + name
    quoted = "".join(f"%{byte:02X}" for byte in path)
    async with served(FakeControl(), folder / "s") as client:
        found = (await client.get(f"/v1/stat?path={quoted}")).json()
        assert found["path"].encode("utf-8", "surrogateescape") == path
        listing = await client.get("/v1/list?path=/model/")
        assert listing.content.isascii()
        assert found in listing.json()["entries"]
        body = json.dumps({"path": found["path"]})
        assert (await client.post("/v1/pin", content=body)).json() == {"changed": 1}
        assert (await client.get(f"/v1/stat?path={quoted}")).json()["pinned"] is True
        assert (await client.post("/v1/unpin", content=body)).json() == {"changed": 1}
        steps = (await client.post("/v1/promote", content=json.dumps({"paths": [found["path"]]}))).text.splitlines()
        assert [json.loads(step)["path"] for step in steps] == [found["path"]]


async def test_a_plus_in_a_query_is_a_plus(folder: Path) -> None:
    async with served(FakeControl(), folder / "s") as client:
        assert (await client.get("/v1/stat?path=/model/name%20with%20space+plus.bin")).status_code == 200


async def test_listing_of_many_and_of_none(folder: Path) -> None:
    control = FakeControl()
    many = [b"/many/%05d" % i for i in range(2000)]
    control.entries_by_path |= {path: make_entry(path, 1, 1) for path in many}
    control.entries_by_path[b"/many"] = control.entries_by_path[b"/empty"]
    async with served(control, folder / "s") as client:
        entries = (await client.get("/v1/list?path=/many")).json()["entries"]
        assert [entry["path"] for entry in entries] == [path.decode() for path in many]
        assert (await client.get("/v1/list?path=/empty")).json() == {"path": "/empty", "entries": []}
        one = (await client.get("/v1/list?path=/model/a.bin")).json()["entries"]
        assert [entry["path"] for entry in one] == ["/model/a.bin"]


async def test_operations_stream_their_steps(folder: Path) -> None:
    control = FakeControl()
    async with served(control, folder / "s") as client:
        answer = await client.post("/v1/demote", json={"paths": ["/model/leased.bin", "/model/a.bin"]})
        assert answer.headers["content-type"] == "application/x-ndjson"
        leased, moved = map(json.loads, answer.text.splitlines())
        assert (leased["code"], leased["done"], leased["total"]) == ("EBUSY", 1, 2)
        assert (moved["error"], moved["bytes_done"]) == (None, 3 << 20)
        assert (await client.post("/v1/sync", json={"paths": ["/empty"]})).text == ""
        await client.post("/v1/promote", json={"paths": ["/model/a.bin"]})
        assert control.entries_by_path[b"/model/a.bin"].tier == "ddr"


async def test_steps_come_as_they_are_made(folder: Path) -> None:
    control = FakeControl(gate=trio.Event())
    async with served(control, folder / "s"), await trio.open_unix_socket(folder / "s") as client:
        await client.send_all(post("/v1/sync", b'{"paths": ["/"]}'))
        assert b'"done":1' in await read_until(client, b"}\n")
        control.gate.set()
        assert b'"done":8' in await read_until(client, b"0\r\n\r\n")


# --- errors --------------------------------------------------------------------------------------------------------

BAD_QUERIES = ["", "?path=", "?path=relative", "?path=/a/../b", "?path=/a%00b", "?path=/a&path=/b", "?path=/a&x=1"]


@pytest.mark.parametrize("query", BAD_QUERIES)
@pytest.mark.parametrize("route", ["stat", "list"])
async def test_bad_queries(folder: Path, route: str, query: str) -> None:
    async with served(FakeControl(), folder / "s") as client:
        answer = await client.get(f"/v1/{route}{query}")
        assert answer.status_code == 400
        assert answer.json()["error"]["code"] == "EINVAL"
        assert " " in answer.json()["error"]["message"]


BAD_BODIES = [
    b"",
    b"{",
    b"[]",
    b"{}",
    b"\xff",
    b'{"path": 7, "paths": 7}',
    b'{"path": NaN, "paths": NaN}',
    b"[" * 100_000,
    b'{"path": "/a", "paths": ["/a"]}',
]
BAD_PATHS = ['"relative"', "7", "null", r'"/a\u0000b"', '"/a/../b"', r'"/\ud800"', '"/' + "x" * 4097 + '"']


@pytest.mark.parametrize("route", ["promote", "demote", "sync", "pin", "unpin"])
async def test_bad_bodies(folder: Path, route: str) -> None:
    single = "pin" in route
    bodies = BAD_BODIES + [(f'{{"path": {p}}}' if single else f'{{"paths": [{p}]}}').encode() for p in BAD_PATHS]
    bodies.append(b'{"path": ["/a"]}' if single else b'{"paths": []}')
    control = FakeControl()
    async with served(control, folder / "s") as client:
        for body in bodies:
            answer = await client.post(f"/v1/{route}", content=body)
            assert (answer.status_code, answer.json()["error"]["code"]) == (400, "EINVAL"), body[:40]
    assert control.begun == 0


async def test_too_much(folder: Path) -> None:
    async with served(FakeControl(), folder / "s") as client:
        answer = await client.post("/v1/sync", content=b"x" * (wire.BODY_BYTES_MAX + 1))
        assert (answer.status_code, answer.json()["error"]["code"]) == (413, "EMSGSIZE")
        answer = await client.post("/v1/sync", json={"paths": ["/a"] * (wire.PATHS_MAX + 1)})
        assert answer.status_code == 400
        assert "name their directory" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (NoSpaceError("full"), 507, "ENOSPC"),
        (DamagedError("page 3"), 500, "EIO"),
        (CatalogError("newer"), 500, "FAILED"),
        (KvdError("no"), 500, "FAILED"),
        (UnavailableError("gone"), 503, "ENXIO"),
        (ConfigError("key"), 400, "EINVAL"),
    ],
)
async def test_errors_of_the_daemon(folder: Path, error: KvdError, status: int, code: str) -> None:
    async with served(FakeControl(bug=error), folder / "s") as client:
        for answer in (
            await client.get("/v1/stat?path=/a"),
            await client.post("/v1/pin", json={"path": "/a"}),
            await client.post("/v1/sync", json={"paths": ["/a"]}),
        ):
            assert answer.status_code == status
            assert answer.json() == {"error": {"code": code, "message": str(error)}}


async def test_not_found_and_busy(folder: Path) -> None:
    async with served(FakeControl(), folder / "s") as client:
        assert (await client.get("/v1/stat?path=/nope")).status_code == 404
        assert (await client.post("/v1/promote", json={"paths": ["/nope"]})).status_code == 404
        busy = await client.post("/v1/unpin", json={"path": "/model/leased.bin"})
        assert (busy.status_code, busy.json()["error"]["code"]) == (409, "EBUSY")


async def test_unknown_route_and_method(folder: Path) -> None:
    async with served(FakeControl(), folder / "s") as client:
        for method, path, status in (("GET", "/nope", 404), ("GET", "/v1/sync", 405), ("POST", "/v1/status", 405)):
            answer = await client.request(method, path)
            assert (answer.status_code, answer.json()["error"]["code"]) == (status, "ENOSYS")


async def test_a_bug_is_one_500_and_one_log_line(folder: Path) -> None:
    control = FakeControl(bug=RuntimeError("secret"))
    async with served(control, folder / "s") as client:
        for method, path, body in (("GET", "/v1/status", None), ("POST", "/v1/sync", {"paths": ["/a"]})):
            with capture_logs() as logs:
                answer = await client.request(method, path, json=body)
            assert answer.status_code == 500
            assert answer.json()["error"]["code"] == "INTERNAL"
            assert "secret" not in answer.text
            assert [(line["event"], line["log_level"], line["route"]) for line in logs] == [
                ("request failed", "error", path)
            ]
            assert logs[0]["exc_info"] is control.bug
        control.bug = None
        assert (await client.get("/v1/status")).status_code == 200


@pytest.mark.parametrize(("bug", "code"), [(RuntimeError("bug"), "INTERNAL"), (NoSpaceError("full"), "ENOSPC")])
async def test_an_error_in_the_middle_is_the_last_line(folder: Path, bug: Exception, code: str) -> None:
    async with served(FakeControl(bug=bug, fail_at=3), folder / "s") as client:
        with capture_logs() as logs:
            answer = await client.post("/v1/sync", json={"paths": ["/"]})
        assert answer.status_code == 200
        lines = [json.loads(line) for line in answer.text.splitlines()]
        assert [line.get("done") for line in lines] == [1, 2, None]
        assert lines[-1]["error"]["code"] == code
        assert len(logs) == (code == "INTERNAL")


async def test_garbage_does_not_end_the_server(folder: Path) -> None:
    async with served(FakeControl(), folder / "s") as client:
        assert (await talk(folder / "s", b"\x00\xff garbage\r\n\r\n")).startswith(b"HTTP/1.1 400")
        assert (await talk(folder / "s", b"GET /" + b"a" * 20_000)).startswith(b"HTTP/1.1 431")
        assert (await talk(folder / "s", b"GET /v1/sta", half_close=True)).startswith(b"HTTP/1.1 400")
        body_on_get = b"GET /v1/version HTTP/1.1\r\nhost: kvd\r\ncontent-length: 9999999\r\n\r\n" + b"x" * 60_000
        assert (await talk(folder / "s", body_on_get)).startswith(b"HTTP/1.1 200")
        assert (await client.get("/v1/version")).status_code == 200


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


# --- the description -----------------------------------------------------------------------------------------------


def resolve(document: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    while "$ref" in schema:
        *_, section, name = schema["$ref"].split("/")
        schema = document["components"][section][name]
    return schema


TYPES = {
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "null": type(None),
    "array": list,
    "object": dict,
}


def check(document: dict[str, Any], schema: dict[str, Any], value: Any) -> None:
    """Assert that `value` fits `schema`, as far as JSON Schema is used here."""
    schema = resolve(document, schema)
    if "anyOf" in schema:
        fits = [kind for kind in schema["anyOf"] if _fits(document, kind, value)]
        assert fits, (schema, value)
        return
    assert isinstance(value, TYPES[schema["type"]]), (schema, value)
    if isinstance(value, dict) and "properties" in schema:
        assert set(value) == set(schema["properties"])
        for key, member in value.items():
            check(document, schema["properties"][key], member)
    if isinstance(value, list):
        for member in value:
            check(document, schema["items"], member)


def _fits(document: dict[str, Any], schema: dict[str, Any], value: Any) -> bool:
    try:
        check(document, schema, value)
    except AssertionError:
        return False
    return True


def references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, member in value.items():
            if key == "$ref":
                yield member
            else:
                yield from references(member)
    elif isinstance(value, list):
        for member in value:
            yield from references(member)


async def test_the_description_is_whole(folder: Path) -> None:
    async with served(FakeControl(), folder / "s") as client:
        document = (await client.get("/v1/openapi.json")).json()
    assert document["openapi"] == "3.1.0"
    assert {"title", "version"} <= set(document["info"])
    described = {(path, method.upper()) for path, item in document["paths"].items() for method in item}
    assert described == {
        (route.path, method) for route in build_app(FakeControl()).routes for method in route.methods - {"HEAD"}
    }
    names = set(references(document))
    assert names
    assert {f"#/components/schemas/{name}" for name in document["components"]["schemas"]} == names
    operations = [operation for item in document["paths"].values() for operation in item.values()]
    assert len({operation["operationId"] for operation in operations}) == len(ROUTES)
    for operation in operations:
        assert {"200", "400", "404", "409", "500", "503", "507"} <= set(operation["responses"])
        assert all(answer["description"] and answer["content"] for answer in operation["responses"].values())
    assert "base64" not in json.dumps(document)


async def test_answers_are_as_described(folder: Path) -> None:
    requests = {
        "/v1/list": ("?path=/model", None),
        "/v1/stat": ("?path=/model/a.bin", None),
        "/v1/pin": ("", {"path": "/model"}),
        "/v1/unpin": ("", {"path": "/model"}),
        "/v1/promote": ("", {"paths": ["/model"]}),
        "/v1/demote": ("", {"paths": ["/model"]}),
        "/v1/sync": ("", {"paths": ["/model"]}),
    }
    async with served(FakeControl(degraded=True), folder / "s") as client:
        document = (await client.get("/v1/openapi.json")).json()
        for path, item in document["paths"].items():
            ((method, operation),) = item.items()
            query, body = requests.get(path, ("", None))
            if body is not None:
                check(document, operation["requestBody"]["content"]["application/json"]["schema"], body)
            answer = await client.request(method, path + query, json=body)
            ((media_type, content),) = operation["responses"]["200"]["content"].items()
            assert answer.headers["content-type"] == media_type
            texts = answer.text.splitlines()
            assert texts
            for text in texts:
                check(document, content["schema"], json.loads(text))
        missing = (await client.get("/v1/stat?path=/nope")).json()
        failure = document["paths"]["/v1/stat"]["get"]["responses"]["404"]["content"]["application/json"]["schema"]
        check(document, failure, missing)
