"""Who keeps a copy of what the catalogue tells (`kvd.fs.hot`) hears of each change before and after it.

Triggers of the connection do the telling, so a statement that forgets to can't be written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable


class Watcher(Protocol):
    """Hears of changes. Its methods run within SQLite's: they must not raise, and not use the catalogue, but for `settle`."""

    def inode_changing(self, ino: int) -> None:
        """Hear that attributes of an inode, or the storage that its copy is charged, are about to change."""
        ...

    def name_changing(self, parent: int, name: bytes) -> None:
        """Hear that a name is about to be made, to go, or to mean another inode."""
        ...

    def name_vanishing(self, parent: int, name: bytes) -> None:
        """Hear that a name is about to go that no client has removed."""
        ...

    def settle(self) -> None:
        """Hear that whatever was changing has changed, or not: the transaction has ended. Must not raise."""
        ...


TRIGGERS = (
    ("inode", "UPDATE", "kvd_inode(OLD.ino)"),
    ("inode", "DELETE", "kvd_inode(OLD.ino)"),
    ("dentry", "INSERT", "kvd_name(NEW.parent, NEW.name)"),
    ("dentry", "UPDATE", "kvd_name(OLD.parent, OLD.name), kvd_name(NEW.parent, NEW.name)"),
    ("dentry", "DELETE", "kvd_name(OLD.parent, OLD.name)"),
    ("object", "UPDATE OF sealed", "kvd_inode(OLD.ino)"),
    ("object", "DELETE", "kvd_inode(OLD.ino)"),
    ("copy", "INSERT", "kvd_inode(NEW.ino)"),
    ("copy", "UPDATE OF blocks", "kvd_inode(OLD.ino)"),
    ("copy", "DELETE", "kvd_inode(OLD.ino)"),
)
"""Table, what happens to a row, and what is told. A new inode's number is new: nobody has told of it."""


def install(connection: Any, inode: Callable[[int], None], name: Callable[[int, bytes], None]) -> None:
    """Let a connection (`sqlite3.Connection`) call these before it changes a row."""
    connection.create_function("kvd_inode", 1, inode)
    connection.create_function("kvd_name", 2, name)
    for number, (table, event, telling) in enumerate(TRIGGERS):
        connection.execute(
            f"CREATE TEMP TRIGGER kvd_watch_{number} BEFORE {event} ON main.{table} BEGIN SELECT {telling}; END"
        )
