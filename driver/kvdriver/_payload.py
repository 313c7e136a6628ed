"""The commands that carry a structure in their buffer: how it goes in, and what comes back in it."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final, TypedDict

from kvdriver.abi import (
    AGE_CURSOR,
    CMD_FLAGS_AGE_ADVANCE_MASK,
    CMD_FLAGS_TOUCH_DIRTY_MASK,
    CMD_FLAGS_TRANSLATE_LIST_MASK,
    COLD_RUN,
    COPY_RUN,
    RUN,
    TRANSFER,
    WINDOW,
    Op,
    Tier,
)
from kvdriver.commands import (
    AgeCursor,
    AgeScan,
    Command,
    Flush,
    Gather,
    PrefixInsert,
    PrefixMatch,
    PrefixRemove,
    Scatter,
    SessionTransition,
    Share,
    Touch,
    Transfer,
    TranslateList,
    Unshare,
    WindowAdvance,
)
from kvdriver.device import ColdRun, CopyRun, Run

if TYPE_CHECKING:
    from collections.abc import Callable

_WORD: Final = struct.Struct("<Q")
_WORD_BYTES: Final = _WORD.size
_TIERS: Final = tuple(Tier)


class Found(TypedDict, total=False):
    """What a completion gets from the buffer of its command."""

    runs: tuple[Run, ...]
    copies: tuple[CopyRun, ...]
    cold: tuple[ColdRun, ...]
    entries: tuple[int, ...]
    cursor: AgeCursor


def buffer_bytes(command: Command) -> int | None:
    """Return how long the buffer of a command must be; None for a command that is not of this module."""
    size = _SIZES.get(type(command))
    return None if size is None else size(command)


def write(command: Command, view: Any, at: int) -> None:
    """Put what goes in with a command into its buffer, which begins at `at`."""
    match command:
        case WindowAdvance():
            shape = (command.base, command.plane_bytes, command.planes, command.token_bytes)
            WINDOW.pack_into(view, at, *shape, command.tokens, command.window_tokens, command.sink_tokens)
        case AgeScan(cursor=cursor):
            AGE_CURSOR.pack_into(
                view, at, cursor.session, cursor.page, cursor.slot, int(cursor.done), cursor.generation
            )
        case Gather(transfer=transfer) | Scatter(transfer=transfer):
            _write_transfer(transfer, view, at)
        case TranslateList():
            for number, page in enumerate(command.pages):
                _WORD.pack_into(view, at + number * _WORD_BYTES, page)
        case PrefixInsert() | PrefixMatch() | PrefixRemove():
            _hash_bytes(command)
            joined = b"".join(command.hashes)
            view[at : at + len(joined)] = joined
        case _:
            pass


def _write_transfer(transfer: Transfer, view: Any, at: int) -> None:
    TRANSFER.pack_into(
        view,
        at,
        transfer.host,
        transfer.host_bytes,
        transfer.scales,
        transfer.scales_bytes,
        transfer.page_offset,
        transfer.tokens,
        transfer.channels,
        transfer.host_format,
        transfer.page_format,
        transfer.scaling,
        0,
    )


def _hash_bytes(command: PrefixInsert | PrefixMatch | PrefixRemove) -> int:
    """Return the length that all hashes of a command have."""
    lengths = {len(one) for one in command.hashes}
    if len(lengths) > 1:
        raise ValueError(f"hashes of one chain have one length, not {sorted(lengths)}")
    return lengths.pop() if lengths else _WORD_BYTES


def read(command: Command, view: Any, at: int, value: int) -> Found:
    """Return what a command that was executed has put into its buffer."""
    match command:
        case Unshare():
            return {"copies": tuple(_copies(view, at, value))}
        case WindowAdvance():
            return {"runs": runs(view, at + WINDOW.size, value)}
        case AgeScan():
            session, page, slot, done, generation = AGE_CURSOR.unpack_from(view, at)
            cursor = AgeCursor(session=session, page=page, slot=slot, done=bool(done), generation=generation)
            return {"cursor": cursor, "cold": tuple(_cold(view, at + AGE_CURSOR.size, value))}
        case TranslateList():
            packed = memoryview(view)[at : at + len(command.pages) * _WORD_BYTES]
            return {"entries": tuple(entry for (entry,) in _WORD.iter_unpack(packed))}
        case _:
            return {}


def runs(view: Any, at: int, count: int) -> tuple[Run, ...]:
    """Return the runs that lie in memory from `at` on."""
    packed = memoryview(view)[at : at + count * RUN.size]
    return tuple(
        Run(first_page=page, count=pages, first_frame=frame, tier=_TIERS[tier], blocks=blocks)
        for page, pages, frame, tier, blocks in RUN.iter_unpack(packed)
    )


def _copies(view: Any, at: int, count: int) -> list[CopyRun]:
    packed = memoryview(view)[at : at + count * COPY_RUN.size]
    return [
        CopyRun(first_page=page, count=pages, old_frame=old, new_frame=new, tier=_TIERS[tier], blocks=blocks)
        for page, pages, old, new, tier, blocks in COPY_RUN.iter_unpack(packed)
    ]


def _cold(view: Any, at: int, count: int) -> list[ColdRun]:
    packed = memoryview(view)[at : at + count * COLD_RUN.size]
    return [
        ColdRun(session=session, first_page=page, count=pages, first_frame=frame, tier=_TIERS[tier], slot=slot, age=age)
        for session, page, pages, frame, tier, slot, age in COLD_RUN.iter_unpack(packed)
    ]


def _share_fields(command: Share) -> tuple[int, ...]:
    place = (command.session, command.slot, command.source_slot, 0)
    return (Op.SHARE, 0, *place, command.first_page, command.count, command.source)


def _touch_fields(command: Touch) -> tuple[int, ...]:
    flags = CMD_FLAGS_TOUCH_DIRTY_MASK if command.dirty else 0
    return (Op.TOUCH, flags, command.session, command.slot, 0, 0, command.first_page, command.count, 0)


def _age_fields(command: AgeScan) -> tuple[int, ...]:
    flags = CMD_FLAGS_AGE_ADVANCE_MASK if command.advance else 0
    return (Op.AGE_SCAN, flags, 0, command.least_age, 0, command.tier, 0, command.count, 0)


def _range_fields(op: Op) -> Callable[[Any], tuple[int, ...]]:
    return lambda c: (op, 0, c.session, c.slot, 0, 0, c.first_page, c.count, 0)


def _prefix_fields(op: Op, command: Any, session: int, first: int) -> tuple[int, ...]:
    return (op, 0, session, _hash_bytes(command), 0, 0, first, len(command.hashes), command.namespace)


def _hashes_size(command: PrefixInsert | PrefixMatch | PrefixRemove) -> int:
    used = sum(map(len, command.hashes))
    return (used + _WORD_BYTES - 1) // _WORD_BYTES * _WORD_BYTES


# A negative room is none.
_SIZES: Final[dict[type[Command], Callable[[Any], int]]] = {
    Unshare: lambda c: max(c.copies_max, 0) * COPY_RUN.size,
    WindowAdvance: lambda c: WINDOW.size + max(c.runs_max, 0) * RUN.size,
    AgeScan: lambda c: AGE_CURSOR.size + max(c.runs_max, 0) * COLD_RUN.size,
    Gather: lambda _: TRANSFER.size,
    Scatter: lambda _: TRANSFER.size,
    TranslateList: lambda c: len(c.pages) * _WORD_BYTES,
    PrefixInsert: _hashes_size,
    PrefixMatch: _hashes_size,
    PrefixRemove: _hashes_size,
}

# The fields of a command from `op` to `key`: op, flags, session, slot, other slot, tier, first page, count, key.
FIELDS: Final[dict[type[Command], Callable[[Any], tuple[int, ...]]]] = {
    SessionTransition: lambda c: (Op.SESSION_TRANSITION, 0, c.session, 0, 0, 0, 0, 0, c.event),
    Share: _share_fields,
    Unshare: _range_fields(Op.UNSHARE),
    WindowAdvance: lambda c: (Op.WINDOW_ADVANCE, 0, c.session, c.slot, 0, 0, 0, 0, 0),
    Touch: _touch_fields,
    AgeScan: _age_fields,
    Gather: _range_fields(Op.GATHER),
    Scatter: _range_fields(Op.SCATTER),
    PrefixInsert: lambda c: _prefix_fields(Op.PREFIX_INSERT, c, c.session, c.first),
    PrefixMatch: lambda c: _prefix_fields(Op.PREFIX_MATCH, c, 0, c.first),
    PrefixRemove: lambda c: _prefix_fields(Op.PREFIX_REMOVE, c, c.session, c.first),
    Flush: lambda _: (Op.FLUSH, 0, 0, 0, 0, 0, 0, 0, 0),
    TranslateList: lambda c: (
        Op.TRANSLATE, CMD_FLAGS_TRANSLATE_LIST_MASK, c.session, c.slot, 0, 0, 0, len(c.pages), 0,
    ),
}  # fmt: skip
