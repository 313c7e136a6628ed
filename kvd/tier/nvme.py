"""The NVMe tier's files: one an object, generation and part, spread over directories, at identity offsets.

A small copy is one file, whole, in the directories by turns. A large one is striped over all directories that are online
and roomy: each part has the object's length and holds its stripes at their own offsets, the rest is holes.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import stat
from typing import TYPE_CHECKING

import structlog
import trio

from kvd.catalog.packing import part_of
from kvd.errors import ConfigError
from kvd.tier.copyfiles import CopyFiles, PartFile
from kvd.tier.describe import beside, owner_of
from kvd.tier.directory import KEY, OBJECTS, Directory, DirectoryOfflineError, count_objects
from kvd.tier.health import State, event_of
from kvd.tier.listing import listing
from kvdriver import BLOCK_BYTES

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping
    from pathlib import Path

    from kvd.catalog.records import Copy

log = structlog.get_logger(__name__)

STRIPE_BYTES = 8 << 20
"""What goes to one part before the next one's turn: long enough for a few of the mover's operations in each device."""
STRIPED_BYTES_MIN = 32 << 20
"""Objects from this length on are striped; smaller ones gain less than the files cost (docs/decisions/016)."""
ROOMY_SHARE = 0.5
"""A directory gets files while it has at least this part of the free space of the one that has most."""


class NvmeStore:
    """The directories of the NVMe tier; `start` before anything else is asked.

    Parameters
    ----------
    dirs
        Where the files go; on XFS or ext4 for O_DIRECT.
    reserve_bytes
        Free space that is left alone in each file system.
    direct
        Whether to try O_DIRECT.
    copies
        How many copies the catalogue knows in each directory, by number.
    deadline_s
        What a directory gets for one operation.
    striped_bytes_min, stripe_bytes
        See `STRIPED_BYTES_MIN` and `STRIPE_BYTES`.

    Raises
    ------
    ConfigError
        If the catalogue knows directories that are not in the list.
    """

    def __init__(
        self,
        dirs: tuple[Path, ...],
        *,
        uuid: str,
        reserve_bytes: int,
        direct: bool,
        copies: Mapping[int, int] | None = None,
        deadline_s: float = 30.0,
        striped_bytes_min: int = STRIPED_BYTES_MIN,
        stripe_bytes: int = STRIPE_BYTES,
    ) -> None:
        known = copies or {}
        if missing := sum(count for index, count in known.items() if index >= len(dirs)):
            text = f"{KEY}: the list has {len(dirs)}, but {count_objects(missing)} in another; restore the list"
            raise ConfigError(text)
        self.directories = tuple(
            Directory(
                path,
                index,
                uuid=uuid,
                deadline_s=deadline_s,
                direct=direct,
                copies=known.get(index, 0),
                known=bool(known),
            )
            for index, path in enumerate(dirs)
        )
        self._turns = itertools.count()
        self._reserve_bytes = reserve_bytes
        self._striped_bytes_min = striped_bytes_min
        self._stripe_bytes = stripe_bytes
        self.making: set[tuple[int, int, int]] = set()
        """``(directory, ino, gen)`` of the files that are being made: no row knows them yet, but they are no rubbish."""
        self._removing: set[tuple[int, int, int]] = set()

    def __repr__(self) -> str:
        return f"<NvmeStore {', '.join(map(repr, self.directories))}>"

    async def start(self, *, claim: bool = True) -> None:
        """Claim the directories and look at them; those that do not answer or fail are offline from the start.

        Raises
        ------
        ConfigError
            If a directory holds the files of another catalogue or of another place in the list, if one is missing, or if
            kvd can't use it.
        """
        errors: dict[int, ConfigError] = {}

        async def start(directory: Directory) -> None:
            try:
                await directory.start(claim=claim)
            except ConfigError as error:
                errors[directory.index] = error

        async with trio.open_nursery() as nursery:
            for directory in self.directories:
                nursery.start_soon(start, directory)
        if errors:
            raise errors[min(errors)]

    # -- files ---------------------------------------------------------------------------------------------------

    def file(self, dir_index: int, ino: int, gen: int) -> Path:
        """Return the path of a copy's part."""
        return self.directories[dir_index].file(ino, gen)

    def place(self, copy: Copy, offset: int) -> str:
        """Say where a byte of a copy is: the file and the offset in it."""
        part = part_of(offset, copy.stripe_bytes, len(copy.dirs))
        return f"{self.file(copy.dirs[part], copy.ino, copy.gen)} at {offset}"

    def usable(self, copy: Copy) -> bool:
        """Whether every directory that has a part of a copy may be asked."""
        return all(self.directories[index].health.usable for index in copy.dirs)

    def check_usable(self, copy: Copy) -> None:
        """Raise `DirectoryOfflineError` if a directory that has a part of a copy is offline."""
        for index in copy.dirs:
            self.directories[index].check_usable()

    @contextlib.contextmanager
    def using(self, dirs: Collection[int]) -> Iterator[None]:
        """End a move inside when a directory of it goes offline: not even what is under way waits for a drive.

        Raises
        ------
        DirectoryOfflineError
            One did.
        """
        directories = [self.directories[index] for index in dirs]
        scope = trio.CancelScope()
        for directory in directories:
            directory.check_usable()
        for directory in directories:
            directory.moves.add(scope)
        try:
            with scope:
                yield
        finally:
            for directory in directories:
                directory.moves.discard(scope)
        if scope.cancelled_caught:
            down = next((each for each in directories if not each.health.usable), directories[0])
            raise DirectoryOfflineError(down.path, down.health.why or "it was offline meanwhile", down.index)

    async def create(self, ino: int, gen: int, size_bytes: int, *, without: Collection[int] = ()) -> CopyFiles:
        """Make a copy's files, in directories that take them.

        Parameters
        ----------
        size_bytes
            Of the object; decides whether it is striped.
        without
            Numbers of directories that must not be used: they have just failed.

        Raises
        ------
        OSError
            What the last directory said that was tried, ENOSPC rather than another; EIO if there is none to try.
        """
        failed = set(without)
        last = OSError(errno.EIO, "no nvme directory is online")
        while chosen := self._choose(ino, gen, size_bytes, failed):
            try:
                return await self._create_parts(chosen, ino, gen, self._stripe_bytes if len(chosen) > 1 else 0, failed)
            except OSError as error:
                if last.errno != errno.ENOSPC:
                    last = error
        raise last

    async def create_like(self, copy: Copy, ino: int, gen: int) -> CopyFiles:
        """Make the files of another object's copy, each beside one of `copy`; raises as `create`."""
        return await self._create_parts(
            [self.directories[index] for index in copy.dirs], ino, gen, copy.stripe_bytes, set()
        )

    async def _create_parts(
        self, chosen: list[Directory], ino: int, gen: int, stripe_bytes: int, failed: set[int]
    ) -> CopyFiles:
        """Make a file in each directory, or none; the one that fails is added to `failed`."""
        parts: list[PartFile] = []
        try:
            for directory in chosen:
                failed.add(directory.index)
                parts.append(await self._create_part(directory, ino, gen))
                failed.discard(directory.index)
        except BaseException:
            with trio.CancelScope(shield=True):
                await self.discard(CopyFiles(tuple(parts), 0), ino, gen)
            raise
        return CopyFiles(tuple(parts), stripe_bytes)

    def _choose(self, ino: int, gen: int, size_bytes: int, failed: Collection[int]) -> list[Directory]:
        """Return the directories of a new copy's parts; none where none is left."""
        free = [
            each
            for each in self.directories
            if each.index not in failed and each.health.usable and (each.index, ino, gen) not in self._removing
        ]
        online = [each for each in free if each.health.state is State.ONLINE] or free
        if not online:
            return []
        most = max(each.free_bytes for each in online)
        roomy = [each for each in online if each.free_bytes >= most * ROOMY_SHARE]
        parts = 1
        if size_bytes >= self._striped_bytes_min:
            parts = min(len(roomy), -(-size_bytes // self._stripe_bytes))
        turn = next(self._turns)
        return [roomy[(turn + number) % len(roomy)] for number in range(parts)]

    async def _create_part(self, directory: Directory, ino: int, gen: int) -> PartFile:
        key = (directory.index, ino, gen)
        path = directory.file(ino, gen)

        def create() -> PartFile:
            directory.measure()
            _make_folder(path.parent, directory.path / OBJECTS)
            dir_fd = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | (os.O_DIRECT if directory.direct else 0)
                fd = os.open(path, flags, 0o600)
            except BaseException:
                os.close(dir_fd)
                raise
            return PartFile(fd=fd, dir_fd=dir_fd, device=directory.index, direct=directory.direct, path=path)

        def late(part: PartFile) -> None:
            directory.unswept = True
            part.close()

        self.making.add(key)
        try:
            return await directory.run(create, doing="create a file", write=True, dispose=late)
        except BaseException:
            self.making.discard(key)
            raise

    def made(self, files: CopyFiles, ino: int, gen: int) -> None:
        """Close a new copy's files; the catalogue knows them now, or they are removed."""
        for index in files.dirs:
            self.making.discard((index, ino, gen))
        files.close()

    async def discard(self, files: CopyFiles, ino: int, gen: int) -> None:
        """Close and remove the files of a copy that did not come to be."""
        dirs = files.dirs
        self.made(files, ino, gen)
        for index in dirs:
            await self.remove_file(index, ino, gen)

    async def open(self, copy: Copy) -> CopyFiles:
        """Open a copy's files for reading.

        Raises
        ------
        FileNotFoundError
            A part has vanished, from a directory that is what it should be.
        OSError
            EISDIR or the like if something else is in its place, EIO if a directory is offline, or what it said.
        """
        parts: list[PartFile] = []
        try:
            for index in copy.dirs:
                parts.append(await self._open_part(self.directories[index], copy))  # noqa: PERF401
        except BaseException:
            CopyFiles(tuple(parts), 0).close()
            raise
        return CopyFiles(tuple(parts), copy.stripe_bytes)

    async def _open_part(self, directory: Directory, copy: Copy) -> PartFile:
        path = directory.file(copy.ino, copy.gen)

        def open_part() -> PartFile:
            flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | (os.O_DIRECT if directory.direct else 0)
            try:
                fd = os.open(path, flags)
            except FileNotFoundError:
                directory.check_marker()
                raise
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                os.close(fd)
                raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
            return PartFile(fd=fd, device=directory.index, direct=directory.direct, path=path)

        return await directory.run(open_part, doing="open a file", write=False, dispose=PartFile.close)

    async def remove(self, copy: Copy) -> None:
        """Remove a copy's files; one that is gone already is fine."""
        for index in copy.dirs:
            await self.remove_file(index, copy.ino, copy.gen)

    async def remove_file(self, dir_index: int, ino: int, gen: int, *, stray: bool = False) -> None:
        """Remove a part that no row needs any more; what can't be removed is owed, and left to a later sweep.

        One that is `stray`, nobody knows where it comes from, is left alone if it says that another catalogue has it.
        """
        directory = self.directories[dir_index]
        key = (dir_index, ino, gen)
        path = directory.file(ino, gen)
        self._removing.add(key)

        def remove() -> None:
            directory.check_place()
            if stray and owner_of(path, other_than=directory.uuid):
                return
            path.unlink(missing_ok=True)
            beside(path).unlink(missing_ok=True)

        try:
            await directory.run(remove, doing="remove a file", write=True, ended=lambda: self._removing.discard(key))
        except OSError as error:
            if isinstance(error, DirectoryOfflineError) or event_of(error, write=True, doing="") is not None:
                directory.unswept = True
            if directory.health.usable:
                log.warning("file on NVMe can't be removed", path=str(path), errno=error.errno, error=str(error))

    async def files(self) -> tuple[dict[tuple[int, int, int], int], set[int]]:
        """Return the size of every file, by ``(directory, ino, gen)``, and the directories that could not be listed."""
        found: dict[tuple[int, int, int], int] = {}
        unseen: set[int] = set()

        async def look(directory: Directory) -> None:
            try:
                async with contextlib.aclosing(listing(directory)) as batches:
                    async for batch in batches:
                        found.update({(directory.index, ino, gen): size for ino, gen, size in batch})
            except OSError:
                unseen.add(directory.index)
                directory.unswept = True

        async with trio.open_nursery() as nursery:
            for directory in self.directories:
                nursery.start_soon(look, directory)
        return found, unseen

    # -- room ----------------------------------------------------------------------------------------------------

    def size_bytes(self) -> int:
        """Return the size of the file systems that the directories are on, as last seen.

        One that was never seen is taken to be as large as the largest that was.
        """
        seen = {each.device: each.size_bytes for each in self.directories if each.claimed}
        unseen = sum(1 for each in self.directories if not each.claimed)
        return sum(seen.values()) + unseen * max(seen.values(), default=0)

    def capacity_blocks(self, used_blocks: int, limit_bytes: int) -> int:
        """Return the tier's capacity now: what its files use and what is free, less the reserve, within the limit.

        Directories that are offline have no room; those on one file system count once.
        """
        free = {each.device: each.free_bytes for each in self.directories if each.health.usable and each.claimed}
        free_bytes = sum(max(0, size - self._reserve_bytes) for size in free.values())
        capacity = used_blocks + free_bytes // BLOCK_BYTES
        return min(capacity, limit_bytes // BLOCK_BYTES) if limit_bytes else capacity


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
