"""Quotas of namespaces, and chains, through a real mount: two tenants, limits, attributes, and a daemon that is killed."""

from __future__ import annotations

import errno
import json
import os
import random
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from kvd.client import Client
from support.content import wait_until
from support.mounted import start_kvd

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from support.mounted import Mounted

MIB = 1 << 20
SIZE = 2 * MIB
DDR_MIB, NVME_MIB = 32, 64


def ask(mounted: Mounted, what: str, status: int = 200, **body: object) -> Any:
    transport = httpx.HTTPTransport(uds=str(mounted.kvd.socket))
    with httpx.Client(transport=transport, base_url="http://kvd", timeout=60) as client:
        answer = client.post(f"/v1/{what}", json=body) if body else client.get(f"/v1/{what}")
    assert answer.status_code == status, answer.text
    return json.loads(answer.text.splitlines()[-1])


def create(mounted: Mounted, name: str, *, on_full: str = "", **quota: int) -> Path:
    sizes = {f"{key}_bytes" if key != "priority" else key: number for key, number in quota.items()}
    ask(mounted, "namespace/create", name=name, mode=0o1777, on_full=on_full, quota=sizes)
    return mounted.root / name


def content(name: str) -> bytes:
    return random.Random(name).randbytes(SIZE)


def store(folder: Path, name: str) -> None:
    (folder / f".{name}").write_bytes(content(f"{folder.name}/{name}"))
    (folder / f".{name}").rename(folder / name)


def fill(folder: Path, name: str = "s") -> int:
    """Store objects until there is no space; return how many were."""
    for number in range(20):
        try:
            store(folder, f"{name}{number}")
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            return number
    pytest.fail("there was always room")


def is_right(folder: Path, name: str) -> bool:
    return (folder / name).read_bytes() == content(f"{folder.name}/{name}")


def tier(mounted: Mounted, name: str, which: str) -> dict[str, int]:
    found: list[dict[str, Any]] = ask(mounted, f"namespace/quota?path=/{name}")["tiers"]
    return next(each for each in found if each["tier"] == which)


@contextmanager
def small_kvd(passthrough: str, **nvme: object) -> Iterator[Mounted]:
    settings = {
        "fuse": {"passthrough": passthrough, "write_wait": "2s"},
        "ddr": {"budget": f"{DDR_MIB}MiB", "burst": "16MiB"},
        "nvme": {"capacity": f"{NVME_MIB}MiB", **nvme},
    }
    with start_kvd(settings) as mounted:
        yield mounted


