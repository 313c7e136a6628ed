"""Making an object's copy on NVMe: in which format, in which directories, with its row and its description.

The caller holds the object's lock.
"""

from __future__ import annotations

import errno
import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import trio

from kvd.catalog.form import Form
from kvd.catalog.records import NS, Copy
from kvd.format.model import Kind
from kvd.format.plan import plan_needs
from kvd.format.store import plan_file
from kvd.policy.formats import FORMAT_BYTES_MIN, formats_of
from kvd.tier.cloning import Cloning
from kvd.tier.directory import DirectoryOfflineError
from kvd.tier.extents import copy_charges, data_extents, page_runs, total_blocks
from kvd.tier.health import Slow
from kvd.tier.mover import DeviceError, DeviceTimeoutError
from kvd.tier.recoding import Recoder
from kvdriver import BLOCK_BYTES, Tier

if TYPE_CHECKING:
    from kvd.catalog.catalog import Catalog
    from kvd.format.model import Plan
    from kvd.format.plan import Policy
    from kvd.policy.formats import Formats
    from kvd.tier.books import Books
    from kvd.tier.copyfiles import CopyFiles
    from kvd.tier.describer import Describer
    from kvd.tier.live import Live
    from kvd.tier.mover import Mover
    from kvd.tier.nvme import NvmeStore
    from kvd.tier.recoding import Recoded, Runs


@dataclass(slots=True)
class MoveCounts:
    """Bytes moved since start, and what could not be."""

    promoted_bytes: int = 0
    demoted_bytes: int = 0
    refused_blocks: int = 0
    """What the last copy needed that NVMe had no room for; 0 since one as large was made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """A copy that is durable and has its row; the engine has its frames in the slot of the next copy."""

    copy: Copy
    moved_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Written:
    """What a copy's files hold now."""

    size: int
    runs: Runs
    sums: bytes
    moved_bytes: int
    form: Form | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    """What is to be copied; `planned` None: byte by byte."""

    fd: int
    info: os.stat_result
    runs: Runs
    policy: Policy | None
    planned: Plan | None


