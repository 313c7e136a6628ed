"""The check of tables in a file, and their repair: what is known of them when nobody is there to ask.

The tables say whether they were left in order and whether a command is half done. They don't say whether who used them is
dead, so that is asked of /proc. A check writes nothing; a repair is refused while another process has the file.
"""

from __future__ import annotations

import enum
import errno
import os
import stat
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from kvdriver import abi
from kvdriver._engine import ffi, lib
from kvdriver.inprocess import check_tables, recover_tables
from kvdriver.sysfs import Sysfs, User

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

CHECKS_MAX: Final = 5
"""How often a check is begun anew because a command was executed meanwhile."""
MAGIC: Final = b"kv-arena"
_KINDS: Final = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


class Trouble(enum.Enum):
    """Why there is no answer."""

    UNREADABLE = "unreadable"
    NO_TABLES = "no-tables"
    VERSION = "version"
    IN_USE = "in-use"


class TablesError(Exception):
    """The tables can't be checked or repaired; one sentence."""

    def __init__(self, message: str, trouble: Trouble) -> None:
        super().__init__(message)
        self.trouble = trouble


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """What the head says that changes with each command."""

    in_use: bool
    sequence: int
    change: int
    intent_sequence: int
    intent_op: int
    stage: int

    @property
    def underway(self) -> bool:
        """Whether a command is half done."""
        return self.stage != abi.Stage.NONE and self.intent_sequence == self.sequence + 1

    def command(self) -> str:
        """Name the command that is half done."""
        known = {op.value: op.name for op in abi.Op}
        return f"command {self.intent_sequence} ({known.get(self.intent_op, f'operation {self.intent_op}')})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """What a repair did.

    Attributes
    ----------
    losses
        What could not be repaired and was given up, a sentence each.
    finished, undone
        Whether the command at which the last one died was brought to its end, or taken back.
    """

    losses: tuple[str, ...]
    finished: bool
    undone: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What a check found, and a repair did.

    Attributes
    ----------
    page_bytes, sessions, mapped_pages, commands
        What the tables are.
    faults
        A sentence each; a command that is half done is one. None: the tables are consistent.
    in_use
        They were not left: somebody uses them, or died using them.
    holders
        Other processes that have the file open or mapped.
    unseen
        Processes that could not be looked at, for want of rights.
    repair
        What was done; None: nothing was to be done, or nothing was asked for.
    left
        Faults that are there after the repair.
    """

    page_bytes: int
    sessions: int
    mapped_pages: int
    commands: int
    faults: tuple[str, ...]
    in_use: bool
    holders: tuple[User, ...]
    unseen: int
    repair: Recovery | None = None
    left: tuple[str, ...] = ()

    @property
    def sound(self) -> bool:
        """Whether the tables are consistent now and nothing was given up for it."""
        return not (self.left or self.repair.losses if self.repair else self.faults)


def fsck(
    path: Path, *, repair: bool = False, system: Sysfs | None = None, check: Callable[[Any], list[str]] = check_tables
) -> Findings:
    """Check tables in a file, and with `repair` mend what was found.

    Parameters
    ----------
    path
        The file; also ``/proc/PID/fd/N`` of one without a name.
    repair
        Write: finish or take back a command that is half done, cut out what is damaged, make anew what is derived.
    system
        Where other processes are looked for.
    check
        What checks the tables of an engine.

    Raises
    ------
    TablesError
        If there are no tables that can be checked, or somebody else has them.
    """
    with _opened(path, write=repair) as (fd, file):
        with _attached(path, fd, file, flags=lib.KVD_ENGINE_READ_ONLY) as engine:
            holders, unseen = (system or Sysfs()).holders(file)
            found = _check(path, fd, engine, check, holders=holders, unseen=unseen)
        if not repair or not (found.faults or found.in_use):
            return found
        if holders:
            raise TablesError(
                f"{path}: {_names(holders)} has it open and may write to it; end that, or repair a copy of the file",
                Trouble.IN_USE,
            )
        with _attached(path, fd, file, flags=0) as engine:
            try:
                mended = recover_tables(engine)
            except OSError as error:
                raise TablesError(f"{path}: {error.strerror}", Trouble.NO_TABLES) from error
            done = Recovery(losses=tuple(mended.told), finished=mended.finished, undone=mended.undone)
            return _with_repair(found, done, tuple(check(engine)))


def _with_repair(found: Findings, done: Recovery, left: tuple[str, ...]) -> Findings:
    return Findings(
        page_bytes=found.page_bytes,
        sessions=found.sessions,
        mapped_pages=found.mapped_pages,
        commands=found.commands,
        faults=found.faults,
        in_use=found.in_use,
        holders=found.holders,
        unseen=found.unseen,
        repair=done,
        left=left,
    )


