"""Formats through the mount: files come back with their size, shape and header, by read and by mmap, from what was made smaller."""

from __future__ import annotations

import errno
import itertools
import json
import mmap
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import numpy as np
import pytest

from support.content import wait_until
from support.formatted import KINDS, LAYOUT, Stored, noise, opaque
from support.mounted import start_kvd

if TYPE_CHECKING:
    from support.mounted import Mounted

MIB = 1 << 20
FORMATS = ("zstd", "fp8-e4m3", "fp8-e5m2", "int8", "int4")
LONG_TOKENS = 16384
"""32 MiB: such an object is streamed."""
_numbers = itertools.count(1)

MAPPER = """
import hashlib, mmap, os, sys
fd = os.open(sys.argv[1], os.O_RDONLY)
data = mmap.mmap(fd, 0, prot=mmap.PROT_READ)
os.close(fd)
print("mapped", flush=True)
for line in sys.stdin:
    print(hashlib.sha256(data).hexdigest(), flush=True)
"""


def namespace(mounted: Mounted, *arguments: str) -> Path:
    name = f"formats{next(_numbers)}"
    mounted.kvd.kvctl("namespace", "create", name, "--mode", "1777", *arguments)
    return mounted.root / name


def told(mounted: Mounted, path: Path) -> dict[str, Any]:
    """Return what `kvctl stat --json` does, without the second that it takes to start."""
    transport = httpx.HTTPTransport(uds=str(mounted.kvd.socket))
    with httpx.Client(transport=transport, base_url="http://kvd", timeout=60) as client:
        found = client.get("/v1/stat", params={"path": f"/{path.relative_to(mounted.root)}"})
    assert found.status_code == 200, found.text
    entry: dict[str, Any] = found.json()
    return entry


def demote(mounted: Mounted, path: Path) -> None:
    mounted.kvd.kvctl("demote", str(path))


def mapped(path: Path) -> bytes:
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as data:
        return bytes(data)


@pytest.mark.parametrize("name", FORMATS)
def test_files_come_back_as_the_format_promises(mounted: Mounted, name: str) -> None:
    folder = namespace(mounted, "--format", name, "--layout", LAYOUT)
    made: dict[Path, Stored] = {}
    for kind, make in KINDS.items():
        path = folder / f"{kind}.{name}"
        made[path] = make()
        path.write_bytes(made[path].content)
    plain = folder / "plain"
    plain.write_bytes(b"what nobody declares " * 5000)
    times = {path: path.stat() for path in made}
    demote(mounted, folder)
    entries = {path: told(mounted, path) for path in made}  # before anything is read, and others with it
    for path, stored in made.items():
        entry = entries[path]
        assert (entry["tier"], entry["size_bytes"]) == ("nvme", len(stored.content))
        assert entry["format"]["format"] == name == os.getxattr(path, "user.kvd.format").decode()
        assert entry["format"]["ratio"] > (1.05 if name == "zstd" else 1.8)
        assert entry["tiers"] == {"nvme": entry["stored_bytes"]}
        assert entry["stored_bytes"] < len(stored.content)
        content = path.read_bytes()
        stored.check(content, name)
        assert mapped(path) == content
        assert (path.stat().st_size, path.stat().st_mtime_ns) == (times[path].st_size, times[path].st_mtime_ns)
        for error in entry["format"]["errors"].values():
            assert 0 < error["relative_l2"] < 0.2
        assert bool(entry["format"]["errors"]) == (name != "zstd")
    loaded = np.load(folder / f"npy.{name}")
    assert (loaded.dtype, loaded.shape) == (np.dtype("<f2"), (2, 2, 256, 4, 64))
    assert plain.read_bytes() == b"what nobody declares " * 5000
    assert os.getxattr(plain, "user.kvd.format") == b"zstd"
    demote(mounted, folder)
    for path in made:
        assert told(mounted, path)["format"]["format"] == name


