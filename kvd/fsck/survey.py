"""What the files on NVMe say of themselves: the copies that are whole, one an object, and the tree; what is left out and why."""

from __future__ import annotations

import errno
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kvd.catalog.records import Copy
from kvd.errors import ConfigError
from kvd.fsck.files import read_sums
from kvd.tier import describe, marker, treefile
from kvd.tier.describe import DescriptionError
from kvd.tier.directory import KEY, MAGIC, MARKER
from kvd.tier.mover import SUM_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from kvd.tier.describe import Described
    from kvd.tier.nvme import NvmeStore
    from kvd.tier.treefile import Tree


@dataclass(frozen=True, slots=True, kw_only=True)
class Survivor:
    """An object that can be served: what its copy says, and the copy."""

    described: Described
    copy: Copy
    sums: bytes


@dataclass(slots=True)
class Survey:
    """What was found.

    Attributes
    ----------
    candidates
        The copies of each object that are whole, the newest first.
    tree
        The newest file of the tree; None where none can be used.
    left_out
        A sentence for each file or copy that can't be used.
    foreign
        Files of another catalogue; they are left alone.
    ino_next
        Above the number of every file that was found.
    """

    candidates: dict[int, list[Survivor]] = field(default_factory=dict)
    tree: Tree | None = None
    left_out: list[str] = field(default_factory=list)
    foreign: int = 0
    ino_next: int = 2


def uuid_of(directories: Iterable[Path]) -> str:
    """Return the catalogue that NVMe directories belong to.

    Raises
    ------
    ConfigError
        If they belong to none, or not all to the same.
    """
    owners: dict[str, Path] = {}
    for directory in directories:
        found = marker.read(directory / MARKER, KEY, MAGIC)
        if found is not None:
            owners.setdefault(str(found.get("uuid")), directory)
    match list(owners):
        case []:
            raise ConfigError(f"{KEY}: none of them has a {MARKER}, so there is nothing to make a catalogue from")
        case [uuid]:
            return uuid
        case _:
            told = ", ".join(f"{path} to {uuid}" for uuid, path in owners.items())
            raise ConfigError(f"{KEY}: they belong to different catalogues: {told}; set those of one")


async def survey(nvme: NvmeStore, uuid: str, page_bytes: int) -> Survey:
    """Look at every file."""
    there, unseen = await nvme.files()
    found = Survey()
    parts: dict[tuple[int, int], dict[int, tuple[int, Described]]] = {}
    for index in unseen:
        directory = nvme.directories[index]
        found.left_out.append(f"{directory.path}: can't be looked at: {directory.health.why}")
    for (index, ino, gen), size in sorted(there.items()):
        found.ino_next = max(found.ino_next, ino + 1)
        path = nvme.file(index, ino, gen)
        try:
            described = _described(path)
        except DescriptionError as error:
            found.left_out.append(f"{path}: left out: {error}")
            continue
        if described.uuid != uuid:
            found.foreign += 1
            found.left_out.append(f"{path}: left alone: it belongs to catalogue {described.uuid}")
        elif (described.ino, described.gen) != (ino, gen):
            found.left_out.append(f"{path}: left out: it is a copy of inode {described.ino}")
        elif described.page_bytes != page_bytes:
            found.left_out.append(f"{path}: left out: its pages have {described.page_bytes} bytes")
        elif described.size != size:
            found.left_out.append(f"{path}: left out: it has {size} bytes instead of {described.size}")
        else:
            parts.setdefault((ino, gen), {})[described.part] = (index, described)
    for (ino, gen), of_copy in sorted(parts.items(), reverse=True):  # the newest copy of each first
        survivor = _whole(nvme, ino, gen, of_copy, found)
        if survivor is not None:
            found.candidates.setdefault(ino, []).append(survivor)
    found.tree = _tree([each.path for each in nvme.directories if each.health.usable], uuid, found)
    return found


def _described(path: Path) -> Described:
    try:
        value = describe.read(path)
    except OSError as error:
        no_xattrs = error.errno == errno.EOPNOTSUPP
        why = "its file system has no user extended attributes" if no_xattrs else str(error.strerror)
        raise DescriptionError(why) from error
    if value is None:
        raise DescriptionError("it is not described")
    return describe.parse(value)


def _whole(
    nvme: NvmeStore, ino: int, gen: int, there: dict[int, tuple[int, Described]], found: Survey
) -> Survivor | None:
    """Return the copy that some parts are, if they are all and it can be verified."""
    first = next(iter(there.values()))[1]
    path = nvme.file(next(iter(there.values()))[0], ino, gen)
    if missing := [part for part in range(first.parts) if part not in there]:
        found.left_out.append(f"{path}: left out: part {missing[0] + 1} of {first.parts} is missing")
        return None
    dirs = tuple(there[part][0] for part in range(first.parts))
    try:
        runs, sums = read_sums(nvme.file(dirs[0], ino, gen))
    except (DescriptionError, OSError) as error:
        found.left_out.append(f"{path}: left out: its checksums can't be used: {error}")
        return None
    copy = Copy(
        ino=ino,
        gen=gen,
        dirs=dirs,
        stripe_bytes=first.stripe_bytes,
        size=first.size,
        mtime_ns=first.mtime_ns,
        current=True,
        runs=runs,
        form=first.form,
    )
    if len(sums) != SUM_BYTES * copy.pages:
        found.left_out.append(f"{path}: left out: it has not one checksum a page")
        return None
    # A crash between the parts' new descriptions leaves an older one on some: the latest change counts.
    newest = max((described for _, described in there.values()), key=lambda described: described.ctime_ns)
    return Survivor(described=newest, copy=copy, sums=sums)


def _tree(directories: Iterable[Path], uuid: str, found: Survey) -> Tree | None:
    trees = []
    for directory in directories:
        try:
            tree = treefile.read(directory)
        except FileNotFoundError:
            found.left_out.append(f"{directory / treefile.NAME}: there is none")
        except (DescriptionError, OSError) as error:
            found.left_out.append(f"{directory / treefile.NAME}: left out: {error}")
        else:
            if tree.uuid == uuid:
                trees.append(tree)
            else:
                found.left_out.append(f"{directory / treefile.NAME}: left alone: it belongs to catalogue {tree.uuid}")
    return max(trees, key=lambda tree: tree.written_ns, default=None)
