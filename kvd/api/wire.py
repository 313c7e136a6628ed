r"""Bytes in, bytes out: names, JSON and errors as they travel.

A name is bytes in the daemon and need not be UTF-8. In JSON it is a string in which a byte that is not UTF-8 stands as
a lone surrogate (PEP 383), written ``\udcXX``; in a query it is percent-encoded bytes, where ``+`` is a plus.
"""

from __future__ import annotations

import dataclasses
import errno
import json
from typing import TYPE_CHECKING, Final, NoReturn, TypeVar
from urllib.parse import unquote_to_bytes

import msgspec
from starlette.requests import ClientDisconnect

from kvd.api.shapes import ErrorBody, Failure
from kvd.errors import DamagedError, KvdError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance
    from starlette.requests import Request

Shape = TypeVar("Shape", bound="DataclassInstance")

BODY_BYTES_MAX: Final = 1 << 20
PATHS_MAX: Final = 16384
PATH_BYTES_MAX: Final = 4096

_HTTP_STATUS: Final = {
    errno.ENOENT: 404,
    errno.EBUSY: 409,
    errno.EEXIST: 409,
    errno.ENOTEMPTY: 409,
    errno.EKEYREJECTED: 409,
    errno.EMSGSIZE: 413,
    errno.ENOSPC: 507,
    errno.EINVAL: 400,
    errno.ENXIO: 503,
    errno.EAGAIN: 503,
    errno.EOPNOTSUPP: 400,
}
HTTP_INTERNAL: Final = 500

INTERNAL: Final = "INTERNAL"
"""Code of a fault of the daemon itself."""

FAILED: Final = "FAILED"
"""Code of an operator's problem that no errno names."""


class BadRequestError(KvdError):
    """The client asked for something that makes no sense."""

    errno = errno.EINVAL


class TooLargeError(KvdError):
    """The body is larger than any request needs."""

    errno = errno.EMSGSIZE


class TooManyError(KvdError):
    """As many operations run as may."""

    errno = errno.EAGAIN


def to_str(name: bytes) -> str:
    """Write a name as JSON carries it."""
    return name.decode("utf-8", "surrogateescape")