def test_keys_and_values_and_their_errors(mounted: Mounted) -> None:
    folder = namespace(mounted, "--format", "int8/fp8-e4m3")
    path = folder / "f.safetensors"
    stored = KINDS["safetensors"]()
    path.write_bytes(stored.content)
    demote(mounted, path)
    entry = told(mounted, path)["format"]
    assert (entry["format"], entry["object_bytes"]) == ("int8/fp8-e4m3", len(stored.content))
    assert 0 < entry["errors"]["keys"]["relative_l2"] < entry["errors"]["values"]["relative_l2"] < 0.04
    text = mounted.kvd.kvctl("stat", str(path)).stdout
    assert "error of keys" in text
    assert "int8/fp8-e4m3" in text
    assert "times smaller" in text
    usage = {each["format"]: each for each in mounted.kvd.status()["formats"]}
    assert usage["int8/fp8-e4m3"]["copies"] == 1
    assert usage["int8/fp8-e4m3"]["used_bytes"] >= entry["file_bytes"]
    assert 'kvd_format_bytes{format="int8/fp8-e4m3"}' in mounted.kvd.kvctl("metrics").stdout
    assert os.getxattr(path, "user.kvd.formats") == f"int8/fp8-e4m3={entry['file_bytes']}".encode()


def test_a_long_file_is_streamed_from_its_format(mounted: Mounted) -> None:
    folder = namespace(mounted, "--format", "int8", "--layout", LAYOUT)
    path, stored = folder / "long", opaque(tokens=LONG_TOKENS)
    path.write_bytes(stored.content)
    demote(mounted, path)
    with path.open("rb") as file:
        middle = os.pread(file.fileno(), 100_000, 20 * MIB + 5)
        content = file.read()
    stored.check(content, "int8")
    assert content[20 * MIB + 5 : 20 * MIB + 5 + 100_000] == middle
    assert mapped(path) == content


