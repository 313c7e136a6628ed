"""Each fault of a stopped kvd: broken, found, mended as said, not found again; the other objects keep their bytes."""

import os
import shutil
import sqlite3
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from kvd.catalog.catalog import Catalog
from kvd.fsck import examine
from kvd.tier import describe, treefile
from support.tiers import PAGE_BYTES, config_at, tiers_at

SIZE = 3 * PAGE_BYTES + 777
LARGE = 400 * PAGE_BYTES + 1
"""Its sums do not fit into its description."""


@dataclass
class State:
    """A stopped kvd: `hot` in DDR alone, `both` with a copy, `cold` and `large` on NVMe, `folder` with `inner` in it."""

    root: Path
    contents: dict[str, bytes] = field(default_factory=dict)
    inos: dict[str, int] = field(default_factory=dict)

    def sql(self, statement):
        connection = sqlite3.connect(self.root / "state/catalog.sqlite")
        with connection:
            connection.execute(statement.format(**self.inos))
        connection.close()

    def ddr_file(self, name):
        return self.root / f"ddr/{self.inos[name]:x}"

    def copy_file(self, name):
        (path,) = (self.root / "nvme0/objects").rglob(f"{self.inos[name]:x}.[0-9a-f]")
        return path


@pytest.fixture
async def state(scratch):
    ddr = Path(tempfile.mkdtemp(prefix="kvd-", dir="/dev/shm"))
    (scratch / "ddr").symlink_to(ddr)
    made = State(scratch)
    async with tiers_at(scratch, ddr_mib=64) as tiers:
        names = tiers.catalog.names
        made.inos["folder"] = names.make(1, b"folder", mode=0o040755, uid=0, gid=0, now_ns=1).ino
        made.inos["inner"] = names.make(made.inos["folder"], b"inner", mode=0o040755, uid=0, gid=0, now_ns=1).ino
        for name, size in (("hot", SIZE), ("both", SIZE), ("cold", SIZE), ("large", LARGE)):
            made.contents[name] = os.urandom(size)
            made.inos[name] = await tiers.make(name.encode(), made.contents[name])
        await tiers.objects.fsync(made.inos["both"])
        await tiers.objects.demote(made.inos["cold"])
        await tiers.objects.demote(made.inos["large"])
    yield made
    shutil.rmtree(ddr)


async def repaired(state, *, data=True):
    return await examine(config_at(state.root), page_bytes=PAGE_BYTES, data=data, repair=True)


async def left(state, *, data=True):
    return [fault.what for fault in await examine(config_at(state.root), page_bytes=PAGE_BYTES, data=data)]


async def read_all(state, *, without=()):
    """Start, and compare every object that is expected with what it was."""
    async with tiers_at(state.root, ddr_mib=64) as tiers:
        for name, content in state.contents.items():
            if name not in without:
                found = tiers.catalog.names.resolve(b"/" + name.encode())
                assert await tiers.read(found.ino) == content, name


# What breaks it, what is found, what was done about it, and whose bytes are lost.
CATALOGUE = {
    "UPDATE inode SET nlink=5 WHERE ino={hot}": ("link count 5 instead of 1", "counted anew"),
    "UPDATE inode SET nlink=9 WHERE ino={folder}": ("link count 9 instead of 3", "counted anew"),
    "INSERT INTO dentry(parent, name, ino) VALUES(1, x'78', 999)": ("name of inode 999 in 1", "name removed"),
    "INSERT INTO dentry(parent, name, ino) VALUES(1, x'78', {folder})": ("has 2 names", "its first name is kept"),
    "INSERT INTO object VALUES(999, 1, 1, 0, 0, 0)": ("object 999: has no inode", "row removed"),
    "INSERT INTO xattr VALUES(999, x'61', x'62')": ("xattr 999: has no inode", "row removed"),
    "INSERT INTO copy VALUES(999, 1, x'0000', 0, 0, 0, 1, 0, x'', x'', 'raw', x'', 0, 0)": (
        "copy 999: has no inode",
        "row removed",
    ),
    "INSERT INTO namespace VALUES(999, '', 'all', 'back', 'eio', 0, 'file', 'raw', '', 0, 0, 0, 0, 0, '')": (
        "namespace 999: has no inode",
        "row removed",
    ),
    "DELETE FROM object WHERE ino={cold}": ("has no object", "it is its copy"),
    "UPDATE inode SET size=5 WHERE ino={cold}": ("its copy has another size", "its length is that of its copy"),
    "UPDATE copy SET sums=x'00' WHERE ino={cold}": ("has not one checksum a page", "taken from its description"),
    "UPDATE copy SET sums=x'00' WHERE ino={large}": ("has not one checksum a page", "taken from its description"),
    "UPDATE copy SET current=0 WHERE ino={cold}": ("without a current copy", "it is its last copy again"),
    "UPDATE object SET sealed=0 WHERE ino={both}": ("has a writer", "it is its last copy again"),
}


