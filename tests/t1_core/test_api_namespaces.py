"""The namespaces' part of the API: what is asked strictly, what comes back, and what a refusal is."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kvd.api.wire import BadRequestError, top_name
from support.fake_control import FakeControl
from support.serving import served

if TYPE_CHECKING:
    from collections.abc import Iterator

PRINT = {"model": "llama", "tp": "8"}


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="kvd") as name:
        yield Path(name)


async def test_the_life_of_a_namespace(folder: Path) -> None:
    async with served(FakeControl(), folder / "s") as client:
        made = await client.post("/v1/namespace/create", json={"name": "llm", "fingerprint": PRINT, "mode": 0o1777})
        assert made.status_code == 200
        told = made.json()
        assert (told["name"], told["fingerprint"], told["mode"], told["uid"]) == ("llm", PRINT, 0o1777, 0)
        assert (await client.get("/v1/namespace?path=/llm")).json() == told
        assert (await client.get("/v1/namespaces")).json() == {"namespaces": [told]}
        assert (await client.post("/v1/namespace/attach", json={"name": "llm", "fingerprint": PRINT})).json() == told
        changed = await client.post("/v1/namespace/set", json={"name": "llm", "on_fault": "miss"})
        assert changed.json() == {**told, "on_fault": "miss"}
        gone = (await client.post("/v1/invalidate", json={"name": "llm", "fingerprint": {"model": "qwen"}})).json()
        assert (gone["names"], gone["namespace"]["fingerprint"]) == (3, {"model": "qwen"})
        assert (await client.post("/v1/namespace/remove", json={"name": "llm", "force": True})).json() == {"names": 3}


async def test_quotas(folder: Path) -> None:
    gib = 1 << 30
    async with served(FakeControl(), folder / "s") as client:
        quota = {"ddr_guaranteed_bytes": 2 * gib, "priority": 7}
        made = await client.post("/v1/namespace/create", json={"name": "llm", "quota": quota, "on_full": "block"})
        told = made.json()
        zeros = {"ddr_limit_bytes": 0, "nvme_guaranteed_bytes": 0, "nvme_limit_bytes": 0}
        assert (told["quota"], told["on_full"]) == (quota | zeros, "block")
        changed = await client.post("/v1/namespace/set", json={"name": "llm", "quota": {"ddr_limit_bytes": 8 * gib}})
        assert changed.json()["quota"] == {**told["quota"], "ddr_limit_bytes": 8 * gib}
        stands = (await client.get("/v1/namespace/quota?path=/llm")).json()
        assert (stands["name"], stands["priority"], stands["on_full"]) == ("llm", 7, "block")
        assert (stands["tiers"][0]["limit_bytes"], stands["tiers"][0]["borrowed_bytes"]) == (8 * gib, gib)
        refused = await client.post(
            "/v1/namespace/set", json={"name": "llm", "quota": {"ddr_guaranteed_bytes": 1 << 60}}
        )
        assert (refused.status_code, refused.json()["error"]["code"]) == (507, "ENOSPC")


@pytest.mark.parametrize(
    ("route", "body", "status", "code"),
    [
        ("namespace/create", {"name": "llm"}, 409, "EEXIST"),
        ("namespace/remove", {"name": "llm"}, 409, "ENOTEMPTY"),
        ("namespace/attach", {"name": "llm", "fingerprint": {"tp": "8"}}, 409, "EKEYREJECTED"),
        ("invalidate", {"name": "llm", "if_fingerprint": {}}, 409, "EKEYREJECTED"),
        ("invalidate", {"name": "nope"}, 404, "ENOENT"),
        ("namespace/create", {"name": "x", "fingerprint": {"model": 1}}, 400, "EINVAL"),
        ("namespace/create", {"name": "x", "fingerprint": ["model=a"]}, 400, "EINVAL"),
        ("namespace/create", {"name": "x", "mode": "0755"}, 400, "EINVAL"),
        ("namespace/create", {"name": "x", "quotas": {}}, 400, "EINVAL"),
        ("namespace/create", {"name": "x", "quota": 1}, 400, "EINVAL"),
        ("namespace/set", {"name": "llm", "quota": {"ddr_limit_bytes": "1GiB"}}, 400, "EINVAL"),
        ("namespace/create", {}, 400, "EINVAL"),
        ("namespace/attach", {"name": "llm"}, 400, "EINVAL"),
        ("namespace/remove", {"name": "llm", "force": "yes"}, 400, "EINVAL"),
        ("invalidate", ["llm"], 400, "EINVAL"),
    ],
)
async def test_refusals(folder: Path, route: str, body: object, status: int, code: str) -> None:
    async with served(FakeControl(), folder / "s") as client:
        await client.post("/v1/namespace/create", json={"name": "llm", "fingerprint": PRINT})
        refused = await client.post(f"/v1/{route}", json=body)
        assert (refused.status_code, refused.json()["error"]["code"]) == (status, code)


def test_names_that_stand_for_no_bytes() -> None:
    assert top_name("not-\udcff") == b"not-\xff"
    with pytest.raises(BadRequestError):
        top_name("\ud800")
