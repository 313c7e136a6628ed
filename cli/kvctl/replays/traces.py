"""Readers of traces: a request a step, in the order of time, whatever the trace holds.

Two formats: Mooncake's (a JSON object a line: `timestamp` in ms, `input_length`, `output_length` in tokens, `hash_ids` of the prefix
blocks) and agent sessions (a JSON file a session: `block_size`, `requests` with `t` in s, `in`, `out`, `hash_ids` that mean
something in that session only; sub-agents are requests with `requests` of their own). Sessions of a folder are merged by time.

A trace that breaks its format is a `TraceError` that names the file and the line or the request.
"""

from __future__ import annotations

import heapq
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from kvctl.exits import CtlError, Exit

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MOONCAKE_BLOCK_TOKENS: Final = 512
MOONCAKE_SUFFIX: Final = ".jsonl"
SESSION_SUFFIX: Final = ".json"
LINE_BYTES_MAX: Final = 16 << 20
SESSION_BYTES_MAX: Final = 256 << 20
SESSIONS_MAX: Final = 1 << 16
SESSION_SHIFT: Final = 40
"""A session's own block ids are below this power of two; its number stands above."""
BLOCKS_MAX: Final = 1 << 20
"""Of one request."""
TOKENS_MAX: Final = 1 << 40
TIME_S_MAX: Final = 1e12
MS_PER_S: Final = 1000
DEPTH_MAX: Final = 16
"""Of sub-agents within sub-agents."""


class TraceError(CtlError):
    """A trace can't be read, or breaks its format."""

    def __init__(self, message: str) -> None:
        super().__init__(message, Exit.DAMAGED, "EBADMSG")


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Request:
    """One request of a trace.

    Attributes
    ----------
    now_s
        When it came, in seconds from the trace's beginning.
    session
        Which file it is from.
    blocks
        Names of its prefix blocks from the root on, each once.
    input_tokens, output_tokens
        Lengths of prompt and answer.
    block_tokens
        Tokens of a full block.
    """

    now_s: float
    session: int = 0
    blocks: tuple[int, ...] = field(compare=False)
    input_tokens: int = field(compare=False)
    output_tokens: int = field(compare=False)
    block_tokens: int = field(compare=False)

    @property
    def partial(self) -> bool:
        """The last block is not full."""
        return self.input_tokens < len(self.blocks) * self.block_tokens


def read(path: Path) -> Iterator[Request]:
    """Yield a trace's requests.

    Parameters
    ----------
    path
        A file of Mooncake's format, one of an agent session, or a folder of such.

    Raises
    ------
    TraceError
        When the reader comes to what is wrong.
    """
    if path.is_dir():
        files = sorted(path.glob(f"*{SESSION_SUFFIX}"))
        if not files or len(files) > SESSIONS_MAX:
            raise TraceError(f"{path}: {len(files)} files of sessions (*{SESSION_SUFFIX}); 1 to {SESSIONS_MAX} can be")
        yield from heapq.merge(*(session(file, number) for number, file in enumerate(files)))
    elif path.suffix == SESSION_SUFFIX:
        yield from session(path)
    else:
        yield from mooncake(path)


def mooncake(path: Path) -> Iterator[Request]:
    """Yield the requests of a file with one JSON object a line."""
    last_s = 0.0
    try:
        with path.open("rb") as lines:
            number = 0
            while line := lines.readline(LINE_BYTES_MAX + 1):
                number += 1
                where = f"{path}, line {number}"
                if len(line) > LINE_BYTES_MAX:
                    raise TraceError(f"{where}: longer than {LINE_BYTES_MAX} bytes")
                if not line.strip():
                    continue
                found = _object(_parse(line, where), where)
                now_s = _number(found, "timestamp", where) / MS_PER_S
                if now_s < last_s:
                    raise TraceError(f"{where}: timestamp {now_s * MS_PER_S:g} is before the one above it")
                last_s = now_s
                yield Request(
                    now_s=now_s,
                    blocks=_blocks(found, where, 0),
                    input_tokens=_tokens(found, "input_length", where),
                    output_tokens=_tokens(found, "output_length", where),
                    block_tokens=MOONCAKE_BLOCK_TOKENS,
                )
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror}") from error


def session(path: Path, number: int = 0) -> Iterator[Request]:
    """Yield the requests of a file with an agent session, those of its sub-agents among them."""
    try:
        with path.open("rb") as file:
            text = file.read(SESSION_BYTES_MAX + 1)
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror}") from error
    if len(text) > SESSION_BYTES_MAX:
        raise TraceError(f"{path}: larger than {SESSION_BYTES_MAX} bytes")
    found = _object(_parse(text, str(path)), str(path))
    block_tokens = _tokens(found, "block_size", str(path))
    if block_tokens == 0:
        raise TraceError(f"{path}: block_size is 0")
    yield from sorted(_requests(found, str(path), number, block_tokens, DEPTH_MAX))


def _requests(found: dict[str, Any], where: str, number: int, block_tokens: int, depth: int) -> Iterator[Request]:
    requests = found.get("requests")
    if not isinstance(requests, list):
        raise TraceError(f"{where}: requests is no list")
    if depth == 0:
        raise TraceError(f"{where}: sub-agents are more than {DEPTH_MAX} deep")
    for index, each in enumerate(requests):
        at = f"{where}, request {index}"
        request = _object(each, at)
        if "requests" in request:
            yield from _requests(request, at, number, block_tokens, depth - 1)
        if "hash_ids" in request:
            yield Request(
                now_s=_number(request, "t", at),
                session=number,
                blocks=_blocks(request, at, number),
                input_tokens=_tokens(request, "in", at),
                output_tokens=_tokens(request, "out", at),
                block_tokens=block_tokens,
            )
        elif "requests" not in request:
            raise TraceError(f"{at}: hash_ids is missing")


def _parse(text: bytes, where: str) -> object:
    try:
        found: object = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise TraceError(f"{where}: no JSON: {error}") from error
    return found


def _object(found: object, where: str) -> dict[str, Any]:
    if not isinstance(found, dict):
        raise TraceError(f"{where}: no JSON object")
    return found


def _number(found: dict[str, Any], key: str, where: str) -> float:
    value = found.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= TIME_S_MAX:
        raise TraceError(f"{where}: {key} is no number from 0 to {TIME_S_MAX:g}")
    return value


def _tokens(found: dict[str, Any], key: str, where: str) -> int:
    value = found.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= TOKENS_MAX:
        raise TraceError(f"{where}: {key} is no count of tokens from 0 to {TOKENS_MAX}")
    return value


def _blocks(found: dict[str, Any], where: str, number: int) -> tuple[int, ...]:
    ids = found.get("hash_ids")
    if not isinstance(ids, list) or len(ids) > BLOCKS_MAX:
        raise TraceError(f"{where}: hash_ids is no list of at most {BLOCKS_MAX} block ids")
    for each in ids:
        if type(each) is not int or not 0 <= each < 1 << SESSION_SHIFT:
            raise TraceError(f"{where}: {str(each)[:32]} is no block id from 0 to {(1 << SESSION_SHIFT) - 1}")
    base = number << SESSION_SHIFT
    return tuple(base | each for each in dict.fromkeys(ids))
