"""Requests' bodies and short answers, as all routes have them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import trio
from starlette.responses import Response

from kvd.api import wire

if TYPE_CHECKING:
    from starlette.requests import Request

BODY_S_MAX: Final = 10.0
"""A client must have sent its request by then."""


def answer(value: object, status: int = 200) -> Response:
    """Make the response that carries a dataclass."""
    return Response(
        wire.dump(value) + b"\n", status, media_type="application/json", headers={"cache-control": "no-store"}
    )


def failure_answer(error: Exception) -> Response:
    """Make the response that stands for an exception."""
    status, body = wire.failure(error)
    return answer(body, status)


async def body_of(request: Request) -> bytes:
    """Return a request's body; `BadRequestError` if it does not come in time."""
    with trio.move_on_after(BODY_S_MAX):
        return await wire.read_body(request)
    raise wire.BadRequestError(f"the body was not there within {BODY_S_MAX:g} s")
