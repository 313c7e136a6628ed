"""The hot table: what the data plane answers by itself of names, attributes and opens. `docs/concurrency.md` has the protocol.

`Hot` is the only one who changes the table. It watches the catalogue (`kvd.catalog.watch`): what is about to change is made
unsure, so that the data plane forwards it, and when the change has ended, whatever came of it, the truth is read from the
catalogue and published, or left out. `HotFolders` decides which directories the table holds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from kvd.catalog.schema import ROOT_INO
from kvd.catalog.told import Telling
from kvd.fs import attributes
from kvd.fs.hot_folders import HotFolders
from kvd.fs.hot_table import HotAttr
from kvd.fs.lookups import Lookups
from kvd.fs.virtual import is_virtual
from kvdriver import BLOCK_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvd.catalog.catalog import Catalog
    from kvd.catalog.told import Told
    from kvd.fs.hot_plane import HotPlane
    from kvd.tier.lives import Lives
    from kvd.tier.plane import Gone, Use

log = structlog.get_logger(__name__)

MS = 1000
"""Milliseconds in a second."""


class Hot:
    """Publishes the catalogue's truth; see `Watcher` and `Leases` for what it is to others.

    Attributes
    ----------
    is_dead
        Whether an inode is below a directory that was invalidated.
    lookups
        References that the kernel holds of what the control plane answered; the table counts its own.
    """

    def __init__(self, table: HotPlane, catalog: Catalog) -> None:
        self._table = table
        self._db = catalog.db
        self.is_dead = catalog.namespaces.is_dead
        self._telling = Telling(catalog.db)
        self._folders = HotFolders(table, self._telling, self)
        self.lookups = Lookups()
        self._lives: Lives
        self._dropped: Callable[[int, Gone], None]
        self._awaited: set[int] = set()
        self._unsure_inodes: set[int] = set()
        self._unsure_names: set[tuple[int, bytes]] = set()
        self._vanishing: dict[int, list[bytes]] = {}

    def __repr__(self) -> str:
        return f"<Hot {self._folders!r} awaited={len(self._awaited)} {self.lookups!r}>"

    def serve(self, lives: Lives, dropped: Callable[[int, Gone], None]) -> None:
        """Watch the catalogue, and publish from now on.

        Parameters
        ----------
        lives
            Knows what storage objects in memory are charged.
        dropped
            Gets what the table had counted of an object that has no name any more.
        """
        self._lives = lives
        self._dropped = dropped
        if self._table.is_on:
            self._db.watch(self)
            self.publish(ROOT_INO)

    def stop(self) -> None:
        """Watch no more: the data plane is about to end."""
        self._db.watch(None)

    async def run(self) -> None:
        """Load and forget directories, for ever."""
        await self._folders.run()

    # -- what handlers have answered -----------------------------------------------------------------------------

    def found(self, parent: int, name: bytes) -> None:
        """Publish a name that was looked up and is there."""
        if self._table.is_on and name not in (b".", b".."):
            self._folders.asked(parent)
            self._settled(self._settle_name, parent, name)

    def missed(self, parent: int, name: bytes) -> None:
        """Publish that a name that was looked up is not there."""
        if self._table.is_on and not is_virtual(parent) and not self._folders.is_complete(parent):
            self._folders.asked(parent)
            self._folders.name(parent, name, 0, 0)

    def known(self, ino: int) -> None:
        """Publish an inode whose attributes were asked for, if the table has a directory with a name of it."""
        if self._table.is_on and self._is_named(ino):
            self.publish(ino)

    def listed(self, ino: int) -> None:
        """Load a directory that was listed."""
        if self._table.is_on and not is_virtual(ino) and not self.is_dead(ino):
            self._folders.want(ino)

    def made_folder(self, ino: int, parent: int) -> None:
        """Publish a new directory as complete: there is nothing in it. Before anything is awaited."""
        if self._table.is_on:
            self._folders.born(ino, parent)

    # -- publishing ----------------------------------------------------------------------------------------------

    def attr(self, told: Told) -> HotAttr | None:
        """Return what the data plane may tell of an inode; None while only the control plane knows it.

        An object with a writer, or with one that could not be sealed, is as its DDR file is. What has no name is never told.
        """
        if told.nlink == 0 or told.sealed == 0:
            return None
        held_blocks = 0
        if told.sealed is not None:
            live = self._lives.by_ino.get(told.ino)
            held_blocks = told.copy_blocks if live is None else live.mapped_blocks
        return HotAttr(
            node=told.ino,
            size=told.size,
            held_bytes=held_blocks * BLOCK_BYTES,
            atime_ns=told.atime_ns,
            mtime_ns=told.mtime_ns,
            ctime_ns=told.ctime_ns,
            mode=told.mode,
            nlink=told.nlink,
            uid=told.uid,
            gid=told.gid,
            rdev=told.rdev,
            entry_timeout_ms=int(attributes.CACHE_S * MS),
            attr_timeout_ms=int(attributes.attr_timeout_s(told.mode) * MS),
        )

    def publish(self, ino: int) -> None:
        """Publish an inode as it is, or note that it will be when its writer is gone."""
        told = self._telling.inode(ino)
        attr = None if told is None else self.attr(told)
        if attr is not None:
            self._awaited.discard(ino)
            if not self._table.put(attr):
                self._folders.full()
        elif told is not None and told.nlink:
            self._awaited.add(ino)

    def expect(self, ino: int) -> None:
        """Note that an inode is to be published when its writer is gone: it has a name in the table."""
        self._awaited.add(ino)

    def drop(self, ino: int) -> None:
        """Take an inode out of the table; what it counted is this side's."""
        gone = self._take_out(ino)
        if gone is not None:
            self._dropped(ino, gone)

    def _take_out(self, ino: int) -> Gone | None:
        self._awaited.discard(ino)
        gone = self._table.drop(ino)
        if gone is not None and gone.lookups:
            self.lookups.add(ino, gone.lookups)
        return gone

    def _is_named(self, ino: int) -> bool:
        """Whether the table has a directory with a name of an inode."""
        return any(parent in self._folders for parent in self._telling.parents(ino))

    # -- changes of the catalogue: `Watcher` ---------------------------------------------------------------------

    def inode_changing(self, ino: int) -> None:
        """Have the data plane forward what is about an inode."""
        if self._table.unsure(ino) or ino in self._awaited or ino in self._folders:
            self._unsure_inodes.add(ino)

    def name_changing(self, parent: int, name: bytes) -> None:
        """Have the data plane forward what is about a name."""
        if parent in self._folders:
            self._unsure_names.add((parent, name))
            if not self._table.name_unsure(parent, name):
                self._folders.lost(parent)

    def name_vanishing(self, parent: int, name: bytes) -> None:
        """Note a name of which the kernel must be told that it is gone."""
        self._vanishing.setdefault(parent, []).append(name)

    def settle(self) -> None:
        """Publish what was unsure, as it is now."""
        inodes, self._unsure_inodes = self._unsure_inodes, set()
        names, self._unsure_names = self._unsure_names, set()
        vanished, self._vanishing = self._vanishing, {}
        for ino in inodes:
            self._settled(self._settle_inode, ino)
        for parent, name in names:
            self._settled(self._settle_name, parent, name)
        for parent, gone in vanished.items():
            self.vanished(parent, gone)

    def _settled(self, settle: Callable[..., None], *what: int | bytes) -> None:
        try:
            settle(*what)
        except OSError as error:  # it stays unsure, and is asked for here
            log.warning("can't be published", what=repr(what), errno=error.errno, error=str(error))

    def _settle_inode(self, ino: int) -> None:
        told = self._telling.inode(ino)
        if told is None or told.nlink == 0:
            self._folders.removed(ino)
            self.drop(ino)
            return
        attr = self.attr(told)
        if attr is not None:
            self._awaited.discard(ino)
            if not self._table.put(attr):
                self._folders.full()

    def _settle_name(self, parent: int, name: bytes) -> None:
        if parent not in self._folders:
            return
        found = self._telling.name(parent, name)
        if found is None:
            self._table.name_gone(parent, name)
            return
        cookie, ino = found
        self.publish(ino)
        self._folders.name(parent, name, cookie, ino)
        self._folders.moved(ino, parent)

    def vanished(self, parent: int, names: Sequence[bytes]) -> None:
        """Have the kernel forget names that no client has removed; the table does not have them any more."""
        self._table.forget_names(parent, names)

    def forget_where(self, is_gone: Callable[[int], bool]) -> None:
        """Answer nothing more from directories for which `is_gone` holds; they must not be listed or found here then."""
        self._folders.forget_where(is_gone)

    # -- opens: `Leases` -----------------------------------------------------------------------------------------

    def share(self, node: int) -> bool:
        """See `Leases.share`; an inode is in the table while a directory there has a name of it."""
        if not self._table.is_on:
            return False
        if self._table.share(node):
            return True
        self._settled(self.known, node)
        return self._table.share(node)

    def shut(self, node: int, *, only_idle: bool = False) -> Gone | None:
        """See `Leases.shut`. One that was kept in the table only because it was shared goes."""
        gone = self._table.shut(node, only_idle=only_idle)
        if gone is not None:
            self._settled(self._leave_out, node)
        return gone

    def _leave_out(self, node: int) -> None:
        if not self._is_named(node):
            self._take_out(node)

    def used(self) -> list[Use]:
        """See `Leases.used`."""
        return self._table.used()

    def leases(self, node: int) -> int:
        """See `Leases.leases`."""
        return self._table.leases(node)

    def watch(self) -> None:
        """See `Leases.watch`."""
        self._table.watch()

    def is_shared(self, ino: int) -> bool:
        """Whether the data plane may have opens of an inode."""
        live = self._lives.by_ino.get(ino)
        return live is not None and live.shared
