"""How copies describe themselves: what is written is what is read, and nothing damaged is believed."""

import os
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvd.catalog.catalog import Catalog
from kvd.catalog.form import Form
from kvd.catalog.records import Copy
from kvd.format.model import Kind, Role, RoleError
from kvd.tier import describe, treefile
from kvd.tier.describe import DescriptionError
from kvd.tier.mover import crc32c

PAGE_BYTES = 65536
FORM = Form(
    keys=Kind.INT8,
    values=Kind.E4M3,
    object_bytes=123456,
    object_blocks=31,
    lossy_bytes=9,
    errors={Role.VALUES: RoleError(values=3, relative_l2=0.5, most=2.0)},
)


@pytest.fixture
def catalog(scratch):
    made = Catalog.open(scratch, page_bytes=PAGE_BYTES)
    yield made
    made.close()


def put(catalog, name=b"a", *, runs=((0, 2), (5, 1)), dirs=(0,), current=True):
    ino = catalog.names.make(1, name, mode=0o100640, uid=7, gid=8, now_ns=1234).ino
    catalog.placements.add(ino)
    size = PAGE_BYTES * (sum(runs[-1]) if runs else 0)
    stripe = PAGE_BYTES if len(dirs) > 1 else 0
    copy = Copy(
        ino=ino, gen=3, dirs=dirs, stripe_bytes=stripe, size=size, mtime_ns=99, current=current, runs=tuple(runs)
    )
    sums = os.urandom(4 * copy.pages)
    catalog.placements.put_copy(copy, sums)
    return copy, sums


def version_of(value):
    return int.from_bytes(value[8:10], "little")


def described(catalog, copy, sums):
    uuid = catalog.db.uuid
    return describe.describe(catalog.db.execute, copy, sums, uuid=uuid, page_bytes=PAGE_BYTES)


def test_the_checksum_is_crc32c():
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(b"6789", crc32c(b"12345")) == 0xE3069283


def test_what_is_written_is_read(catalog):
    copy, sums = put(catalog, dirs=(0, 1, 2))
    catalog.names.link(copy.ino, 1, b"b", 2000)
    catalog.names.set_xattr(copy.ino, b"user.x", b"value", 3000)
    values = described(catalog, copy, sums)
    assert len(values) == 3
    for part, value in enumerate(values):
        found = describe.parse(value)
        assert (found.uuid, found.ino, found.gen, found.part, found.parts) == (catalog.db.uuid, copy.ino, 3, part, 3)
        assert (found.size, found.stripe_bytes, found.page_bytes) == (copy.size, PAGE_BYTES, PAGE_BYTES)
        assert (found.mode, found.uid, found.gid) == (0o100640, 7, 8)
        assert (found.atime_ns, found.mtime_ns, found.ctime_ns) == (1234, 1234, 3000)
        assert found.names == ((1, b"a"), (1, b"b"))
        assert found.xattrs == ((b"user.x", b"value"),)
        assert (found.runs, found.sums) == (copy.runs, sums)


@pytest.mark.parametrize("pages", [2, 4000])
def test_a_stored_file_says_so_and_an_older_kvd_leaves_it_out(catalog, pages):
    copy, sums = put(catalog, runs=((0, pages),))
    assert version_of(described(catalog, copy, sums)[0]) == describe.VERSION
    copy = replace(copy, form=FORM)
    for number in range(describe.NAMES_MAX - 1):
        catalog.names.link(copy.ino, 1, b"%d" % number + b"n" * 254, 2000)
    [value] = described(catalog, copy, sums)
    assert len(value) <= describe.VALUE_BYTES_MAX
    assert version_of(value) == describe.VERSION_STORED
    found = describe.parse(value)
    assert (found.form, found.size) == (FORM, copy.size)
    assert (found.runs, found.sums) == ((None, None) if pages == 4000 else (copy.runs, sums))
    for at in range(0, len(value), 5):
        with pytest.raises(DescriptionError):
            describe.parse(flipped(value, at))


def test_a_copy_of_older_bytes_has_its_own_time(catalog):
    copy, sums = put(catalog, current=False)
    assert describe.parse(described(catalog, copy, sums)[0]).mtime_ns == 99


