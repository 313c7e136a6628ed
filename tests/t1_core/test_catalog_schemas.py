"""The catalogue: copies in formats, and catalogues of older schemas."""

import sqlite3
import stat
from dataclasses import replace

import pytest

from kvd.catalog.catalog import Catalog
from kvd.catalog.database import FILE_NAME
from kvd.catalog.form import Form
from kvd.catalog.records import Copy, Pin, Said
from kvd.catalog.schema import ROOT_INO
from kvd.format.model import Kind, Role, RoleError

PAGE_BYTES = 65536
FILE = stat.S_IFREG | 0o644


@pytest.fixture
def catalog(tmp_path):
    opened = Catalog.open(tmp_path, page_bytes=PAGE_BYTES)
    yield opened
    opened.close()


def make(catalog, parent, name):
    return catalog.names.make(parent, name, mode=FILE, uid=1, gid=2, now_ns=7)


SCHEMA_4 = """
DROP TRIGGER copy_charged;
DROP TRIGGER copy_discharged;
DROP TRIGGER copy_recharged;
DROP TABLE top_use;
DROP TABLE chain;
ALTER TABLE copy DROP COLUMN top;
ALTER TABLE namespace DROP COLUMN ddr_guaranteed_bytes;
ALTER TABLE namespace DROP COLUMN ddr_limit_bytes;
ALTER TABLE namespace DROP COLUMN nvme_guaranteed_bytes;
ALTER TABLE namespace DROP COLUMN nvme_limit_bytes;
ALTER TABLE namespace DROP COLUMN priority;
ALTER TABLE namespace DROP COLUMN on_full;
PRAGMA user_version = 4;
"""
"""What schema 4 had otherwise than schema 5."""

SCHEMA_3 = f"""{SCHEMA_4}
DROP TRIGGER copy_made;
DROP TRIGGER copy_gone;
DROP TABLE format_use;
ALTER TABLE namespace DROP COLUMN format;
ALTER TABLE namespace DROP COLUMN layout;
ALTER TABLE copy DROP COLUMN format;
ALTER TABLE copy DROP COLUMN form;
ALTER TABLE copy DROP COLUMN used_ns;
PRAGMA user_version = 3;
"""
"""What schema 3 had otherwise than schema 4."""

SCHEMA_1 = """
CREATE TABLE copy(ino INTEGER PRIMARY KEY, gen INTEGER NOT NULL, dir INTEGER NOT NULL, size INTEGER NOT NULL,
 mtime_ns INTEGER NOT NULL, current INTEGER NOT NULL, runs BLOB NOT NULL, sums BLOB NOT NULL);
CREATE TABLE fault(id INTEGER PRIMARY KEY AUTOINCREMENT, when_ns INTEGER NOT NULL, ino INTEGER NOT NULL,
 path BLOB NOT NULL, page INTEGER, what TEXT NOT NULL);
DROP TABLE namespace;
DROP TABLE session;
INSERT INTO copy VALUES(7, 3, 1, 70000, 5, 1, x'00000000000000000200000000000000', x'0102030405060708');
INSERT INTO fault VALUES(1, 2, 7, x'2f66', NULL, 'it was');
PRAGMA user_version = 1;
"""
"""What schema 1 had otherwise than schema 2, with a row in each table."""


def test_a_catalogue_of_schema_1_is_brought_to_the_present_one(tmp_path):
    Catalog.open(tmp_path, page_bytes=PAGE_BYTES).close()
    with sqlite3.connect(tmp_path / FILE_NAME) as connection:
        connection.executescript(SCHEMA_3 + "DROP TABLE copy; DROP TABLE fault;" + SCHEMA_1)
    connection.close()
    catalog = Catalog.open(tmp_path, page_bytes=PAGE_BYTES)
    try:
        expected = Copy(ino=7, gen=3, dirs=(1,), size=70000, mtime_ns=5, current=True, runs=((0, 2),))
        assert catalog.placements.copy(7) == expected
        assert catalog.placements.sums(7) == bytes(range(1, 9))
        assert catalog.db.scalar("SELECT blocks FROM copy") == 16 + 2
        assert [fault.place for fault in catalog.placements.faults(9)] == [""]
        assert catalog.db.scalar("SELECT count(*) FROM namespace") == 0
        assert not catalog.sessions.some
    finally:
        catalog.close()
    Catalog.open(tmp_path, page_bytes=PAGE_BYTES).close()


SCHEMA_2 = """
ALTER TABLE namespace DROP COLUMN session;
DROP TABLE session;
INSERT INTO namespace VALUES(9, '', 'reused', 'back', 'eio', 5);
PRAGMA user_version = 2;
"""
"""What schema 2 had otherwise than schema 3."""


def test_a_catalogue_of_schema_2_is_brought_to_the_present_one(tmp_path):
    Catalog.open(tmp_path, page_bytes=PAGE_BYTES).close()
    with sqlite3.connect(tmp_path / FILE_NAME) as connection:
        connection.executescript(SCHEMA_3 + SCHEMA_2)
    connection.close()
    catalog = Catalog.open(tmp_path, page_bytes=PAGE_BYTES)
    try:
        assert (catalog.namespaces.get(9).admit, catalog.namespaces.get(9).session) == ("reused", "file")
        said = Said(
            ino=9, pin=Pin.SOFT, pin_until_ns=7, ttl_ns=3, refresh=True, expire_ns=8, priority=200, window=5, sink=4
        )
        catalog.sessions.put(said)
        assert (catalog.sessions.get(9), catalog.sessions.next_ns()) == (said, 7)
    finally:
        catalog.close()


