"""The hot table in memory, with the kernel's side of it: what clients ask, and what they would be answered."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kvd.tier.plane import Gone, Use

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from kvd.fs.hot_table import HotAttr


@dataclass
class Inode:
    """An inode of the table."""

    attr: HotAttr
    sure: bool = True
    shared: bool = False
    lookups: int = 0
    leases: int = 0
    opens: int = 0


@dataclass
class Name:
    """A name of the table; node 0: not there."""

    cookie: int
    node: int
    sure: bool = True


@dataclass
class Folder:
    """A directory of the table."""

    names: dict[bytes, Name] = field(default_factory=dict)
    complete: bool = False
    parent: int = 0
    uses: int = 0


class FakeHot:
    """See `kvd.fs.hot_plane.HotPlane`. `check` is called before whatever a client is answered, and after each change."""

    def __init__(self, objects: Mapping[int, object], *, inodes_max: int = 1 << 20, names_max: int = 1 << 20) -> None:
        self.is_on = True
        self.inodes_max = inodes_max
        self.names_max = names_max
        self.inodes: dict[int, Inode] = {}
        self.folders: dict[int, Folder] = {}
        self.gone_from_kernel: list[tuple[int, bytes]] = []
        self.watched = 0
        self.check: Callable[[], None] = lambda: None
        self._objects = objects

    # -- clients -------------------------------------------------------------------------------------------------

    def lookup(self, parent: int, name: bytes) -> HotAttr | int | None:
        """Return attributes, 0 for a name that is not there, None for what is forwarded."""
        self.check()
        folder = self.folders.get(parent)
        if folder is None:
            return None
        found = folder.names.get(name)
        if found is None or (found.sure and not found.node):
            folder.uses += 1
            return 0 if found is not None or folder.complete else None
        inode = self.inodes.get(found.node)
        if not found.sure or inode is None or not inode.sure:
            return None
        folder.uses += 1
        inode.lookups += 1
        return inode.attr

    def getattr(self, node: int) -> HotAttr | None:
        """Return attributes; None for what is forwarded."""
        self.check()
        inode = self.inodes.get(node)
        return inode.attr if inode is not None and inode.sure else None

    def forget(self, node: int, count: int) -> int:
        """Return what is left to forward."""
        inode = self.inodes.get(node)
        if inode is None:
            return count
        own = min(count, inode.lookups)
        inode.lookups -= own
        return count - own

    def open(self, node: int) -> bool:
        """Open for reading; False is: forwarded."""
        self.check()
        inode = self.inodes.get(node)
        if inode is None or not inode.sure or not inode.shared:
            return False
        assert node in self._objects, "shared, and the data plane does not know its file"
        inode.leases += 1
        inode.opens += 1
        return True

    def release(self, node: int) -> bool:
        """Close what was opened here; False is: forwarded."""
        inode = self.inodes.get(node)
        if inode is None or not inode.leases:
            return False
        inode.leases -= 1
        return True

    def readdir(self, parent: int) -> list[bytes] | None:
        """List a directory; None for what is forwarded."""
        self.check()
        folder = self.folders.get(parent)
        if folder is None or not folder.complete or not all(name.sure for name in folder.names.values()):
            return None
        folder.uses += 1
        there = [(found.cookie, name) for name, found in folder.names.items() if found.node and found.cookie]
        return [name for _, name in sorted(there)]

    # -- the control plane ---------------------------------------------------------------------------------------

    def _names(self) -> int:
        return sum(len(folder.names) for folder in self.folders.values())

    def is_crowded(self, share: int) -> bool:
        inodes_max = self.inodes_max - self.inodes_max // share
        return len(self.inodes) > inodes_max or self._names() > self.names_max - self.names_max // share

    def put(self, attr: HotAttr) -> bool:
        inode = self.inodes.get(attr.node)
        if inode is None:
            if len(self.inodes) >= self.inodes_max:
                return False
            inode = self.inodes[attr.node] = Inode(attr)
        inode.attr, inode.sure = attr, True
        return True

    def unsure(self, node: int) -> bool:
        inode = self.inodes.get(node)
        if inode is not None:
            inode.sure = False
        return inode is not None

    def drop(self, node: int) -> Gone | None:
        inode = self.inodes.pop(node, None)
        return None if inode is None else Gone(lookups=inode.lookups, leases=inode.leases, opens=inode.opens)

    def share(self, node: int) -> bool:
        inode = self.inodes.get(node)
        if inode is None or node not in self._objects:
            return False
        inode.shared = True
        return True

    def shut(self, node: int, *, only_idle: bool = False) -> Gone | None:
        inode = self.inodes.get(node)
        if inode is None:
            return Gone()
        if only_idle and inode.leases:
            return None
        gone = Gone(leases=inode.leases, opens=inode.opens)
        inode.shared, inode.leases, inode.opens = False, 0, 0
        return gone

    def name(self, parent: int, name: bytes, cookie: int, node: int) -> bool:
        folder = self.folders.setdefault(parent, Folder())
        assert node or not folder.complete
        if name not in folder.names and self._names() >= self.names_max:
            folder.complete = False
            return False
        folder.names[name] = Name(cookie, node)
        return True

    def name_unsure(self, parent: int, name: bytes) -> bool:
        folder = self.folders.setdefault(parent, Folder())
        if name not in folder.names and self._names() >= self.names_max:
            folder.complete = False
            return False
        folder.names.setdefault(name, Name(0, 0)).sure = False
        return True

    def name_gone(self, parent: int, name: bytes) -> None:
        folder = self.folders.get(parent)
        if folder is not None:
            folder.names.pop(name, None)

    def complete(self, node: int, parent: int) -> bool:
        folder = self.folders.setdefault(node, Folder())
        folder.complete, folder.parent = True, parent
        for name in [name for name, found in folder.names.items() if found.sure and not found.node]:
            del folder.names[name]
        self.check()
        return True

    def folder_parent(self, node: int, parent: int) -> None:
        self.folders[node].parent = parent

    def forget_folder(self, node: int) -> None:
        folder = self.folders.pop(node, None)
        assert folder is None or all(name.sure for name in folder.names.values())

    def folder_uses(self, node: int) -> int:
        folder = self.folders.get(node)
        if folder is None:
            return 0
        uses, folder.uses = folder.uses, 0
        return uses

    def fill(self, parent: int, entries: Sequence[tuple[int, bytes, HotAttr]]) -> bool:
        folder = self.folders.setdefault(parent, Folder())
        for cookie, name, attr in entries:
            found, inode = folder.names.get(name), self.inodes.get(attr.node)
            if (found is None or found.sure) and not self.name(parent, name, cookie, attr.node):
                return False
            if (inode is None or inode.sure) and not self.put(attr):
                return False
        self.check()
        return True

    def used(self) -> list[Use]:
        uses = [Use(node=node, opens=inode.opens) for node, inode in self.inodes.items() if inode.opens]
        for use in uses:
            self.inodes[use.node].opens = 0
        return uses

    def leases(self, node: int) -> int:
        inode = self.inodes.get(node)
        return inode.leases if inode is not None else 0

    def watch(self) -> None:
        self.watched += 1

    def forget_names(self, parent: int, names: Sequence[bytes]) -> None:
        self.gone_from_kernel += [(parent, name) for name in names]
