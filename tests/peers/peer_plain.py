"""No framework: files written under another name and renamed, by threads; each with one write and one read."""

from __future__ import annotations

import mmap
import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

THREADS = 4
"""As many as LMCache takes for its disk."""


class Peer:
    """Plain files in a folder."""

    def __init__(self, folder: Path, chunks: int, chunk_bytes: int) -> None:
        self._files = [folder / f"{index:06d}.kv" for index in range(chunks)]
        self._chunk_bytes = chunk_bytes
        self._threads = ThreadPoolExecutor(THREADS)
        self._contents: Sequence[np.ndarray] = ()
        self._memory: list[memoryview] = []

    def prepare(self, contents: Sequence[np.ndarray]) -> None:
        """Take what will be stored."""
        self._contents = contents

    def _put(self, path: Path, content: np.ndarray) -> None:
        temporary = path.with_suffix(".tmp")
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        try:
            if os.write(fd, content) != len(content):
                raise OSError(f"{path}: a short write")
        finally:
            os.close(fd)
        temporary.rename(path)

    def store(self) -> None:
        """Store everything."""
        list(self._threads.map(self._put, self._files, self._contents))

    def expect(self) -> None:
        """Have memory for all of it."""
        whole = mmap.mmap(-1, len(self._files) * self._chunk_bytes)
        view = memoryview(whole)
        np.frombuffer(view, dtype=np.uint8)[:] = 1
        self._memory = [view[at : at + self._chunk_bytes] for at in range(0, len(whole), self._chunk_bytes)]

    def _get(self, path: Path, into: memoryview) -> np.ndarray | None:
        try:
            fd = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            return None
        try:
            return np.frombuffer(into[: os.readv(fd, [into])], dtype=np.uint8)
        finally:
            os.close(fd)

    def load(self) -> list[np.ndarray | None]:
        """Load everything."""
        return list(self._threads.map(self._get, self._files, self._memory))

    def close(self) -> None:
        """End the threads."""
        self._threads.shutdown()