def test_a_catalogue_of_schema_3_is_brought_to_the_present_one(tmp_path):
    catalog = Catalog.open(tmp_path, page_bytes=PAGE_BYTES)
    for ino in (7, 8):
        copy = Copy(ino=ino, gen=3, dirs=(1,), size=70000, mtime_ns=5, current=True, runs=((0, 2),))
        catalog.placements.put_copy(copy, bytes(8))
    catalog.close()
    with sqlite3.connect(tmp_path / FILE_NAME) as connection:
        connection.executescript(SCHEMA_3 + "INSERT INTO namespace VALUES(9, '', 'all', 'back', 'eio', 5, 'file');")
    connection.close()
    catalog = Catalog.open(tmp_path, page_bytes=PAGE_BYTES)
    try:
        assert (catalog.namespaces.get(9).format, catalog.namespaces.get(9).layout) == ("raw", "")
        assert (catalog.placements.copy(7).format, catalog.placements.copy(7).form) == ("raw", None)
        assert catalog.placements.formats() == {"raw": (2, 2 * 18)}
        catalog.placements.drop_copy(7)
        assert catalog.placements.formats() == {"raw": (1, 18)}
    finally:
        catalog.close()


def test_a_catalogue_of_schema_4_is_brought_to_the_present_one(tmp_path):
    catalog = Catalog.open(tmp_path, page_bytes=PAGE_BYTES)
    inos = {}
    for name in (b"space", b"other"):
        folder = catalog.names.make(ROOT_INO, name, mode=stat.S_IFDIR | 0o755, uid=1, gid=2, now_ns=7).ino
        inner = catalog.names.make(folder, b"inner", mode=stat.S_IFDIR | 0o755, uid=1, gid=2, now_ns=7).ino
        inos[name] = folder, make(catalog, inner, b"f").ino
    grave = catalog.names.make(ROOT_INO, b"grave", mode=stat.S_IFDIR | 0o755, uid=1, gid=2, now_ns=7).ino
    inos[b"grave"] = grave, make(catalog, grave, b"f").ino
    catalog.namespaces.retire(ROOT_INO, b"grave", grave, 8)
    inos[b"root"] = 0, make(catalog, ROOT_INO, b"f").ino
    for _, ino in inos.values():
        catalog.placements.add(ino)
        copy = Copy(ino=ino, gen=3, dirs=(1,), size=70000, mtime_ns=5, current=True, runs=((0, 2),))
        catalog.placements.put_copy(copy, bytes(8))
    catalog.close()
    space = f"INSERT INTO namespace VALUES({inos[b'space'][0]}, '', 'all', 'back', 'eio', 5, 'file', 'raw', '');"
    with sqlite3.connect(tmp_path / FILE_NAME) as connection:
        connection.executescript(SCHEMA_4 + space)
    connection.close()
    catalog = Catalog.open(tmp_path, page_bytes=PAGE_BYTES)
    try:
        found = catalog.namespaces.get(inos[b"space"][0])
        assert not found.has_quota
        assert (found.ddr_limit_bytes, found.priority, found.on_full) == (0, 0, "")
        assert {name: catalog.charges.used_blocks(top) for name, (top, _) in inos.items()} == dict.fromkeys(inos, 18)
        catalog.placements.drop_copy(inos[b"space"][1])
        assert catalog.charges.used_blocks(inos[b"space"][0]) == 0
        catalog.chains.put(inos[b"root"][1], inos[b"other"][1])
        assert catalog.chains.parent(inos[b"root"][1]) == inos[b"other"][1]
    finally:
        catalog.close()


FORM = Form(
    keys=Kind.INT8,
    values=Kind.INT4,
    object_bytes=1 << 40,
    object_blocks=77,
    lossy_bytes=5,
    errors={
        Role.KEYS: RoleError(values=3, relative_l2=0.25, most=1.5),
        Role.OTHER: RoleError(values=1 << 40, relative_l2=0.0, most=0.0),
    },
)


def test_a_stored_copy_comes_back_as_it_was_put_and_is_counted(catalog):
    inos = [make(catalog, ROOT_INO, name).ino for name in (b"f", b"g")]
    for ino in inos:
        catalog.placements.add(ino)
    copy = Copy(ino=inos[0], gen=3, dirs=(1,), size=70000, mtime_ns=5, current=True, runs=((0, 2),), form=FORM)
    catalog.placements.put_copy(copy, bytes(8))
    assert catalog.placements.copy(inos[0]) == copy
    assert (copy.format, copy.object_bytes) == ("int8/int4", 1 << 40)
    assert catalog.placements.formats() == {"int8/int4": (1, 18)}
    zstd = replace(copy, gen=4, form=replace(FORM, lossy_bytes=0, errors={}))
    catalog.placements.put_copy(zstd, bytes(8))
    catalog.placements.put_copy(replace(zstd, ino=inos[1], form=None), bytes(8))
    assert catalog.placements.formats() == {"zstd": (1, 18), "raw": (1, 18)}
    catalog.names.remove(inos[0])
    assert catalog.placements.formats() == {"raw": (1, 18)}


@pytest.mark.parametrize(
    "spoil", [lambda p: p[:-1], lambda p: p + b"x", lambda p: b"\xff" + p[1:], lambda p: p[:2] + b"\x63" + p[3:]]
)
def test_a_form_that_makes_no_sense_is_none(spoil):
    assert Form.unpack(FORM.pack()) == FORM
    with pytest.raises(ValueError, match=r"form|Kind"):
        Form.unpack(spoil(FORM.pack()))
