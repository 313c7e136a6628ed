"""Damages the engine's tables, as a card that fails might."""

from __future__ import annotations

import mmap
from typing import TYPE_CHECKING

import numpy as np

from kvdriver import abi

if TYPE_CHECKING:
    from kvdriver import Run
    from kvdriver.memory import FileMemory

NONSENSE_TIER = 7


def damage(memory: FileMemory, run: Run, *, page: int) -> None:
    """Make the entry of one page of a run, which nobody has touched yet, name a tier that there is not."""
    frame = run.first_frame + page - run.first_page
    entry = abi.PTE_VALID_MASK | run.tier << abi.PTE_TIER_SHIFT | (run.blocks - 1) << abi.PTE_BLOCKS_SHIFT
    entry |= frame << abi.PTE_FRAME_SHIFT
    with mmap.mmap(memory.fd, memory.bytes) as mapping:
        words = np.frombuffer(mapping, dtype=np.uint64)
        (found,) = np.nonzero(words == np.uint64(entry))
        places = [int(place) for place in found]
        if len(places) == 1:
            words[places[0]] |= np.uint64(NONSENSE_TIER << abi.PTE_TIER_SHIFT)
        del words
    assert len(places) == 1, f"{len(places)} words look like the entry {entry:#x}"
