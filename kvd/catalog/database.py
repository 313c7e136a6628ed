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

from kvd.catalog.schema import APPLICATION_ID, ROOT_INO, SCHEMA, SCHEMA_VERSION
from kvd.errors import CatalogError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

log = structlog.get_logger(__name__)

FILE_NAME = "catalog.sqlite"
CHECKPOINT_WAL_BYTES = 16 << 20
"""WAL size beyond which `Database.checkpoint` is worth its fsyncs."""
CACHE_KIB = 65536
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
        try:
            self._connection = sqlite3.connect(self.path, isolation_level=None, cached_statements=256)
            try:
                self._open(page_bytes)
            except BaseException:
                self._connection.close()
                raise
        except (sqlite3.DatabaseError, OSError, LookupError, ValueError) as error:
            raise CatalogError(
                f"[daemon] state: {self.path} is not a usable catalogue ({error}); move it away or restore it"
            ) from error
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
        stored = int(self.meta("page_bytes"))
        if stored != page_bytes:
            raise CatalogError(f"[daemon] state: {self.path} was made with pages of {stored} bytes, not {page_bytes}")

    def _create(self, page_bytes: int) -> None:
        now_ns = time.time_ns()
        with self.transaction():
            self._connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            for statement in SCHEMA.split(";\n"):
                self._connection.execute(statement)
            self._connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
            self.execute(
                "INSERT INTO inode VALUES(?,?,?,?,2,0,?,?,?,0,NULL)",
                (ROOT_INO, ROOT_MODE, os.geteuid(), os.getegid(), now_ns, now_ns, now_ns),
            )
            for key, value in (("uuid", str(uuid.uuid4())), ("page_bytes", page_bytes), ("created_ns", now_ns)):
                self.execute("INSERT INTO meta VALUES(?,?)", (key, value))

    def meta(self, key: str) -> Any:
        """Return a fact about the catalogue as a whole."""
        return self.scalar("SELECT value FROM meta WHERE key=?", (key,))

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
        """
        try:
            return self._connection.execute(statement, values)
        except sqlite3.OperationalError as error:
            raise _os_error(error) from error

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