def _names(users: list[User]) -> str:
    return ", ".join(f"{user.name} (process {user.pid})" for user in users)


@contextmanager
def _opened(path: Path, *, write: bool) -> Iterator[tuple[int, os.stat_result]]:
    flags = os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY  # whatever it is, it is not waited for
    try:
        kind = stat.S_IFMT(path.stat().st_mode)
        if kind != stat.S_IFREG:  # opening a device or a pipe may do something
            raise TablesError(f"{path}: it is {_KINDS.get(kind, 'no file')}; tables are in a file", Trouble.NO_TABLES)
        fd = os.open(path, flags | (os.O_RDWR if write else os.O_RDONLY))
    except (OSError, ValueError) as error:
        what = error.strerror if isinstance(error, OSError) else str(error)
        raise TablesError(f"{path}: it can't be opened: {what}", Trouble.UNREADABLE) from error
    try:
        yield fd, os.fstat(fd)
    finally:
        os.close(fd)


@contextmanager
def _attached(path: Path, fd: int, file: os.stat_result, *, flags: int) -> Iterator[Any]:
    """Have a C engine on the tables."""
    config = ffi.new("struct kvd_engine_config *", {"flags": lib.KVD_ENGINE_ATTACH | flags, "arena_fd": fd})
    out = ffi.new("kvd_engine **")
    result = lib.kvd_engine_init(config, out)
    if result:
        raise _refused(path, fd, file, -result)
    try:
        yield out[0]
    finally:
        lib.kvd_engine_fini(out[0])


def _refused(path: Path, fd: int, file: os.stat_result, error: int) -> TablesError:
    """Say why the file can't be attached."""
    try:
        head = os.pread(fd, abi.TABLE_HEAD.size, 0)
    except OSError as failure:
        return TablesError(f"{path}: it can't be read: {failure.strerror}", Trouble.UNREADABLE)
    match error:
        case errno.EPROTO:
            version = _word(head, abi.TABLE_HEAD_OFFSETS["version"], 4)
            return TablesError(f"{path}: tables of version {version}, which this kvctl does not know", Trouble.VERSION)
        case errno.EINVAL:
            return TablesError(f"{path}: {_no_tables(head, file.st_size)}", Trouble.NO_TABLES)
        case _:
            return TablesError(f"{path}: it can't be mapped: {os.strerror(error)}", Trouble.UNREADABLE)


def _no_tables(head: bytes, count: int) -> str:
    """Say what a file of `count` bytes is that has no sound head."""
    if not count:
        return "it is empty"
    if not head.startswith(MAGIC):
        return "it holds no tables of the engine"
    wanted = max(abi.TABLE_HEAD.size, _word(head, abi.TABLE_HEAD_OFFSETS["arena_bytes"]))
    if count < wanted:
        return f"it is cut off: {count} bytes of {wanted}"
    return "the head of the tables is damaged, so the rest can't be found"


def _word(words: bytes, at: int, count: int = 8) -> int:
    return int.from_bytes(words[at : at + count], "little")


def _head(fd: int) -> Head:
    words = os.pread(fd, abi.TABLE_HEAD.size, 0)
    head, intent = abi.TABLE_HEAD_OFFSETS, abi.INTENT_OFFSETS
    at = head["intent"]
    return Head(
        in_use=_word(words, head["in_use"]) != 0,
        sequence=_word(words, head["sequence"]),
        change=_word(words, head["change"]),
        intent_sequence=_word(words, at + intent["sequence"]),
        intent_op=_word(words, at + intent["cmd"] + abi.CMD_OFFSETS["op"], 2),
        stage=_word(words, at + intent["stage"], 4),
    )


def _check(
    path: Path, fd: int, engine: Any, check: Callable[[Any], list[str]], *, holders: list[User], unseen: int
) -> Findings:
    for _ in range(CHECKS_MAX):
        head = _head(fd)
        faults = check(engine)
        if _head(fd) == head:
            break
    else:
        by = _names(holders) if holders else "somebody"
        raise TablesError(f"{path}: {by} executes commands on it now; check it when that is stopped", Trouble.IN_USE)
    if head.underway:
        end = "brings it to its end" if head.stage == abi.Stage.COMMIT else "takes it back"
        faults.insert(0, f"{head.command()} is half done; a repair {end}")
    stats = ffi.new("struct kvd_engine_stats *")
    lib.kvd_engine_stats(engine, stats)
    return Findings(
        page_bytes=int.from_bytes(os.pread(fd, 4, abi.TABLE_HEAD_OFFSETS["page_bytes"]), "little"),
        sessions=stats.sessions,
        mapped_pages=stats.mapped_pages,
        commands=head.sequence,
        faults=tuple(faults),
        in_use=head.in_use,
        holders=tuple(holders),
        unseen=unseen,
    )
