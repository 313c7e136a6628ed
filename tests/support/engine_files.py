"""Files with the engine's tables, and processes that use them and are killed."""

from __future__ import annotations

import os
import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING, Never

import trio

from kvdriver import InProcessDevice, Map, MapRun, SessionCreate, Tier, Unmap, abi

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

PAGES = 700
SESSIONS = 4
ARENA_BYTES = 1 << 20
BATCH = 400


def open_tables(fd: int) -> InProcessDevice:
    return InProcessDevice.open(
        page_bytes=65536,
        capacity_blocks={Tier.DDR: SESSIONS * PAGES},
        sessions_max=SESSIONS,
        arena_bytes=ARENA_BYTES,
        arena_fd=fd,
    )


async def fill(device: InProcessDevice) -> list[int]:
    """Give each session pages; return the sessions."""
    sessions = [(await device.run(SessionCreate(key=key))).value for key in range(SESSIONS)]
    run = MapRun(first_page=0, count=PAGES, blocks=1)
    for session in sessions:
        await device.run(Map(session=session, slot=0, tier=Tier.DDR, runs=(run,)))
    return sessions


def make(path: Path) -> Path:
    """Make tables with pages in them, left in order."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    device = open_tables(fd)
    trio.run(fill, device)
    device.close()
    os.close(fd)
    return path


def head(path: Path, name: str, count: int = 8) -> int:
    """Return a word of the head."""
    return int.from_bytes(read(path, abi.TABLE_HEAD_OFFSETS[name], count), "little")


def read(path: Path, at: int, count: int) -> bytes:
    with path.open("rb") as file:
        return os.pread(file.fileno(), count, at)


def write(path: Path, at: int, words: bytes) -> None:
    with path.open("r+b") as file:
        os.pwrite(file.fileno(), words, at)


def put_head(path: Path, name: str, value: int, count: int = 8) -> None:
    write(path, abi.TABLE_HEAD_OFFSETS[name], value.to_bytes(count, "little"))


@contextmanager
def process(life: Callable[[], Never]) -> Iterator[int]:
    """A process that lives until the block ends, and is then killed."""
    child = os.fork()
    if not child:
        try:
            life()
        finally:
            os._exit(1)
    try:
        yield child
    finally:
        os.kill(child, signal.SIGKILL)
        assert os.WIFSIGNALED(os.waitpid(child, 0)[1]), "it ended by itself"


def execute_for_ever(path: Path) -> Never:
    """Map and unmap pages on new tables in the file, nearly all of the time within a command."""

    async def go() -> Never:
        device = open_tables(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        sessions = await fill(device)
        run = MapRun(first_page=0, count=PAGES, blocks=1)
        batch = [
            command
            for session in sessions
            for command in (
                Unmap(session=session, slot=0, first_page=0, count=PAGES),
                Map(session=session, slot=0, tier=Tier.DDR, runs=(run,)),
            )
        ] * (BATCH // SESSIONS)
        while True:
            await device.submit(batch)

    trio.run(go)
    raise AssertionError
