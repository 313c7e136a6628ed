"""kvd's own policy: the learnt Gittins index, in C (csrc/policy) because it costs a microsecond an object there.

docs/policy.md describes it; the interface is `kvd.policy.ageing.Policy`.
"""

from __future__ import annotations

import errno
import operator
import os
import struct
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from kvd.policy._policy import ffi, lib
from kvd.policy.ageing import Least, Victim

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvd.policy.ageing import Access, Below, Hint, Place, Seed

GHOST_S: Final = 1800.0
"""How long what is gone is remembered: a return after that is learnt as none."""
HALF_LIFE_REQUESTS: Final = 5000.0
"""Evidence counts half after so many requests."""
VICTIMS_AT_ONCE: Final = 4096
PREFETCH_MAX: Final = 4096
OUTPUT_TOKENS_MAX: Final = 2**32 - 1
_VICTIM: Final = struct.Struct("=QII")
_UNITS: Final = operator.attrgetter("units")
_made: Final = partial(tuple.__new__, Victim)
"""Half the time of `Victim._make`, which is Python; there are very many."""
_SEED: Final = struct.Struct("=QQdIBB2x")
"""`struct kvd_policy_victim` and `struct kvd_policy_seed`."""


class Gittins:
    """Keeps what has the most expected hits for each unit and second held; it learns that from what happens.

    Parameters
    ----------
    objects_max
        In tiers and remembered. Memory, 150 bytes an object, is taken as it is needed.
    ghost_s
        How long what is gone is remembered, in seconds.
    half_life_requests
        Evidence counts half after so many requests.

    Raises
    ------
    ValueError
        If a parameter is out of its range.
    MemoryError
        If the address space does not hold the tables.
    """

    def __init__(
        self, *, objects_max: int, ghost_s: float = GHOST_S, half_life_requests: float = HALF_LIFE_REQUESTS
    ) -> None:
        if not lib.KVD_POLICY_OBJECTS_MIN <= objects_max <= lib.KVD_POLICY_OBJECTS_MAX:
            raise ValueError(f"{objects_max} objects: {lib.KVD_POLICY_OBJECTS_MIN} to {lib.KVD_POLICY_OBJECTS_MAX}")
        config = ffi.new(
            "struct kvd_policy_config *",
            {"objects_max": objects_max, "ghost_s": ghost_s, "half_life": half_life_requests},
        )
        made = ffi.new("kvd_policy **")
        _check(lib.kvd_policy_init(config, made))
        self._policy: Any = ffi.gc(made[0], lib.kvd_policy_fini)
        self._request = ffi.new("struct kvd_policy_request *")
        self._least = ffi.new("struct kvd_policy_least *")
        self._victims = ffi.new("struct kvd_policy_victim[]", VICTIMS_AT_ONCE)
        self._view = ffi.buffer(self._victims)

    def __repr__(self) -> str:
        seen = self.statistics()
        ddr, nvme, gone = seen["objects"]
        return f"<Gittins {ddr} in DDR, {nvme} in NVMe, {gone} remembered, {seen['requests']} requests>"

    def statistics(self) -> dict[str, Any]:
        """Return counts: requests, hits of any place, objects by place, groups."""
        out = ffi.new("struct kvd_policy_statistics *")
        lib.kvd_policy_statistics(self._policy, out)
        return {"requests": out.requests, "hits": out.hits, "objects": list(out.objects), "groups": out.groups}

    def access(self, access: Access, /) -> None:
        """Learn from what the request found, and make it the latest of its objects."""
        request = self._request
        # Alive until the call returns.
        keys = ffi.new("uint64_t[]", access.keys)
        units = ffi.NULL if access.units is None else ffi.new("uint32_t[]", access.units)
        if access.units is not None and len(access.units) != len(access.keys):
            raise ValueError(f"{len(access.keys)} objects, units of {len(access.units)}")
        request.now_s = access.now_s
        request.keys = keys
        request.units = units
        request.count = len(access.keys)
        request.output_tokens = min(access.output_tokens, OUTPUT_TOKENS_MAX)
        request.below = access.parent is not None
        request.parent = access.parent or 0
        request.density = access.density
        request.partial = access.partial
        request.hint = access.hint
        _check(lib.kvd_policy_access(self._policy, request))

    def use(self, now_s: float, keys: Sequence[int], units: Sequence[int], /) -> None:
        """Learn from uses that somebody else has counted, by one call for all."""
        if len(units) != len(keys):
            raise ValueError(f"{len(keys)} objects, units of {len(units)}")
        told = ffi.new("uint64_t[]", keys), ffi.new("uint32_t[]", units)
        _check(lib.kvd_policy_use(self._policy, now_s, *told, len(keys)))

    def seed(self, now_s: float, seeds: Sequence[Seed], /) -> None:
        """Take note of what is there since before the start."""
        rows = bytearray(len(seeds) * _SEED.size)
        for at, (key, units, place, used_s, below) in enumerate(seeds):
            _SEED.pack_into(rows, at * _SEED.size, key, below or 0, used_s, units, place, below is not None)
        found = ffi.cast("struct kvd_policy_seed *", ffi.from_buffer(rows))
        _check(lib.kvd_policy_seed(self._policy, now_s, found, len(seeds)))

    def hint(self, key: int, hint: Hint, now_s: float, /) -> None:
        """Give the chain that ends at an object the class of such a hint; what is not known stays so."""
        result = lib.kvd_policy_hint(self._policy, key, hint, now_s)
        if result != -errno.ENOENT:
            _check(result)

    def hold(self, key: int, /) -> None:
        """Take note of a lease."""
        _check(lib.kvd_policy_hold(self._policy, key), key)

    def unhold(self, key: int, /) -> None:
        """Give back a lease."""
        _check(lib.kvd_policy_unhold(self._policy, key), key)

    def place(self, key: int, place: Place, /) -> None:
        """Take note of where an object is now."""
        _check(lib.kvd_policy_place(self._policy, key, place), key)

    def forget(self, key: int, /) -> None:
        """Take note that an object was deleted."""
        lib.kvd_policy_forget(self._policy, key)

    def place_of(self, key: int, /) -> int | None:
        """Return the `Place` of an object; None if it is not known."""
        place: int = lib.kvd_policy_tier_of(self._policy, key)
        return None if place == lib.KVD_POLICY_UNKNOWN else place

    def index(self, key: int, /) -> float | None:
        """Return the hits for each unit and second that are expected of an object; None if it is not known."""
        found: float = lib.kvd_policy_index(self._policy, key)
        return None if found < 0 else found

    def tick(self, now_s: float, steps_max: int, /) -> bool:
        """Let groups grow older."""
        return bool(lib.kvd_policy_tick(self._policy, now_s, steps_max))

    def victims(self, place: Place, need_units: int, below: Below | None = None, /) -> list[Victim]:
        """Choose those with the smallest index, the deepest of a chain first."""
        chosen: list[Victim] = []
        freed = 0
        room = 0 if below is None else max(0, below.room_units)
        while freed < need_units:
            count = lib.kvd_policy_victims(
                self._policy,
                place,
                need_units - freed,
                below is not None,
                room,
                0.0 if below is None else below.reuse_min,
                self._victims,
                VICTIMS_AT_ONCE,
            )
            if count == 0:
                break
            new = list(map(_made, _VICTIM.iter_unpack(self._view[: count * _VICTIM.size])))
            freed += sum(map(_UNITS, new))
            if room:
                room = max(0, room - sum(victim.units for victim in new if victim.to < lib.KVD_POLICY_GONE))
            chosen += new
        return chosen

    def least(self, place: Place, /) -> Least | None:
        """Tell of the candidate with the smallest index; while the plain order rules it has none."""
        if lib.kvd_policy_least(self._policy, place, self._least):
            return None
        return Least(self._least.index if self._least.index >= 0 else None, self._least.used_s)

    def prefetch(self, key: int, /) -> list[int]:
        """Return what of a chain is in NVMe and has a larger index than the least of DDR."""
        out = ffi.new("uint64_t[]", PREFETCH_MAX)
        return list(out[0 : lib.kvd_policy_prefetch(self._policy, key, out, PREFETCH_MAX)])

    def check(self) -> int:
        """Tell whether all lists agree: 0, or the first check that fails. For tests: it looks at everything."""
        return int(lib.kvd_policy_check(self._policy))


def _check(result: int, key: int | None = None) -> None:
    match -result:
        case 0:
            return
        case errno.EINVAL:
            raise ValueError("a request, hint or lease that makes no sense")
        case errno.ENOENT:
            raise KeyError(key)
        case errno.ENOMEM:
            raise MemoryError
        case number:
            raise OSError(number, os.strerror(number))
