"""Holds the hot table to its protocol: whatever it is sure of is so in the catalogue, after each single statement."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvd.fs import attributes
from kvd.fs.virtual import is_virtual
from kvd.tier.extents import STAT_BLOCK_BYTES
from kvdriver import BLOCK_BYTES

if TYPE_CHECKING:
    import pyfuse3

    from kvd.catalog.catalog import Catalog
    from kvd.fs.hot_table import HotAttr
    from kvd.tier.lives import Lives
    from support.fake_hot import FakeHot, Folder

READING = ("SELECT", "PRAGMA")


def told(catalog: Catalog, lives: Lives, ino: int) -> pyfuse3.EntryAttributes:
    """Return what the control plane would answer."""
    inode = catalog.names.inode(ino)
    held = lives.held_blocks(ino) * BLOCK_BYTES if inode.is_file else 0
    return attributes.entry(inode, held_bytes=held, written=lives.attributes(ino))


def same(attr: HotAttr, entry: pyfuse3.EntryAttributes) -> bool:
    """Whether the data plane and the control plane tell the same of an inode."""
    pairs = {
        "node": entry.st_ino,
        "size": entry.st_size,
        "mode": entry.st_mode,
        "nlink": entry.st_nlink,
        "uid": entry.st_uid,
        "gid": entry.st_gid,
        "rdev": entry.st_rdev,
        "atime_ns": entry.st_atime_ns,
        "mtime_ns": entry.st_mtime_ns,
        "ctime_ns": entry.st_ctime_ns,
        "entry_timeout_ms": round(entry.entry_timeout * 1000),
        "attr_timeout_ms": round(entry.attr_timeout * 1000),
    }
    blocks = attr.held_bytes // STAT_BLOCK_BYTES == entry.st_blocks
    return blocks and all(getattr(attr, key) == value for key, value in pairs.items())


def check(table: FakeHot, catalog: Catalog, lives: Lives) -> None:
    """Fail if the table is sure of anything that is not so."""
    for ino, inode in table.inodes.items():
        if inode.sure:
            entry = told(catalog, lives, ino)
            assert entry.st_nlink > 0, f"inode {ino} is told of without a name"
            assert same(inode.attr, entry), (
                inode.attr,
                [getattr(entry, a) for a in ("st_size", "st_blocks", "st_mode")],
            )
    for parent, folder in table.folders.items():
        _check_folder(parent, folder, catalog)


def _check_folder(parent: int, folder: Folder, catalog: Catalog) -> None:
    there = {entry.name: (entry.cookie, entry.inode.ino) for entry in catalog.names.listing(parent)}
    for name, found in folder.names.items():
        if found.sure and not is_virtual(found.node):
            assert (found.cookie, found.node) == there.get(name, (0, 0)), (parent, name, found, there.get(name))
    if folder.complete:
        missing = there.keys() - folder.names.keys()
        assert not missing, (parent, missing)


def hold_to_truth(table: FakeHot, catalog: Catalog, lives: Lives) -> None:
    """Check the table after every statement that may change the catalogue, and before every answer to a client."""
    execute = catalog.db.execute

    def checked(statement: str, values: tuple[Any, ...] = ()) -> Any:
        cursor = execute(statement, values)
        if not statement.startswith(READING):
            check(table, catalog, lives)
        return cursor

    catalog.db.execute = checked  # type: ignore[method-assign]
    table.check = lambda: check(table, catalog, lives)
