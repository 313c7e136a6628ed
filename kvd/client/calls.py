"""Questions to the clients' socket and what their answers mean; no I/O, so that both clients have the same."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

API_VERSION: Final = 1
DEFAULT_SOCKET: Final = Path("/run/kvd/kvd.client")
PACKET_BYTES_MAX: Final = 128 << 10
"""Of a question, as of an answer."""
NAMES_MAX: Final = 4096
"""Names in one question."""
ANSWER_S_MAX: Final = 60.0
"""A daemon that says nothing for so long hangs."""
FORK_S_MAX: Final = 600.0
"""The same while it forks a session, whose bytes it may have to copy."""

T = TypeVar("T")


class ClientError(Exception):
    """The daemon says no, or is not there; `code` is an errno's name, such as ``EBUSY``."""

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """A question, what makes a value of its answer, and how long that may take, in seconds."""

    packet: bytes
    parse: Callable[[dict[str, Any]], T]
    wait_s: float = ANSWER_S_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A session, as `kvd.api.sessions.SessionEntry` describes it; times in seconds."""

    path: str
    ino: int
    kind: str
    state: str
    since_s: float | None
    open_objects: int
    leases: int
    pin: str
    pin_until_s: float
    ttl_s: float
    refresh: bool
    expires_s: float
    priority: int
    window: int
    sink: int


_KNOWN = frozenset(field.name for field in fields(Entry))


def socket_path(given: str | os.PathLike[str] | None) -> str:
    """Return where the clients' socket is: what is given, ``$KVD_CLIENT``, or the usual place."""
    return os.fspath(given or os.environ.get("KVD_CLIENT") or DEFAULT_SOCKET)


def hello() -> Call[str]:
    """Ask where the mount is."""

    def parse(found: dict[str, Any]) -> str:
        if found["api"] != API_VERSION:
            raise ClientError(f"the daemon speaks version {found['api']} of the API, not {API_VERSION}", "EPROTO")
        return str(found["mount"])

    return Call(_packet(op="hello"), parse)


def session(path: str) -> Call[Entry]:
    """Ask how a session is."""
    return Call(_packet(op="session", path=path), _entry)


def ask(op: str, path: str) -> Call[str]:
    """Ask release, resume or prefetch of a session; the answer is its state."""
    return Call(_packet(op=op, path=path), lambda found: str(found["state"]))


def ttl(path: str, ttl_s: float, *, refresh: bool) -> Call[float]:
    """Give a time to live; the answer is when it ends, in seconds since 1970."""
    return Call(_packet(op="ttl", path=path, ttl_s=ttl_s, refresh=refresh), lambda found: float(found["expires_s"]))


def pin(path: str, kind: str, for_s: float) -> Call[int]:
    """Pin or unpin; the answer is how many objects changed."""
    return Call(_packet(op="pin", path=path, pin=kind, for_s=for_s), lambda found: int(found["changed"]))


def fork(path: str, new_path: str, until: str | int | None, tokens: int | None, bytes_per_token: int) -> Call[Entry]:
    """Make a session of another, up to a block by name, to so many blocks, bytes or tokens; the answer is the new one."""
    question: dict[str, Any] = {"path": path, "new_path": new_path}
    if until is not None:
        question["until" if isinstance(until, str) else "count"] = until
    if tokens is not None:
        question |= {"tokens": tokens, "bytes_per_token": bytes_per_token}
    return Call(_packet(op="fork", **question), _entry, wait_s=FORK_S_MAX)


def close(path: str) -> Call[None]:
    """End a session."""
    return Call(_packet(op="close", path=path), lambda _found: None)


def lease(path: str, for_s: float) -> Call[int]:
    """Ask for a lease; the answer is its number."""
    return Call(_packet(op="lease", path=path, for_s=for_s), lambda found: int(found["lease"]))


def renew(number: int, for_s: float) -> Call[int]:
    """Put a lease's end off."""
    return Call(_packet(op="renew", lease=number, for_s=for_s), lambda found: int(found["lease"]))


def end(number: int) -> Call[None]:
    """Give a lease back."""
    return Call(_packet(op="end", lease=number), lambda _found: None)


def exists(paths: Sequence[str]) -> Call[list[bool]]:
    """Ask which names there are, of up to `NAMES_MAX`."""
    return Call(_packet(op="exists", names=list(paths)), lambda found: [each == "1" for each in found["there"]])


def match_prefix(folder: str, names: Sequence[str]) -> Call[int]:
    """Ask how many of these names there are in a directory, up to the first that is not; of up to `NAMES_MAX`."""
    return Call(_packet(op="match_prefix", path=folder, names=list(names)), lambda found: int(found["matched"]))


def batches(names: Sequence[str]) -> list[Sequence[str]]:
    """Split names so that each part fits into one question."""
    parts: list[Sequence[str]] = []
    at = 0
    while at < len(names):
        size, count = 0, 0
        while at + count < len(names) and count < NAMES_MAX:
            size += len(json.dumps(names[at + count])) + 2
            if count and size > PACKET_BYTES_MAX // 2:
                break
            count += 1
        parts.append(names[at : at + count])
        at += count
    return parts


def answer_of(call: Call[T], packet: bytes) -> T:
    """Return what an answer means.

    Raises
    ------
    ClientError
        The daemon says no, went away, or is something else.
    """
    if not packet:
        raise ClientError("the daemon went away; what is done stays done", "NO_DAEMON")
    try:
        found = json.loads(packet)
        failure = found.get("error")
        if isinstance(failure, dict):
            raise ClientError(str(failure["message"]), str(failure["code"]))
        return call.parse(found)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ClientError("what answers is not kvd", "EPROTO") from error


def _entry(found: dict[str, Any]) -> Entry:
    return Entry(**{key: value for key, value in found.items() if key in _KNOWN})


def _packet(**question: Any) -> bytes:
    packet = json.dumps(question).encode("ascii")
    if len(packet) > PACKET_BYTES_MAX:
        raise ClientError(f"the question has {len(packet)} bytes; {PACKET_BYTES_MAX} are allowed", "EMSGSIZE")
    return packet
