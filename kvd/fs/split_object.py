"""From the tiers' view of an object to the structures of csrc/fuse/split.h."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, Final

from kvd.fs._split import ffi

if TYPE_CHECKING:
    from kvd.tier.plane import PlaneObject, Sums

_CRC_BYTES: Final = 4


def _sums_to_c(sums: Sums) -> tuple[Any, list[Any]]:
    """Return a ``struct kvd_split_sums *`` and what it points to."""
    pages = sum(count for _, count in sums.runs)
    if sums.crc and pages * _CRC_BYTES != len(sums.crc):
        raise ValueError(f"runs of {pages} pages have {len(sums.crc) // _CRC_BYTES} sums")
    c_runs = ffi.new("uint64_t[]", list(itertools.chain.from_iterable(sums.runs)))
    c_crc = ffi.from_buffer("uint32_t[]", sums.crc) if sums.crc else ffi.NULL
    c_sums = ffi.new(
        "struct kvd_split_sums *",
        {"page_bytes": sums.page_bytes, "n_runs": len(sums.runs), "runs": c_runs, "crc": c_crc},
    )
    return c_sums, [c_runs, c_crc]


def object_to_c(item: PlaneObject) -> tuple[Any, list[Any]]:
    """Return a ``struct kvd_split_object *`` and what has to outlive its use."""
    sums: Any = ffi.NULL
    alive: list[Any] = []
    if item.sums is not None:
        sums, alive = _sums_to_c(item.sums)
        alive.append(sums)
    parts: Any = ffi.NULL
    if item.part_fds:
        parts = ffi.new("int32_t[]", item.part_fds)
        alive.append(parts)
    devices: Any = ffi.NULL
    if item.devices:
        devices = ffi.new("uint32_t[]", item.devices)
        alive.append(devices)
    c_object = ffi.new(
        "struct kvd_split_object *",
        {
            "node": item.node,
            "mode": item.mode,
            "fd": item.fd,
            "backing_id": item.backing_id,
            "writable": item.writable,
            "limit_bytes": item.limit_bytes,
            "size_max_bytes": item.size_max_bytes,
            "sums": sums,
            "part_fds": parts,
            "n_parts": len(item.part_fds),
            "stripe_bytes": item.stripe_bytes,
            "devices": devices,
            "stream_address": item.stream_address,
            "gate_free_bytes": item.gate_free_bytes,
        },
    )
    return c_object, alive
