"""Sessions of a mount: by xattrs, by `kvctl`, by the client library; with files that are open and clients that are killed."""

from __future__ import annotations

import json
import mmap
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from kvd.client import Client, ClientError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from support.mounted import Mounted

WAIT_S = 20.0
CONTENT = os.urandom(1 << 18)
HOLDER = """
import signal, sys
from kvd.client import Client
client = Client(sys.argv[1])
with client.lease(sys.argv[2], for_s=3600):
    print("held", flush=True)
    signal.pause()
"""


def wait_for(condition: Callable[[], object]) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline_s, "waited in vain"
        time.sleep(0.01)  # between two looks


@pytest.fixture
def client(mounted: Mounted) -> Iterator[Client]:
    with Client(mounted.kvd.socket.with_suffix(".client")) as found:
        yield found


@pytest.fixture
def grouped(mounted: Mounted, folder: Path) -> Path:
    """A session that is a directory, in a namespace of its own."""
    os.setxattr(folder, "user.kvd.fingerprint", b"model=llama")
    os.setxattr(folder, "user.kvd.sessions", b"directory")
    (folder / "s").mkdir()
    return folder / "s"


def kvctl(mounted: Mounted, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [Path(sys.executable).with_name("kvctl"), "--socket", mounted.kvd.socket, "--json", "session", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)


def state(path: Path) -> str:
    return os.getxattr(path, "user.kvd.session_state").decode()


def test_an_engine_that_knows_no_sessions_has_some(mounted: Mounted, folder: Path) -> None:
    path = folder / "slot.bin"
    with path.open("wb") as file:
        file.write(CONTENT)
        file.flush()
        assert state(path) == "filling"
    wait_for(lambda: state(path) == "idle")
    with path.open("rb") as file:
        wait_for(lambda: state(path) == "active")
        with mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapping:
            file.close()
            assert state(path) == "active"
            assert mapping[:] == CONTENT
    wait_for(lambda: state(path) == "idle")
    os.setxattr(path, "user.kvd.release", b"1")
    wait_for(lambda: state(path) == "cold")
    assert os.getxattr(path, "user.kvd.tiers") == b"ddr=0 nvme=%d" % len(CONTENT)
    os.setxattr(path, "user.kvd.resume", b"1")
    wait_for(lambda: state(path) == "idle")
    assert path.read_bytes() == CONTENT


def test_a_ttl_ends_while_the_file_is_mapped(mounted: Mounted, folder: Path) -> None:
    path = folder / "f"
    path.write_bytes(CONTENT)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapping:
        os.setxattr(path, "user.kvd.ttl", b"0.5")
        wait_for(lambda: not path.exists())
        assert os.listdir(folder) == []
        assert mapping[:] == CONTENT
        assert os.pread(file.fileno(), 100, 0) == CONTENT[:100]
        path.write_bytes(b"another")
        assert mapping[:] == CONTENT
    assert path.read_bytes() == b"another"
    assert os.getxattr(path, "user.kvd.ttl") == b"0"


def test_a_directory_expires_whole(mounted: Mounted, grouped: Path) -> None:
    for name in ("a", "b"):
        (grouped / name).write_bytes(CONTENT)
    (grouped / "deep").mkdir()
    (grouped / "deep/c").write_bytes(CONTENT)
    with (grouped / "deep/c").open("rb") as file:
        os.setxattr(grouped, "user.kvd.ttl", b"0.3")
        wait_for(lambda: not grouped.exists())
        assert not (grouped / "a").exists()
        assert file.read() == CONTENT
    grouped.mkdir()
    assert os.listdir(grouped) == []


def test_the_client_library(mounted: Mounted, grouped: Path, client: Client) -> None:
    session = client.create(grouped)
    array = np.arange(65536, dtype="float16")
    for name in ("h0", "h1", "h3"):
        session.store(name, array.tobytes())
    assert client.match_prefix(grouped, ["h0", "h1", "h2", "h3"]) == 2
    assert client.exists([grouped / "h0", grouped / "h2"]) == [True, False]
    found = client.map(grouped / "h1").numpy("float16", (256, 256))
    assert np.array_equal(found, array.reshape(256, 256))
    wait_for(lambda: session.describe().state == "active")
    with pytest.raises(ClientError) as refused:
        session.end()
    assert refused.value.code == "EBUSY"
    del found
    wait_for(lambda: session.describe().state == "idle")
    session.end()
    assert not grouped.exists()


def test_a_client_that_is_killed_loses_its_lease(mounted: Mounted, folder: Path, client: Client) -> None:
    path = folder / "f"
    path.write_bytes(CONTENT)
    socket = str(mounted.kvd.socket.with_suffix(".client"))
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, socket, str(path)], stdout=subprocess.PIPE, text=True)
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        assert client.session(path).leases == 1
        done = kvctl(mounted, "close", path)
        assert (done.returncode, json.loads(done.stdout)["failed"][0]["code"]) == (5, "EBUSY")
        holder.send_signal(signal.SIGKILL)
    wait_for(lambda: client.session(path).leases == 0)
    done = kvctl(mounted, "close", path)
    assert (done.returncode, done.stderr) == (0, "")
    assert not path.exists()


def test_kvctl_and_the_virtual_file_tell_the_same(mounted: Mounted, grouped: Path) -> None:
    (grouped / "a").write_bytes(CONTENT)
    wait_for(lambda: state(grouped) == "idle")
    inside = "/" + str(grouped.relative_to(mounted.root))
    listed = json.loads(kvctl(mounted, "list", grouped.parent).stdout)["sessions"]
    assert [(each["path"], each["state"], each["kind"]) for each in listed] == [(inside, "idle", "dir")]
    lines = [json.loads(line) for line in (mounted.root / ".kvd/sessions").read_text().splitlines()]
    [line] = [line for line in lines if line["path"] == inside + "/a"]
    assert (line["session"], line["session_state"]) == (listed[0]["ino"], "idle")
    forked = json.loads(kvctl(mounted, "fork", grouped, grouped.parent / "f").stdout)
    assert [(each["path"], each["state"]) for each in forked["sessions"]] == [(inside.removesuffix("s") + "f", "cold")]
    assert kvctl(mounted, "pin", "--for", "1h", grouped).returncode == 0
    assert os.getxattr(grouped / "a", "user.kvd.pin") == b"1"
    assert kvctl(mounted, "unpin", grouped).returncode == 0
    shown = json.loads(kvctl(mounted, "show", grouped / "a").stdout)
    assert (shown["session"]["path"], shown["tiers"]) == (inside, {"ddr": len(CONTENT)})
