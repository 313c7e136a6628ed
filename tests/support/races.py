"""Processes that change files and others that look at them, and a check of what those saw.

Each name has one process that changes it and notes when each change began and ended. Others note when they looked, and what
they saw. Who looks must see the last change that had ended before, or one that began before the look ended: anything older
is stale, anything else never was.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import stat
import time
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from pathlib import Path

HEADER_BYTES = 32
SIZE_MAX = 20_000
DEADLINE_S = 60.0
MODES = (0o600, 0o640, 0o644, 0o444)


class State(NamedTuple):
    """A name as it is: `size` -1 is: not there. `content` tells which file it is."""

    size: int
    mode: int = 0
    content: int = -1


ABSENT = State(-1)


class Change(NamedTuple):
    """A change of a name, and what it was afterwards; times in ns."""

    began: int
    ended: int
    state: State


class Look(NamedTuple):
    """What somebody saw of a name."""

    name: str
    how: str
    began: int
    ended: int
    state: State


@dataclass
class Owner:
    """Who changes a name, at random."""

    folder: Path
    name: str
    draw: random.Random
    state: State = ABSENT
    files: int = 0

    def change(self) -> State:
        path = self.folder / self.name
        if self.state is ABSENT:
            return self.replace(path)
        match self.draw.randrange(4):
            case 0:
                path.unlink()
                return ABSENT
            case 1:
                size = self.draw.randrange(HEADER_BYTES, SIZE_MAX)
                os.truncate(path, size)
                return self.state._replace(size=size)
            case 2:
                mode = self.draw.choice(MODES)
                path.chmod(mode)
                return self.state._replace(mode=mode)
            case _:
                return self.replace(path)

    def replace(self, path: Path) -> State:
        self.files += 1
        new = State(self.draw.randrange(HEADER_BYTES, SIZE_MAX), self.draw.choice(MODES), self.files)
        temporary = self.folder / f".{self.name}"
        temporary.write_bytes(b"%-*d" % (HEADER_BYTES, self.files) + bytes(new.size - HEADER_BYTES))
        temporary.chmod(new.mode)
        temporary.rename(path)
        return new


def own(folder: Path, name: str, seed: int, seconds: float, told: Connection) -> None:
    """Change a name again and again; tell the changes, and what one's own look after each said."""
    owner = Owner(folder, name, random.Random(seed))
    changes: list[Change] = []
    looks: list[Look] = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        began = time.monotonic_ns()
        owner.state = owner.change()
        changes.append(Change(began, time.monotonic_ns(), owner.state))
        looks.append(look_at(folder, name, "stat"))
    told.send((name, changes, looks))


def look(folder: Path, names: list[str], seed: int, seconds: float, told: Connection) -> None:
    """Look at names again and again, in all ways; tell what was seen."""
    draw = random.Random(seed)
    looks: list[Look] = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        looks.append(look_at(folder, draw.choice(names), draw.choice(["stat", "stat", "read", "list"])))
    told.send((None, [], looks))


def look_at(folder: Path, name: str, how: str) -> Look:
    began = time.monotonic_ns()
    try:
        state = {"stat": _stat, "read": _read, "list": _list}[how](folder, name)
    except FileNotFoundError:
        state = ABSENT
    return Look(name, how, began, time.monotonic_ns(), state)


def _told(info: os.stat_result) -> State:
    return State(info.st_size, stat.S_IMODE(info.st_mode))


def _stat(folder: Path, name: str) -> State:
    return _told((folder / name).stat())


def _read(folder: Path, name: str) -> State:
    fd = os.open(folder / name, os.O_RDONLY)
    try:
        info = os.fstat(fd)
        return _told(info)._replace(content=int(os.pread(fd, HEADER_BYTES, 0)))
    finally:
        os.close(fd)


def _list(folder: Path, name: str) -> State:
    return State(0) if name in os.listdir(folder) else ABSENT


def fits(look: Look, state: State) -> bool:
    """Whether a look can have seen a state."""
    if look.state.size < 0 or state.size < 0 or look.how == "list":
        return (look.state.size < 0) == (state.size < 0)
    same = look.state[:2] == state[:2]
    return same and (look.how == "stat" or look.state.content == state.content)


def impossible(changes: dict[str, list[Change]], looks: list[Look]) -> list[tuple[Look, list[State]]]:
    """Return the looks that saw what was not there, with what they could have seen."""
    found = []
    for each in looks:
        mine = changes[each.name]
        first = bisect_right([change.ended for change in mine], each.began)
        last = bisect_left([change.began for change in mine], each.ended)
        possible = [ABSENT if first == 0 else mine[first - 1].state, *(change.state for change in mine[first:last])]
        if not any(fits(each, state) for state in possible):
            found.append((each, possible))
    return found


def race(folder: Path, *, owners: int, lookers: int, seconds: float) -> tuple[int, list[tuple[Look, list[State]]]]:
    """Let processes change and look; return how many looks there were, and the impossible ones."""
    context = multiprocessing.get_context("spawn")
    names = [f"n{index}" for index in range(owners)]
    started = []
    for index in range(owners + lookers):
        ours, theirs = context.Pipe(duplex=False)
        what = (own, (folder, names[index])) if index < owners else (look, (folder, names))
        process = context.Process(target=what[0], args=(*what[1], index, seconds, theirs))
        process.start()
        theirs.close()
        started.append((process, ours))
    changes: dict[str, list[Change]] = {}
    looks: list[Look] = []
    for process, ours in started:
        assert ours.poll(seconds + DEADLINE_S), "a process told nothing"
        name, its_changes, its_looks = ours.recv()
        if name is not None:
            changes[name] = its_changes
        looks += its_looks
        process.join(DEADLINE_S)
        assert process.exitcode == 0
    return len(looks), impossible(changes, looks)
