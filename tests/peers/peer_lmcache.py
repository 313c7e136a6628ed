"""LMCache: its storage backends, made by its own factory; `local_disk` and ``fs://``."""

from __future__ import annotations

import asyncio
import os
import threading
from typing import TYPE_CHECKING, Any

import numpy as np

os.environ.setdefault("LMCACHE_LOG_LEVEL", "ERROR")
os.environ.setdefault("LMCACHE_TRACK_USAGE", "false")

import torch
from lmcache.utils import CacheEngineKey
from lmcache.v1.config import LMCacheEngineConfig
from lmcache.v1.memory_management import MemoryFormat
from lmcache.v1.metadata import LMCacheMetadata
from lmcache.v1.storage_backend import CreateStorageBackends

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

LAYERS, SIDES, TOKENS, HEADS = 2, 2, 256, 8
ELEMENT_BYTES = 2
WAIT_S = 120
GIB = 1 << 30
MODEL = "bench"


class Backend:
    """The backend of one configuration, and what both of them share."""

    name: str

    def __init__(self, folder: Path, chunks: int, chunk_bytes: int) -> None:
        head_size = chunk_bytes // (LAYERS * SIDES * TOKENS * HEADS * ELEMENT_BYTES)
        self.shape = torch.Size((SIDES, LAYERS, TOKENS, HEADS * head_size))
        self.chunk_bytes = chunk_bytes
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()
        pool_gib = 2 * chunks * chunk_bytes / GIB + 0.25
        config = LMCacheEngineConfig.from_defaults(
            chunk_size=TOKENS, local_cpu=False, max_local_cpu_size=pool_gib, **self.settings(folder)
        )
        metadata = LMCacheMetadata(
            model_name=MODEL,
            world_size=1,
            local_world_size=1,
            worker_id=0,
            local_worker_id=0,
            kv_dtype=torch.bfloat16,
            kv_shape=(LAYERS, SIDES, TOKENS, HEADS, head_size),
        )
        made = CreateStorageBackends(config, metadata, self.loop, dst_device="cpu")
        self.cpu = made["LocalCPUBackend"]
        self.backend: Any = next(backend for name, backend in made.items() if name.startswith(self.name))
        self.keys = [
            CacheEngineKey(model_name=MODEL, world_size=1, worker_id=0, chunk_hash=index + 1, dtype=torch.bfloat16)
            for index in range(chunks)
        ]
        self.objects: list[Any] = []

    def settings(self, folder: Path) -> dict[str, Any]:
        """Return the settings that choose the backend."""
        raise NotImplementedError

    def prepare(self, contents: Sequence[np.ndarray]) -> None:
        """Put the chunks where the engine would have put them: LMCache's own memory."""
        for content in contents:
            made = self.cpu.allocate(self.shape, torch.bfloat16, MemoryFormat.KV_2LTD)
            np.frombuffer(made.byte_array, dtype=np.uint8)[:] = content
            self.objects.append(made)

    def expect(self) -> None:
        """Nothing: the files are enough."""

    def load(self) -> list[np.ndarray | None]:
        """Load everything."""
        found = self.backend.batched_get_blocking(self.keys)
        return [None if one is None else np.frombuffer(one.byte_array, dtype=np.uint8) for one in found]

    def close(self) -> None:
        """End the backend, then the loop that it runs on."""
        self.backend.close()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()


class Disk(Backend):
    """``local_disk``: its index is only in memory, so a restarted LMCache finds nothing; it is told what there is."""

    name = "LocalDiskBackend"

    def settings(self, folder: Path) -> dict[str, Any]:
        """Return the settings that choose the backend."""
        return {"local_disk": str(folder), "max_local_disk_size": 64.0}

    def store(self) -> None:
        """Store everything."""
        left = len(self.keys)
        lock, done = threading.Lock(), threading.Event()

        def stored(key: object) -> None:
            nonlocal left
            del key
            with lock:
                left -= 1
                if not left:
                    done.set()

        for key, made in zip(self.keys, self.objects, strict=True):
            self.backend.submit_put_task(key, made, on_complete_callback=stored)
        if not done.wait(WAIT_S):
            raise TimeoutError(f"{left} chunks are not stored after {WAIT_S} s")

    def expect(self) -> None:
        """Make the index anew, as no restarted LMCache does."""
        for key in self.keys:
            self.backend.insert_key(key, self.chunk_bytes, self.shape, torch.bfloat16, MemoryFormat.KV_2LTD)


class Fs(Backend):
    """``fs://``: a file a chunk, which is looked for by its name."""

    name = "RemoteBackend"

    def settings(self, folder: Path) -> dict[str, Any]:
        """Return the settings that choose the backend."""
        return {"remote_url": f"fs://localhost:0{folder}", "remote_serde": "naive"}

    def store(self) -> None:
        """Store everything."""
        puts = [self.backend.submit_put_task(key, made) for key, made in zip(self.keys, self.objects, strict=True)]
        for put in puts:
            put.result(WAIT_S)
