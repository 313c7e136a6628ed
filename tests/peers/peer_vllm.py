"""vLLM: FileSystemTierManager, the file tier of its KV offloading."""

from __future__ import annotations

import mmap
import os
from types import SimpleNamespace
from typing import TYPE_CHECKING

import numpy as np

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

import bare
import vllm  # noqa: F401  the real one, before parts of it are replaced

bare.packages(
    "vllm.distributed.kv_transfer",
    "vllm.distributed.kv_transfer.kv_connector",
    "vllm.distributed.kv_transfer.kv_connector.v1",
    "vllm.distributed.kv_transfer.kv_connector.v1.offloading",
)

from vllm.v1.kv_offload.base import ReqContext, make_offload_key  # noqa: E402  only now
from vllm.v1.kv_offload.tiering.base import TransferJob  # noqa: E402  only now
from vllm.v1.kv_offload.tiering.fs.manager import FileSystemTierManager  # noqa: E402  only now

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

JOB_CHUNKS = 8
"""Of a request; jobs run beside each other."""


class Peer:
    """The file tier over a primary tier in anonymous memory, aligned as O_DIRECT wants it."""

    def __init__(self, folder: Path, chunks: int, chunk_bytes: int) -> None:
        self._memory = np.frombuffer(mmap.mmap(-1, chunks * chunk_bytes), dtype=np.uint8).reshape(chunks, chunk_bytes)
        self._memory[:] = 1
        parallel = SimpleNamespace(tp_size=1, pp_size=1, pcp_size=1, dcp_size=1, rank=0, is_parallelism_agnostic=True)
        config = SimpleNamespace(
            groups=[SimpleNamespace(tokens_per_block=256, layer_names=["layer"])],
            parallel=parallel,
            canonical_layout=False,
            replicated_layout=False,
            model=SimpleNamespace(name="bench", dtype="bfloat16"),
            cache=SimpleNamespace(tokens_per_hash=256),
        )
        spec = SimpleNamespace(config=config, blocks_per_chunk=1)
        self._tier = FileSystemTierManager(spec, memoryview(self._memory), "fs", str(folder))
        self._keys = [make_offload_key(index.to_bytes(32, "little"), 0) for index in range(chunks)]

    def _jobs(self, *, is_promotion: bool) -> list[TransferJob]:
        context = ReqContext(req_id="bench")
        return [
            TransferJob(
                job_id=number,
                keys=self._keys[start : start + JOB_CHUNKS],
                chunk_ids=np.arange(start, min(start + JOB_CHUNKS, len(self._keys))),
                is_promotion=is_promotion,
                req_context=context,
            )
            for number, start in enumerate(range(0, len(self._keys), JOB_CHUNKS))
        ]

    def _finish(self) -> bool:
        self._tier.drain_jobs()
        return all(result.success for result in self._tier.get_finished_jobs())

    def prepare(self, contents: Sequence[np.ndarray]) -> None:
        """Put the chunks where the engine would have put them: the primary tier."""
        for row, content in zip(self._memory, contents, strict=True):
            row[:] = content

    def store(self) -> None:
        """Store everything."""
        for job in self._jobs(is_promotion=False):
            self._tier.submit_store(job)
        if not self._finish():
            raise OSError("a store failed")

    def expect(self) -> None:
        """Nothing: the primary tier is there."""

    def load(self) -> list[np.ndarray | None]:
        """Load everything."""
        for job in self._jobs(is_promotion=True):
            self._tier.submit_load(job)
        return list(self._memory) if self._finish() else [None] * len(self._keys)

    def close(self) -> None:
        """End the threads."""
        self._tier.shutdown()
