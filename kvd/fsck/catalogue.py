"""The catalogue against itself: SQLite's own check, the tree of names, the rows of objects; and how each is mended."""

from __future__ import annotations

import sqlite3
import stat
import time
from functools import partial
from typing import TYPE_CHECKING

from kvd.catalog.schema import ROOT_INO
from kvd.fsck.fault import Fault
from kvd.tier.recovery import fall_back
from kvdriver import Tier

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvd.catalog.catalog import Catalog
    from kvd.catalog.records import Copy, Placement

REBUILD = "kvctl fsck --rebuild makes it anew from the files"
LOST = b"lost+found"
_IFMT = 0o170000


def database(catalog: Catalog) -> Iterator[Fault]:
    """Let SQLite check its file; nothing in one that is damaged is to be believed."""
    try:
        for (line,) in catalog.db.execute("PRAGMA integrity_check").fetchall():
            if line != "ok":
                yield Fault(kind="catalogue", what=f"catalogue: {line}; {REBUILD}")
    except (sqlite3.DatabaseError, OSError) as error:
        yield Fault(kind="catalogue", what=f"catalogue: {error}; {REBUILD}")


# -- names ---------------------------------------------------------------------------------------------------------------


def entries(catalog: Catalog) -> Iterator[Fault]:
    """Find names that lead to nothing or are nowhere, and directories that are not in the tree."""
    rows = catalog.db.execute(
        "SELECT d.id, d.ino, d.parent, i.ino IS NULL FROM dentry d LEFT JOIN inode i ON i.ino=d.ino"
        " LEFT JOIN inode p ON p.ino=d.parent WHERE i.ino IS NULL OR p.ino IS NULL OR (p.mode & ?) != ?",
        (_IFMT, stat.S_IFDIR),
    ).fetchall()
    for cookie, ino, parent, nothing in rows:
        yield Fault(
            kind="names",
            what=f"name of inode {ino} in {parent}: one of them is missing or the latter is no directory",
            mend=partial(_drop_name, catalog, cookie, None if nothing else ino),
        )
    for ino in _circles(catalog):
        yield Fault(
            kind="names",
            what=f"directory {ino}: is within itself",
            mend=partial(_take_out, catalog, ino),
        )


def folders(catalog: Catalog) -> Iterator[Fault]:
    """Find directories with more than one name."""
    for ino, names in catalog.db.execute(
        "SELECT d.ino, count(*) FROM dentry d JOIN inode i USING(ino) WHERE (i.mode & ?)=? GROUP BY d.ino HAVING count(*) > 1",
        (_IFMT, stat.S_IFDIR),
    ).fetchall():
        what = f"directory {ino}: has {names} names"
        yield Fault(kind="names", what=what, mend=partial(_one_name, catalog, ino))


def links(catalog: Catalog, *, running: bool = False) -> Iterator[Fault]:
    """Find what has no name, and link counts that are not the number of names.

    While kvd is `running` what is unlinked may be open.
    """
    query = (
        "SELECT i.ino, i.mode, i.nlink, (SELECT count(*) FROM dentry d WHERE d.ino=i.ino),"
        " (SELECT count(*) FROM dentry d JOIN inode c ON c.ino=d.ino WHERE d.parent=i.ino AND (c.mode & ?)=?)"
        " FROM inode i"
    )
    for ino, mode, nlink, names, folders in catalog.db.execute(query, (_IFMT, stat.S_IFDIR)).fetchall():
        folder = stat.S_ISDIR(mode)
        nameless = not names and ino != ROOT_INO and ino not in catalog.namespaces.graves
        if nameless and not (running and nlink == 0):
            what = f"inode {ino}: has no name"
            yield Fault(
                kind="names",
                what=what,
                mend=partial(_no_name, catalog, ino, unlinked=not nlink),
            )
        expected = 2 + folders if folder else names
        if nlink != expected and (names or ino == ROOT_INO):
            what = f"inode {ino}: link count {nlink} instead of {expected}"
            yield Fault(kind="names", what=what, mend=partial(_count_links, catalog, ino))


def _circles(catalog: Catalog) -> Iterator[int]:
    """Yield one directory of each circle that no path from the root leads to."""
    reached = "WITH RECURSIVE r(ino) AS (SELECT ? UNION SELECT d.ino FROM dentry d JOIN r ON d.parent=r.ino)"
    rows = catalog.db.execute(
        f"{reached} SELECT d.ino, d.parent FROM dentry d JOIN inode i USING(ino)"  # noqa: S608
        " WHERE (i.mode & ?)=? AND d.ino NOT IN r",
        (ROOT_INO, _IFMT, stat.S_IFDIR),
    ).fetchall()
    parents = dict(rows)
    seen: set[int] = set()
    for start in parents:
        path: list[int] = []
        at = start
        while at in parents and at not in seen:
            seen.add(at)
            path.append(at)
            at = parents[at]
        if at in path:
            yield min(path[path.index(at) :])


def lost_found(catalog: Catalog) -> int:
    """Return the directory for what has no other place, making it where it is not."""
    found = catalog.names.lookup(ROOT_INO, LOST)
    if found is None or not found.is_dir:
        name = LOST if found is None else LOST + b".%x" % time.time_ns()
        found = catalog.names.make(ROOT_INO, name, mode=stat.S_IFDIR | 0o700, uid=0, gid=0, now_ns=time.time_ns())
    return found.ino


