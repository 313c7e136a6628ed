"""The catalogue's SQLite connection: opening, transactions, durability.

One connection, used on the trio thread only: a transaction takes some tens of microseconds since a commit in WAL mode
writes to the page cache and syncs nothing. What survives is therefore: a killed daemon, every commit; a power cut, what
was committed before the last `Database.sync`. Syncing and checkpointing run in worker threads.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
import stat
import time
import uuid
from typing import TYPE_CHECKING, Any

import structlog
import trio

from kvd.catalog.packing import copy_blocks, pack_dirs, unpack_runs
from kvd.catalog.schema import APPLICATION_ID, MIGRATIONS, ROOT_INO, SCHEMA, SCHEMA_VERSION
from kvd.catalog.watch import install
from kvd.errors import CatalogDamagedError, CatalogError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kvd.catalog.watch import Watcher

log = structlog.get_logger(__name__)

FILE_NAME = "catalog.sqlite"
CHECKPOINT_WAL_BYTES = 16 << 20
"""WAL size beyond which `Database.checkpoint` is worth its fsyncs."""
CACHE_KIB = 65536
MEND = "move it away or restore it, or make it anew from the files: kvctl fsck --rebuild"
ROOT_MODE = stat.S_IFDIR | stat.S_ISVTX | 0o777
"""The root directory: like /tmp, so that any engine's user can make its folder."""


