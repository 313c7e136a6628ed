"""Namespaces: top directories with a policy, what belongs to them, and what is left of those that were invalidated.

What lies below a namespace belongs to it. An invalidation puts a new directory in its place; the old one becomes a *grave*: it
has no name, so that no path reaches what is in it, and is noted in `meta` until nothing is. A name below a grave is dead:
nobody finds it any more, also not from a working directory in its midst.
"""

from __future__ import annotations

import errno
import stat
from dataclasses import astuple, dataclass, fields
from typing import TYPE_CHECKING, TypeGuard

from kvd.catalog.names import RENAME_EXCHANGE, RENAME_NOREPLACE, fail
from kvd.catalog.records import Namespace
from kvd.catalog.schema import ROOT_INO

if TYPE_CHECKING:
    from kvd.catalog.database import Database
    from kvd.catalog.names import Names
    from kvd.catalog.records import Inode

NAMESPACES_MAX = 4096
REMEMBERED_FOLDERS = 65536
COUNTED_NAMES = 65536
"""Counting takes time, and whether it was this many or more concerns nobody."""
GRAVE = "grave:"
"""Key of a grave in `meta`, with its number behind it; `Names.orphans` knows it too."""
_NAMES = tuple(each.name for each in fields(Namespace))
_COLUMNS = ", ".join(_NAMES)
_MARKS = ", ".join("?" * len(_NAMES))


@dataclass(frozen=True, slots=True, kw_only=True)
class Exhumed:
    """A name that is gone from a grave, and the directory where it was known before."""

    ino: int
    parent: int
    name: bytes


