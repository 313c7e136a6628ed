"""Make the catalogue anew from the files on NVMe alone; the old one is kept aside.

What was durable is served again: bytes, names, modes, owners, times, holes. What is only in DDR is not: the tmpfs says nothing
of names. Nothing is invented: what contradicts itself is left out and told; what has lost its directory or its name to
another is kept in ``/lost+found``.
"""

from __future__ import annotations

import contextlib
import shutil
import stat
import time
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kvd.catalog.catalog import Catalog
from kvd.catalog.database import FILE_NAME
from kvd.catalog.schema import CHARGE_ALL, ROOT_INO
from kvd.errors import ConfigError
from kvd.fsck import catalogue
from kvd.fsck.survey import Survey, Survivor, survey, uuid_of
from kvd.tier.ddr import DdrStore
from kvd.tier.describe import sync_folder
from kvd.tier.mover import Mover
from kvd.tier.nvme import NvmeStore
from kvd.tier.reading import reading
from kvdriver import Tier

if TYPE_CHECKING:
    from pathlib import Path

    from kvd.config import Config
    from kvd.tier.treefile import Tree

FOLDER = "rebuild"
"""Of the state directory, while the new catalogue is made."""
OLD_SUFFIX = ".old-"
_IFMT = 0o170000


@dataclass(slots=True)
class Rebuilt:
    """What a rebuild came to.

    Attributes
    ----------
    objects, directories, others
        Served again; others are symlinks, pipes and the like.
    lost_found
        Of them, what is in ``/lost+found``.
    left_out
        A sentence for each file that is not, and for each name that is somebody else's now.
    kept
        Where the old catalogue is now; '' where there was none.
    """

    objects: int = 0
    directories: int = 0
    others: int = 0
    lost_found: int = 0
    left_out: list[str] = field(default_factory=list)
    kept: str = ""


async def rebuild(config: Config, *, page_bytes: int, data: bool) -> Rebuilt:
    """Make the catalogue anew. The caller holds the lock of the state.

    Parameters
    ----------
    data
        Also verify every page: of an object whose newest copy has a bad one an older copy is taken, or none.

    Raises
    ------
    ConfigError
        If the NVMe directories do not belong together or can't be used.
    """
    uuid = uuid_of(config.nvme.dirs)
    nvme = NvmeStore(config.nvme.dirs, uuid=uuid, reserve_bytes=0, direct=False)
    await nvme.start(claim=False)
    found = await survey(nvme, uuid, page_bytes)
    if data:
        await _verify(nvme, found, page_bytes)
    made = config.daemon.state / FOLDER
    shutil.rmtree(made, ignore_errors=True)
    made.mkdir()
    with contextlib.closing(Catalog.open(made, page_bytes=page_bytes)) as catalog:
        result = _Making(catalog, found, uuid).run()
    result.left_out += _in_ddr_alone(config, uuid)
    result.kept = _exchange(config.daemon.state, made)
    return result


def _in_ddr_alone(config: Config, uuid: str) -> list[str]:
    """Say that objects are in DDR, which the new catalogue does not know."""
    try:
        count = sum(1 for _ in DdrStore(config.ddr.path, uuid=uuid, claim=False).inos())
    except ConfigError:  # another catalogue's
        return []
    where = config.ddr.path
    return [f"{where}: {count} files in DDR say nothing of themselves; the next start removes them"] if count else []


def _exchange(state: Path, made: Path) -> str:
    """Put the new catalogue into the old one's place; return where that is now."""
    kept = ""
    suffix = f"{OLD_SUFFIX}{time.strftime('%Y%m%d-%H%M%S')}"
    for name in (f"{FILE_NAME}-shm", f"{FILE_NAME}-wal", FILE_NAME):
        old = state / name
        if old.exists():
            kept = str(old.rename(state / f"{name.replace(FILE_NAME, FILE_NAME + suffix)}"))
    (made / FILE_NAME).rename(state / FILE_NAME)
    sync_folder(state)
    shutil.rmtree(made, ignore_errors=True)
    return kept


