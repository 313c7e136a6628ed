"""The catalogue's tables. `docs/format.md` describes them for people; a change here raises `SCHEMA_VERSION`."""

APPLICATION_ID = 0x6B766443
"""SQLite's `application_id` of a kvd catalogue: ``kvdC``."""

SCHEMA_VERSION = 1

ROOT_INO = 1

SCHEMA = """
CREATE TABLE meta(
    key TEXT PRIMARY KEY,
    value BLOB NOT NULL
) WITHOUT ROWID;

-- Names and attributes. A number is never used again (AUTOINCREMENT), so no generation is needed.
CREATE TABLE inode(
    ino INTEGER PRIMARY KEY AUTOINCREMENT,
    mode INTEGER NOT NULL,
    uid INTEGER NOT NULL,
    gid INTEGER NOT NULL,
    nlink INTEGER NOT NULL,
    size INTEGER NOT NULL,
    atime_ns INTEGER NOT NULL,
    mtime_ns INTEGER NOT NULL,
    ctime_ns INTEGER NOT NULL,
    rdev INTEGER NOT NULL,
    target BLOB
);

-- `id` only grows: it is the cookie of readdir, which so stays right while names come and go.
CREATE TABLE dentry(
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    parent INTEGER NOT NULL,
    name BLOB NOT NULL,
    ino INTEGER NOT NULL
);
CREATE UNIQUE INDEX dentry_name ON dentry(parent, name);
CREATE INDEX dentry_order ON dentry(parent, id);
CREATE INDEX dentry_ino ON dentry(ino);

CREATE TABLE xattr(
    ino INTEGER NOT NULL,
    name BLOB NOT NULL,
    value BLOB NOT NULL,
    PRIMARY KEY(ino, name)
) WITHOUT ROWID;

-- One row a regular file: where its current bytes are. sealed = 0: it has, or had when the daemon died, a writer.
CREATE TABLE object(
    ino INTEGER PRIMARY KEY,
    tier INTEGER NOT NULL,
    sealed INTEGER NOT NULL,
    pinned INTEGER NOT NULL,
    hits INTEGER NOT NULL,
    damaged INTEGER NOT NULL
);

CREATE INDEX object_damaged ON object(damaged) WHERE damaged=1;
CREATE INDEX object_pinned ON object(pinned) WHERE pinned=1;

-- The durable copy on NVMe; current = 1: the same bytes as the object. runs: u64 pairs (first page, count), sums: u32
-- CRC32C of each page of the runs, in order; both little-endian.
CREATE TABLE copy(
    ino INTEGER PRIMARY KEY,
    gen INTEGER NOT NULL,
    dir INTEGER NOT NULL,
    size INTEGER NOT NULL,
    mtime_ns INTEGER NOT NULL,
    current INTEGER NOT NULL,
    runs BLOB NOT NULL,
    sums BLOB NOT NULL
);

CREATE TABLE fault(
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    when_ns INTEGER NOT NULL,
    ino INTEGER NOT NULL,
    path BLOB NOT NULL,
    page INTEGER,
    what TEXT NOT NULL
);
"""