@pytest.mark.parametrize("passthrough", ["auto", "off"])
def test_one_tenants_flood_takes_nothing_of_anothers_guaranteed_share(passthrough: str) -> None:
    with small_kvd(passthrough) as mounted:
        kept = create(mounted, "kept", ddr_guaranteed=8 * MIB, nvme_guaranteed=24 * MIB)
        flood = create(mounted, "flood")
        names = [f"b{number}" for number in range(10)]
        for name in names:
            store(kept, name)
        for number in range(4 * (DDR_MIB + NVME_MIB) * MIB // SIZE):
            store(flood, f"f{number}")
        assert tier(mounted, "kept", "ddr")["used_bytes"] >= 8 * MIB
        assert sorted(os.listdir(kept)) == sorted(names)
        for name in names:
            assert is_right(kept, name)
        assert ask(mounted, "status")["admission"]["evicted"] > 0
        for name in os.listdir(flood):
            try:
                assert is_right(flood, name)
            except FileNotFoundError:  # to read one may cost another
                continue
        mounted.kvd.kill()
        mounted.kvd.start()
        for name in names:
            assert is_right(kept, name)


@pytest.mark.parametrize("passthrough", ["auto", "off"])
def test_a_tenant_at_its_limits_gets_no_space_and_the_others_do(passthrough: str) -> None:
    with small_kvd(passthrough) as mounted:
        mounted.claim("demotion failed")
        small = create(mounted, "small", on_full="refuse", ddr_limit=6 * MIB, nvme_limit=8 * MIB)
        stored = fill(small)
        assert 5 <= stored <= 9
        assert tier(mounted, "small", "nvme")["used_bytes"] <= 8 * MIB
        told = os.getxattr(small, "user.kvd.quota").splitlines()
        assert told[1].startswith(b"nvme guaranteed=0 limit=%d used=" % (8 * MIB))
        other = create(mounted, "other")
        for number in range(8):
            store(other, f"o{number}")
        assert all(is_right(small, f"s{number}") for number in range(stored))
        for number in range(3):
            (small / f"s{number}").unlink()
        for name in sorted(os.listdir(small)):
            if name.startswith("."):
                (small / name).unlink()
        wait_until(lambda: tier(mounted, "small", "nvme")["used_bytes"] <= 4 * MIB, "room in the namespace's limit")
        store(small, "again")
        assert is_right(small, "again")
        fill(small, "last")  # only in DDR now, beyond the limit of NVMe, and durable when the daemon has ended


def test_what_is_counted_survives_a_killed_daemon(mounted: Mounted) -> None:
    one, two = create(mounted, "counted"), create(mounted, "counted2")
    for number in range(4):
        store(one, f"c{number}")
        with (one / f"c{number}").open("rb") as file:
            os.fsync(file.fileno())
    (one / "c0").rename(two / "c0")
    (one / "c1").unlink()
    before = [tier(mounted, name, "nvme")["used_bytes"] for name in ("counted", "counted2")]
    assert before == [2 * SIZE, SIZE]
    mounted.kvd.kill()
    mounted.kvd.start()
    assert [tier(mounted, name, "nvme")["used_bytes"] for name in ("counted", "counted2")] == before
    assert tier(mounted, "counted", "ddr")["used_bytes"] in (0, 2 * SIZE)


def test_more_than_there_is_is_not_guaranteed(mounted: Mounted) -> None:
    refused = ask(mounted, "namespace/create", 507, name="huge", quota={"ddr_guaranteed_bytes": 1 << 50})
    assert refused["error"]["code"] == "ENOSPC"
    assert "can't be guaranteed" in refused["error"]["message"]
    assert not (mounted.root / "huge").exists()


def test_chains_by_attribute_and_by_client(mounted: Mounted) -> None:
    space = create(mounted, "chains")
    ask(mounted, "namespace/set", name="chains", session="directory")
    with Client(mounted.kvd.socket.with_suffix(".client")) as client:
        session = client.create("/chains/chat")
        session.store("0", b"head")
        session.append(b"next", name="1", parent="0")
        client.store(space / "chat" / "2", b"last", parent=space / "chat" / "1")
        with pytest.raises(FileNotFoundError):
            session.store("3", b"lost", parent="none")
    chat = space / "chat"
    assert sorted(os.listdir(chat)) == ["0", "1", "2"]
    assert os.getxattr(chat / "1", "user.kvd.parent") == b"0"
    assert os.getxattr(chat / "2", "user.kvd.parent") == b"1"
    for code, name, value in (
        (errno.ELOOP, "0", b"2"),
        (errno.ELOOP, "0", b"0"),
        (errno.ENOENT, "0", b"none"),
        (errno.EINVAL, "0", b"/chains/chat"),
        (errno.EXDEV, "0", b"/chains-other"),
    ):
        (mounted.root / "chains-other").touch()
        with pytest.raises(OSError, match=f"Errno {code}\\]"):
            os.setxattr(chat / name, "user.kvd.parent", value)
    told = ask(mounted, "stat?path=/chains/chat/2")
    assert (told["parent"], told["chain"]) == ("/chains/chat/1", 3)
    assert ask(mounted, "session?path=/chains/chat")["chained"] == 2
    (space / "elsewhere").write_bytes(b"x")
    os.setxattr(space / "elsewhere", "user.kvd.parent", b"chat/2")
    assert os.getxattr(space / "elsewhere", "user.kvd.parent") == b"/chains/chat/2"
    mounted.kvd.kill()
    mounted.kvd.start()
    if (chat / "2").exists():  # in DDR, which a killed daemon leaves as it was
        assert os.getxattr(chat / "2", "user.kvd.parent") == b"1"
    os.removexattr(chat / "1", "user.kvd.parent")
    with pytest.raises(OSError, match=f"Errno {errno.ENODATA}\\]"):
        os.getxattr(chat / "1", "user.kvd.parent")
    assert "user.kvd.parent" not in os.listxattr(chat / "2")
