"""What `kvd.fs.hot` asks of the data plane's table. `SplitHot` is the real one; tests have a fake twin."""

from __future__ import annotations

import contextlib
import errno
from typing import TYPE_CHECKING, Protocol

from kvd.fs.hot_table import FolderState, HotBounds
from kvd.tier.plane import Gone, Use

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvd.fs.hot_table import HotAttr, HotGone
    from kvd.fs.split import Split


class HotPlane(Protocol):
    """The table. Nothing here waits but for answers that are being written; False is: no room."""

    @property
    def is_on(self) -> bool:
        """Whether there is a table."""
        ...

    @property
    def names_max(self) -> int:
        """How many names fit."""
        ...

    def is_crowded(self, share: int) -> bool:
        """Whether less than 1/`share` of the table is free."""
        ...

    def put(self, attr: HotAttr) -> bool:
        """Insert or settle an inode: sure from now on."""
        ...

    def unsure(self, node: int) -> bool:
        """Forward what is asked about an inode; whether it is in the table."""
        ...

    def drop(self, node: int) -> Gone | None:
        """Take an inode out; None if it is not there."""
        ...

    def share(self, node: int) -> bool:
        """Answer opens for reading of an object; False also if the inode is not in the table."""
        ...

    def shut(self, node: int, *, only_idle: bool = False) -> Gone | None:
        """Answer no more opens; None, and no change, with `only_idle` while there are leases."""
        ...

    def name(self, parent: int, name: bytes, cookie: int, node: int) -> bool:
        """Insert or settle a name; cookie 0: not listed, node 0: not there. False: the directory is partial from now on."""
        ...

    def name_unsure(self, parent: int, name: bytes) -> bool:
        """Forward what is asked about a name, and listings of its directory. False as for `name`."""
        ...

    def name_gone(self, parent: int, name: bytes) -> None:
        """Settle a name as not there."""
        ...

    def complete(self, node: int, parent: int) -> bool:
        """Answer misses and listings of a directory, in which ``..`` is `parent`."""
        ...

    def folder_parent(self, node: int, parent: int) -> None:
        """Set what ``..`` is in a complete directory."""
        ...

    def forget_folder(self, node: int) -> None:
        """Drop a directory's names; inodes stay."""
        ...

    def folder_uses(self, node: int) -> int:
        """Return how many look-ups and listings a directory answered since the last call."""
        ...

    def fill(self, parent: int, entries: Sequence[tuple[int, bytes, HotAttr]]) -> bool:
        """Publish ``(cookie, name, inode)`` of a directory in one step; what is unsure stays so."""
        ...

    def used(self) -> list[Use]:
        """Return which objects were opened since the last call."""
        ...

    def leases(self, node: int) -> int:
        """Return an object's leases."""
        ...

    def watch(self) -> None:
        """Ask for one event FREED."""
        ...

    def forget_names(self, parent: int, names: Sequence[bytes]) -> None:
        """Have the kernel forget names that it holds; soon, not at once."""
        ...


class SplitHot:
    """The table of a split; see `HotPlane`."""

    def __init__(self, split: Split, bounds: HotBounds) -> None:
        self._split = split
        self._table = split.hot
        self._bounds = bounds
        self.is_on = bounds.inodes_max > 0 and bounds.names_max > 0
        self.names_max = bounds.names_max

    def __repr__(self) -> str:
        return f"<SplitHot of {self._split!r}>"

    def is_crowded(self, share: int) -> bool:
        """See `HotPlane.is_crowded`."""
        held = self._split.statistics()
        inodes_max, names_max = self._bounds.inodes_max, self._bounds.names_max
        most = max(held.hot_inodes, held.hot_folders)
        return most > inodes_max - inodes_max // share or held.hot_names > names_max - names_max // share

    def put(self, attr: HotAttr) -> bool:
        """See `HotPlane.put`."""
        return _fits(lambda: self._table.put(attr))

    def unsure(self, node: int) -> bool:
        """See `HotPlane.unsure`."""
        return self._table.unsure(node)

    def drop(self, node: int) -> Gone | None:
        """See `HotPlane.drop`."""
        return _gone(self._table.drop(node))

    def share(self, node: int) -> bool:
        """See `HotPlane.share`."""
        try:
            self._table.share(node)
        except FileNotFoundError:
            return False
        return True

    def shut(self, node: int, *, only_idle: bool = False) -> Gone | None:
        """See `HotPlane.shut`."""
        try:
            return _gone(self._table.shut(node, only_idle=only_idle)) or Gone()
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
            return None

    def name(self, parent: int, name: bytes, cookie: int, node: int) -> bool:
        """See `HotPlane.name`."""
        if not node:
            return _fits(lambda: self._table.name_absent(parent, name))
        return _fits(lambda: self._table.name(parent, name, cookie=cookie, node=node))

    def name_unsure(self, parent: int, name: bytes) -> bool:
        """See `HotPlane.name_unsure`."""
        return _fits(lambda: self._table.name_unsure(parent, name))

    def name_gone(self, parent: int, name: bytes) -> None:
        """See `HotPlane.name_gone`."""
        self._table.name_gone(parent, name)

    def complete(self, node: int, parent: int) -> bool:
        """See `HotPlane.complete`."""
        if not _fits(lambda: self._table.folder(node, FolderState.COMPLETE)):
            return False
        self._table.folder_parent(node, parent)
        return True

    def folder_parent(self, node: int, parent: int) -> None:
        """See `HotPlane.folder_parent`."""
        self._table.folder_parent(node, parent)

    def forget_folder(self, node: int) -> None:
        """See `HotPlane.forget_folder`."""
        self._table.forget_folder(node)

    def folder_uses(self, node: int) -> int:
        """See `HotPlane.folder_uses`."""
        return self._table.folder_uses(node)

    def fill(self, parent: int, entries: Sequence[tuple[int, bytes, HotAttr]]) -> bool:
        """See `HotPlane.fill`."""
        return not entries or _fits(lambda: self._table.fill(parent, entries))

    def used(self) -> list[Use]:
        """See `HotPlane.used`."""
        return [Use(node=use.node, opens=use.opens) for use in self._table.used()]

    def leases(self, node: int) -> int:
        """See `HotPlane.leases`."""
        return self._table.leases(node)

    def watch(self) -> None:
        """See `HotPlane.watch`."""
        self._table.watch()

    def forget_names(self, parent: int, names: Sequence[bytes]) -> None:
        """See `HotPlane.forget_names`."""
        with contextlib.suppress(OSError):  # unmounted, or about to be
            self._table.forget_names(parent, names)


def _fits(publish: Callable[[], None]) -> bool:
    try:
        publish()
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        return False
    return True


def _gone(gone: HotGone | None) -> Gone | None:
    return None if gone is None else Gone(lookups=gone.lookups, leases=gone.leases, opens=gone.opens)
