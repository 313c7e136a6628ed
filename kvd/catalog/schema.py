"""The catalogue's tables. `docs/format.md` describes them for people; a change here raises `SCHEMA_VERSION`."""

APPLICATION_ID = 0x6B766443
"""SQLite's `application_id` of a kvd catalogue: ``kvdC``."""

SCHEMA_VERSION = 5

ROOT_INO = 1

_TOP_USE = """
CREATE TABLE top_use(
    top INTEGER PRIMARY KEY,
    copies INTEGER NOT NULL,
    blocks INTEGER NOT NULL
);
"""
_TOP_TRIGGERS = """
CREATE TRIGGER copy_charged AFTER INSERT ON copy BEGIN INSERT INTO top_use VALUES(new.top, 1, new.blocks) \
ON CONFLICT(top) DO UPDATE SET copies=copies+1, blocks=blocks+excluded.blocks; END;
CREATE TRIGGER copy_discharged AFTER DELETE ON copy BEGIN UPDATE top_use SET copies=copies-1, blocks=blocks-old.blocks \
WHERE top=old.top; DELETE FROM top_use WHERE top=old.top AND copies=0; END;
CREATE TRIGGER copy_recharged AFTER UPDATE OF top ON copy BEGIN UPDATE top_use SET copies=copies-1, blocks=blocks-old.blocks \
WHERE top=old.top; DELETE FROM top_use WHERE top=old.top AND copies=0; INSERT INTO top_use VALUES(new.top, 1, new.blocks) \
ON CONFLICT(top) DO UPDATE SET copies=copies+1, blocks=blocks+excluded.blocks; END;
"""
_CHAIN = """
CREATE TABLE chain(
    ino INTEGER PRIMARY KEY,
    parent INTEGER NOT NULL
);
CREATE INDEX chain_parent ON chain(parent);
"""
"""Of schema 5; a schema that changes one of these gets its own."""