async def _verify(nvme: NvmeStore, found: Survey, page_bytes: int) -> None:
    """Take out the copies with a bad page."""
    async with Mover.open(page_bytes=page_bytes, devices=len(nvme.directories)) as mover:
        for ino, candidates in list(found.candidates.items()):
            sound: list[Survivor] = []
            for candidate in candidates:
                if sound:
                    break
                why = await _bad(nvme, mover, candidate)
                if why:
                    found.left_out.append(f"{nvme.place(candidate.copy, 0)}: left out: {why}")
                else:
                    sound.append(candidate)
            found.candidates[ino] = sound


async def _bad(nvme: NvmeStore, mover: Mover, candidate: Survivor) -> str:
    copy = candidate.copy
    try:
        async with reading(nvme, copy) as opened:
            bad = await opened.bad_pages(mover, copy.runs, candidate.sums, 1)
    except OSError as error:
        return f"can't be read: {error.strerror or error}"
    return f"page {bad[0]} failed its checksum" if bad else ""


class _Making:
    """Fills a new catalogue."""

    def __init__(self, catalog: Catalog, found: Survey, uuid: str) -> None:
        self._catalog = catalog
        self._db = catalog.db
        self._found = found
        self._uuid = uuid
        self._result = Rebuilt(left_out=found.left_out)
        self._changed: dict[tuple[int, bytes], tuple[int, int]] = {}
        self._names: dict[int, list[tuple[int, bytes]]] = defaultdict(list)
        self._xattrs: dict[int, list[tuple[bytes, bytes]]] = defaultdict(list)

    def run(self) -> Rebuilt:
        """Fill it: the tree, then the objects, then what follows from both."""
        with self._db.transaction():
            self._db.execute("INSERT OR REPLACE INTO meta VALUES(?,?)", ("uuid", self._uuid))
            tree = self._found.tree
            if tree is not None:
                self._tree(tree)
            for candidates in self._found.candidates.values():
                if candidates:
                    self._object(candidates[0], there=tree is not None)
            self._numbers(tree)
            self._settle_names()
            self._db.script(CHARGE_ALL)
        return self._result

    def _tree(self, tree: Tree) -> None:
        for inode in tree.inodes:
            self._db.execute(
                "INSERT OR REPLACE INTO inode VALUES(?,?,?,?,2,?,?,?,?,?,?)",
                (
                    inode.ino, inode.mode, inode.uid, inode.gid, len(inode.target or b""), inode.atime_ns,
                    inode.mtime_ns, inode.ctime_ns, inode.rdev, inode.target,
                ),
            )  # fmt: skip
        kinds = {inode.ino: inode for inode in tree.inodes}
        for ino, parent, name in tree.names:
            if ino in kinds:
                self._claim(parent, name, ino, kinds[ino].ctime_ns)
            else:
                self._names[ino].append((parent, name))
        for ino, name, value in tree.xattrs:
            if ino in kinds:
                self._db.execute("INSERT OR REPLACE INTO xattr VALUES(?,?,?)", (ino, name, value))
            else:
                self._xattrs[ino].append((name, value))
        for row in tree.namespaces.values():
            self._namespace(row)

    def _namespace(self, row: dict[str, object]) -> None:
        """Put a policy back, as far as this kvd has the columns."""
        columns = [column[1] for column in self._db.execute("PRAGMA table_info(namespace)").fetchall()]
        known = {column: row[column] for column in columns if column in row}
        names, marks = ", ".join(known), ", ".join("?" * len(known))
        self._db.execute(f"INSERT OR REPLACE INTO namespace({names}) VALUES({marks})", tuple(known.values()))

    def _object(self, survivor: Survivor, *, there: bool) -> None:
        """Put an object back; `there`: the tree is, which has what did not fit into the description."""
        told, copy = survivor.described, survivor.copy
        self._db.execute(
            "INSERT INTO inode VALUES(?,?,?,?,0,?,?,?,?,0,NULL)",
            (copy.ino, told.mode, told.uid, told.gid, copy.object_bytes, told.atime_ns, told.mtime_ns, told.ctime_ns),
        )
        self._db.execute("INSERT INTO object VALUES(?,?,1,0,0,0)", (copy.ino, int(Tier.NVME)))
        self._catalog.placements.put_copy(copy, survivor.sums)
        names = self._names[copy.ino] if told.names is None else told.names
        xattrs = self._xattrs[copy.ino] if told.xattrs is None else told.xattrs
        if told.xattrs is None and not there:
            self._result.left_out.append(f"object {copy.ino}: its extended attributes are lost: there is no tree")
        for parent, name in names:
            self._claim(parent, name, copy.ino, told.ctime_ns)
        for name, value in xattrs:
            self._db.execute("INSERT OR REPLACE INTO xattr VALUES(?,?,?)", (copy.ino, name, value))
        self._catalog.given.rebuilt(copy.ino)
        self._result.objects += 1

    def _claim(self, parent: int, name: bytes, ino: int, ctime_ns: int) -> None:
        """Note that an inode says that a name is its; of two, whoever was changed last is believed."""
        other = self._changed.get((parent, name))
        if other is None or other[1] < ctime_ns:
            self._changed[parent, name] = (ino, ctime_ns)

    def _settle_names(self) -> None:
        folder = f"(mode & {_IFMT})={stat.S_IFDIR}"
        folders = {row[0] for row in self._db.execute(f"SELECT ino FROM inode WHERE {folder}").fetchall()}  # noqa: S608
        for (parent, name), (ino, _) in self._changed.items():
            if parent in folders and ino != ROOT_INO:
                self._db.execute("INSERT INTO dentry(parent, name, ino) VALUES(?,?,?)", (parent, name, ino))
        self._db.execute(
            f"UPDATE inode SET nlink=(SELECT count(*) FROM dentry d WHERE d.ino=inode.ino) WHERE NOT {folder}"  # noqa: S608
        )
        self._drop_removed()
        self._find_places()
        for check in (catalogue.entries, catalogue.folders, catalogue.links, catalogue.rows):
            for fault in list(check(self._catalog)):
                assert fault.mend is not None
                fault.mend()
        self._result.directories = int(self._db.scalar(f"SELECT count(*)-1 FROM inode WHERE {folder}"))  # noqa: S608
        others = f"SELECT count(*) FROM inode WHERE NOT {folder} AND ino NOT IN (SELECT ino FROM object)"  # noqa: S608
        self._result.others = int(self._db.scalar(others))

    def _drop_removed(self) -> None:
        """Leave out what is below directories that the tree has without a name: they were removed, and so is all in them."""
        named = {ino for ino, _, _ in self._found.tree.names} if self._found.tree else set()
        for inode in self._found.tree.inodes if self._found.tree else ():
            if not stat.S_ISDIR(inode.mode) or inode.ino == ROOT_INO or inode.ino in named:
                continue
            below = self._db.execute(
                "WITH RECURSIVE r(ino) AS (SELECT ? UNION SELECT d.ino FROM dentry d JOIN r ON d.parent=r.ino)"
                " SELECT ino FROM r",
                (inode.ino,),
            ).fetchall()
            for (ino,) in below:
                self._db.execute("DELETE FROM dentry WHERE parent=?", (ino,))
            for (ino,) in below:
                if not self._db.scalar("SELECT count(*) FROM dentry WHERE ino=?", (ino,)):
                    self._result.objects -= self._db.scalar("SELECT count(*) FROM object WHERE ino=?", (ino,))
                    self._catalog.names.remove(ino)
            self._result.left_out.append(f"inode {inode.ino}: left out with all in it: the directory was removed")

    def _find_places(self) -> None:
        """Keep what has no name, or none in a directory that is there, in lost+found."""
        nameless = self._db.execute(
            "SELECT ino FROM inode WHERE ino<>? AND ino NOT IN (SELECT ino FROM dentry) ORDER BY ino", (ROOT_INO,)
        ).fetchall()
        for (ino,) in nameless:
            done = catalogue.keep(self._catalog, ino)
            self._result.lost_found += 1
            why = "the directory of its name is not known, or the name is another's"
            self._result.left_out.append(f"inode {ino}: {done}: {why}")

    def _numbers(self, tree: Tree | None) -> None:
        """Let no number be used again that was ever used."""
        last = max(self._found.ino_next, tree.ino_next if tree else 0) - 1
        self._db.execute("UPDATE sqlite_sequence SET seq=max(seq, ?) WHERE name='inode'", (last,))