class Database:
    """An open catalogue.

    Parameters
    ----------
    directory
        The state directory.
    page_bytes
        Page size of a catalogue that is made now; an existing one must have the same.

    Raises
    ------
    CatalogError
        If the file is not a kvd catalogue, is newer than this program, or is damaged.
    """

    def __init__(self, directory: Path, *, page_bytes: int) -> None:
        self.path = directory / FILE_NAME
        self._wal = directory / (FILE_NAME + "-wal")
        self._watcher: Watcher | None = None
        self._triggers = False
        self._unsettled = False
        try:
            self._connection = sqlite3.connect(self.path, isolation_level=None, cached_statements=256)
            try:
                self._open(page_bytes)
            except BaseException:
                self._connection.close()
                raise
        except OSError as error:
            raise CatalogError(f"[daemon] state: {self.path} can't be read ({error}); {MEND}") from error
        except (sqlite3.DatabaseError, LookupError, ValueError) as error:
            raise self.damaged(error) from error
        _sync_path(directory)

    def __repr__(self) -> str:
        return f"<Database {self.path} uuid={self.uuid}>"

    def _open(self, page_bytes: int) -> None:
        # Nothing is written, not even the journal mode, before the file is known to be ours.
        application = self.scalar("PRAGMA application_id")
        version = self.scalar("PRAGMA user_version")
        tables = self.scalar("SELECT count(*) FROM sqlite_schema")
        empty = application == 0 and tables == 0
        if not empty and application != APPLICATION_ID:
            raise CatalogError(f"[daemon] state: {self.path} is not a kvd catalogue; set another directory")
        if version > SCHEMA_VERSION:
            raise CatalogError(
                f"[daemon] state: {self.path} has schema {version}, this kvd knows up to {SCHEMA_VERSION};"
                " install a newer kvd or set another directory"
            )
        _set_up(self._connection)
        if empty:
            self._create(page_bytes)
        else:
            self._migrate(version)
        stored = int(self.meta("page_bytes"))
        if stored != page_bytes:
            raise CatalogError(f"[daemon] state: {self.path} was made with pages of {stored} bytes, not {page_bytes}")

    def _create(self, page_bytes: int) -> None:
        now_ns = time.time_ns()
        with self.transaction():
            self._connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            self.script(SCHEMA)
            self._connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
            self.execute(
                "INSERT INTO inode VALUES(?,?,?,?,2,0,?,?,?,0,NULL)",
                (ROOT_INO, ROOT_MODE, os.geteuid(), os.getegid(), now_ns, now_ns, now_ns),
            )
            for key, value in (("uuid", str(uuid.uuid4())), ("page_bytes", page_bytes), ("created_ns", now_ns)):
                self.execute("INSERT INTO meta VALUES(?,?)", (key, value))

    def _migrate(self, version: int) -> None:
        """Bring an older catalogue to this program's schema: all of it or nothing."""
        if version == SCHEMA_VERSION:
            return
        page_bytes = int(self.meta("page_bytes"))
        connection = self._connection
        connection.create_function("kvd_u16", 1, lambda number: pack_dirs((number,)), deterministic=True)
        connection.create_function(
            "kvd_blocks", 2, lambda size, runs: copy_blocks(size, unpack_runs(runs), page_bytes), deterministic=True
        )
        with self.transaction():
            for older in range(version, SCHEMA_VERSION):
                self.script(MIGRATIONS[older])
            connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        log.info("catalogue brought to a newer schema", path=str(self.path), was=version, now=SCHEMA_VERSION)

    def meta(self, key: str) -> Any:
        """Return a fact about the catalogue as a whole."""
        return self.scalar("SELECT value FROM meta WHERE key=?", (key,))

    def number(self, key: str) -> int:
        """Return a number that `keep_number` has kept, 0 where there is none."""
        row = self.execute("SELECT value FROM meta WHERE key=?", (key,)).fetchone()
        return 0 if row is None else int(row[0])

    def keep_number(self, key: str, value: int) -> None:
        """Keep a number about the catalogue as a whole."""
        self.execute("INSERT OR REPLACE INTO meta VALUES(?,?)", (key, value))

    @property
    def uuid(self) -> str:
        """The catalogue's identity; tier directories carry it too."""
        return str(self.meta("uuid"))

    def execute(self, statement: str, values: tuple[Any, ...] = ()) -> sqlite3.Cursor:
        """Execute one statement.

        Raises
        ------
        OSError
            ENOSPC if the disk is full, EIO if the file can't be read or written; the statement had no effect.
        CatalogDamagedError
            If the file is damaged.
        """
        try:
            return self._connection.execute(statement, values)
        except sqlite3.OperationalError as error:
            raise _os_error(error) from error
        except sqlite3.DatabaseError as error:
            raise self.damaged(error) from error
        finally:
            if self._unsettled:
                self.settle()

    def script(self, statements: str) -> None:
        """Execute statements that end in a semicolon and the end of the line, within the caller's transaction."""
        for statement in statements.split(";\n"):
            self.execute(statement)

    def damaged(self, error: Exception) -> CatalogDamagedError:
        """Return the error that says what to do about a file in which SQLite has met damage."""
        return CatalogDamagedError(f"[daemon] state: {self.path} is not a usable catalogue ({error}); {MEND}")

    @contextlib.contextmanager
    def believed(self) -> Iterator[None]:
        """Turn damage that SQLite meets within into `CatalogDamagedError`, also while rows are fetched."""
        try:
            yield
        except sqlite3.DatabaseError as error:
            raise self.damaged(error) from error

    def scalar(self, statement: str, values: tuple[Any, ...] = ()) -> Any:
        """Return the first column of the first row.

        Raises
        ------
        LookupError
            If there is no row.
        """
        row = self.execute(statement, values).fetchone()
        if row is None:
            raise LookupError(statement)
        return row[0]

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """Group statements: all or none, also across a crash. Nested use joins the outer transaction.

        A commit that fails (a full disk is met there) is rolled back: left open, it would swallow all that follow.
        """
        if self._connection.in_transaction:
            yield
            return
        self.execute("BEGIN IMMEDIATE")
        try:
            yield
            self.execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:  # SQLite has ended it by itself after some errors
                self._connection.execute("ROLLBACK")
            raise
        finally:
            self.settle()

    # -- who keeps copies ----------------------------------------------------------------------------------------

    def watch(self, watcher: Watcher | None) -> None:
        """Let `watcher` hear of every change from now on; None ends that."""
        if watcher is not None and not self._triggers:
            install(self._connection, self.inode_changing, self._name_changing)
            self._triggers = True
        self._watcher = watcher

    def inode_changing(self, ino: int) -> None:
        """Say that what is told of an inode changes, also where it does not change here; `settle` follows."""
        if self._watcher is not None:
            self._watcher.inode_changing(ino)
            self._unsettled = True

    def _name_changing(self, parent: int, name: bytes) -> None:
        if self._watcher is not None:
            self._watcher.name_changing(parent, name)
            self._unsettled = True

    def name_vanishing(self, parent: int, name: bytes) -> None:
        """Say that a name goes that no client removes."""
        if self._watcher is not None:
            self._watcher.name_vanishing(parent, name)
            self._unsettled = True

    def settle(self) -> None:
        """Say that what was changing has changed; within a transaction its end does."""
        if self._unsettled and self._watcher is not None and not self._connection.in_transaction:
            self._unsettled = False
            self._watcher.settle()

    async def sync(self) -> None:
        """Make everything committed so far survive a power cut.

        A commit in WAL mode has written its frames to the WAL file when it returns (SQLite, "Write-Ahead Logging",
        durability), so syncing that file is what is left to do. SQLite holds no POSIX lock on it that closing a
        descriptor could drop.
        """
        await trio.to_thread.run_sync(_sync_path, self._wal)

    async def checkpoint(self) -> None:
        """Fold a grown WAL into the database, in a thread, without stopping writers."""
        try:
            if self._wal.stat().st_size > CHECKPOINT_WAL_BYTES:
                await trio.to_thread.run_sync(_checkpoint, self.path)
        except FileNotFoundError:
            return
        except (OSError, sqlite3.DatabaseError) as error:  # the WAL keeps growing, nothing is lost; the next may do
            log.warning("checkpoint failed", error=str(error))

    def close(self) -> None:
        """Checkpoint and close."""
        self._connection.close()


def _os_error(error: sqlite3.OperationalError) -> Exception:
    """Return the `OSError` that a failure of the disk is; a wrong statement stays what it is."""
    code = error.sqlite_errorcode & 0xFF
    if code == sqlite3.SQLITE_ERROR:
        return error
    return OSError(errno.ENOSPC if code == sqlite3.SQLITE_FULL else errno.EIO, f"catalogue: {error}")


def _set_up(connection: sqlite3.Connection) -> None:
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=NORMAL")
    connection.execute("PRAGMA wal_autocheckpoint=0")
    connection.execute(f"PRAGMA cache_size=-{CACHE_KIB}")
    connection.execute("PRAGMA temp_store=MEMORY")


def _checkpoint(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        _set_up(connection)
        connection.execute("PRAGMA wal_checkpoint(PASSIVE)")


def _sync_path(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