def test_what_does_not_fit_is_elsewhere_and_the_rest_always_fits(catalog):
    runs = tuple((2 * page, 1) for page in range(describe.SUMS_BYTES_MAX // 20))
    copy, sums = put(catalog, runs=runs)
    assert not describe.is_aside(copy)
    for number in range(describe.NAMES_MAX - 1):
        catalog.names.link(copy.ino, 1, b"%d" % number + b"n" * 250, 2)
    catalog.names.set_xattr(copy.ino, b"user.x", bytes(describe.XATTRS_BYTES_MAX - 12), 2)
    (value,) = described(catalog, copy, sums)
    assert len(value) <= describe.VALUE_BYTES_MAX
    found = describe.parse(value)
    assert len(found.names) == describe.NAMES_MAX
    assert (len(found.xattrs), found.runs, found.sums) == (1, runs, sums)
    catalog.names.link(copy.ino, 1, b"one more", 3)
    catalog.names.set_xattr(copy.ino, b"user.y", b"", 3)
    found = describe.parse(described(catalog, copy, sums)[0])
    assert (found.names, found.xattrs) == (None, None)


def test_many_sums_are_in_a_file_beside(catalog):
    copy, sums = put(catalog, runs=((0, 10_000),))
    assert describe.is_aside(copy)
    found = describe.parse(described(catalog, copy, sums)[0])
    assert (found.runs, found.sums) == (None, None)
    beside = describe.sums_beside(copy, sums, uuid=catalog.db.uuid)
    assert describe.parse_sums(beside, found) == (copy.runs, sums)
    with pytest.raises(DescriptionError, match="another copy"):
        describe.parse_sums(describe.sums_beside(replace(copy, gen=4), sums, uuid=catalog.db.uuid), found)
    for at in (3, 40, len(beside) - 1):
        with pytest.raises(DescriptionError):
            describe.parse_sums(flipped(beside, at), found)


def flipped(value, at, bit=1):
    return value[:at] + bytes([value[at] ^ bit]) + value[at + 1 :]


def test_no_flipped_bit_is_believed(catalog):
    copy, sums = put(catalog)
    (value,) = described(catalog, copy, sums)
    for at in range(len(value)):
        with pytest.raises(DescriptionError):
            describe.parse(flipped(value, at, 1 << at % 8))
    for count in range(len(value)):
        with pytest.raises(DescriptionError):
            describe.parse(value[:count])


@given(st.binary(max_size=300))
def test_rubbish_is_refused(value):
    with pytest.raises(DescriptionError):
        describe.parse(value)
    sealed = b"kvd-copy\1\0" + value
    with pytest.raises(DescriptionError):
        describe.parse(sealed + crc32c(sealed).to_bytes(4, "little"))


def test_the_tree_is_read_as_written(catalog, scratch):
    now = 5
    folder = catalog.names.make(1, b"d\xff", mode=0o041755, uid=1, gid=2, now_ns=now).ino
    link = catalog.names.make(folder, b"l", mode=0o120777, uid=0, gid=0, now_ns=now, target=b"/to/\xfe").ino
    catalog.names.set_xattr(folder, b"user.d", b"\0\1", now)
    copy, _ = put(catalog)
    catalog.names.set_xattr(copy.ino, b"user.small", b"x", now)
    many, _ = put(catalog, b"many")
    for number in range(describe.NAMES_MAX):
        catalog.names.link(many.ino, folder, b"%d" % number, now)
    catalog.names.set_xattr(many.ino, b"user.big", bytes(5000), now)
    catalog.db.execute(
        "INSERT INTO namespace(ino, fingerprint, admit, durability, on_fault, created_ns) VALUES(?,?,?,?,?,?)",
        (folder, '{"a":"b"}', "all", "back", "eio", now),
    )
    treefile.write(catalog.db.path, [scratch], 77)
    tree = treefile.read(scratch)
    assert (tree.uuid, tree.page_bytes, tree.written_ns, tree.ino_next) == (
        catalog.db.uuid, PAGE_BYTES, 77, many.ino + 1,
    )  # fmt: skip
    assert [(inode.ino, inode.mode, inode.target) for inode in tree.inodes] == [
        (1, 0o041777, None),
        (folder, 0o041755, None),
        (link, 0o120777, b"/to/\xfe"),
    ]
    assert [name for name in tree.names if name[0] != many.ino] == [(folder, 1, b"d\xff"), (link, folder, b"l")]
    assert len([name for name in tree.names if name[0] == many.ino]) == describe.NAMES_MAX + 1
    assert tree.xattrs == [(folder, b"user.d", b"\0\1"), (many.ino, b"user.big", bytes(5000))]
    assert tree.namespaces[folder]["fingerprint"] == '{"a":"b"}'
    assert treefile.is_current(catalog.db.path, scratch)
    catalog.names.setattr(folder, mode=0o041700)
    assert not treefile.is_current(catalog.db.path, scratch)


def test_a_damaged_tree_is_refused(catalog, scratch):
    for number in range(20):
        catalog.names.make(1, b"d%d" % number, mode=0o040755, uid=1, gid=2, now_ns=1)
    treefile.write(catalog.db.path, [scratch], 1)
    path = scratch / treefile.NAME
    content = path.read_bytes()
    for at in range(len(content)):
        path.write_bytes(flipped(content, at))
        with pytest.raises(DescriptionError):
            treefile.read(scratch)
    for count in range(0, len(content), 7):
        path.write_bytes(content[:count])
        with pytest.raises(DescriptionError):
            treefile.read(scratch)
    path.unlink()
    with pytest.raises(FileNotFoundError):
        treefile.read(scratch)