def keep(catalog: Catalog, ino: int) -> str:
    """Give an inode a name in lost+found; return what was done."""
    name = b"#%d" % ino
    with catalog.db.transaction():
        folder = lost_found(catalog)
        if catalog.names.lookup(folder, name) is None:
            catalog.db.execute("INSERT INTO dentry(parent, name, ino) VALUES(?,?,?)", (folder, name, ino))
        _count_links(catalog, ino)
        _count_links(catalog, folder)
    return f"named /lost+found/#{ino}"


def _has_name(catalog: Catalog, ino: int) -> bool:
    return bool(catalog.db.scalar("SELECT count(*) FROM dentry WHERE ino=?", (ino,)))


def _drop_name(catalog: Catalog, cookie: int, ino: int | None) -> str:
    catalog.db.execute("DELETE FROM dentry WHERE id=?", (cookie,))
    if ino is None or _has_name(catalog, ino):
        return "name removed"
    return keep(catalog, ino)


def _take_out(catalog: Catalog, ino: int) -> str:
    catalog.db.execute("DELETE FROM dentry WHERE ino=?", (ino,))
    return keep(catalog, ino)


def _one_name(catalog: Catalog, ino: int) -> str:
    catalog.db.execute("DELETE FROM dentry WHERE ino=?1 AND id > (SELECT min(id) FROM dentry WHERE ino=?1)", (ino,))
    return "its first name is kept"


def _no_name(catalog: Catalog, ino: int, *, unlinked: bool) -> str:
    if _has_name(catalog, ino):
        return "has a name by now"
    if not unlinked:
        return keep(catalog, ino)
    catalog.names.remove(ino)
    return "removed: it was unlinked"


def _count_links(catalog: Catalog, ino: int) -> str:
    catalog.db.execute(
        "UPDATE inode SET nlink = CASE WHEN (mode & ?2)=?3 THEN 2 + (SELECT count(*) FROM dentry d JOIN inode c USING(ino)"
        " WHERE d.parent=?1 AND (c.mode & ?2)=?3) ELSE (SELECT count(*) FROM dentry WHERE ino=?1) END WHERE ino=?1",
        (ino, _IFMT, stat.S_IFDIR),
    )
    return "counted anew"


# -- objects -------------------------------------------------------------------------------------------------------------


def rows(catalog: Catalog) -> Iterator[Fault]:
    """Find rows that belong to no inode, and files without their row."""
    for (ino,) in catalog.db.execute(
        "SELECT ino FROM inode WHERE (mode & ?)=? AND ino NOT IN (SELECT ino FROM object)", (_IFMT, stat.S_IFREG)
    ).fetchall():
        yield Fault(kind="objects", what=f"file {ino}: has no object", mend=partial(_make_object, catalog, ino))
    for table in ("object", "copy", "xattr", "namespace", "session", "chain"):
        for (ino,) in catalog.db.execute(
            f"SELECT DISTINCT ino FROM {table} WHERE ino NOT IN (SELECT ino FROM inode)"  # noqa: S608
        ).fetchall():
            yield Fault(
                kind="objects",
                what=f"{table} {ino}: has no inode",
                mend=partial(_drop_row, catalog, table, ino),
            )


def objects(catalog: Catalog, *, running: bool = False) -> Iterator[Fault]:
    """Find objects whose rows contradict each other; while kvd is `running` they may have writers."""
    for placement in catalog.placements.all():
        ino, copy = placement.ino, catalog.placements.copy(placement.ino)
        cold = placement.tier == Tier.NVME
        if not placement.sealed and not running:
            what = f"object {ino}: has a writer"
            yield Fault(kind="objects", what=what, mend=partial(revert, catalog, placement, copy, "it had a writer"))
        if cold and (copy is None or not copy.current):
            what = f"object {ino}: is on NVMe without a current copy"
            yield Fault(
                kind="objects",
                what=what,
                mend=partial(revert, catalog, placement, copy, "it had no current copy"),
            )
        if cold and copy and copy.object_bytes != catalog.names.inode(ino).size:
            what = f"object {ino}: its copy has another size"
            yield Fault(kind="objects", what=what, mend=partial(_take_size, catalog, copy))


def revert(catalog: Catalog, placement: Placement, copy: Copy | None, why: str) -> str:
    """Make an object its last copy, as the next start would; without one its names go."""
    if copy is not None:
        fall_back(catalog, copy)
        return "it is its last copy again"
    return give_up(catalog, placement.ino, why)


def give_up(catalog: Catalog, ino: int, why: str) -> str:
    """Remove the names of an object whose bytes are gone, and record it."""
    path = catalog.names.path(ino) or b""
    with catalog.db.transaction():
        catalog.placements.note_fault(ino, path, None, f"given up by fsck: {why}")
        catalog.names.vanish(ino, time.time_ns())
    return "given up: its bytes are nowhere, so its names are removed"


def _make_object(catalog: Catalog, ino: int) -> str:
    if catalog.placements.copy(ino) is None:
        return give_up(catalog, ino, "nothing said where its bytes are")
    with catalog.db.transaction():
        catalog.db.execute("INSERT INTO object VALUES(?,?,1,0,0,0)", (ino, int(Tier.NVME)))
        copy = catalog.placements.copy(ino)
        assert copy is not None
        catalog.names.setattr(ino, size=copy.object_bytes)
        catalog.placements.revert(ino, Tier.NVME)
    return "it is its copy"


def _drop_row(catalog: Catalog, table: str, ino: int) -> str:
    catalog.db.execute(f"DELETE FROM {table} WHERE ino=?", (ino,))  # noqa: S608
    return "row removed"


def _take_size(catalog: Catalog, copy: Copy) -> str:
    catalog.names.setattr(copy.ino, size=copy.object_bytes)
    return "its length is that of its copy"
