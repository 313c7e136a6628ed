"""What files there are in an NVMe directory, in steps that are short for the drive's thread and for the loop."""

from __future__ import annotations

import contextlib
import os
import re
from functools import partial
from typing import TYPE_CHECKING

from kvd.tier.directory import FAN_OUT, OBJECTS

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
    from pathlib import Path

    from kvd.catalog.records import Copy
    from kvd.tier.directory import Directory

FILES_AT_ONCE = 256
FOLDERS_AT_ONCE = 64
"""Whichever comes first ends a step: some milliseconds of a thread."""
_FOLDER = re.compile(r"^[0-9a-f]{2}$")
_NAME = re.compile(r"^([0-9a-f]+)\.([0-9a-f]+)$")


async def listing(directory: Directory) -> AsyncGenerator[list[tuple[int, int, int]], None]:
    """Yield ``(ino, generation, size)`` of each copy's file, a few hundred at a time; what lies elsewhere is not kvd's.

    To be closed (`contextlib.aclosing`), since a cancelled reader leaves it in the middle.

    Raises as `Directory.run`; the deadline is that of a step, since there may be millions of files.
    """
    walk = _walk(directory)  # in one thread at a time, a step in each
    while (found := await directory.run(partial(next, walk, None), doing="list its files", write=False)) is not None:
        if found:
            yield found


def _walk(directory: Directory) -> Iterator[list[tuple[int, int, int]]]:
    top = directory.path / OBJECTS
    if directory.marked:
        directory.check_marker()
    elif not top.is_dir():
        return
    found: list[tuple[int, int, int]] = []
    visited = 0
    for first in filter(_FOLDER.match, os.listdir(top)):  # noqa: PTH208
        for second in _folders(top / first):
            _look(f"{top}/{first}/{second}", int(second, 16) * FAN_OUT + int(first, 16), found)
            visited += 1
            if len(found) >= FILES_AT_ONCE or visited >= FOLDERS_AT_ONCE:
                yield found
                found, visited = [], 0
    yield found


def _folders(folder: Path) -> list[str]:
    try:
        return [name for name in os.listdir(folder) if _FOLDER.match(name)]  # noqa: PTH208
    except NotADirectoryError:
        return []


def _look(folder: str, place: int, found: list[tuple[int, int, int]]) -> None:
    """Add the files of a folder; `place` is what the numbers of its objects have in common."""
    with contextlib.suppress(NotADirectoryError), os.scandir(folder) as entries:
        for entry in entries:
            match = _NAME.match(entry.name)
            if match is None:
                continue
            ino, gen = int(match[1], 16), int(match[2], 16)
            if ino % (FAN_OUT * FAN_OUT) == place and entry.name == f"{ino:x}.{gen:x}":
                with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                    found.append((ino, gen, entry.stat().st_size))


async def lengths(directory: Directory, files: Sequence[tuple[int, int]]) -> list[int | None]:
    """Return the lengths of the copies' files with these inode numbers and generations; None of one that is missing.

    Raises as `Directory.run`; also if something is missing and this is not the directory that it should be.
    """

    def look() -> list[int | None]:
        found = [_length(directory, ino, gen) for ino, gen in files]
        if None in found:
            directory.check_marker()
        return found

    return await directory.run(look, doing="look at files", write=False)


async def lengths_of(directories: Iterable[Directory], copies: Sequence[Copy]) -> list[int | None]:
    """Return the length of each copy's files: of the first that is wrong, None if one is missing.

    What is in a directory that does not answer is taken to be right: it is looked at when it is read.
    """
    found: list[int | None] = [copy.size for copy in copies]
    for directory in directories:
        mine = [number for number, copy in enumerate(copies) if directory.index in copy.dirs]
        if not mine:
            continue
        try:
            sizes = await lengths(directory, [(copies[number].ino, copies[number].gen) for number in mine])
        except OSError:
            continue
        for number, size in zip(mine, sizes, strict=True):
            if size != copies[number].size and found[number] == copies[number].size:
                found[number] = size
    return found


def _length(directory: Directory, ino: int, gen: int) -> int | None:
    try:
        return os.stat(directory.file(ino, gen)).st_size  # noqa: PTH116
    except (FileNotFoundError, NotADirectoryError):
        return None
