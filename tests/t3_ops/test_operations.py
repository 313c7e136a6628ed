"""Handlers without a mount: what no client of a mount can bring about."""

from __future__ import annotations

import errno

import pytest

from kvd.fs.operations import Operations
from support.tiers import tiers_at


@pytest.mark.parametrize("failure", [OSError(errno.EIO, "disk"), RuntimeError("bug")])
async def test_an_object_that_cannot_be_deleted_does_not_end_the_mount(scratch, claim_log, monkeypatch, failure):
    claim_log("what has no name stays")
    claim_log("request failed")
    async with tiers_at(scratch) as tiers:
        stuck, other = await tiers.make(b"stuck", b"x"), await tiers.make(b"other", b"y")
        for name in (b"stuck", b"other"):
            tiers.catalog.names.unlink(1, name, 1)
        operations = Operations(tiers.catalog, tiers.objects, tiers.books, None, objects_max=9)  # type: ignore[arg-type]
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
