"""Namespaces through a real mount: what clients find before, during and after an invalidation, and what policies do."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from support.content import wait_until
from support.mounted import start_kvd
from support.posix import link_fd

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from support.mounted import Mounted

SIZE = 70_000
MIB = 1 << 20

# Stats and reads names round and round until a file "stop" is there; says on its last line what it has seen after the file
# "done" was there: names that were found then, and contents. It counts only rounds that began after "done".
CLIENT = """
import os, sys
folder, flags, names = sys.argv[1], sys.argv[2], sys.argv[3].split(",")
found, rounds, before = set(), 0, 0
print("ready", flush=True)
while not os.path.exists(flags + "/stop"):
    after = os.path.exists(flags + "/done")
    for name in names:
        try:
            os.stat(folder + "/" + name)
            with open(folder + "/" + name, "rb") as file:
                content = file.read()
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            content = repr(error).encode()
        if after:
            found.add((name, content[:20]))
        else:
            before += 1
            assert content[:3] == b"old", content[:20]
    listed = set(os.listdir(folder))
    if after:
        found |= {(name, "listed") for name in listed - {"new"}}
        rounds += 1
print(before, rounds, sorted(found))
"""


def soon(condition: Callable[[], bool]) -> None:
    wait_until(condition, "what the daemon does by itself")


def ask(mounted: Mounted, what: str, status: int = 200, **body: object) -> Any:
    """Ask the daemon itself: to start kvctl takes seconds on a busy machine, and t5 is about that."""
    transport = httpx.HTTPTransport(uds=str(mounted.kvd.socket))
    with httpx.Client(transport=transport, base_url="http://kvd", timeout=60) as client:
        answer = client.post(f"/v1/{what}", json=body) if body else client.get(f"/v1/{what}")
    assert answer.status_code == status, answer.text
    lines = answer.text.splitlines()
    return json.loads(lines[-1])


def demote(mounted: Mounted, path: str) -> None:
    assert ask(mounted, "demote", paths=[path])["error"] is None


def create(mounted: Mounted, name: str, **wish: object) -> Path:
    ask(mounted, "namespace/create", name=name, mode=0o1777, **wish)
    return mounted.root / name


def remove(mounted: Mounted, name: str) -> None:
    ask(mounted, "namespace/remove", name=name, force=True)


def deleted(mounted: Mounted) -> bool:
    found: bool = ask(mounted, "status")["namespaces"]["deleting"] == 0
    return found


@contextmanager
def clients(folder: Path, flags: Path, names: list[str], count: int = 2) -> Iterator[list[str]]:
    """Run clients; yields the list that their last words come into at the end."""
    words: list[str] = []
    command = [sys.executable, "-c", CLIENT, str(folder), str(flags), ",".join(names)]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(count)]
    try:
        for client in running:
            assert client.stdout is not None
            assert client.stdout.readline() == "ready\n"
        yield words
        (flags / "stop").touch()
        for client in running:
            out, _ = client.communicate(timeout=60)
            assert client.returncode == 0
            words.append(out.strip())
    finally:
        for client in running:
            client.kill()
            client.communicate()


@pytest.mark.parametrize("mode", ["auto", "off"])
def test_no_old_name_and_no_old_byte_after_an_invalidation(scratch: Path, mode: str) -> None:
    names = [f"f{number}" for number in range(20)] + [f"sub/g{number}" for number in range(10)]
    with start_kvd({"fuse": {"passthrough": mode}}) as mounted:
        folder = create(mounted, "ns", fingerprint={"model": "a"})
        (folder / "sub").mkdir()
        for name in names:
            (folder / name).write_bytes(b"old" + os.urandom(SIZE))
        demote(mounted, "/ns/sub")
        with clients(folder, scratch, names) as words, (folder / "f0").open("rb") as held:
            os.stat(folder / "f1")
            ask(mounted, "invalidate", name="ns", fingerprint={"model": "b"}, if_fingerprint={"model": "a"})
            (scratch / "done").touch()
            # Here too, and at once: nothing was waited for.
            assert not [name for name in names if (folder / name).exists()]
            assert os.listdir(folder) == []
            assert folder.stat().st_nlink == 2
            assert held.read(3) == b"old"
            held.seek(SIZE - 10)
            assert len(held.read()) == 13
            (folder / "new").write_bytes(b"new")
            assert (folder / "new").read_bytes() == b"new"
            soon(lambda: deleted(mounted))
        for each in words:
            before, rounds, found = each.split(" ", 2)
            assert int(before) > 0
            assert int(rounds) > 0
            assert found == "[]", each
        # And all of it is freed, although clients had looked the names up.
        soon(lambda: ask(mounted, "status")["objects"] == 1)
        assert (folder / "new").read_bytes() == b"new"
        assert os.getxattr(folder, "user.kvd.fingerprint") == b'{"model":"b"}'


def test_from_a_working_directory_within_nothing_old_is_found(mounted: Mounted) -> None:
    folder = create(mounted, "cwd")
    deep = folder / "a" / "b"
    deep.mkdir(parents=True)
    for number in range(5):
        (deep / f"x{number}").write_bytes(b"old")
    at = os.open(deep, os.O_RDONLY | os.O_DIRECTORY)
    half_written = os.open(folder / "tmp", os.O_CREAT | os.O_WRONLY)
    try:
        assert os.stat("x0", dir_fd=at).st_size == 3
        ask(mounted, "invalidate", name="cwd")
        for number in range(5):
            with pytest.raises(FileNotFoundError):
                os.stat(f"x{number}", dir_fd=at)
        for call in (
            lambda: os.close(os.open("y", os.O_CREAT | os.O_WRONLY, dir_fd=at)),
            lambda: os.mkdir("y", dir_fd=at),
            lambda: os.rename(folder / "tmp", folder / "final"),
        ):
            with pytest.raises(FileNotFoundError):
                call()
        os.write(half_written, b"late")
    finally:
        os.close(at)
        os.close(half_written)
    assert os.listdir(folder) == []
    soon(lambda: deleted(mounted))
    remove(mounted, "cwd")
    assert not folder.exists()


def test_an_unnamed_file_from_before_gets_no_name_after(mounted: Mounted) -> None:
    folder = create(mounted, "unnamed")
    old = os.open(folder, os.O_TMPFILE | os.O_WRONLY)
    os.write(old, b"old")
    ask(mounted, "invalidate", name="unnamed")
    new = os.open(folder, os.O_TMPFILE | os.O_WRONLY)
    os.write(new, b"new")
    try:
        with pytest.raises(FileNotFoundError):
            link_fd(old, folder / "x")
        link_fd(new, folder / "x")
    finally:
        os.close(old)
        os.close(new)
    assert (folder / "x").read_bytes() == b"new"
    remove(mounted, "unnamed")


def test_a_wrong_fingerprint_is_refused_with_an_alarm(mounted: Mounted) -> None:
    mounted.claim("wrong fingerprint offered")
    folder = create(mounted, "llm", fingerprint={"model": "llama", "tp": "8"})
    before = ask(mounted, "status")["namespaces"]
    right = {"tp": "8", "model": "llama"}
    assert ask(mounted, "namespace/attach", name="llm", fingerprint=right)["fingerprint"] == right
    refused = ask(mounted, "namespace/attach", 409, name="llm", fingerprint={"model": "llama"})
    assert refused["error"]["code"] == "EKEYREJECTED"
    assert "tp: here '8', offered missing" in refused["error"]["message"]
    with pytest.raises(FileExistsError):
        os.setxattr(folder, "user.kvd.fingerprint", b"model=llama\ntp=4")
    os.setxattr(folder, "user.kvd.fingerprint", b"model=llama\ntp=8")
    after = ask(mounted, "status")["namespaces"]
    assert after["mismatches"] == before["mismatches"] + 2
    assert {alarm["what"] for alarm in after["alarms"] if alarm["namespace"] == "llm"} == {
        "tp: here '8', offered missing",
        "tp: here '8', offered '4'",
    }
    remove(mounted, "llm")


def test_content_does_not_move_between_fingerprints(mounted: Mounted) -> None:
    one = create(mounted, "one", fingerprint={"model": "a"})
    two = create(mounted, "two", fingerprint={"model": "b"})
    (one / "x").write_bytes(b"of a")
    for call in (os.rename, os.link):
        with pytest.raises(OSError, match="cross-device") as caught:
            call(one / "x", two / "x")
        assert caught.value.errno == errno.EXDEV
    subprocess.run(["mv", one / "x", two / "x"], check=True)  # copies: who does that says that it belongs there
    assert (two / "x").read_bytes() == b"of a"
    with pytest.raises(OSError, match="busy"):
        one.rename(two / "one")
    one.rename(mounted.root / "three")
    assert os.getxattr(mounted.root / "three", "user.kvd.fingerprint") == b'{"model":"a"}'
    assert [each["name"] for each in ask(mounted, "namespaces")["namespaces"]] == ["three", "two"]
    for name in ("two", "three"):
        remove(mounted, name)


def test_a_name_that_was_looked_up_in_vain_is_there_once_it_is_made(mounted: Mounted) -> None:
    path = mounted.root / "later"
    assert not path.exists()
    create(mounted, "later")
    assert path.is_dir()
    remove(mounted, "later")
    assert not path.exists()


def test_under_pressure_one_hit_objects_are_dropped_and_reused_ones_kept() -> None:
    ddr = {"budget": "32MiB", "burst": "16MiB", "idle": "100ms"}
    with start_kvd({"ddr": ddr}) as mounted:
        folder = create(mounted, "ns", admit="reused")
        reused = {f"reused{number}": os.urandom(MIB) for number in range(6)}
        for name, content in reused.items():
            (folder / name).write_bytes(content)
            assert (folder / name).read_bytes() == content
        for number in range(100):
            with (folder / ".tmp").open("wb") as file:
                file.write(os.urandom(MIB))
            (folder / ".tmp").rename(folder / f"once{number}")
        soon(lambda: ask(mounted, "status")["admission"]["dropped"] >= 60)
        status = ask(mounted, "status")
        left = sum((folder / f"once{number}").exists() for number in range(100))
        assert left <= 40
        for name, content in reused.items():
            assert (folder / name).read_bytes() == content
        assert status["admission"]["saved_bytes"] >= 60 * MIB
        assert status["demoted_bytes"] <= 10 * MIB  # those that were read
        # What went and is stored again is in use.
        gone = [number for number in range(100) if not (folder / f"once{number}").exists()]
        again = {f"once{number}": os.urandom(MIB) for number in gone[:4]}
        for name, content in again.items():
            (folder / name).write_bytes(content)
        for number in range(60):
            (folder / f"more{number}").write_bytes(os.urandom(MIB))
        for name, content in again.items():
            assert (folder / name).read_bytes() == content


def test_written_through_objects_outlive_the_daemon_and_its_memory() -> None:
    with start_kvd() as mounted:
        folder = create(mounted, "ns", durability="through", fingerprint={"model": "a"})
        made = {f"x{number}": os.urandom(SIZE) for number in range(12)}
        for name, content in made.items():
            (folder / name).write_bytes(content)
        plain = mounted.root / "plain"
        plain.write_bytes(b"only in memory")
        soon(lambda: all(os.getxattr(folder / name, "user.kvd.clean") == b"1" for name in made))
        assert os.getxattr(plain, "user.kvd.clean") == b"0"
        assert ask(mounted, "status")["admission"]["through"] >= len(made)
        kill_and_forget_memory(mounted)
        mounted.kvd.start()
        for name, content in made.items():
            assert (folder / name).read_bytes() == content
        assert not plain.exists()
        assert os.getxattr(folder, "user.kvd.fingerprint") == b'{"model":"a"}'


def kill_and_forget_memory(mounted: Mounted) -> None:
    pid = mounted.kvd.pid
    os.kill(pid, signal.SIGKILL)
    soon(lambda: not mounted.kvd.running)
    for path in (mounted.root, mounted.kvd.ddr):
        subprocess.run(["umount", "-l", path], check=True)


def test_an_invalidation_outlives_a_kill_and_is_finished_by_the_next_start() -> None:
    with start_kvd() as mounted:
        folder = create(mounted, "ns", fingerprint={"model": "a"})
        for number in range(200):
            (folder / f"x{number}").write_bytes(b"old")
        demote(mounted, "/ns")
        ask(mounted, "invalidate", name="ns", fingerprint={"model": "b"})
        kill_and_forget_memory(mounted)
        mounted.kvd.start()
        assert os.listdir(folder) == []
        assert os.getxattr(folder, "user.kvd.fingerprint") == b'{"model":"b"}'
        soon(lambda: deleted(mounted))
        soon(lambda: ask(mounted, "status")["objects"] == 0)
        soon(lambda: ask(mounted, "status")["index"]["state"] == "checked")  # what the kill left on NVMe is gone


@pytest.mark.parametrize("policy", ["eio", "miss"])
def test_a_fault_is_eio_or_a_miss(policy: str) -> None:
    with start_kvd() as mounted:
        mounted.claim("object quarantined")
        folder = create(mounted, "ns", on_fault=policy)
        path = folder / "x"
        path.write_bytes(os.urandom(SIZE))
        ino = path.stat().st_ino
        demote(mounted, "/ns/x")
        (file,) = mounted.kvd.nvme_dirs[0].glob(f"objects/*/*/{ino:x}.*")
        with file.open("r+b") as raw:
            byte = raw.read(1)[0]
            raw.seek(0)
            raw.write(bytes([byte ^ 1]))
        for _ in range(2):
            with pytest.raises(OSError, match=str(path)) as caught:
                path.read_bytes()
            assert caught.value.errno == (errno.EIO if policy == "eio" else errno.ENOENT)
        assert path.exists() == (policy == "eio")
        assert ask(mounted, "status")["faults_count"] == 1
        if policy == "miss":
            soon(lambda: ask(mounted, "status")["damaged"] == 0)
            path.write_bytes(b"again")
            assert path.read_bytes() == b"again"
        else:
            path.unlink()