class Storing:
    """Makes copies; `counts` hears of what has no room."""

    def __init__(
        self,
        catalog: Catalog,
        books: Books,
        nvme: NvmeStore,
        mover: Mover,
        describer: Describer,
        counts: MoveCounts,
    ) -> None:
        self._catalog = catalog
        self._books = books
        self._nvme = nvme
        self._mover = mover
        self._describer = describer
        self._counts = counts
        self.recoder = Recoder(mover, page_bytes=books.page_bytes)
        self._cloning = Cloning(nvme)

    def __repr__(self) -> str:
        return f"<Storing {self.recoder!r}>"

    # -- which format --------------------------------------------------------------------------------------------

    def shrinks(self, live: Live) -> bool:
        """Whether the ladder has a smaller format for an object that leaves DDR than its copy is in."""
        formats = self._formats(live)
        copy = live.copy
        if formats is None or copy is None or live.size < FORMAT_BYTES_MIN:
            return False
        keys, values = (Kind.RAW, Kind.RAW) if copy.form is None else (copy.form.keys, copy.form.values)
        return formats.further(_age_s(live), keys, values)

    def _formats(self, live: Live) -> Formats | None:
        """Return what an object's namespace wants; nothing where it has names below several, which may want different."""
        namespaces = self._catalog.namespaces
        if self._catalog.names.inode(live.ino).nlink > 1:
            folders = self._catalog.db.execute("SELECT DISTINCT parent FROM dentry WHERE ino=?", (live.ino,)).fetchall()
            if len({namespaces.top(folder) for (folder,) in folders}) > 1:
                return None
        return formats_of(namespaces.of(live.ino))

    async def _plan(self, live: Live, fd: int, size: int, *, leaves: bool) -> tuple[Policy | None, Plan | None]:
        formats = self._formats(live)
        if formats is None or size < FORMAT_BYTES_MIN:
            return None, None
        policy = formats.leaving(_age_s(live)) if leaves else formats.staying(_age_s(live))
        if not plan_needs(policy):
            return None, None
        planned = await trio.to_thread.run_sync(plan_file, fd, policy)
        return (policy, planned) if planned.size == size and not planned.raw else (None, None)

    # -- the copy ------------------------------------------------------------------------------------------------

    async def store(self, live: Live, fd: int, *, leaves: bool, exact: bool = False) -> Made:
        """Write an object's copy and its row; where a directory fails, in the others.

        Parameters
        ----------
        fd
            Its DDR file, or of an object that is made of another, that one's.
        leaves
            The object leaves DDR with it: the copy may be in a lossy format, and the same transaction that has its row
            has the object on NVMe.
        exact
            In no lossy format all the same.

        Raises
        ------
        OSError
            What the last directory said, ENOSPC rather than another; nothing is left of it, as far as that can be.
        """
        info = os.fstat(fd)
        policy, planned = await self._plan(live, fd, info.st_size, leaves=leaves and not exact)
        runs = page_runs(data_extents(fd, info.st_size), self._books.page_bytes)
        source = _Source(fd=fd, info=info, runs=runs, policy=policy, planned=planned)
        try:
            copy, moved_bytes = await self._in_some_directory(live, source, leaves=leaves)
        except BaseException:
            with trio.CancelScope(shield=True):
                await self._books.copy_abort(live)
            raise
        finally:
            self._catalog.charges.settled(live.ino)
        return self._had_room(copy, moved_bytes)

    def _had_room(self, copy: Copy, moved_bytes: int) -> Made:
        if total_blocks(copy_charges(copy.runs, copy.size, self._books.page_bytes)) >= self._counts.refused_blocks:
            self._counts.refused_blocks = 0
        return Made(copy=copy, moved_bytes=moved_bytes)

    async def clone(self, live: Live, origin: Copy, *, share_only: bool) -> Made | None:
        """Make a new object's copy of another's, as `store` does with `leaves`; its checksums are taken over.

        Parameters
        ----------
        origin
            The other's copy; the caller holds that one's lock, too.
        share_only
            Only where the file system can have both files share their storage; None is returned where it can't.

        Raises
        ------
        OSError
            ENOSPC if the tier is full, or what a directory said; nothing is left of it.
        """
        if share_only and not self._cloning.may_share(origin):
            return None
        gen, sums = live.gen + 1, self._catalog.placements.sums(origin.ino)
        try:
            await self._charge(live, origin.runs, origin.size)
            files = await self._nvme.create_like(origin, live.ino, gen)
            try:
                with self._nvme.using(files.dirs):
                    moved_bytes = await self._cloning.fill(files, origin, share_only=share_only)
                written = _Written(
                    size=origin.size, runs=origin.runs, sums=sums, moved_bytes=moved_bytes or 0, form=origin.form
                )
                copy = None
                if moved_bytes is not None:
                    mtime_ns = self._catalog.names.inode(live.ino).mtime_ns
                    copy = await self._enter(live, mtime_ns, files, written, gen=gen, leaves=True)
            except BaseException:
                with trio.CancelScope(shield=True):
                    await self._nvme.discard(files, live.ino, gen)
                raise
            if copy is None:
                await self._nvme.discard(files, live.ino, gen)
                await self._books.copy_abort(live)
                return None
            self._nvme.made(files, live.ino, gen)
        except BaseException:
            with trio.CancelScope(shield=True):
                await self._books.copy_abort(live)
            raise
        finally:
            self._catalog.charges.settled(live.ino)
        return self._had_room(copy, written.moved_bytes)

    async def _in_some_directory(self, live: Live, source: _Source, *, leaves: bool) -> tuple[Copy, int]:
        gen = live.gen + 1
        failed: set[int] = set()
        last: OSError | None = None
        while True:
            if source.planned is None and not failed:
                await self._charge(live, source.runs, source.info.st_size)
            try:
                files = await self._nvme.create(live.ino, gen, source.info.st_size, without=failed)
            except OSError as error:
                raise (last if last is not None and error.errno != errno.ENOSPC else error) from None
            try:
                written = await self._write(live, source, files)
                mtime_ns = self._catalog.names.inode(live.ino).mtime_ns if live.sealed else source.info.st_mtime_ns
                copy = await self._enter(live, mtime_ns, files, written, gen=gen, leaves=leaves)
            except BaseException as error:
                with trio.CancelScope(shield=True):
                    await self._nvme.discard(files, live.ino, gen)
                index = self.blame(error, write=True)
                if index is None:
                    raise
                if source.planned is not None:
                    await self._books.copy_abort(live)
                    self._catalog.charges.settled(live.ino)
                failed.add(index)
                last = error if isinstance(error, OSError) else None
            else:
                self._nvme.made(files, live.ino, gen)
                return copy, written.moved_bytes

    async def _charge(self, live: Live, runs: Runs, size: int) -> None:
        """Have frames for pages of the new copy."""
        charges = copy_charges(runs, size, self._books.page_bytes)
        self._catalog.charges.claim(live.ino, total_blocks(charges))
        try:
            await self._books.copy_map(live, charges)
        except OSError:
            self._counts.refused_blocks = total_blocks(charges)
            raise

    async def _write(self, live: Live, source: _Source, files: CopyFiles) -> _Written:
        """Fill a copy's files, durably."""
        size = source.info.st_size
        with self._nvme.using(files.dirs):
            if source.planned is None:
                result, sums = await self._mover.demote(
                    ddr_fd=source.fd,
                    parts=files.parts,
                    stripe_bytes=files.stripe_bytes,
                    size_bytes=size,
                    runs=source.runs,
                )
                return _Written(size=size, runs=source.runs, sums=sums, moved_bytes=result.moved_bytes)

            async def charge(runs: Runs, length: int) -> None:
                await self._charge(live, runs, length)

            made = await self.recoder.store(source.fd, source.planned, files, charge)
        return _Written(
            size=made.size,
            runs=((0, -(-made.size // self._books.page_bytes)),),
            sums=made.sums,
            moved_bytes=made.size,
            form=self._form(source, made),
        )

    def _form(self, source: _Source, made: Recoded) -> Form:
        assert source.policy is not None
        size, page_bytes = source.info.st_size, self._books.page_bytes
        return Form(
            keys=source.policy.keys,
            values=source.policy.values,
            object_bytes=size,
            object_blocks=min(-(-size // BLOCK_BYTES), made.object_pages * (page_bytes // BLOCK_BYTES)),
            lossy_bytes=sum(length for kind, length in made.report.kind_bytes.items() if kind.lossy),
            errors=made.report.errors,
        )

    async def _enter(
        self, live: Live, mtime_ns: int, files: CopyFiles, written: _Written, *, gen: int, leaves: bool
    ) -> Copy:
        """Describe the copy and commit its row."""
        copy = Copy(
            ino=live.ino,
            gen=gen,
            dirs=files.dirs,
            stripe_bytes=files.stripe_bytes,
            size=written.size,
            mtime_ns=mtime_ns,
            current=live.sealed,
            runs=written.runs,
            form=written.form,
        )
        ctime_ns = self._catalog.names.inode(live.ino).ctime_ns
        await self._describer.describe_new(copy, written.sums)
        with self._catalog.db.transaction():
            self._catalog.placements.put_copy(copy, written.sums)
            self._catalog.given.copied(live.ino)
            if leaves:
                self._catalog.placements.leave(live.ino, Tier.NVME, used_ns(live))
        self._describer.settled(copy, ctime_ns)
        return copy

    def blame(self, error: BaseException, *, write: bool) -> int | None:
        """Tell the directory that failed a move; return its number, None if it was something else than a directory."""
        if isinstance(error, DirectoryOfflineError):
            return error.device
        if not isinstance(error, DeviceError):
            return None
        directory = self._nvme.directories[error.device]
        doing = "write a copy" if write else "read a copy"
        if isinstance(error, DeviceTimeoutError) and not self._mover.device_statistics()[error.device].given_up:
            directory.meet(Slow(why=f"{doing}: took too long, but each request was answered"))
        else:
            directory.failed(error, write=write, doing=doing)
        return error.device


def used_ns(live: Live) -> int:
    """Return when an object was last in use, in ns since the epoch."""
    return time.time_ns() - int(_age_s(live) * NS)


def _age_s(live: Live) -> float:
    return max(0.0, trio.current_time() - live.last_use_s)
