"""Commands and completions as the engine's structures.

A batch is packed with `struct`, by the layouts of `kvdriver.abi`, which is several times faster than setting each field
through cffi.
"""

from __future__ import annotations

import itertools
import struct
from typing import TYPE_CHECKING, Any, Final

from kvdriver import _payload
from kvdriver._engine import ffi, lib
from kvdriver.abi import (
    CMD,
    CMD_FLAGS_MAP_RESERVED_MASK,
    CMD_FLAGS_REMAP_KEEP_MASK,
    CMD_FLAGS_REMAP_TAKE_MASK,
    CPL,
    MAP_RUN,
    RUN,
    SESSION_INFO,
    TIER_INFO,
    Op,
    State,
    Status,
    Tier,
)
from kvdriver.bulk import Bulk
from kvdriver.commands import (
    Command,
    Lease,
    Map,
    QuerySession,
    QueryTier,
    Remap,
    Reserve,
    Resize,
    SessionCreate,
    SessionDestroy,
    Translate,
    Unmap,
)
from kvdriver.device import Completion, SessionInfo, TierInfo

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_U64_MASK: Final = (1 << 64) - 1
_I64_LIMIT: Final = 1 << 63

TRANSLATE_RUNS: Final = 64
"""Runs that a TRANSLATE has room for at first; it asks again with the room it needs."""


_BOOKS: Final = 3
"""Arrays by tier in a session's info."""

_INFO_BYTES: Final[dict[type[Command], int]] = {QueryTier: TIER_INFO.size, QuerySession: SESSION_INFO.size}
_TIERS: Final = tuple(Tier)
_STATUSES: Final = tuple(Status)
_STATES: Final = tuple(State)


