"""What the kernel remembers of names, and how it is made to forget: `kvd.tier.plane.NameKeeper` of a mount."""

from __future__ import annotations

import errno
from contextlib import contextmanager
from typing import TYPE_CHECKING

import structlog

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kvd.fs.hot import Hot
    from kvd.fs.operations import Operations
    from kvd.fs.split import Split

log = structlog.get_logger(__name__)


class Remembered:
    """The kernel's names, of one mount, and the hot table's."""

    def __init__(self, split: Split, operations: Operations, hot: Hot) -> None:
        self._split = split
        self._operations = operations
        self._hot = hot

    def __repr__(self) -> str:
        return f"<Remembered of {self._split!r}>"

    def forget_name(self, parent: int, name: bytes) -> None:
        """Make the kernel forget a name, soon; if that can't be, it does so by itself or at the next open (ESTALE)."""
        try:
            self._split.forget_soon(parent, name)
        except OSError as error:
            if error.errno not in (errno.ENOBUFS, errno.ENOMEM):
                raise
            log.info("the kernel is not told of a name that went", ino=parent, errno=error.errno)

    async def forget_names(self, names: Sequence[tuple[int, bytes]]) -> None:
        """Make the kernel forget names."""
        with _mounted():
            await self._split.forget_now(names)

    async def forget_tree(self, parent: int, name: bytes) -> None:
        """Make the kernel forget a directory and all below it.

        Since Linux 6.16 there is a word after which every name is looked up again, also those that are in use. Older
        kernels drop with the directory what is not in use below it, and for the rest the time that names are kept counts.
        """
        self._hot.forget_where(self._hot.is_dead)
        with _mounted():
            self._split.forget_all()
            await self._split.forget_now([(parent, name)])

    async def discard(self, ino: int) -> None:
        """Delete what has no name, unless the kernel refers to it; FORGET comes then."""
        await self._operations.forget([(ino, 0)])


@contextmanager
def _mounted() -> Iterator[None]:
    """Pass over that there is no mount any more: nobody remembers anything then."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENODEV, errno.ENOTCONN, errno.EBADF):
            raise
