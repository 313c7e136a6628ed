"""The hot table of the split (csrc/fuse/split.h, ``kvd_hot_*``) for the control plane.

The protocol is in ``docs/concurrency.md``: make an entry unsure, change what it tells, settle it. Every method is quick, and is
called from the loop's thread only. `OSError` says what failed: ENOSPC where the table has no room. Nothing wrong is told
then: what has no room is forwarded.
"""

from __future__ import annotations

import enum
import errno
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from kvd.fs._split import ffi, lib

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

HOT_FH: Final = 1 << 63
"""Handle of an OPEN that the table answered: this and the node (KVD_HOT_FH)."""
_USED_AT_ONCE: Final = 256
_NAMES_EACH_MAX: Final = 64
"""So many names are forgotten by the kernel one by one; for more it is to ask for every name anew."""


class FolderState(enum.IntEnum):
    """What the table knows of a folder; the numbers are ``enum kvd_hot_folder_state``."""

    PARTIAL = 0
    COMPLETE = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class HotBounds:
    """How much the table may hold, and how long the kernel may keep that a name is not there.

    Attributes
    ----------
    inodes_max
        Also of folders. Memory for an inode: 104 bytes, and 8 of its bucket.
    names_max
        Those known not to be there included. Memory for a name of 18 bytes: 48, and 12 of its bucket and its place.
    """

    inodes_max: int
    names_max: int
    absent_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HotAttr:
    """What is told of an inode: ``struct kvd_hot_attr``.

    Attributes
    ----------
    held_bytes
        Storage that it takes: st_blocks in bytes.
    entry_timeout_ms, attr_timeout_ms
        How long the kernel may keep a name of it, and its attributes.
    """

    node: int
    size: int
    held_bytes: int
    atime_ns: int
    mtime_ns: int
    ctime_ns: int
    mode: int
    nlink: int
    uid: int
    gid: int
    rdev: int
    entry_timeout_ms: int
    attr_timeout_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HotGone:
    """What the table counted of an inode, and the caller now has to."""

    lookups: int
    leases: int
    opens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HotUse:
    """An object that was opened: how often since the last time, and its leases now."""

    node: int
    opens: int
    leases: int


def _check(result: int, what: str) -> None:
    if result < 0:
        raise OSError(-result, f"hot table, {what}: {os.strerror(-result)}")


def _fill_attr(c_attr: Any, attr: HotAttr) -> None:
    # A hundred thousand times for a large folder: without a dict for each.
    c_attr.node = attr.node
    c_attr.size = attr.size
    c_attr.held_bytes = attr.held_bytes
    c_attr.atime_ns = attr.atime_ns
    c_attr.mtime_ns = attr.mtime_ns
    c_attr.ctime_ns = attr.ctime_ns
    c_attr.mode = attr.mode
    c_attr.nlink = attr.nlink
    c_attr.uid = attr.uid
    c_attr.gid = attr.gid
    c_attr.rdev = attr.rdev
    c_attr.entry_timeout_ms = attr.entry_timeout_ms
    c_attr.attr_timeout_ms = attr.attr_timeout_ms


