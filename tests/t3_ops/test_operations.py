"""Handlers without a mount: what no client of a mount can bring about."""

from __future__ import annotations

import errno
import os
from types import SimpleNamespace

import pytest

from kvd.fs.operations import Operations
from support.formatted import LAYOUT, opaque
from support.ladder_space import ladder_at
from support.tiers import tiers_at


@pytest.mark.parametrize(("ladder", "keeps"), [("raw", True), ("zstd", True), ("int8", False)])
async def test_pages_from_before_a_lossy_format_are_not_kept(root, ladder, keeps):
    """Without passthrough and direct mmap the kernel has pages of a file across opens, if it is not told otherwise."""
    async with ladder_at(root, ladder, LAYOUT) as space:
        tiers = space.tiers
        operations = Operations(
            tiers.catalog,
            tiers.objects,
            tiers.sessions,
            None,  # type: ignore[arg-type]
            tiers.hot,
            objects_max=9,
        )
        context = SimpleNamespace(uid=0, gid=0, pid=1, umask=0)
        ino = await space.make(b"f", opaque().content)
        for expected in (True, keeps, keeps):
            info = await operations.open(ino, os.O_RDONLY, context)
            assert info.keep_cache == expected
            await operations.release(info.fh)
            await tiers.objects.demote(ino)


@pytest.mark.parametrize("failure", [OSError(errno.EIO, "disk"), RuntimeError("bug")])
async def test_an_object_that_cannot_be_deleted_does_not_end_the_mount(scratch, claim_log, monkeypatch, failure):
    claim_log("what has no name stays")
    claim_log("request failed")
    async with tiers_at(scratch) as tiers:
        stuck, other = await tiers.make(b"stuck", b"x"), await tiers.make(b"other", b"y")
        for name in (b"stuck", b"other"):
            tiers.catalog.names.unlink(1, name, 1)
        operations = Operations(
            tiers.catalog,
            tiers.objects,
            tiers.sessions,
            None,  # type: ignore[arg-type]
            tiers.hot,
            objects_max=9,
        )
        discard = tiers.objects.discard

        async def failing(ino):
            if ino == stuck:
                raise failure
            await discard(ino)

        monkeypatch.setattr(tiers.objects, "discard", failing)
        await operations.forget([(stuck, 1), (other, 1)])
        assert tiers.catalog.names.orphans() == [stuck]
        monkeypatch.undo()
    async with tiers_at(scratch) as tiers:
        assert tiers.catalog.names.orphans() == []
