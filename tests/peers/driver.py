"""One peer, one step, one process: store chunks, or load them and compare every byte.

Runs in the peers' own environment (build/peers), started by compare.py:

    driver.py PEER store|load|both FOLDER CHUNKS CHUNK_BYTES

Prints one JSON line for each step: its name, seconds, bytes, wrong (chunks with other bytes), missing.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

SEED = 7
SHIFT_BYTES = 64
"""Chunk i begins so many bytes after chunk i - 1 in the same noise: no two are alike."""


class Peer(Protocol):
    """What a peer's module has as `Peer`; made with the folder, the number of chunks and their size."""

    def prepare(self, contents: Sequence[np.ndarray]) -> None:
        """Take what will be stored; not timed."""

    def store(self) -> None:
        """Store everything, and wait until the peer says that it is stored."""

    def expect(self) -> None:
        """Get ready to load; not timed."""

    def load(self) -> Sequence[np.ndarray | None]:
        """Load everything; None for a chunk that is not there."""

    def close(self) -> None:
        """End what was started."""


def contents(chunks: int, chunk_bytes: int) -> list[np.ndarray]:
    """Return the chunks: the same in every process."""
    noise = np.random.default_rng(SEED).integers(0, 256, chunk_bytes + chunks * SHIFT_BYTES, dtype=np.uint8)
    return [noise[index * SHIFT_BYTES : index * SHIFT_BYTES + chunk_bytes] for index in range(chunks)]


def store(peer: Peer, wanted: list[np.ndarray]) -> dict[str, float]:
    """Store everything."""
    peer.prepare(wanted)
    began_s = time.perf_counter()
    peer.store()
    seconds = time.perf_counter() - began_s
    return {"seconds": seconds, "bytes": sum(map(len, wanted)), "wrong": 0, "missing": 0}


def load(peer: Peer, wanted: list[np.ndarray]) -> dict[str, float]:
    """Load everything, and compare it."""
    peer.expect()
    began_s = time.perf_counter()
    found = peer.load()
    seconds = time.perf_counter() - began_s
    pairs = [(one, right) for one, right in zip(found, wanted, strict=True) if one is not None]
    return {
        "seconds": seconds,
        "bytes": sum(len(one) for one, _ in pairs),
        "wrong": sum(not np.array_equal(one, right) for one, right in pairs),
        "missing": len(wanted) - len(pairs),
    }


def main(name: str, step: str, folder: str, chunks: int, chunk_bytes: int) -> None:
    """Do one step, or both."""
    wanted = contents(chunks, chunk_bytes)
    peer: Peer = importlib.import_module(f"peer_{name}").Peer(Path(folder), chunks, chunk_bytes)
    try:
        for each, work in (("store", store), ("load", load)):
            if step in {each, "both"}:
                print(json.dumps({"step": each, **work(peer, wanted)}), flush=True)
    finally:
        peer.close()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
