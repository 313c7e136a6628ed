"""The files of both tiers against the catalogue, and what they say of themselves."""

from __future__ import annotations

import contextlib
import errno
import time
from functools import partial
from typing import TYPE_CHECKING

from kvd.fsck.catalogue import give_up, revert
from kvd.fsck.fault import Fault
from kvd.tier import describe, treefile
from kvd.tier.describe import DescriptionError
from kvd.tier.describer import META, lone_sums
from kvd.tier.mover import SUM_BYTES
from kvdriver import Tier

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kvd.catalog.catalog import Catalog
    from kvd.catalog.records import Copy, Placement
    from kvd.tier.ddr import DdrStore
    from kvd.tier.nvme import NvmeStore


def parts(nvme: NvmeStore, copy: Copy) -> list[Path]:
    """Return the files of a copy."""
    return [nvme.file(index, copy.ino, copy.gen) for index in copy.dirs]


def on_nvme(
    catalog: Catalog, nvme: NvmeStore, there: dict[tuple[int, int, int], int], unseen: set[int]
) -> Iterator[Fault]:
    """Find copies whose files are missing or have another length, and files that are nobody's.

    Parameters
    ----------
    there, unseen
        As `NvmeStore.files` returns them.
    """
    for directory in nvme.directories:
        if not directory.health.usable:
            yield Fault(kind="nvme", what=f"{directory.path}: can't be looked at: {directory.health.why}")
    files = dict(there)
    for copy in list(catalog.placements.copies()):
        sizes = [files.pop((index, copy.ino, copy.gen), None) for index in copy.dirs]
        wrong = [
            (size, nvme.file(index, copy.ino, copy.gen))
            for size, index in zip(sizes, copy.dirs, strict=True)
            if size != copy.size and index not in unseen
        ]
        for size, path in wrong[:1]:
            what = "is missing" if size is None else f"has {size} bytes instead of {copy.size}"
            yield Fault(
                kind="nvme",
                what=f"object {copy.ino}: its file on NVMe {what}",
                place=str(path),
                mend=partial(_without_file, catalog, nvme, copy, path, gone=size is None),
            )
    for index, ino, gen in files:
        path = nvme.file(index, ino, gen)
        if describe.owner_of(path, other_than=catalog.db.uuid):
            continue  # a start leaves it alone, too
        yield Fault(kind="nvme", what=f"{path}: belongs to no object", mend=partial(_remove, path))


def _remove(path: Path) -> str:
    path.unlink(missing_ok=True)
    return "removed"


def _without_file(catalog: Catalog, nvme: NvmeStore, copy: Copy, path: Path, *, gone: bool) -> str:
    placement = catalog.placements.get(copy.ino)
    if placement.tier == Tier.DDR:
        return forget_copy(catalog, nvme, copy)
    if gone:
        return give_up(catalog, copy.ino, "its file on NVMe is missing")
    return quarantine(catalog, copy.ino, None, "its file on NVMe has another length", str(path))


def forget_copy(catalog: Catalog, nvme: NvmeStore, copy: Copy) -> str:
    """Forget a copy of an object that is in DDR."""
    catalog.placements.drop_copy(copy.ino)
    for path in parts(nvme, copy):
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
        describe.beside(path).unlink(missing_ok=True)
    return "copy forgotten: its bytes are in DDR, and kvd makes another"


def quarantine(catalog: Catalog, ino: int, page: int | None, what: str, place: str) -> str:
    """Put an object into quarantine: it answers EIO until it is written anew or removed."""
    if catalog.placements.get(ino).damaged:
        return "it is in quarantine already: write it anew or remove it"
    catalog.placements.damage(ino, catalog.names.path(ino) or b"", page, what, place)
    return "quarantined: write it anew or remove it"


def sums(catalog: Catalog, nvme: NvmeStore) -> Iterator[Fault]:
    """Find copies that do not have one checksum a page."""
    for copy in list(catalog.placements.copies()):
        if len(catalog.placements.sums(copy.ino)) != SUM_BYTES * copy.pages:
            yield Fault(
                kind="objects",
                what=f"object {copy.ino}: has not one checksum a page",
                mend=partial(_take_sums, catalog, nvme, copy),
            )


def _take_sums(catalog: Catalog, nvme: NvmeStore, copy: Copy) -> str:
    path = parts(nvme, copy)[0]
    try:
        runs, found = read_sums(path)
    except (OSError, DescriptionError):
        runs, found = (), b""
    if runs != copy.runs or len(found) != SUM_BYTES * copy.pages:
        return quarantine(catalog, copy.ino, None, "its checksums are lost", str(path))
    catalog.db.execute("UPDATE copy SET sums=? WHERE ino=?", (found, copy.ino))
    return "taken from its description"


def read_sums(path: Path) -> tuple[tuple[tuple[int, int], ...], bytes]:
    """Return runs and sums as a copy's first file and what is beside it say; `DescriptionError` if they do not."""
    value = describe.read(path)
    if value is None:
        raise DescriptionError("it is not described")
    described = describe.parse(value)
    if described.runs is not None and described.sums is not None:
        return described.runs, described.sums
    beside = describe.read_beside(path)
    if beside is None:
        raise DescriptionError(f"{describe.beside(path).name} is missing")
    return describe.parse_sums(beside, described)