def test_a_mapping_never_sees_both(mounted: Mounted) -> None:
    """As long as somebody has the file mapped its bytes are those that were written; they change while nobody has it."""
    folder = namespace(mounted, "--format", "int4", "--layout", LAYOUT)
    path, stored = folder / "f", opaque()
    path.write_bytes(stored.content)
    with subprocess.Popen(
        [sys.executable, "-c", MAPPER, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as mapper:
        assert mapper.stdin is not None
        assert mapper.stdout is not None

        def seen() -> str:
            print(file=mapper.stdin, flush=True)
            return mapper.stdout.readline()  # type: ignore[union-attr]

        try:
            assert mapper.stdout.readline() == "mapped\n"
            before = seen()
            with path.open("rb") as file:
                os.fsync(file.fileno())
            assert mounted.kvd.kvctl("demote", str(path), check=False).returncode == 5
            assert os.getxattr(path, "user.kvd.format") == b"raw"
            assert path.read_bytes() == stored.content
            assert seen() == before
        finally:
            mapper.stdin.close()
    wait_until(lambda: told(mounted, path)["opens"] == 0, "the mapping's release")
    demote(mounted, path)
    assert os.getxattr(path, "user.kvd.format") == b"int4"
    stored.check(path.read_bytes(), "int4")


def test_policies_by_xattrs_and_by_kvctl(mounted: Mounted) -> None:
    folder = namespace(mounted)
    assert os.getxattr(folder, "user.kvd.format") == b"raw"
    os.setxattr(folder, "user.kvd.format", b"fp8-e4m3,int4@7d")
    os.setxattr(folder, "user.kvd.layout", LAYOUT.encode())
    shown = json.loads(mounted.kvd.kvctl("--json", "namespace", "show", folder.name).stdout)
    assert (shown["format"], shown["layout"]) == ("fp8-e4m3,int4@7d", LAYOUT)
    for name, value in (("format", b"int9"), ("layout", b"fp16")):
        with pytest.raises(OSError, match="Invalid argument"):
            os.setxattr(folder, f"user.kvd.{name}", value)
    mounted.kvd.kvctl("namespace", "set", folder.name, "--format", "zstd", "--layout", "")
    assert (os.getxattr(folder, "user.kvd.format"), os.getxattr(folder, "user.kvd.layout")) == (b"zstd", b"")
    refused = mounted.kvd.kvctl("namespace", "set", folder.name, "--format", "int8@1w", check=False)
    assert refused.returncode == 2 or "no step of a ladder" in refused.stderr
    with pytest.raises(OSError, match="No data") as failed:
        os.getxattr(mounted.root, "user.kvd.format")
    assert failed.value.errno == errno.ENODATA


def test_writers_of_what_was_lossy_start_from_what_came_back(mounted: Mounted) -> None:
    folder = namespace(mounted, "--format", "int8", "--layout", LAYOUT)
    path, stored = folder / "f", opaque()
    path.write_bytes(stored.content)
    demote(mounted, path)
    content = path.read_bytes()
    demote(mounted, path)
    with path.open("r+b") as file:
        file.seek(10)
        file.write(b"\0\0")
        os.fsync(file.fileno())
    expected = content[:10] + b"\0\0" + content[12:]
    assert path.read_bytes() == expected
    assert os.getxattr(path, "user.kvd.format") == b"raw"
    path.write_bytes(b"short")
    demote(mounted, path)
    assert (path.read_bytes(), os.getxattr(path, "user.kvd.format")) == (b"short", b"raw")


def test_a_bit_that_differs_is_eio_and_quarantined(mounted: Mounted, claim_daemon_log: Any) -> None:
    folder = namespace(mounted, "--format", "int8", "--layout", LAYOUT)
    path, stored = folder / "f", opaque()
    path.write_bytes(stored.content)
    demote(mounted, path)
    ino = path.stat().st_ino
    [file] = [
        found
        for found in Path(mounted.kvd.root).glob(f"nvme*/objects/*/*/{ino:x}.*")
        if not found.name.endswith(".sums")
    ]
    with file.open("r+b") as damaged:
        damaged.seek(70_000)
        byte = damaged.read(1)
        damaged.seek(70_000)
        damaged.write(bytes([byte[0] ^ 4]))
    claim_daemon_log("object quarantined")
    with pytest.raises(OSError, match="Input/output error"):
        path.read_bytes()
    assert told(mounted, path)["state"] == "faulted"
    path.unlink()


@pytest.mark.parametrize("name", ["int8", "zstd"])
def test_a_daemon_that_dies_while_it_demotes_leaves_one_or_the_other(name: str) -> None:
    """Whole files, each as it was written or as it came back; never a mix, and after that always the same."""
    stored = {number: opaque(seed=number, tokens=4096) for number in range(6)}
    with start_kvd({"log": {"format": "json"}}, nvme_dirs=2) as mounted:
        folder = namespace(mounted, "--format", name, "--layout", LAYOUT)
        for number, each in stored.items():
            (folder / str(number)).write_bytes(each.content)
        command = [Path(sys.executable).with_name("kvctl"), "--socket", mounted.kvd.socket, "demote", folder]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as demoting:
            wait_until(lambda: any(Path(mounted.kvd.root).glob("nvme*/objects/*/*/*")), "the first demotion")
            mounted.kvd.kill()
            demoting.wait()
        mounted.kvd.start()
        found = {number: (folder / str(number)).read_bytes() for number in stored}
        changed = 0
        for number, content in found.items():
            if content != stored[number].content:
                stored[number].check(content, name)
                changed += 1
        assert changed < len(stored)
        assert name == "int8" or not changed
        demote(mounted, folder)
        for number, content in found.items():
            after = (folder / str(number)).read_bytes()
            stored[number].check(after, name)
            if content != stored[number].content:
                assert after == content


def test_a_stop_and_a_start_keep_what_is_stored() -> None:
    stored = opaque()
    with start_kvd() as mounted:
        folder = namespace(mounted, "--format", "int8", "--layout", LAYOUT)
        (folder / "f").write_bytes(stored.content)
        (folder / "noise").write_bytes(noise(MIB))
        mounted.kvd.ask_to_stop()
        assert mounted.kvd.stop() == 0
        assert mounted.fsck() == []
        mounted.kvd.start()
        assert os.getxattr(folder / "f", "user.kvd.format") == b"int8"
        first = (folder / "f").read_bytes()
        stored.check(first, "int8")
        assert (folder / "noise").read_bytes() == noise(MIB)
        mounted.kvd.kill()
        mounted.kvd.start()
        assert (folder / "f").read_bytes() == first