@pytest.mark.parametrize("statement", CATALOGUE)
async def test_a_contradiction_in_the_catalogue_is_mended_without_a_loss(state, statement):
    state.sql(statement)
    what, done = CATALOGUE[statement]
    faults = await repaired(state)
    assert any(what in fault.what and fault.done == done for fault in faults), faults
    assert all(fault.mended for fault in faults), faults
    assert await left(state) == []
    await read_all(state)


LOST = {
    "UPDATE dentry SET parent={hot} WHERE ino={cold}": "cold",
    "UPDATE dentry SET parent=12345 WHERE ino={cold}": "cold",
    "DELETE FROM dentry WHERE ino={cold}": "cold",
    "UPDATE dentry SET parent={inner} WHERE ino={folder}": "folder",
}


@pytest.mark.parametrize("statement", LOST)
async def test_what_has_no_place_is_in_lost_found(state, statement):
    state.sql(statement)
    faults = await repaired(state)
    assert all(fault.mended for fault in faults), faults
    assert await left(state) == []
    name = LOST[statement]
    async with tiers_at(state.root, ddr_mib=64) as tiers:
        found = tiers.catalog.names.resolve(b"/lost+found/#%d" % state.inos[name])
        assert found.ino == state.inos[name]
        if name in state.contents:
            assert await tiers.read(found.ino) == state.contents[name]
        else:
            inside = tiers.catalog.names.resolve(b"/lost+found/#%d/inner" % state.inos[name])
            assert inside.ino == state.inos["inner"]
    await read_all(state, without=(name,))


GIVEN_UP = {
    "DELETE FROM object WHERE ino={hot}": "hot",
    "UPDATE object SET sealed=0 WHERE ino={hot}": "hot",
    "DELETE FROM copy WHERE ino={cold}": "cold",
}


@pytest.mark.parametrize("statement", GIVEN_UP)
async def test_what_has_no_bytes_is_given_up_and_recorded(state, statement):
    state.sql(statement)
    faults = await repaired(state)
    assert any(fault.done.startswith("given up") for fault in faults), faults
    assert await left(state) == []
    async with tiers_at(state.root, ddr_mib=64) as tiers:
        name = GIVEN_UP[statement].encode()
        assert tiers.catalog.names.lookup(1, name) is None
        assert "given up by fsck" in tiers.catalog.placements.faults(1)[0].what
        assert tiers.catalog.placements.faults(1)[0].path == b"/" + name
    await read_all(state, without=(GIVEN_UP[statement],))


def flip(path, at):
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 8]))


def no_copy_file(state):
    state.copy_file("both").unlink()


def short_copy_file(state):
    os.truncate(state.copy_file("both"), 5)


def bad_page(state):
    flip(state.copy_file("both"), PAGE_BYTES + 5)


def no_ddr_file(state):
    state.ddr_file("both").unlink()


def short_ddr_file(state):
    os.truncate(state.ddr_file("both"), 5)


def stray_copy(state):
    path = state.root / "nvme0/objects/ad/de/dead.1"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"?")


def stray_ddr(state):
    (state.root / "ddr/dead").write_bytes(b"?")


def spare(state):
    (state.root / "ddr/kvd-spare-3").write_bytes(b"?")


def lone_sums(state):
    (state.copy_file("cold").parent / "dead.1.sums").write_bytes(b"?")


def no_description(state):
    os.removexattr(state.copy_file("cold"), "user.kvd")


def flipped_description(state):
    value = bytearray(os.getxattr(state.copy_file("cold"), "user.kvd"))
    value[50] ^= 1
    os.setxattr(state.copy_file("cold"), "user.kvd", bytes(value))


def description_of_another(state):
    os.setxattr(state.copy_file("cold"), "user.kvd", os.getxattr(state.copy_file("both"), "user.kvd"))


def renamed(state):
    state.sql("UPDATE dentry SET name=x'6e6577' WHERE ino={cold}")
    state.contents["new"] = state.contents.pop("cold")


def no_sums(state):
    describe.beside(state.copy_file("large")).unlink()


def flipped_sums(state):
    flip(describe.beside(state.copy_file("large")), 100)


def no_tree(state):
    (state.root / "nvme0" / treefile.NAME).unlink()


def flipped_tree(state):
    flip(state.root / "nvme0" / treefile.NAME, 60)


def old_tree(state):
    state.sql("UPDATE inode SET mode=16832 WHERE ino={folder}")


