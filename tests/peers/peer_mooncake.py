"""Mooncake Store over TCP on loopback: a master, a process that lends its memory, and this one as the client.

Nothing of it is on a file system, and nothing survives its processes: store and load are one step. FOLDER is where the
programs write their logs.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import mooncake
import numpy as np
from mooncake.store import MooncakeDistributedStore

if TYPE_CHECKING:
    from collections.abc import Sequence

LOOPBACK = "127.0.0.1"
METADATA = "P2PHANDSHAKE"
READY_S = 60.0
STOP_S = 20.0
POLL_S = 0.05
OWNER_BUFFER_BYTES = 16 << 20
MARGIN_BYTES = 256 << 20
LENT = "lent"


def _refuse(why: str) -> NoReturn:
    raise OSError(why)


def _free_port() -> int:
    with socket.create_server((LOOPBACK, 0)) as server:
        return int(server.getsockname()[1])


def _connected(segment_bytes: int, buffer_bytes: int, master: str) -> MooncakeDistributedStore:
    store = MooncakeDistributedStore()
    if status := store.setup(LOOPBACK, METADATA, segment_bytes, buffer_bytes, "tcp", "", master):
        _refuse(f"setup of Mooncake: {status}")
    return store


def lend(segment_bytes: int, master: str) -> None:
    """Lend memory until standard input ends."""
    store = _connected(segment_bytes, OWNER_BUFFER_BYTES, master)
    print(LENT, flush=True)
    sys.stdin.read()
    store.close()


class Peer:
    """A whole Mooncake of one's own."""

    def __init__(self, folder: Path, chunks: int, chunk_bytes: int) -> None:
        self._processes: list[subprocess.Popen[str]] = []
        self._store: MooncakeDistributedStore | None = None
        self._log = (folder / "mooncake.log").open("w")
        self._map = mmap.mmap(-1, chunks * chunk_bytes)
        self._memory = np.frombuffer(self._map, dtype=np.uint8).reshape(chunks, chunk_bytes)
        start = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        self._places = [start + index * chunk_bytes for index in range(chunks)]
        self._sizes = [chunk_bytes] * chunks
        self._keys = [f"chunk-{index}" for index in range(chunks)]
        try:
            self._store = self._bring_up(len(self._map))
            if status := self._store.register_buffer(start, len(self._map)):
                _refuse(f"Mooncake does not take memory: {status}")
        except BaseException:
            self.close()
            raise

    def _bring_up(self, total_bytes: int) -> MooncakeDistributedStore:
        port = _free_port()
        master = f"{LOOPBACK}:{port}"
        program = Path(mooncake.__file__).with_name("mooncake_master")
        words = [f"--rpc_port={port}", f"--rpc_address={LOOPBACK}", f"--metrics_port={_free_port()}", "--logtostderr"]
        self._start([str(program), *words])
        self._until_listening(port)
        owner = self._start([sys.executable, __file__, str(2 * total_bytes + MARGIN_BYTES), master])
        assert owner.stdout is not None
        if not any(line.strip() == LENT for line in owner.stdout):
            _refuse("the process that lends memory did not start")
        return _connected(0, total_bytes + MARGIN_BYTES, master)

    def _start(self, command: list[str]) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True, env=os.environ
        )
        self._processes.append(process)
        return process

    def _until_listening(self, port: int) -> None:
        deadline_s = time.monotonic() + READY_S
        while time.monotonic() < deadline_s:
            with contextlib.suppress(OSError), socket.create_connection((LOOPBACK, port), timeout=1):
                return
            time.sleep(POLL_S)
        raise TimeoutError("mooncake_master does not listen")

    def prepare(self, contents: Sequence[np.ndarray]) -> None:
        """Put the chunks into memory that Mooncake knows."""
        for row, content in zip(self._memory, contents, strict=True):
            row[:] = content

    def store(self) -> None:
        """Store everything."""
        assert self._store is not None
        found = self._store.batch_put_from(self._keys, self._places, self._sizes)
        if any(found):
            raise OSError(f"a store failed: {min(found)}")

    def expect(self) -> None:
        """Forget what was stored."""
        self._memory[:] = 1

    def load(self) -> list[np.ndarray | None]:
        """Load everything."""
        assert self._store is not None
        found = self._store.batch_get_into(self._keys, self._places, self._sizes)
        return [row if got == len(row) else None for row, got in zip(self._memory, found, strict=True)]

    def close(self) -> None:
        """End all processes."""
        if self._store is not None:
            self._store.close()
        for process in reversed(self._processes):
            assert process.stdin is not None
            process.stdin.close()
            if process.args[0] != sys.executable:  # type: ignore[index]
                process.terminate()
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._log.close()


if __name__ == "__main__":
    lend(int(sys.argv[1]), sys.argv[2])