class HotTable:
    """What the split answers from; `Split.hot`."""

    def __init__(self, live: Callable[[], Any]) -> None:
        self._live = live
        self._attr: Any = ffi.new("struct kvd_hot_attr *")
        self._gone: Any = ffi.new("struct kvd_hot_gone *")

    def __repr__(self) -> str:
        return "<HotTable>"

    def put(self, attr: HotAttr) -> None:
        """Insert an inode, or settle it: sure from now on."""
        _fill_attr(self._attr, attr)
        _check(lib.kvd_hot_put(self._live(), self._attr), f"put {attr.node}")

    def unsure(self, node: int) -> bool:
        """Have what is asked about an inode forwarded from now on; whether the table has it."""
        return self._found(lib.kvd_hot_unsure(self._live(), node), f"unsure {node}")

    def drop(self, node: int) -> HotGone | None:
        """Take an inode out; its counts are the caller's. None if it is not there."""
        return self._handed_over(lib.kvd_hot_drop(self._live(), node, self._gone), f"drop {node}")

    def share(self, node: int) -> None:
        """Have OPENs for reading answered: the inode is in the table, and the split has an object for it (ENOENT)."""
        _check(lib.kvd_hot_share(self._live(), node), f"share {node}")

    def shut(self, node: int, *, only_idle: bool = False) -> HotGone | None:
        """Have no OPEN answered any more; leases and opens are the caller's. None if the inode is not in the table.

        Raises
        ------
        OSError
            EBUSY: *only_idle*, and there are leases; nothing changed.
        """
        return self._handed_over(lib.kvd_hot_shut(self._live(), node, only_idle, self._gone), f"shut {node}")

    def name(self, parent: int, name: bytes, *, cookie: int, node: int) -> None:
        """Insert or settle a name; *cookie* 0: found, but not listed."""
        _check(lib.kvd_hot_name(self._live(), parent, name, len(name), cookie, node), f"name in {parent}")

    def name_absent(self, parent: int, name: bytes) -> None:
        """Publish that a name is not there; the oldest such make room."""
        _check(lib.kvd_hot_name(self._live(), parent, name, len(name), 0, 0), f"absent name in {parent}")

    def name_unsure(self, parent: int, name: bytes) -> None:
        """Have a name forwarded from now on, and its folder's listing."""
        _check(lib.kvd_hot_name_unsure(self._live(), parent, name, len(name)), f"unsure name in {parent}")

    def name_gone(self, parent: int, name: bytes) -> None:
        """Settle a name as not there."""
        _check(lib.kvd_hot_name_gone(self._live(), parent, name, len(name)), f"gone name in {parent}")

    def folder(self, node: int, state: FolderState) -> None:
        """Say whether the table holds every name of a folder."""
        _check(lib.kvd_hot_folder(self._live(), node, state), f"folder {node}")

    def folder_parent(self, node: int, parent: int) -> None:
        """Say which inode ``..`` is, of a complete folder."""
        _check(lib.kvd_hot_folder_parent(self._live(), node, parent), f"parent of folder {node}")

    def forget_folder(self, node: int) -> bool:
        """Take a folder's names out but for those that are unsure; its inodes stay. Whether there was such a folder."""
        return self._found(lib.kvd_hot_forget_folder(self._live(), node), f"forget folder {node}")

    def folder_uses(self, node: int) -> int:
        """Return how many look-ups and listings a folder answered since the last time."""
        return lib.kvd_hot_folder_uses(self._live(), node)

    def fill(self, parent: int, lines: Sequence[tuple[int, bytes, HotAttr]]) -> None:
        """Publish (cookie, name, inode) of a folder in one step. What is unsure stays so."""
        c_attrs = ffi.new("struct kvd_hot_attr[]", len(lines))
        for index, (_, _, attr) in enumerate(lines):
            _fill_attr(c_attrs[index], attr)
        cookies = ffi.new("uint64_t[]", [cookie for cookie, _, _ in lines])
        name_bytes = ffi.new("uint32_t[]", [len(name) for _, name, _ in lines])
        names = b"".join(name for _, name, _ in lines)
        result = lib.kvd_hot_fill(self._live(), parent, c_attrs, cookies, name_bytes, names, len(lines))
        _check(result, f"fill {parent}")

    def used(self) -> list[HotUse]:
        """Return which objects were opened since they were last told."""
        out = ffi.new("struct kvd_hot_use[]", _USED_AT_ONCE)
        uses: list[HotUse] = []
        count = _USED_AT_ONCE
        while count == _USED_AT_ONCE:
            count = lib.kvd_hot_used(self._live(), out, _USED_AT_ONCE)
            uses += [HotUse(node=use.node, opens=use.opens, leases=use.leases) for use in out[0:count]]
        return uses

    def forget_names(self, parent: int, names: Sequence[bytes]) -> None:
        """Make the kernel forget names, soon; where they are many, and it can, every name at once.

        ENOBUFS: more than can wait. The kernel keeps what is left for as long as it was told it may.
        """
        if len(names) > _NAMES_EACH_MAX and lib.kvd_split_forget_all(self._live()) == 0:
            return
        for name in names:
            result = lib.kvd_split_forget(self._live(), parent, name, len(name), 0)
            if result == -errno.ENOBUFS and lib.kvd_split_forget_all(self._live()) == 0:
                return
            _check(result, f"forget name in {parent}")

    def leases(self, node: int) -> int:
        """Return how many leases of an object there are."""
        return lib.kvd_hot_leases(self._live(), node)

    def watch(self) -> None:
        """Ask for one event FREED at the next release that leaves an object without leases; look for idle ones after it."""
        _check(lib.kvd_hot_watch(self._live()), "watch")

    def _found(self, result: int, what: str) -> bool:
        if result == -errno.ENOENT:
            return False
        _check(result, what)
        return True

    def _handed_over(self, result: int, what: str) -> HotGone | None:
        if not self._found(result, what):
            return None
        return HotGone(lookups=self._gone.lookups, leases=self._gone.leases, opens=self._gone.opens)