FILES = {
    no_copy_file: ("its file on NVMe is missing", "copy forgotten"),
    short_copy_file: ("its file on NVMe has 5 bytes", "copy forgotten"),
    bad_page: ("page 1 failed its checksum", "copy forgotten"),
    no_ddr_file: ("its file in DDR is missing", "it is its last copy again"),
    short_ddr_file: ("its file in DDR has 5 bytes", "it is its last copy again"),
    stray_copy: ("belongs to no object", "removed"),
    stray_ddr: ("belongs to no object in DDR", "removed"),
    spare: ("memory that was kept", "removed"),
    lone_sums: ("belongs to no object", "removed"),
    no_description: ("its copy is not described", "described anew"),
    flipped_description: ("can't be used: its checksum differs", "described anew"),
    description_of_another: ("description of its copy is that of", "described anew"),
    renamed: ("description of its copy is out of date", "described anew"),
    no_sums: ("the sums beside its copy are missing", "described anew"),
    flipped_sums: ("the sums beside its copy are damaged", "described anew"),
    no_tree: ("the file of the tree is missing", "written anew"),
    flipped_tree: ("the file of the tree can't be used", "written anew"),
    old_tree: ("the file of the tree is out of date", "written anew"),
}


@pytest.mark.parametrize("spoil", FILES)
async def test_a_fault_of_the_files_is_mended_without_a_loss(state, spoil):
    spoil(state)
    what, done = FILES[spoil]
    faults = await repaired(state)
    assert any(what in fault.what and fault.done.startswith(done) for fault in faults), faults
    assert all(fault.mended for fault in faults), faults
    assert await left(state) == []
    await read_all(state)


async def test_a_bad_page_of_a_cold_object_is_quarantined_with_its_place_and_stays_a_fault(state):
    path = state.copy_file("cold")
    flip(path, PAGE_BYTES + 5)
    flip(path, 3 * PAGE_BYTES)
    faults = await repaired(state)
    assert [fault.what for fault in faults] == [
        f"object {state.inos['cold']}: page {page} failed its checksum" for page in (1, 3)
    ]
    assert faults[0].place == f"{path} at {PAGE_BYTES}"
    assert "quarantined" in faults[0].done
    assert not any(fault.mended for fault in faults)
    async with tiers_at(state.root, ddr_mib=64) as tiers:
        (fault,) = tiers.catalog.placements.faults(9)
        assert (fault.page, fault.what, fault.place) == (1, "checksum differs", f"{path} at {PAGE_BYTES}")
        assert tiers.catalog.placements.get(state.inos["cold"]).damaged
    await read_all(state, without=("cold",))


async def test_sums_that_are_lost_twice_put_the_object_into_quarantine(state):
    state.sql("UPDATE copy SET sums=x'00' WHERE ino={cold}")
    no_description(state)
    faults = await repaired(state)
    assert any("quarantined" in fault.done for fault in faults)
    assert await left(state) == [f"object {state.inos['cold']}: has not one checksum a page"]
    await read_all(state, without=("cold",))


async def test_a_file_of_another_catalogue_is_left_alone(state):
    value = bytearray(os.getxattr(state.copy_file("cold"), "user.kvd"))
    value[16:32] = os.urandom(16)
    value[-4:] = describe.crc32c(bytes(value[:-4])).to_bytes(4, "little")
    path = state.root / "nvme0/objects/ad/de/dead.1"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"?")
    os.setxattr(path, "user.kvd", bytes(value))
    assert await repaired(state) == []
    await read_all(state)
    assert path.read_bytes() == b"?"


def spoil_index(state):
    catalog = Catalog.open(state.root / "state", page_bytes=PAGE_BYTES)
    page = catalog.db.scalar("SELECT rootpage FROM sqlite_schema WHERE name='dentry_name'")
    size = catalog.db.scalar("PRAGMA page_size")
    catalog.close()
    flip(state.root / "state/catalog.sqlite", (page - 1) * size + 4)


def spoil_head(state):
    flip(state.root / "state/catalog.sqlite", 3)


def cut(state):
    os.truncate(state.root / "state/catalog.sqlite", 5000)


@pytest.mark.parametrize("spoil", [spoil_index, spoil_head, cut])
async def test_a_damaged_catalogue_is_not_repaired_and_the_sentence_names_the_rebuild(state, spoil):
    spoil(state)
    before = (state.root / "state/catalog.sqlite").read_bytes()
    faults = await repaired(state)
    assert faults
    assert all(fault.kind == "catalogue" and "kvctl fsck --rebuild" in fault.what for fault in faults), faults
    assert not any(fault.mended for fault in faults)
    assert (state.root / "state/catalog.sqlite").read_bytes() == before
