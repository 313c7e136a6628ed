"""SGLang: HiCacheFile, the file back end of its hierarchical cache."""

from __future__ import annotations

from typing import TYPE_CHECKING

import bare
import torch

bare.packages(
    "sglang",
    "sglang.srt",
    "sglang.srt.utils",
    "sglang.srt.mem_cache",
    "sglang.srt.mem_cache.storage",
    "sglang.srt.mem_cache.storage.file",
)
bare.module("sglang.srt.utils.common", human_readable_int=int)  # of sizes in its settings, which are not set

from sglang.srt.mem_cache.hicache_storage import HiCacheFile, HiCacheStorageConfig  # noqa: E402  only now

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import numpy as np


class Peer:
    """HiCacheFile in a folder."""

    def __init__(self, folder: Path, chunks: int, chunk_bytes: int) -> None:
        config = HiCacheStorageConfig(
            tp_rank=0,
            tp_size=1,
            pp_rank=0,
            pp_size=1,
            attn_cp_rank=0,
            attn_cp_size=1,
            is_mla_model=False,
            enable_storage_metrics=False,
            is_page_first_layout=True,
            model_name="bench",
        )
        self._store = HiCacheFile(config, str(folder))
        self._keys = [f"{index:064x}" for index in range(chunks)]
        self._chunk_bytes = chunk_bytes
        self._tensors: list[torch.Tensor] = []

    def prepare(self, contents: Sequence[np.ndarray]) -> None:
        """Take what will be stored."""
        self._tensors = [torch.from_numpy(content) for content in contents]

    def store(self) -> None:
        """Store everything."""
        if not self._store.batch_set(self._keys, self._tensors):
            raise OSError("HiCacheFile refused a chunk")

    def expect(self) -> None:
        """Have memory for all of it."""
        self._tensors = [torch.ones(self._chunk_bytes, dtype=torch.uint8) for _ in self._keys]

    def load(self) -> list[np.ndarray | None]:
        """Load everything."""
        found = self._store.batch_get(self._keys, self._tensors)
        return [None if one is None else one.numpy() for one in found]

    def close(self) -> None:
        """Nothing to end."""
