"""The NVMe tier's files: one an object and generation, spread over directories, at identity offsets."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import re
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog
import trio

from kvd.catalog.database import FILE_NAME
from kvd.errors import ConfigError
from kvd.tier import marker
from kvdriver import BLOCK_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from kvd.catalog.records import Copy

log = structlog.get_logger(__name__)

KEY = "[nvme] dirs"
MARKER = "kvd-nvme.json"
MAGIC = "kvd-nvme"
OBJECTS = "objects"
FAN_OUT = 256
"""Folders a level; two levels: 7.5 million files in one folder met ENOSPC with terabytes free elsewhere."""
ROOMY_SHARE = 0.5
"""A directory gets files while it has at least this part of the free space of the one that has most."""
_NAME = re.compile(r"^([0-9a-f]+)\.([0-9a-f]+)$")


@dataclass(frozen=True, slots=True)
class NewFile:
    """A copy's file in the making."""

    path: Path
    fd: int
    dir_fd: int
    dir_index: int

    def close(self) -> None:
        """Close the descriptors."""
        os.close(self.fd)
        os.close(self.dir_fd)


class NvmeStore:
    """The directories of the NVMe tier.

    Parameters
    ----------
    dirs
        Where the files go; on XFS or ext4 for O_DIRECT.
    reserve_bytes
        Free space that is left alone in each file system.
    direct
        Whether to try O_DIRECT; `direct` of the instance says for which directory it works.
    copies
        How many copies the catalogue knows in each directory, by number: a directory that has some must be the one that
        they are in, so that a drive that is not mounted does not look like objects that have vanished.

    Raises
    ------
    ConfigError
        If a directory holds the files of another catalogue or of another place in the list, if one is missing, or if
        kvd can't use it.
    """

    def __init__(
        self,
        dirs: tuple[Path, ...],
        *,
        uuid: str,
        reserve_bytes: int,
        direct: bool,
        copies: Mapping[int, int] | None = None,
        claim: bool = True,
    ) -> None:
        self.dirs = dirs
        self._turns = itertools.count()
        self._reserve_bytes = reserve_bytes
        known = copies or {}
        if missing := sum(count for index, count in known.items() if index >= len(dirs)):
            raise ConfigError(f"{KEY}: the list has {len(dirs)}, but {_objects(missing)} in another; restore the list")
        for index, path in enumerate(dirs):
            self._claim(path, index, uuid, known, claim=claim)
        self.direct = tuple(direct and _probe_direct(path) for path in dirs)

    def __repr__(self) -> str:
        return f"<NvmeStore {', '.join(map(str, self.dirs))} direct={self.direct}>"

    def _claim(self, path: Path, index: int, uuid: str, known: Mapping[int, int], *, claim: bool) -> None:
        mine = marker.make(MAGIC, uuid=uuid, index=index)
        found = marker.read(path / MARKER, KEY, MAGIC)
        if found is not None:
            if found != mine:
                raise ConfigError(
                    f"{KEY}: {path} belongs to catalogue {found.get('uuid')} as number {found.get('index')},"
                    f" not to {uuid} as number {index}{_mend(found, uuid, known)}"
                )
            return
        objects = path / OBJECTS
        if (copies := known.get(index, 0)) and not objects.is_dir():
            raise ConfigError(
                f"{KEY}: {path} is empty, but {_objects(copies)} there by the catalogue; mount its drive"
                f" (where that is lost: mkdir {objects}, and kvd gives up what was on it)"
            )
        if not claim:
            return
        try:
            objects.mkdir(exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"{KEY}: can't make {objects}: {error.strerror}; set a directory kvd can write"
            ) from error
        marker.write(path / MARKER, KEY, mine)

    def file(self, dir_index: int, ino: int, gen: int) -> Path:
        """Return the path of a copy's file."""
        first, second = ino % FAN_OUT, ino // FAN_OUT % FAN_OUT
        return self.dirs[dir_index] / OBJECTS / f"{first:02x}" / f"{second:02x}" / f"{ino:x}.{gen:x}"

    def file_of(self, copy: Copy) -> Path:
        """Return the path of `copy`'s file."""
        return self.file(copy.dir_index, copy.ino, copy.gen)

    async def create(self, ino: int, gen: int) -> NewFile:
        """Make a copy's file: in the directories by turns, leaving out those with far less free space than another."""
        return await trio.to_thread.run_sync(self._create, ino, gen, next(self._turns))

    def _create(self, ino: int, gen: int, turn: int) -> NewFile:
        free = [_free_bytes(path) for path in self.dirs]
        roomy = [index for index, size in enumerate(free) if size >= max(free) * ROOMY_SHARE]
        dir_index = roomy[turn % len(roomy)]
        path = self.file(dir_index, ino, gen)
        _make_folder(path.parent, self.dirs[dir_index] / OBJECTS)
        dir_fd = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | self._direct_flag(dir_index), 0o600)
        except BaseException:
            os.close(dir_fd)
            raise
        return NewFile(path, fd, dir_fd, dir_index)

    def open(self, copy: Copy) -> int:
        """Open a copy's file for reading; EISDIR or the like if something else is in its place."""
        fd = os.open(self.file_of(copy), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | self._direct_flag(copy.dir_index))
        if stat.S_ISREG(os.fstat(fd).st_mode):
            return fd
        os.close(fd)
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))

    def _direct_flag(self, dir_index: int) -> int:
        return os.O_DIRECT if self.direct[dir_index] else 0

    async def remove(self, copy: Copy) -> None:
        """Remove a copy's file; one that is gone already is fine."""
        await self.remove_file(self.file_of(copy))

    async def remove_file(self, path: Path) -> None:
        """Remove a file that no row needs any more; what can't be removed is left to the sweep of the next start."""
        try:
            await trio.to_thread.run_sync(_unlink, path)
        except OSError as error:
            log.warning("file on NVMe can't be removed", path=str(path), errno=error.errno, error=str(error))

    def files(self) -> Iterator[tuple[int, int, int, int]]:
        """Yield ``(dir_index, ino, gen, size)`` of every copy's file; what lies elsewhere is not kvd's."""
        for dir_index, top in enumerate(self.dirs):
            for folder, _, names in os.walk(top / OBJECTS):
                for name in names:
                    match = _NAME.match(name)
                    path = os.path.join(folder, name)  # noqa: PTH118 (a Path a file would double the time)
                    if match and path == str(self.file(dir_index, ino := int(match[1], 16), gen := int(match[2], 16))):
                        yield dir_index, ino, gen, os.stat(path).st_size  # noqa: PTH116

    def size_bytes(self) -> int:
        """Return the size of the file systems that the directories are on."""
        devices = {os.stat(path).st_dev: os.statvfs(path) for path in self.dirs}  # noqa: PTH116
        return sum(info.f_blocks * info.f_frsize for info in devices.values())

    def capacity_blocks(self, used_blocks: int, limit_bytes: int) -> int:
        """Return the tier's capacity now: what its files use and what is free, less the reserve, within the limit."""
        devices = {os.stat(path).st_dev: path for path in self.dirs}  # noqa: PTH116
        free_bytes = sum(max(0, _free_bytes(path) - self._reserve_bytes) for path in devices.values())
        capacity = used_blocks + free_bytes // BLOCK_BYTES
        return min(capacity, limit_bytes // BLOCK_BYTES) if limit_bytes else capacity


def _mend(found: Mapping[str, object], uuid: str, known: Mapping[int, int]) -> str:
    """Return how a directory and a catalogue that do not belong together came to meet, and what to do."""
    if found.get("uuid") == uuid:
        return "; restore the order of the list or set another directory"
    if known:
        return "; set another directory"
    return f", which is new: nothing is on NVMe by it; restore the {FILE_NAME} of the objects or set another directory"


def _objects(count: int) -> str:
    return "1 object is" if count == 1 else f"{count} objects are"


def _probe_direct(path: Path) -> bool:
    probe = path / "kvd-probe"
    try:
        os.close(os.open(probe, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_DIRECT, 0o600))
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
            raise ConfigError(f"{KEY}: can't make {probe}: {error.strerror}; set a directory kvd can write") from error
        log.warning("nvme directory without O_DIRECT, using buffered I/O", path=str(path), errno=error.errno)
        return False
    finally:
        _unlink(probe)
    return True


def _make_folder(folder: Path, top: Path) -> None:
    if folder.is_dir():
        return
    for made in (folder.parent, folder):
        with contextlib.suppress(FileExistsError):
            made.mkdir()
    for changed in (top, folder.parent):
        descriptor = os.open(changed, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _free_bytes(path: Path) -> int:
    info = os.statvfs(path)
    return info.f_bavail * info.f_frsize


def _unlink(path: Path) -> None:
    path.unlink(missing_ok=True)