class Namespaces:
    """Table `namespace`, and the way from an inode up to its row."""

    def __init__(self, db: Database, names: Names) -> None:
        self._db = db
        self._names = names
        self._tops: dict[int, int] = {}
        self._rows: dict[int, Namespace | None] = {}
        self._moves = names.folder_moves
        self._known_count: int | None = None
        self._known_grouping: bool | None = None
        self._known_quotas: dict[int, Namespace] | None = None
        self._retired: dict[int, None] = {}
        self._graves = [
            int(row[0]) for row in db.execute("SELECT value FROM meta WHERE key GLOB ? ORDER BY value", (GRAVE + "*",))
        ]
        self.rising: dict[int, int] = {}  # graves of forks that are made; they count to where they will be

    def __repr__(self) -> str:
        return f"<Namespaces {self._count}, {len(self._graves)} graves>"

    # -- rows ----------------------------------------------------------------------------------------------------

    def get(self, ino: int) -> Namespace | None:
        """Return the namespace that the top directory `ino` is, or None."""
        if not self._count:
            return None
        if ino not in self._rows:
            row = self._db.execute(
                f"SELECT {_COLUMNS} FROM namespace WHERE ino=?",  # noqa: S608
                (ino,),
            ).fetchone()
            if len(self._rows) >= REMEMBERED_FOLDERS:
                self._rows.clear()
            self._rows[ino] = None if row is None else Namespace(*row)
        return self._rows[ino]

    def all(self) -> list[tuple[bytes, Namespace]]:
        """Return every namespace with its name, in the order of names."""
        columns = ", ".join(f"n.{column}" for column in _NAMES)
        rows = self._db.execute(
            f"SELECT d.name, {columns} FROM namespace n JOIN dentry d ON d.ino=n.ino"  # noqa: S608
            " WHERE d.parent=? ORDER BY d.name",
            (ROOT_INO,),
        )
        return [(bytes(row[0]), Namespace(*row[1:])) for row in rows]

    def put(self, namespace: Namespace) -> None:
        """Store a namespace; ENOSPC if there are too many."""
        with self._db.transaction():
            others = self._db.scalar("SELECT count(*) FROM namespace WHERE ino<>?", (namespace.ino,))
            if others >= NAMESPACES_MAX:
                raise fail(errno.ENOSPC)
            self._db.execute(
                f"INSERT OR REPLACE INTO namespace({_COLUMNS}) VALUES({_MARKS})",
                astuple(namespace),
            )
            self._names.changed(namespace.ino)
        self._forget()

    def look_again(self) -> None:
        """Forget what is known of rows: a client may have removed a directory, and its row with it."""
        self._forget()

    def _forget(self) -> None:
        """Ask the tables again, when the transaction has ended in one way or the other."""
        self._rows.clear()
        self._known_count = self._known_grouping = self._known_quotas = None

    @property
    def _count(self) -> int:
        """Rows there are, or were lately: removed directories take theirs along."""
        if self._known_count is None:
            self._known_count = int(self._db.scalar("SELECT count(*) FROM namespace"))
        return self._known_count

    @property
    def is_grouping(self) -> bool:
        """Whether sessions are directories in any of them, or were lately."""
        if self._known_grouping is None:
            grouping = "SELECT EXISTS(SELECT 1 FROM namespace WHERE session='directory')"
            self._known_grouping = bool(self._db.scalar(grouping))
        return self._known_grouping

    @property
    def quotas(self) -> dict[int, Namespace]:
        """Those that have a guarantee or a limit in any tier, by number."""
        if self._known_quotas is None:
            rows = self._db.execute(f"SELECT {_COLUMNS} FROM namespace ORDER BY ino").fetchall()  # noqa: S608
            self._known_quotas = {row[0]: found for row in rows if (found := Namespace(*row)).has_quota}
        return self._known_quotas

    # -- belonging -----------------------------------------------------------------------------------------------

    def top(self, ino: int) -> int:
        """Return the highest directory above an inode but the root, or the inode itself: a name in the root, a grave."""
        if self._moves != self._names.folder_moves or len(self._tops) >= REMEMBERED_FOLDERS:
            self._moves = self._names.folder_moves
            self._tops.clear()
        passed: list[int] = []
        at = ino
        while (top := self._tops.get(at)) is None:
            row = self._db.execute("SELECT parent FROM dentry WHERE ino=? LIMIT 1", (at,)).fetchone()
            if row is None or row[0] == ROOT_INO:
                top = self.rising.get(at, at)
                break
            passed.append(at)
            at = int(row[0])
        # What was begun with may be a file: there are too many of those, and they change their places.
        self._tops.update(dict.fromkeys(passed[1:], top))
        if passed:
            self._tops[at] = top
        return top

    def charged(self, ino: int, born: int = ROOT_INO) -> int:
        """Return the top directory below which a file is, for whose namespace it counts; 0 for none.

        `born` is where it was made, which counts while it has no name.
        """
        if not self._count:
            return 0
        top = self.top(ino)
        if top != ino:
            return top
        return 0 if born == ROOT_INO or self._names.path(ino) is not None else self.top(born)

    def of(self, ino: int) -> Namespace | None:
        """Return the namespace that an inode belongs to, or is, or None."""
        return self.get(self.top(ino)) if self._count else None

    def is_dead(self, ino: int) -> bool:
        """Whether an inode is a grave or below one."""
        return bool(self._graves) and self.top(ino) in self._graves

    def refuse_dead(self, folder: int) -> None:
        """Raise ENOENT for a directory that is dead, as for one that was removed."""
        if self.is_dead(folder):
            raise fail(errno.ENOENT)

    def relative(self, ino: int, name: bytes = b"") -> tuple[int, bytes] | None:
        """Return the namespace of an inode, the root without one, and its path below; of `name` in it if given.

        None if it has no path.
        """
        path = self._names.path(ino)
        if path is None:
            return None
        namespace = self.of(ino)
        whole = path + b"/" + name if name else path
        if namespace is None:
            return ROOT_INO, whole
        return namespace.ino, b"/".join(whole.split(b"/")[2:])

    # -- moving names --------------------------------------------------------------------------------------------

    def check_rename(self, parent_old: int, name_old: bytes, parent_new: int, name_new: bytes, flags: int) -> None:
        """Refuse a rename that would bring content under another fingerprint, or a namespace out of the root.

        Raises
        ------
        OSError
            EXDEV: the fingerprints differ. EBUSY: a namespace would be moved away from the root, or replaced.
        """
        if not self._count or (parent_old == parent_new != ROOT_INO):
            return
        source, target = self._names.lookup(parent_old, name_old), self._names.lookup(parent_new, name_new)
        if self._is_namespace(source) and parent_new != ROOT_INO:
            raise fail(errno.EBUSY)
        stays = flags == RENAME_NOREPLACE or (flags == RENAME_EXCHANGE and parent_old == ROOT_INO)
        if self._is_namespace(target) and not stays and (source is None or source.ino != target.ino):
            raise fail(errno.EBUSY)
        if parent_old != parent_new and self._print_below(parent_old) != self._print_below(parent_new):
            raise fail(errno.EXDEV)

    def _is_namespace(self, inode: Inode | None) -> TypeGuard[Inode]:
        return inode is not None and inode.is_dir and self.get(inode.ino) is not None

    def _print_below(self, folder: int) -> str:
        """Return the fingerprint of what lies in a directory; ``""`` for none."""
        namespace = None if folder == ROOT_INO else self.of(folder)
        return "" if namespace is None else namespace.fingerprint

    def check_link(self, inode: Inode, born: int, parent: int) -> None:
        """Refuse a link that would bring content under another fingerprint.

        Parameters
        ----------
        inode
            What gets another name.
        born
            The directory in which it was made, where it has no name yet (O_TMPFILE); else 0.
        parent
            The directory of the new name.

        Raises
        ------
        OSError
            EXDEV: the fingerprints differ. ENOENT: it was made before its namespace was invalidated.
        """
        if inode.nlink == 0 and self.top(born) in self._retired:
            raise fail(errno.ENOENT)
        if not self._count:
            return
        home = self._names.parent(inode.ino) if inode.nlink else born
        if self._print_below(home or ROOT_INO) != self._print_below(parent):
            raise fail(errno.EXDEV)

    # -- invalidation --------------------------------------------------------------------------------------------

    def bury(self, ino: int, now_ns: int, fingerprint: str | None = None) -> tuple[int, int]:
        """Put a new directory in a namespace's place, and all that was in the old one below a grave: the old one.

        One transaction that takes the same time for any number of names: no row of theirs is touched. Not to be called
        within another one.

        Parameters
        ----------
        fingerprint
            The namespace's new one; None keeps the old one.

        Returns
        -------
        int, int
            The new directory, which has the old one's name, attributes, xattrs and policy; how many names went.
        """
        with self._db.transaction():
            names = self.count_in(ino)
            new = self._db.execute(
                "INSERT INTO inode(mode, uid, gid, nlink, size, atime_ns, mtime_ns, ctime_ns, rdev, target)"
                " SELECT mode, uid, gid, 2, size, atime_ns, ?, ?, rdev, target FROM inode WHERE ino=?",
                (now_ns, now_ns, ino),
            ).lastrowid
            assert new is not None
            for table in ("dentry", "xattr", "namespace"):
                self._db.execute(f"UPDATE {table} SET ino=? WHERE ino=?", (new, ino))  # noqa: S608
            if fingerprint is not None:
                self._db.execute(
                    "UPDATE namespace SET fingerprint=?, created_ns=? WHERE ino=?", (fingerprint, now_ns, new)
                )
            self._retire(ino, now_ns)
            self._names.changed(new)
        self._note_grave(ino)
        return new, names

    def remove_whole(self, name: bytes, ino: int, now_ns: int) -> int:
        """Remove a namespace and its directory, and put all that is in it below a grave; return how many names."""
        with self._db.transaction():
            names = self.count_in(ino)
            self._db.execute("DELETE FROM dentry WHERE parent=? AND name=?", (ROOT_INO, name))
            self._db.execute(
                "UPDATE inode SET nlink=nlink-1, mtime_ns=?, ctime_ns=? WHERE ino=?", (now_ns, now_ns, ROOT_INO)
            )
            self._db.execute("DELETE FROM namespace WHERE ino=?", (ino,))
            self._retire(ino, now_ns)
        self._note_grave(ino)
        return names

    def retire(self, parent: int, name: bytes, ino: int, now_ns: int) -> int:
        """Take away the name of a directory anywhere, and put all that is in it below a grave; return how many names."""
        with self._db.transaction():
            names = self.count_in(ino)
            self._db.execute("DELETE FROM dentry WHERE parent=? AND name=?", (parent, name))
            self._db.execute(
                "UPDATE inode SET nlink=nlink-1, mtime_ns=?, ctime_ns=? WHERE ino=?", (now_ns, now_ns, parent)
            )
            self._names.changed(parent)
            self._retire(ino, now_ns)
        self._note_grave(ino)
        return names

    def _retire(self, ino: int, now_ns: int) -> None:
        self._db.execute("UPDATE inode SET nlink=0, ctime_ns=? WHERE ino=?", (now_ns, ino))
        self._db.execute("INSERT INTO meta VALUES(?,?)", (f"{GRAVE}{ino}", ino))
        self._names.changed(ino)

    def add_grave(self, ino: int) -> None:
        """Take over a grave that `meta` has already (`kvd.catalog.forks`)."""
        self._graves.append(ino)
        self._tops.clear()

    def _note_grave(self, ino: int) -> None:
        self.add_grave(ino)
        self._forget()
        self._remember_retired(ino)

    def _remember_retired(self, folder: int) -> None:
        if len(self._retired) >= REMEMBERED_FOLDERS:
            del self._retired[next(iter(self._retired))]
        self._retired[folder] = None

    def unname(self, ino: int, now_ns: int) -> list[tuple[int, bytes]]:
        """Remove every name of a file, as if each was unlinked; return their directories and names."""
        with self._db.transaction():
            names = self._db.execute("SELECT parent, name FROM dentry WHERE ino=?", (ino,)).fetchall()
            self._db.execute(
                "UPDATE inode SET mtime_ns=?, ctime_ns=? WHERE ino IN (SELECT parent FROM dentry WHERE ino=?)",
                (now_ns, now_ns, ino),
            )
            self._db.execute("DELETE FROM dentry WHERE ino=?", (ino,))
            self._db.execute("UPDATE inode SET nlink=0, ctime_ns=? WHERE ino=?", (now_ns, ino))
            for changed in (ino, *(parent for parent, _ in names)):
                self._names.changed(changed)
        return [(int(parent), bytes(name)) for parent, name in names]

    def exhume(self, grave: int, limit: int) -> list[Exhumed]:
        """Take up to `limit` names out of a grave, one transaction; nothing is left in it when there are none.

        What has no name left then is for the caller to delete.
        """
        folder, above = grave, (0, b"")
        while True:
            rows = self._db.execute(
                "SELECT d.id, d.ino, d.name, i.mode FROM dentry d JOIN inode i USING(ino)"
                " WHERE d.parent=? ORDER BY d.id LIMIT ?",
                (folder, limit),
            ).fetchall()
            files = [row for row in rows if not stat.S_ISDIR(row[3])]
            if files or not rows:
                break
            above = (folder, bytes(rows[0][2]))
            folder = int(rows[0][1])  # only directories: their names go first
        if not rows and folder == grave:
            return []
        with self._db.transaction():
            if not rows:
                self._db.execute("DELETE FROM dentry WHERE ino=?", (folder,))
                self._db.execute("UPDATE inode SET nlink=0 WHERE ino=?", (folder,))
                self._names.changed(folder)
                self._remember_retired(folder)
                return [Exhumed(ino=folder, parent=above[0], name=above[1])]
            for cookie, ino, _, _ in files:
                self._db.execute("DELETE FROM dentry WHERE id=?", (cookie,))
                self._db.execute("UPDATE inode SET nlink=nlink-1 WHERE ino=?", (ino,))
                self._names.changed(ino)
        return [Exhumed(ino=ino, parent=folder, name=bytes(name)) for _, ino, name, _ in files]

    @property
    def graves(self) -> tuple[int, ...]:
        """The graves that are not empty yet."""
        return tuple(self._graves)

    def count_in(self, folder: int) -> int:
        """Return the number of names in a directory, of which no more than `COUNTED_NAMES` are counted."""
        some = "SELECT 1 FROM dentry WHERE parent=? LIMIT ?"
        return int(self._db.scalar(f"SELECT count(*) FROM ({some})", (folder, COUNTED_NAMES)))  # noqa: S608

    def close_grave(self, grave: int) -> None:
        """Make a grave that is empty a directory like any other that was removed; who deletes those deletes it."""
        self._db.execute("DELETE FROM meta WHERE key=?", (f"{GRAVE}{grave}",))
        self._graves.remove(grave)


def is_name(name: bytes) -> bool:
    """Whether bytes can name a top directory that clients see."""
    return bool(name) and b"/" not in name and b"\0" not in name and name not in (b".", b"..", b".kvd")