class Batch:
    """A batch of commands, packed, with the memory that they read and write.

    Parameters
    ----------
    commands
        What to pack.
    translate_runs
        How many runs each TRANSLATE has room for.
    memory
        Zeroed memory for the buffers, `buffers_bytes` long, and its address as the device has it; of this process's
        own where it is not given.

    Raises
    ------
    ValueError
        If a number does not fit its field.
    """

    __slots__ = ("_completions", "_data", "_data_view", "_offsets", "_request", "_request_view", "commands")

    def __init__(
        self,
        commands: Sequence[Command],
        *,
        translate_runs: int = TRANSLATE_RUNS,
        memory: tuple[memoryview, int] | None = None,
    ) -> None:
        self.commands = commands
        sizes = [] if isinstance(commands, Bulk) else [_buffer_bytes(command, translate_runs) for command in commands]
        *self._offsets, used = itertools.accumulate(sizes, initial=0)
        if isinstance(commands, Bulk):
            used = commands.buffers_bytes
        if memory is None:
            # Every structure is a multiple of 8 bytes, so in memory made of such words each is aligned.
            self._data = ffi.new("uint64_t[]", used // 8)
            self._data_view = ffi.buffer(self._data)
            address = int(ffi.cast("uintptr_t", self._data))
        else:
            self._data = None
            self._data_view, address = memory
        self._request = ffi.new("struct kvd_abi_cmd[]", len(commands))
        self._request_view = ffi.buffer(self._request)
        self._completions = ffi.new("struct kvd_abi_cpl[]", len(commands))
        try:
            if isinstance(commands, Bulk):
                commands.pack(self._request_view, self._data_view, address)
                return
            for number, (command, offset, size) in enumerate(zip(commands, self._offsets, sizes, strict=True)):
                self._pack(number, command, address, offset, size)
        except struct.error as error:
            raise ValueError(f"a number does not fit its field: {error}") from error

    def _pack(self, number: int, command: Command, address: int, offset: int, size: int) -> None:
        if type(command) is Map:
            for at, run in zip(range(offset, offset + size, MAP_RUN.size), command.runs, strict=True):
                MAP_RUN.pack_into(self._data_view, at, run.first_page, run.count, run.blocks, 0)
        elif size:
            _payload.write(command, self._data_view, offset)
        buffer = address + offset if size else 0
        CMD.pack_into(self._request_view, number * CMD.size, number, *_FIELDS[type(command)](command), buffer, size)

    def read(self, engine: Any) -> None:
        """Let the engine answer each command from the tables, which it leaves as they are."""
        for number in range(len(self.commands)):
            lib.kvd_engine_read(engine, self._request + number, self._completions + number)

    @property
    def addresses(self) -> tuple[int, int]:
        """Where the commands and the completions are, for another library."""
        return int(ffi.cast("uintptr_t", self._request)), int(ffi.cast("uintptr_t", self._completions))

    def put(self, number: int, completion: Any) -> None:
        """Set the completion of a command to a `struct kvd_abi_cpl`."""
        self._completions[number] = completion

    def submit(self, engine: Any) -> None:
        """Let the engine execute the batch: one call."""
        lib.kvd_engine_submit(engine, self._request, self._completions, len(self.commands))

    def completions(self, count: int | None = None) -> list[Completion]:
        """Return how each command ended, or the first `count` of them, in order."""
        ended = itertools.islice(CPL.iter_unpack(ffi.buffer(self._completions)), count)
        if isinstance(self.commands, Bulk):
            return [
                Completion(status=_STATUSES[status], value=value, second=second)
                for _, status, _, value, second, *_ in ended
            ]
        return [
            self._completion(command, offset, status, value, second)
            for command, offset, (_, status, _, value, second, *_) in zip(
                self.commands, self._offsets, ended, strict=False
            )
        ]

    def _completion(self, command: Command, offset: int, status: int, value: int, second: int) -> Completion:
        if status == Status.OK:
            if type(command) is Translate:
                return Completion(status=Status.OK, value=value, runs=_payload.runs(self._data_view, offset, value))
            if type(command) is QueryTier:
                return Completion(status=Status.OK, tier=self._tier_info(offset))
            if type(command) is QuerySession:
                return Completion(status=Status.OK, session=self._session_info(offset))
            found = _payload.read(command, self._data_view, offset, value)
            return Completion(status=Status.OK, value=value, second=second, **found)
        return Completion(status=_STATUSES[status], value=value, second=second)

    def _tier_info(self, offset: int) -> TierInfo:
        capacity, used, reserved, used_frames, total_frames = TIER_INFO.unpack_from(self._data_view, offset)
        return TierInfo(
            capacity_blocks=capacity,
            used_blocks=used,
            reserved_blocks=reserved,
            used_frames=used_frames,
            total_frames=total_frames,
        )

    def _session_info(self, offset: int) -> SessionInfo:
        key, leases, *words = SESSION_INFO.unpack_from(self._data_view, offset)
        many = len(_TIERS)
        state, _, *window_start = words[_BOOKS * many :]
        pages, blocks, reserved = (
            dict(zip(_TIERS[1:], words[at + 1 : at + many], strict=True)) for at in range(0, _BOOKS * many, many)
        )
        return SessionInfo(
            key=key,
            leases=leases,
            mapped_pages=pages,
            mapped_blocks=blocks,
            reserved_blocks=reserved,
            state=_STATES[state],
            window_start=tuple(window_start),
        )


def buffers_bytes(commands: Sequence[Command], *, translate_runs: int = TRANSLATE_RUNS) -> int:
    """Return how much memory the buffers of a batch take."""
    if isinstance(commands, Bulk):
        return commands.buffers_bytes
    return sum(_buffer_bytes(command, translate_runs) for command in commands)


def _buffer_bytes(command: Command, translate_runs: int) -> int:
    if type(command) is Translate:
        return min(max(command.count, 0), translate_runs) * RUN.size
    if type(command) is Map:
        return len(command.runs) * MAP_RUN.size
    known = _payload.buffer_bytes(command)
    return _INFO_BYTES.get(type(command), 0) if known is None else known


def _map_fields(command: Map) -> tuple[int, ...]:
    flags = CMD_FLAGS_MAP_RESERVED_MASK if command.reserved else 0
    return (Op.MAP, flags, command.session, command.slot, 0, command.tier, 0, len(command.runs), 0)


def _remap_fields(command: Remap) -> tuple[int, ...]:
    flags = CMD_FLAGS_MAP_RESERVED_MASK if command.reserved else 0
    flags |= CMD_FLAGS_REMAP_KEEP_MASK if command.keep else 0
    flags |= CMD_FLAGS_REMAP_TAKE_MASK if command.take else 0
    place = (command.session, command.slot, command.other_slot, command.tier)
    return (Op.REMAP, flags, *place, command.first_page, command.count, 0)


def _lease_fields(command: Lease) -> tuple[int, ...]:
    if not -_I64_LIMIT <= command.delta < _I64_LIMIT:
        raise ValueError(f"lease delta {command.delta} does not fit its field")
    return (Op.LEASE, 0, command.session, 0, 0, 0, 0, command.delta & _U64_MASK, 0)


# The fields of a command from `op` to `key`: op, flags, session, slot, other slot, tier, first page, count, key.
_FIELDS: Final[dict[type[Command], Callable[[Any], tuple[int, ...]]]] = {
    SessionCreate: lambda c: (Op.SESSION_CREATE, 0, 0, 0, 0, 0, 0, 0, c.key),
    SessionDestroy: lambda c: (Op.SESSION_DESTROY, 0, c.session, 0, 0, 0, 0, 0, 0),
    Lease: _lease_fields,
    Reserve: lambda c: (Op.RESERVE, 0, c.session, 0, 0, c.tier, 0, c.blocks, 0),
    Map: _map_fields,
    Unmap: lambda c: (Op.UNMAP, 0, c.session, c.slot, 0, 0, c.first_page, c.count, 0),
    Translate: lambda c: (Op.TRANSLATE, 0, c.session, c.slot, 0, 0, c.first_page, c.count, 0),
    Remap: _remap_fields,
    QueryTier: lambda c: (Op.QUERY_TIER, 0, 0, 0, 0, c.tier, 0, 0, 0),
    QuerySession: lambda c: (Op.QUERY_SESSION, 0, c.session, 0, 0, 0, 0, 0, 0),
    Resize: lambda c: (Op.RESIZE, 0, 0, 0, 0, c.tier, 0, c.blocks, 0),
    **_payload.FIELDS,
}