SCHEMA = "".join(
    (
        """
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

CREATE INDEX inode_nameless ON inode(nlink) WHERE nlink=0;

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

-- The durable copy on NVMe; current = 1: the same bytes as the object. dirs: u16 number of the directory of each part,
-- runs: u64 pairs (first page, count), sums: u32 CRC32C of each page of the runs, in order; all little-endian. stripe:
-- bytes that go to one part before the next one's turn, 0 with one part. blocks: 4 KiB blocks that its pages are charged.
-- format: how the object's bytes are kept, for people and counts; form: what there is to know of a stored file (docs/formats.md),
-- '' where the file is the object's bytes. size, runs and sums are always the file's. used_ns: when the object was last in use,
-- as it left DDR; 0: not known. top: the directory right below the root below which the object is, whose namespace it is charged
-- to; 0 for none.
CREATE TABLE copy(
    ino INTEGER PRIMARY KEY,
    gen INTEGER NOT NULL,
    dirs BLOB NOT NULL,
    stripe INTEGER NOT NULL,
    size INTEGER NOT NULL,
    mtime_ns INTEGER NOT NULL,
    current INTEGER NOT NULL,
    blocks INTEGER NOT NULL,
    runs BLOB NOT NULL,
    sums BLOB NOT NULL,
    format TEXT NOT NULL DEFAULT 'raw',
    form BLOB NOT NULL DEFAULT x'',
    used_ns INTEGER NOT NULL DEFAULT 0,
    top INTEGER NOT NULL DEFAULT 0
);

CREATE INDEX copy_dirs ON copy(dirs, blocks);

-- What copies there are of each format, kept by the triggers.
CREATE TABLE format_use(
    format TEXT PRIMARY KEY,
    copies INTEGER NOT NULL,
    blocks INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TRIGGER copy_made AFTER INSERT ON copy BEGIN INSERT INTO format_use VALUES(new.format, 1, new.blocks) \
ON CONFLICT(format) DO UPDATE SET copies=copies+1, blocks=blocks+excluded.blocks; END;
CREATE TRIGGER copy_gone AFTER DELETE ON copy BEGIN UPDATE format_use SET copies=copies-1, blocks=blocks-old.blocks \
WHERE format=old.format; END;

-- What the copies below each top directory are charged, kept by the triggers.
""",
        _TOP_USE,
        _TOP_TRIGGERS,
        """
-- Objects that said which one is before them in their chain. That one may be gone: numbers are not used again.
""",
        _CHAIN,
        """
-- Top directories that have a policy; fingerprint: canonical JSON of free keys, '' for none. format: the ladder of formats,
-- layout: what objects hold that do not say so themselves, '' for nothing known. Of each tier what is guaranteed, and the most; limit
-- 0: as much as there is. on_full: what a full NVMe tier means for its writers, '' as the configuration says.
CREATE TABLE namespace(
    ino INTEGER PRIMARY KEY,
    fingerprint TEXT NOT NULL,
    admit TEXT NOT NULL,
    durability TEXT NOT NULL,
    on_fault TEXT NOT NULL,
    created_ns INTEGER NOT NULL,
    session TEXT NOT NULL DEFAULT 'file',
    format TEXT NOT NULL DEFAULT 'raw',
    layout TEXT NOT NULL DEFAULT '',
    ddr_guaranteed_bytes INTEGER NOT NULL DEFAULT 0,
    ddr_limit_bytes INTEGER NOT NULL DEFAULT 0,
    nvme_guaranteed_bytes INTEGER NOT NULL DEFAULT 0,
    nvme_limit_bytes INTEGER NOT NULL DEFAULT 0,
    priority INTEGER NOT NULL DEFAULT 0,
    on_full TEXT NOT NULL DEFAULT ''
);

-- What was said of a session, or of one object of it, that its objects do not tell by themselves. state: 7 (released), or 0.
-- pin: 1 soft, 2 hard. Times in ns since the epoch, 0 for none. refresh = 1: a use begins the TTL anew.
CREATE TABLE session(
    ino INTEGER PRIMARY KEY,
    state INTEGER NOT NULL,
    pin INTEGER NOT NULL,
    pin_until_ns INTEGER NOT NULL,
    ttl_ns INTEGER NOT NULL,
    refresh INTEGER NOT NULL,
    expire_ns INTEGER NOT NULL,
    priority INTEGER NOT NULL,
    window INTEGER NOT NULL,
    sink INTEGER NOT NULL
);
CREATE INDEX session_expire ON session(expire_ns) WHERE expire_ns>0;
CREATE INDEX session_pin_until ON session(pin_until_ns) WHERE pin_until_ns>0;
CREATE INDEX session_pin ON session(pin) WHERE pin>0;

-- place: the file and offset of the damage, '' where there is none.
CREATE TABLE fault(
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    when_ns INTEGER NOT NULL,
    ino INTEGER NOT NULL,
    path BLOB NOT NULL,
    page INTEGER,
    what TEXT NOT NULL,
    place TEXT NOT NULL
);
""",
    )
)

CHARGE_ALL = """
CREATE TEMP TABLE charge(ino INTEGER PRIMARY KEY, top INTEGER NOT NULL);
WITH RECURSIVE down(ino, top) AS (SELECT d.ino, d.ino FROM main.dentry d JOIN main.inode i USING(ino) WHERE d.parent=1 \
AND (i.mode & 61440)=16384 UNION SELECT value, value FROM main.meta WHERE key GLOB 'grave:*' UNION SELECT d.ino, down.top \
FROM down JOIN main.dentry d ON d.parent=down.ino) INSERT OR IGNORE INTO charge SELECT ino, top FROM down;
UPDATE copy SET top=coalesce((SELECT top FROM charge WHERE charge.ino=copy.ino), 0);
DROP TABLE charge;
"""
"""Finds anew what each copy is charged to. 61440 and 16384 are `S_IFMT` and `S_IFDIR`, 1 is the root."""

