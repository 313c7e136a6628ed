"""The API over a real UNIX socket in the test's own trio loop, and ways to talk to it."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import httpx
import trio

from kvd.api.app import serve

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from support.fake_control import FakeControl

WAIT_S = 20.0


@asynccontextmanager
async def served(control: FakeControl, path: Path, group: str = "no-such-group") -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.AsyncHTTPTransport(uds=str(path))
    async with trio.open_nursery() as nursery:
        await nursery.start(serve, control, path, group)
        async with httpx.AsyncClient(transport=transport, base_url="http://kvd", timeout=WAIT_S) as client:
            yield client
        nursery.cancel_scope.cancel()


async def until(condition: Callable[[], object]) -> None:
    with trio.fail_after(WAIT_S):
        while not condition():
            await trio.sleep(0.005)


async def talk(path: Path, request: bytes, *, half_close: bool = False) -> bytes:
    """Say something that httpx would not, and return all that comes back."""
    client = await trio.open_unix_socket(path)
    async with client:
        await client.send_all(request)
        if half_close:
            await client.send_eof()
        answer = b""
        with trio.fail_after(WAIT_S):
            while chunk := await client.receive_some():
                answer += chunk
    return answer


async def read_until(client: trio.SocketStream, mark: bytes) -> bytes:
    answer = b""
    with trio.fail_after(WAIT_S):
        while mark not in answer:
            chunk = await client.receive_some()
            assert chunk, answer
            answer += chunk
    return answer


def post(path: str, body: bytes) -> bytes:
    return b"POST %s HTTP/1.1\r\nhost: kvd\r\ncontent-length: %d\r\n\r\n" % (path.encode(), len(body)) + body
