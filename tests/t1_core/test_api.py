"""What the control API answers, over a real UNIX socket, in front of a fake daemon."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest
import trio
import trio.testing
from structlog.testing import capture_logs

from kvd.api import wire
from kvd.api.backend import Status
from kvd.errors import CatalogError, ConfigError, DamagedError, KvdError, NoSpaceError, UnavailableError
from support.fake_control import FakeControl, make_entry
from support.serving import post, read_until, served, talk

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="kvd") as name:
        yield Path(name)


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
