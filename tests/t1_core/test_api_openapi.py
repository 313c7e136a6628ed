"""The OpenAPI description against the routes and against real answers."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kvd.api.app import build_app
from kvd.api.backend import NamespaceWish
from kvd.api.routes import ROUTES
from kvd.errors import MismatchError
from support.fake_control import FakeControl
from support.serving import served

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="kvd") as name:
        yield Path(name)


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
    fingerprint = {"fingerprint": {"model": "llama", "tp": "8"}}
    policies = {"admit": "reused", "durability": "through", "on_fault": "miss", "session": "directory"}
    quota = {f"{tier}_{what}_bytes": 1 << 30 for tier in ("ddr", "nvme") for what in ("guaranteed", "limit")}
    policies |= {"format": "int8", "layout": "fp16 tokens dim=64", "on_full": "block"}
    wishes = policies | {"quota": quota | {"priority": 3}}
    tokens = {"tokens": 5, "bytes_per_token": 8}
    requests = {
        "/v1/list": ("?path=/model", None),
        "/v1/stat": ("?path=/model/a.bin", None),
        "/v1/pin": ("", {"path": "/model"}),
        "/v1/unpin": ("", {"path": "/model"}),
        "/v1/promote": ("", {"paths": ["/model"]}),
        "/v1/demote": ("", {"paths": ["/model"]}),
        "/v1/sync": ("", {"paths": ["/model"]}),
        "/v1/namespace": ("?path=/llm", None),
        "/v1/namespace/create": ("", {"name": "new", "mode": 0o700, "uid": 1, "gid": 2, **wishes, **fingerprint}),
        "/v1/namespace/set": ("", {"name": "llm", **wishes}),
        "/v1/namespace/attach": ("", {"name": "llm", **fingerprint}),
        "/v1/namespace/quota": ("?path=/llm", None),
        "/v1/namespace/remove": ("", {"name": "new", "force": True}),
        "/v1/invalidate": ("", {"name": "llm", "if_fingerprint": fingerprint["fingerprint"], **fingerprint}),
        "/v1/scrub": ("", {"paths": ["/model"]}),
        "/v1/fsck": ("", {"data": True, "repair": True}),
        "/v1/session": ("?path=/model/a.bin", None),
        "/v1/session/list": ("", {"path": "/model"}),
        "/v1/session/watch": ("", {"path": "/model"}),
        "/v1/session/release": ("", {"path": "/model/a.bin"}),
        "/v1/session/resume": ("", {"path": "/model/a.bin"}),
        "/v1/session/prefetch": ("", {"path": "/model/a.bin"}),
        "/v1/session/close": ("", {"path": "/model/s-\udcff"}),
        "/v1/session/fork": ("", {"path": "/model/a.bin", "new_path": "/model/b", "until": "x", "count": 2, **tokens}),
        "/v1/session/pin": ("", {"path": "/model/a.bin", "pin": "soft", "for_s": 5.0}),
        "/v1/session/ttl": ("", {"path": "/model/a.bin", "ttl_s": 5.0, "refresh": True}),
    }
    control = FakeControl(degraded=True)
    await control.create_namespace(NamespaceWish(name=b"llm", mode=0o755, uid=0, gid=0, **fingerprint))
    with pytest.raises(MismatchError):
        control.attach_namespace(b"llm", {})
    async with served(control, folder / "s") as client:
        document = (await client.get("/v1/openapi.json")).json()
        for path, item in document["paths"].items():
            ((method, operation),) = item.items()
            query, body = requests.get(path, ("", None))
            if body is not None:
                check(document, operation["requestBody"]["content"]["application/json"]["schema"], body)
            answer = await client.request(method, path + query, content=None if body is None else json.dumps(body))
            described = operation["responses"]["200"]["content"]
            if path == "/metrics":
                assert answer.headers["content-type"].split(";")[0] in described
                continue
            ((media_type, content),) = described.items()
            assert answer.headers["content-type"] == media_type
            texts = answer.text.splitlines()
            assert texts
            for text in texts:
                check(document, content["schema"], json.loads(text))
        missing = (await client.get("/v1/stat?path=/nope")).json()
        failure = document["paths"]["/v1/stat"]["get"]["responses"]["404"]["content"]["application/json"]["schema"]
        check(document, failure, missing)
