"""kvd whose streamed promotions let the first pages through and go on when a file is gone.

Usage: gated_kvd.py GATE KVD ARGUMENT..., the rest as kvd itself is called.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import trio

from kvd.__main__ import main
from kvd.tier._stream import ffi, lib
from kvd.tier.mover import SUM_BYTES, Mover

if TYPE_CHECKING:
    from kvd.tier.movement import MoveResult

FIRST_PAGES = 16
POLL_S = 0.005

_promote = Mover.promote


async def _gated(self: Mover, **job: Any) -> MoveResult:
    address = job.get("stream_address", 0)
    if address and GATE.exists():
        head = {"runs": ((0, FIRST_PAGES),), "sums": job["sums"][: SUM_BYTES * FIRST_PAGES], "stream_address": 0}
        await _promote(self, **{**job, **head})
        lib.kvd_stream_mark(ffi.cast("struct kvd_stream *", address), 0, FIRST_PAGES)
        while GATE.exists():
            await trio.sleep(POLL_S)
    return await _promote(self, **job)


if __name__ == "__main__":
    GATE = Path(sys.argv[1])
    Mover.promote = _gated  # type: ignore[method-assign]
    del sys.argv[:2]
    sys.exit(main())