def in_ddr(catalog: Catalog, ddr: DdrStore) -> Iterator[Fault]:
    """Find objects whose file in DDR is missing or has another length, and files that are nobody's.

    For a kvd that is stopped: one that runs has files of objects that are being written, and spares.
    """
    there = set(ddr.inos())
    for placement in catalog.placements.all():
        if placement.tier != Tier.DDR or not placement.sealed:
            continue
        ino, copy = placement.ino, catalog.placements.copy(placement.ino)
        if ino in there:
            there.discard(ino)
            size = ddr.file(ino).stat().st_size
            if size == catalog.names.inode(ino).size:
                continue
            what = f"object {ino}: its file in DDR has {size} bytes"
        else:
            what = f"object {ino}: its file in DDR is missing"
        yield Fault(kind="ddr", what=what, mend=partial(_without_ddr, catalog, ddr, placement, copy))
    for ino in there:
        path = ddr.file(ino)
        yield Fault(kind="ddr", what=f"{path}: belongs to no object in DDR", mend=partial(_remove, path))
    for path in ddr.spares.left():
        what = f"{path}: memory that was kept for objects to come"
        yield Fault(kind="ddr", what=what, mend=partial(_remove, path))


def _without_ddr(catalog: Catalog, ddr: DdrStore, placement: Placement, copy: Copy | None) -> str:
    done = revert(catalog, placement, copy, "its file in DDR was gone")
    ddr.file(placement.ino).unlink(missing_ok=True)
    return done


# -- what files say of themselves ----------------------------------------------------------------------------------------


def descriptions(catalog: Catalog, nvme: NvmeStore, *, page_bytes: int) -> Iterator[Fault]:
    """Find copies whose description is not what the catalogue says, and the same for the file of the tree."""
    if not catalog.db.number(META):
        return  # an older kvd's: its first start describes everything
    for copy in list(catalog.placements.copies()):
        if not nvme.usable(copy):
            continue
        kept = catalog.placements.sums(copy.ino)
        if len(kept) != SUM_BYTES * copy.pages:
            continue  # `sums` says so
        try:
            values = describe.describe(catalog.db.execute, copy, kept, uuid=catalog.db.uuid, page_bytes=page_bytes)
        except LookupError:
            continue
        beside = describe.sums_beside(copy, kept, uuid=catalog.db.uuid) if describe.is_aside(copy) else None
        why, path = _wrong(copy.ino, parts(nvme, copy), values, beside)
        if why:
            yield Fault(
                kind="descriptions",
                what=f"object {copy.ino}: {why}",
                place=str(path),
                mend=partial(_describe, catalog, nvme, copy, page_bytes=page_bytes),
            )
    for directory in nvme.directories:
        for path in lone_sums(directory.path) if directory.health.usable else ():
            what = f"{path}: belongs to no object"
            yield Fault(kind="descriptions", what=what, mend=partial(_remove, path))


def _wrong(ino: int, paths: list[Path], values: list[bytes], beside: bytes | None) -> tuple[str, Path]:
    """Return what is wrong with the descriptions of a copy's files, and with which; '' if nothing is."""
    for path, value in zip(paths, values, strict=True):
        try:
            why = _wrong_attribute(ino, describe.read(path), value)
        except FileNotFoundError:
            why = ""  # `on_nvme` says so
        except OSError as error:
            no_xattrs = error.errno == errno.EOPNOTSUPP  # said by the daemon's status
            why = "" if no_xattrs else f"the description of its copy can't be read: {error.strerror}"
        if why:
            return why, path
    if beside is not None and paths[0].exists() and (found := describe.read_beside(paths[0])) != beside:
        return f"the sums beside its copy {'are missing' if found is None else 'are damaged'}", describe.beside(
            paths[0]
        )
    return "", paths[0]


def _wrong_attribute(ino: int, found: bytes | None, value: bytes) -> str:
    if found == value:
        return ""
    if found is None:
        return "its copy is not described"
    try:
        described = describe.parse(found)
    except DescriptionError as error:
        return f"the description of its copy can't be used: {error}"
    return f"the description of its copy is {'out of date' if described.ino == ino else f'that of {described.ino}'}"


def _describe(catalog: Catalog, nvme: NvmeStore, copy: Copy, *, page_bytes: int) -> str:
    now = catalog.placements.copy(copy.ino)
    if now is None or now.gen != copy.gen:
        return "it has no such copy by now"
    kept = catalog.placements.sums(now.ino)
    values = describe.describe(catalog.db.execute, now, kept, uuid=catalog.db.uuid, page_bytes=page_bytes)
    beside = describe.sums_beside(now, kept, uuid=catalog.db.uuid) if describe.is_aside(now) else None
    paths = parts(nvme, now)
    if beside is not None:
        describe.write_beside(paths[0], beside)
    for path, value in zip(paths, values, strict=True):
        describe.write(path, value, durable=True)
    return "described anew"


def tree(catalog: Catalog, nvme: NvmeStore) -> Iterator[Fault]:
    """Find directories whose file of the tree is not what the catalogue says. There is none before there is a tree."""
    if not catalog.db.number(META) or catalog.db.scalar("SELECT count(*) FROM inode") == 1:
        return
    for directory in [each.path for each in nvme.directories if each.health.usable]:
        path = directory / treefile.NAME
        try:
            why = "" if treefile.is_current(catalog.db.path, directory) else "is out of date"
        except FileNotFoundError:
            why = "is missing"
        except DescriptionError as error:
            why = f"can't be used: {error}"
        except OSError as error:
            why = f"can't be read: {error.strerror}"
        if why:
            what = f"{path}: the file of the tree {why}"
            yield Fault(kind="tree", what=what, mend=partial(_write_tree, catalog, directory))


def _write_tree(catalog: Catalog, directory: Path) -> str:
    treefile.write(catalog.db.path, [directory], time.time_ns())
    return "written anew"
