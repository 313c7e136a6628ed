"""Each check of fsck: broken, found, then the next start mends it or says so, and checked again."""

import os
import shutil
import sqlite3
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from kvd import fsck
from kvd.catalog.catalog import Catalog
from support.tiers import PAGE_BYTES, config_at, tiers_at

SIZE = 3 * PAGE_BYTES + 777


@dataclass
class State:
    """A stopped kvd with three objects: `hot` in DDR alone, `both` with a copy, `cold` on NVMe; and a folder's row."""

    root: Path
    hot: int = 0
    both: int = 0
    cold: int = 0
    folder: int = 0

    def sql(self, statement, *values):
        connection = sqlite3.connect(self.root / "state/catalog.sqlite")
        with connection:
            connection.execute(statement, values)
        connection.close()

    def ddr_file(self, ino):
        return self.root / f"ddr/{ino:x}"

    def copy_file(self, ino):
        (path,) = (self.root / "nvme0/objects").rglob(f"{ino:x}.*")
        return path


@pytest.fixture
async def state(scratch):
    ddr = Path(tempfile.mkdtemp(prefix="kvd-", dir="/dev/shm"))
    (scratch / "ddr").symlink_to(ddr)
    made = State(scratch)
    async with tiers_at(scratch) as tiers:
        made.folder = tiers.catalog.names.make(1, b"folder", mode=0o040755, uid=0, gid=0, now_ns=1).ino
        for name in ("hot", "both", "cold"):
            setattr(made, name, await tiers.make(name.encode(), os.urandom(SIZE)))
        await tiers.objects.fsync(made.both)
        await tiers.objects.demote(made.cold)
    yield made
    shutil.rmtree(ddr)


async def check(state, *, data=True):
    return await fsck.check(config_at(state.root), page_bytes=PAGE_BYTES, data=data)


async def restart(state):
    """Start and stop once, reading what can be read."""
    async with tiers_at(state.root) as tiers:
        for entry in tiers.catalog.names.listing(1):
            if entry.inode.is_file and not tiers.catalog.placements.get(entry.inode.ino).damaged:
                assert len(await tiers.read(entry.inode.ino)) == entry.inode.size
        return tiers.recovered


async def test_a_clean_state_has_no_fault(state):
    assert await check(state) == []
    assert await check(state, data=False) == []


def stray_nvme(state):
    path = state.root / "nvme0/objects/ad/de/dead.1"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"?")


def stray_ddr(state):
    state.ddr_file(0xDEAD).write_bytes(b"?")


def spare(state):
    (state.root / "ddr/kvd-spare-3").write_bytes(b"?")


def not_sealed(state):
    state.sql("UPDATE object SET sealed=0 WHERE ino=?", state.hot)


def reverts(state):
    state.sql("UPDATE object SET sealed=0 WHERE ino=?", state.both)
    state.sql("UPDATE copy SET current=0 WHERE ino=?", state.both)


def no_ddr_file(state):
    state.ddr_file(state.hot).unlink()


def no_ddr_file_but_a_copy(state):
    state.ddr_file(state.both).unlink()


def short_ddr_file(state):
    os.truncate(state.ddr_file(state.both), 5)


def no_copy_file(state):
    state.copy_file(state.both).unlink()


def short_copy_of_hot(state):
    os.truncate(state.copy_file(state.both), 5)


def no_cold_file(state):
    state.copy_file(state.cold).unlink()


def no_name(state):
    state.sql("DELETE FROM dentry WHERE ino=?", state.hot)
    state.sql("UPDATE inode SET nlink=0 WHERE ino=?", state.hot)


def copy_not_current(state):
    state.sql("UPDATE copy SET current=0 WHERE ino=?", state.cold)


MENDED = {
    stray_nvme: "belongs to no object",
    stray_ddr: "belongs to no object in DDR",
    spare: "memory that was kept",
    not_sealed: "has a writer",
    reverts: "has a writer",
    no_ddr_file: "its file in DDR is missing",
    no_ddr_file_but_a_copy: "its file in DDR is missing",
    short_ddr_file: "its file in DDR has 5 bytes",
    no_copy_file: "its file on NVMe is missing",
    short_copy_of_hot: "its file on NVMe has 5 bytes instead of",
    no_cold_file: "its file on NVMe is missing",
    no_name: "has no name",
    copy_not_current: "is on NVMe without a current copy",
}