def _name_default(value: object) -> str:
    if isinstance(value, bytes):
        return to_str(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")


def dump(value: object) -> bytes:
    """Encode a dataclass of the API as one line of ASCII JSON, without the newline."""
    plain = msgspec.to_builtins(value, builtin_types=(bytes,))
    return json.dumps(plain, default=_name_default, allow_nan=False, separators=(",", ":")).encode("ascii")


def failure(error: Exception) -> tuple[int, Failure]:
    """Return the HTTP status and the body that stand for an exception; a bug's own words stay in the log."""
    if not isinstance(error, KvdError):
        return HTTP_INTERNAL, Failure(
            error=ErrorBody(code=INTERNAL, message="the daemon failed at this request; its log says why")
        )
    vague = error.errno == errno.EIO and not isinstance(error, DamagedError)
    code = FAILED if vague else errno.errorcode.get(error.errno, FAILED)
    return _HTTP_STATUS.get(error.errno, HTTP_INTERNAL), Failure(error=ErrorBody(code=code, message=str(error)))


def clean_path(name: bytes) -> bytes:
    """Return a path in the one form that `Control` takes.

    Raises
    ------
    BadRequestError
        If it is relative, climbs with ``..``, holds a NUL byte or is longer than any path can be.
    """
    if b"\0" in name:
        raise BadRequestError("a path can't hold a NUL byte")
    if not name.startswith(b"/"):
        raise BadRequestError(f"the path {to_str(name)!r} must be absolute within the mount: begin it with /")
    if len(name) > PATH_BYTES_MAX:
        raise BadRequestError(f"the path is {len(name)} bytes long; {PATH_BYTES_MAX} are allowed")
    parts = [part for part in name.split(b"/") if part not in {b"", b"."}]
    if b".." in parts:
        raise BadRequestError(f"the path {to_str(name)!r} must not hold ..")
    return b"/" + b"/".join(parts)


def query_path(query: bytes) -> bytes:
    """Return the ``path`` of a query string; what it holds stays bytes.

    Raises
    ------
    BadRequestError
        If there is none, more than one, or something else.
    """
    found: list[bytes] = []
    for pair in query.split(b"&"):
        key, _, value = pair.partition(b"=")
        if key == b"path":
            found.append(value)
        elif pair:
            raise BadRequestError(f"the query knows only path=, not {key.decode('ascii', 'replace')!r}")
    if len(found) != 1:
        raise BadRequestError("the query needs exactly one path=, percent-encoded")
    return clean_path(unquote_to_bytes(found[0]))


async def read_body(request: Request) -> bytes:
    """Return the request's body.

    A body that is too large is read to its end all the same, as a client that is still sending would otherwise see a
    broken connection in place of the answer.

    Raises
    ------
    BadRequestError
        If the client goes away; nobody will read the answer, but it is no bug of ours.
    TooLargeError
        If it is larger than `BODY_BYTES_MAX`.
    """
    body = bytearray()
    length = 0
    try:
        async for chunk in request.stream():
            length += len(chunk)
            if length <= BODY_BYTES_MAX:
                body += chunk
    except ClientDisconnect:
        raise BadRequestError("the client went away before its request was whole") from None
    if length > BODY_BYTES_MAX:
        raise TooLargeError(f"the body is {length} bytes long; {BODY_BYTES_MAX} are allowed")
    return bytes(body)


def _reject_constant(word: str) -> NoReturn:
    raise BadRequestError(f"the body is not JSON: {word}")


def _object(body: bytes, example: str) -> dict[str, object]:
    try:
        value = json.loads(body.decode("utf-8"), parse_constant=_reject_constant)
    except (ValueError, RecursionError) as error:
        raise BadRequestError(f"the body is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise BadRequestError(f'the body must be an object such as {{"{example}": ...}}')
    return value


def _member(body: bytes, key: str) -> object:
    value = _object(body, key)
    if key not in value:
        raise BadRequestError(f"the body lacks the field {key!r}")
    if unknown := sorted(value.keys() - {key}):
        raise BadRequestError(f"the body has an unknown field {unknown[0]!r}; it takes {key!r} only")
    return value[key]


def body_shape(body: bytes, shape: type[Shape]) -> Shape:
    """Return a body as the dataclass that describes it, or raise `BadRequestError`."""
    known = [each.name for each in dataclasses.fields(shape)]
    value = _object(body, known[0])
    if unknown := sorted(value.keys() - set(known)):
        raise BadRequestError(f"the body has an unknown field {unknown[0]!r}; it takes {', '.join(known)}")
    try:
        return msgspec.convert(value, shape, strict=True)
    except msgspec.ValidationError as error:
        raise BadRequestError(f"the body does not fit: {error}") from error


def top_name(name: str) -> bytes:
    """Return the name of a top directory as bytes, or raise `BadRequestError`."""
    try:
        return name.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise BadRequestError("a name holds a lone surrogate that stands for no byte") from error


def body_flags(body: bytes, keys: tuple[str, ...]) -> tuple[bool, ...]:
    """Return the members of an object that has exactly these, all true or false, or raise `BadRequestError`."""
    try:
        value = json.loads(body.decode("utf-8"), parse_constant=_reject_constant)
    except (ValueError, RecursionError) as error:
        raise BadRequestError(f"the body is not JSON: {error}") from error
    if not isinstance(value, dict) or value.keys() != set(keys):
        raise BadRequestError(f"the body must be an object with the fields {', '.join(map(repr, keys))}")
    for key in keys:
        if not isinstance(value[key], bool):
            raise BadRequestError(f"the field {key!r} must be true or false")
    return tuple(value[key] for key in keys)


def _name(value: object) -> bytes:
    if not isinstance(value, str):
        raise BadRequestError(f"a path must be a string, not {json.dumps(value)[:40]}")
    try:
        return clean_path(value.encode("utf-8", "surrogateescape"))
    except UnicodeEncodeError as error:
        raise BadRequestError("a path holds a lone surrogate that stands for no byte") from error


def path_of(text: str) -> bytes:
    """Return a path that a body holds, or raise `BadRequestError`."""
    return _name(text)


def body_path(body: bytes) -> bytes:
    """Return the path in ``{"path": ...}``, or raise `BadRequestError`."""
    return _name(_member(body, "path"))


def body_paths(body: bytes) -> tuple[bytes, ...]:
    """Return the paths in ``{"paths": [...]}``, or raise `BadRequestError`."""
    value = _member(body, "paths")
    if not isinstance(value, list):
        raise BadRequestError("the field 'paths' must be a list of strings")
    if not value:
        raise BadRequestError("the field 'paths' is empty; \"/\" stands for everything")
    if len(value) > PATHS_MAX:
        raise BadRequestError(f"{len(value)} paths in one request; {PATHS_MAX} are allowed: name their directory")
    return tuple(_name(item) for item in value)