MIGRATIONS = {
    1: """
CREATE TABLE copy2(
    ino INTEGER PRIMARY KEY,
    gen INTEGER NOT NULL,
    dirs BLOB NOT NULL,
    stripe INTEGER NOT NULL,
    size INTEGER NOT NULL,
    mtime_ns INTEGER NOT NULL,
    current INTEGER NOT NULL,
    blocks INTEGER NOT NULL,
    runs BLOB NOT NULL,
    sums BLOB NOT NULL
);
INSERT INTO copy2 SELECT ino, gen, kvd_u16(dir), 0, size, mtime_ns, current, kvd_blocks(size, runs), runs, sums FROM copy;
DROP TABLE copy;
ALTER TABLE copy2 RENAME TO copy;
CREATE INDEX IF NOT EXISTS copy_dirs ON copy(dirs, blocks);
CREATE INDEX IF NOT EXISTS inode_nameless ON inode(nlink) WHERE nlink=0;
CREATE TABLE namespace(
    ino INTEGER PRIMARY KEY,
    fingerprint TEXT NOT NULL,
    admit TEXT NOT NULL,
    durability TEXT NOT NULL,
    on_fault TEXT NOT NULL,
    created_ns INTEGER NOT NULL
);
ALTER TABLE fault ADD COLUMN place TEXT NOT NULL DEFAULT '';
""",
    2: """
ALTER TABLE namespace ADD COLUMN session TEXT NOT NULL DEFAULT 'file';
CREATE TABLE session(
    ino INTEGER PRIMARY KEY,
    state INTEGER NOT NULL,
    pin INTEGER NOT NULL,
    pin_until_ns INTEGER NOT NULL,
    ttl_ns INTEGER NOT NULL,
    refresh INTEGER NOT NULL,
    expire_ns INTEGER NOT NULL,
    priority INTEGER NOT NULL,
    window INTEGER NOT NULL,
    sink INTEGER NOT NULL
);
CREATE INDEX session_expire ON session(expire_ns) WHERE expire_ns>0;
CREATE INDEX session_pin_until ON session(pin_until_ns) WHERE pin_until_ns>0;
CREATE INDEX session_pin ON session(pin) WHERE pin>0;
""",
    3: """
ALTER TABLE namespace ADD COLUMN format TEXT NOT NULL DEFAULT 'raw';
ALTER TABLE namespace ADD COLUMN layout TEXT NOT NULL DEFAULT '';
ALTER TABLE copy ADD COLUMN format TEXT NOT NULL DEFAULT 'raw';
ALTER TABLE copy ADD COLUMN form BLOB NOT NULL DEFAULT x'';
ALTER TABLE copy ADD COLUMN used_ns INTEGER NOT NULL DEFAULT 0;
CREATE TABLE format_use(
    format TEXT PRIMARY KEY,
    copies INTEGER NOT NULL,
    blocks INTEGER NOT NULL
) WITHOUT ROWID;
INSERT INTO format_use SELECT format, count(*), sum(blocks) FROM copy GROUP BY format;
CREATE TRIGGER copy_made AFTER INSERT ON copy BEGIN INSERT INTO format_use VALUES(new.format, 1, new.blocks) \
ON CONFLICT(format) DO UPDATE SET copies=copies+1, blocks=blocks+excluded.blocks; END;
CREATE TRIGGER copy_gone AFTER DELETE ON copy BEGIN UPDATE format_use SET copies=copies-1, blocks=blocks-old.blocks \
WHERE format=old.format; END;
""",
    4: "".join(
        (
            """
ALTER TABLE namespace ADD COLUMN ddr_guaranteed_bytes INTEGER NOT NULL DEFAULT 0;
ALTER TABLE namespace ADD COLUMN ddr_limit_bytes INTEGER NOT NULL DEFAULT 0;
ALTER TABLE namespace ADD COLUMN nvme_guaranteed_bytes INTEGER NOT NULL DEFAULT 0;
ALTER TABLE namespace ADD COLUMN nvme_limit_bytes INTEGER NOT NULL DEFAULT 0;
ALTER TABLE namespace ADD COLUMN priority INTEGER NOT NULL DEFAULT 0;
ALTER TABLE namespace ADD COLUMN on_full TEXT NOT NULL DEFAULT '';
""",
            _CHAIN,
            """
ALTER TABLE copy ADD COLUMN top INTEGER NOT NULL DEFAULT 0;
""",
            CHARGE_ALL,
            _TOP_USE,
            """
INSERT INTO top_use SELECT top, count(*), sum(blocks) FROM copy GROUP BY top;
""",
            _TOP_TRIGGERS,
        )
    ),
}
"""From each older version to the next. ``kvd_u16`` and ``kvd_blocks`` are the functions of `kvd.catalog.packing`."""