@pytest.mark.parametrize("spoil", MENDED)
async def test_what_a_crash_can_leave_is_found_and_mended_by_the_next_start(state, spoil, claim_log):
    claim_log("object lost")
    spoil(state)
    faults = await check(state, data=False)
    assert any(MENDED[spoil] in fault for fault in faults), faults
    await restart(state)
    assert await check(state) == []


def short_cold_file(state):
    os.truncate(state.copy_file(state.cold), PAGE_BYTES)


async def test_a_short_file_of_a_cold_object_is_found_and_quarantined(state, claim_log):
    claim_log("object quarantined")
    short_cold_file(state)
    faults = await check(state, data=False)
    assert faults == [f"object {state.cold}: its file on NVMe has {PAGE_BYTES} bytes instead of {SIZE}"]
    assert (await restart(state)).damaged == 1
    async with tiers_at(state.root) as tiers:
        assert tiers.catalog.placements.count_damaged() == 1
        await tiers.objects.open(state.cold, write=True, truncate=True)
        await tiers.objects.release(state.cold, write=True)
    assert await check(state) == []


@pytest.mark.parametrize("name", ["both", "cold"])
async def test_spoilt_bytes_are_found_only_by_reading(state, name):
    ino = getattr(state, name)
    with state.copy_file(ino).open("r+b") as file:
        file.seek(PAGE_BYTES)
        file.write(b"not what was there")
    assert await check(state, data=False) == []
    assert await check(state) == [f"object {ino}: page 1 failed its checksum"]


CATALOGUE = {
    "UPDATE inode SET nlink=5 WHERE ino={hot}": "inode {hot}: link count 5 instead of 1",
    "UPDATE inode SET nlink=3 WHERE ino={folder}": "inode {folder}: link count 3 instead of 2",
    "UPDATE inode SET nlink=9 WHERE ino=1": "inode 1: link count 9 instead of 3",
    "INSERT INTO dentry(parent, name, ino) VALUES(1, 'x', 999)": "name of inode 999 in 1",
    "UPDATE dentry SET parent={hot} WHERE ino={cold}": "name of inode {cold} in {hot}",
    "INSERT INTO dentry(parent, name, ino) VALUES(1, 'x', {folder})": "directory {folder}: has 2 names",
    "DELETE FROM object WHERE ino={hot}": "file {hot}: has no object",
    "INSERT INTO object VALUES(999, 1, 1, 0, 0, 0)": "object 999: has no inode",
    "INSERT INTO xattr VALUES(999, 'user.a', 'b')": "xattr 999: has no inode",
    "INSERT INTO copy VALUES(999, 1, x'0000', 0, 0, 0, 1, 0, x'', x'', 'raw', x'', 0, 0)": "copy 999: has no inode",
    "UPDATE inode SET size=5 WHERE ino={cold}": "object {cold}: its copy has another size",
    "UPDATE copy SET sums=x'00' WHERE ino={cold}": "object {cold}: has not one checksum a page",
}


@pytest.mark.parametrize("statement", CATALOGUE)
async def test_a_catalogue_that_contradicts_itself_is_found(state, statement):
    numbers = {"hot": state.hot, "cold": state.cold, "folder": state.folder}
    state.sql(statement.format(**numbers))
    faults = await check(state, data=False)
    expected = CATALOGUE[statement].format(**numbers)
    assert any(fault.startswith(expected) for fault in faults), faults


async def test_a_catalogue_with_a_spoilt_page_is_found(state):
    catalog = Catalog.open(state.root / "state", page_bytes=PAGE_BYTES)
    page = catalog.db.scalar("SELECT rootpage FROM sqlite_schema WHERE name='dentry_name'")
    size = catalog.db.scalar("PRAGMA page_size")
    catalog.close()
    with (state.root / "state/catalog.sqlite").open("r+b") as file:
        file.seek((page - 1) * size + 3)
        file.write(b"\0\0")  # the number of cells in that page of the index
    faults = await check(state, data=False)
    assert any(fault.startswith("catalogue: ") for fault in faults), faults
