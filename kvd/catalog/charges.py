"""To which top directory each copy on NVMe is charged, and how that follows when names change.

The sums are the triggers' (table `top_use`): they change with a copy's row, in its transaction, and a start has nothing to count.
What is in no namespace counts for nobody; it is not recharged when it moves about there.
"""

from __future__ import annotations

import errno
import itertools
import os
from typing import TYPE_CHECKING

from kvd.catalog.names import RENAME_EXCHANGE, fail
from kvd.catalog.packing import BLOCK_BYTES
from kvd.catalog.schema import CHARGE_ALL, ROOT_INO

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvd.catalog.chains import Chains
    from kvd.catalog.database import Database
    from kvd.catalog.names import Names
    from kvd.catalog.namespaces import Namespaces
    from kvd.catalog.records import Inode

MOVED_MAX = 1024
"""What lies in a directory that moves into or out of a namespace is charged anew in the step that moves it: some 10 ms."""


class Charges:
    """Column `top` of table `copy`, and table `top_use`.

    Attributes
    ----------
    moved
        Hears of each object that may be charged to another top directory than before, when that is committed.
    recounted
        Hears that any may be.
    limited
        Whether limits are kept. When the daemon ends they are not: what is only in DDR would be lost.
    """

    def __init__(self, db: Database, names: Names, namespaces: Namespaces, chains: Chains) -> None:
        self._db = db
        self._names = names
        self._namespaces = namespaces
        self._chains = chains
        self.moved: Callable[[int], None] = lambda _ino: None
        self.recounted: Callable[[], None] = lambda: None
        self.limited = True
        self._making: dict[int, tuple[int, int]] = {}

    def __repr__(self) -> str:
        return f"<Charges of {self._db!r}>"

    def used_blocks(self, top: int) -> int:
        """Return the 4 KiB blocks that the copies below a top directory are charged."""
        row = self._db.execute("SELECT blocks FROM top_use WHERE top=?", (top,)).fetchone()
        return 0 if row is None else int(row[0])

    def recount(self) -> None:
        """Find out anew what each copy is charged to; takes as long as there are names."""
        with self._db.transaction():
            self._db.script(CHARGE_ALL)
        self.recounted()

    # -- copies that are being made --------------------------------------------------------------------------------

    def making_blocks(self, top: int) -> int:
        """Return the blocks of the copies that are being made below a top directory; at most a few hundred are at a time."""
        return sum(blocks for at, blocks in self._making.values() if at == top)

    def room_blocks(self, ino: int) -> int | None:
        """Return how many blocks a new copy of an object may take by the limit of its namespace on NVMe; None: any number."""
        top = self._namespaces.charged(ino)
        namespace = self._namespaces.quotas.get(top)
        if namespace is None or not namespace.nvme_limit_bytes or not self.limited:
            return None
        older = self._db.execute("SELECT blocks FROM copy WHERE ino=?", (ino,)).fetchone()
        goes = 0 if older is None else int(older[0])
        used = self.used_blocks(top) + self.making_blocks(top) - goes
        return max(0, namespace.nvme_limit_bytes // BLOCK_BYTES - used)

    def claim(self, ino: int, blocks: int) -> None:
        """Count blocks for a copy that is being made, until `settled`.

        Raises
        ------
        OSError
            ENOSPC: its namespace would be beyond its limit.
        """
        room = self.room_blocks(ino)
        if room is not None and blocks > room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "the namespace's limit on nvme")
        _, claimed = self._making.get(ino, (0, 0))
        self._making[ino] = (self._namespaces.charged(ino), claimed + blocks)

    def settled(self, ino: int) -> None:
        """Count them no longer: the copy has its row, or did not come to be."""
        self._making.pop(ino, None)

    # -- changes of names ----------------------------------------------------------------------------------------

    def rename(
        self, parent_old: int, name_old: bytes, parent_new: int, name_new: bytes, flags: int, now_ns: int
    ) -> Inode | None:
        """Rename, as `Names.rename`, and charge what has moved to where it is now.

        Raises
        ------
        OSError
            Besides: EXDEV for a directory with more than `MOVED_MAX` names that would move into or out of a namespace.
        """
        moving: list[int] = []
        try:
            with self._db.transaction():
                if parent_old != parent_new:
                    moving += self._moving(parent_old, name_old, parent_new)
                    if flags == RENAME_EXCHANGE:
                        moving += self._moving(parent_new, name_new, parent_old)
                lost = self._names.rename(parent_old, name_old, parent_new, name_new, flags, now_ns)
                if lost is not None and lost.is_file and not lost.nlink:
                    now = self._names.lookup(parent_new, name_new)
                    assert now is not None
                    self._chains.replaced(lost.ino, now.ino)
                self._recharge(moving)
        except BaseException:
            if moving:  # who remembers ways up may have learnt one that is not there
                self._names.folder_moves += 1
            raise
        self._tell(moving)
        return lost

    def unlink(self, parent: int, name: bytes, now_ns: int) -> Inode:
        """Remove a name of what is not a directory; what has another one is charged there."""
        with self._db.transaction():
            inode = self._names.unlink(parent, name, now_ns)
            moving = [inode.ino] if inode.nlink and inode.is_file else []
            self._recharge(moving)
        self._tell(moving)
        return inode

    def link(self, ino: int, parent: int, name: bytes, now_ns: int) -> Inode:
        """Give an inode another name; what had none is charged there from now on."""
        with self._db.transaction():
            inode = self._names.link(ino, parent, name, now_ns)
            moving = [ino] if inode.nlink == 1 else []
            self._recharge(moving)
        self._tell(moving)
        return inode

    def _moving(self, parent_old: int, name: bytes, parent_new: int) -> list[int]:
        """Return the inodes at or below a name that would be charged to another namespace in another directory."""
        inode = self._names.lookup(parent_old, name)
        if inode is None:
            return []
        tops = [self._namespaces.top(parent) for parent in (parent_old, parent_new) if parent != ROOT_INO]
        if len(set(tops)) < len(tops) or not any(self._namespaces.get(top) for top in tops):
            return []
        if not inode.is_dir:
            return [inode.ino]
        below = self._db.execute(
            "WITH RECURSIVE down(ino) AS (SELECT ? UNION SELECT d.ino FROM down JOIN dentry d ON d.parent=down.ino)"
            " SELECT ino FROM down LIMIT ?",
            (inode.ino, MOVED_MAX + 2),
        ).fetchall()
        if len(below) > MOVED_MAX + 1:
            raise fail(errno.EXDEV, name)
        return list(itertools.chain.from_iterable(below))

    def _recharge(self, inos: list[int]) -> None:
        for ino in inos:
            top = self._namespaces.charged(ino)
            self._db.execute("UPDATE copy SET top=? WHERE ino=? AND top<>?", (top, ino, top))

    def _tell(self, inos: list[int]) -> None:
        for ino in inos:
            self.moved(ino)
