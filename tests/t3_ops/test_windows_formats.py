"""Windows over objects that are kept in formats, or that fail half-way: holes stay holes, and what is told stays true."""

from __future__ import annotations

import errno
import os

import pytest

from kvd import fsck
from kvd.fs.xattrs import Xattrs
from kvdriver import BLOCK_BYTES, Tier
from support.formatted import DIM, HEADS, LAYERS, LAYOUT, TOKENS, npy, opaque, safetensors
from support.ladder_space import ladder_at
from support.session_space import space_at
from support.sliding import PAGE, TOKEN, check, data_bytes, kept, nvme_files, say, tokens, told, valid

WINDOW = 60
ROW = HEADS * DIM * 2
A_PAGE = PAGE // ROW
PLANES = 2 * LAYERS
LONG = 512
"""Tokens of files with a header, which are in no page's place."""
GIVEN = (TOKENS - WINDOW) // A_PAGE * A_PAGE
"""Tokens that slide out in whole pages of each plane of `opaque`, which begins with a page."""


def slid(content, *, header=0, given=GIVEN):
    """Return what is left of content whose first tokens were given back."""
    left = bytearray(content)
    for plane in range(PLANES):
        begin = header + plane * TOKENS * ROW
        left[begin : begin + given * ROW] = bytes(given * ROW)
    return bytes(left)


async def window(space, ino, trailing=WINDOW):
    sessions = space.tiers.sessions
    sessions.set_number(space.tiers.catalog.names.inode(ino), "window", trailing)
    await sessions.windows.step()


async def told_valid(space, ino):
    return await space.tiers.sessions.windows.valid(space.tiers.catalog.names.inode(ino))


@pytest.mark.parametrize("ladder", ["zstd", "int8", "int4", "fp8-e4m3"])
async def test_holes_stay_holes_through_a_format(root, ladder):
    stored = opaque()
    async with ladder_at(root, ladder, LAYOUT) as space:
        objects = space.tiers.objects
        ino = await space.make(b"a", stored.content)
        await window(space, ino)
        assert await told_valid(space, ino) == ((GIVEN, TOKENS),)
        assert await space.tiers.read(ino) == slid(stored.content)
        await objects.demote(ino)
        assert space.copy(ino).format == ladder
        back = await space.tiers.read(ino)
        assert slid(back) == back
        assert await told_valid(space, ino) == ((GIVEN, TOKENS),)
        held = space.tiers.config.ddr.path / f"{ino:x}"
        assert await space.tiers.used_blocks(Tier.DDR) == data_bytes(held) // BLOCK_BYTES
        assert data_bytes(held) == len(stored.content) - PLANES * GIVEN * ROW
        moved = objects.moves.counts.demoted_bytes
        await objects.demote(ino)
        assert objects.moves.counts.demoted_bytes == moved, "it has not changed"
    async with ladder_at(root, ladder, LAYOUT) as space:
        assert await space.tiers.read(ino) == back
        assert await told_valid(space, ino) == ((GIVEN, TOKENS),)
    assert await fsck.check(space.tiers.config, page_bytes=PAGE, data=True) == []


@pytest.mark.parametrize(("ladder", "again"), [("zstd", True), ("int4", False)])
async def test_what_slides_out_of_a_stored_object_goes_when_it_is_in_ddr(root, ladder, again):
    stored = opaque()
    async with ladder_at(root, ladder, LAYOUT) as space:
        objects = space.tiers.objects
        ino = await space.make(b"a", stored.content)
        await objects.demote(ino)
        was = space.copy(ino)
        await window(space, ino)
        assert space.copy(ino) == was
        assert await told_valid(space, ino) is None, "its header can't be seen where it is"
        content = await space.tiers.read(ino)
        await space.tiers.sessions.windows.step()
        assert await space.tiers.read(ino) == slid(content)
        await objects.demote(ino)
        assert (space.copy(ino).gen > was.gen) == again, "what is lossy is not encoded twice"
        assert (space.copy(ino).pages < was.pages) == again
        assert await space.tiers.read(ino) == slid(content)
        assert await told_valid(space, ino) == ((GIVEN, TOKENS),)


@pytest.mark.parametrize("make", [npy, safetensors])
@pytest.mark.parametrize("cold", [False, True])
async def test_files_with_headers_keep_them(root, make, cold):
    stored = make(tokens=LONG)
    layout = LAYOUT if make is npy else f"fp16 tokens heads={HEADS} dim={DIM}"
    async with ladder_at(root, "raw", layout) as space:
        ino = await space.make(b"a", stored.content)
        if cold:
            await space.tiers.objects.demote(ino)
        await window(space, ino)
        content = await space.tiers.read(ino)
        assert content[: stored.header_bytes] == stored.content[: stored.header_bytes]
        there = {token for start, end in await told_valid(space, ino) for token in range(start, end)}
        assert set(range(LONG - WINDOW, LONG)) <= there < set(range(LONG))
        for begin in range(stored.header_bytes, len(content), LONG * ROW):
            for token in range(LONG):
                at = begin + token * ROW
                assert token not in there or content[at : at + ROW] == stored.content[at : at + ROW]
        assert content != stored.content
        assert sum(end - start for start, end in space.tiers.catalog.given.of(ino)) % PAGE == 0


async def test_a_file_with_a_header_whose_tokens_nobody_has_named_keeps_all(root):
    async with ladder_at(root, "raw") as space:
        ino = await space.make(b"a", npy(tokens=LONG).content)
        await window(space, ino)
        assert await space.tiers.read(ino) == npy(tokens=LONG).content
        assert await told_valid(space, ino) is None
        xattrs = Xattrs(space.tiers.catalog, space.tiers.objects, space.tiers.sessions)
        inode = space.tiers.catalog.names.inode(ino)
        await xattrs.set(inode, b"user.kvd.bytes_per_token", b"%d" % (PLANES * ROW))
        await space.tiers.sessions.windows.step()
        assert await space.tiers.read(ino) != npy(tokens=LONG).content


@pytest.mark.parametrize(
    ("failing", "cold"), [("sync", False), ("sync", True), ("mend", False), ("mend", True), ("open", False)]
)
async def test_a_failure_half_way_is_told_truly_and_made_good_by_the_next_look(root, failing, cold):
    async with space_at(root) as space:
        objects, catalog = space.tiers.objects, space.tiers.catalog
        ino = await space.store(b"a", content=tokens(200))
        await objects.fsync(ino)
        full = sum(map(data_bytes, nvme_files(space, ino)))
        if cold:
            await objects.demote(ino)
        [file] = nvme_files(space, ino)
        if failing == "open":
            file.rename(file.with_suffix(".away"))
            (file.parent / file.name).symlink_to(file.with_suffix(".away"))
        else:
            _fail(objects.describer if failing == "mend" else catalog.db, failing)
        await say(space, ino)
        await space.verbs.windows.step()
        described = failing == "open"  # that it can't be is told by the describer
        assert (space.verbs.windows.counts.failed, bool(objects.describer.counts.failed)) == (not described, described)
        if failing == "open":
            file.unlink()
            file.with_suffix(".away").rename(file)
        else:
            delattr(objects.describer if failing == "mend" else catalog.db, failing)
        assert await valid(space, ino) == told(kept(200))
        blocks = sum(end - start for start, end in kept(200)) * TOKEN // BLOCK_BYTES
        assert await space.tiers.used_blocks(Tier.NVME) == blocks
        space.verbs.windows.look_soon(ino)
        await space.verbs.windows.step()
        assert full - data_bytes(file) == 200 * TOKEN - blocks * BLOCK_BYTES
        assert await space.tiers.used_blocks(Tier.NVME) == blocks
        await objects.describer._sweep(pause=0)
        check(await space.tiers.read(ino), 200)
    assert await fsck.check(space.tiers.config, page_bytes=PAGE, data=True) == []


def _fail(owner, name):
    async def fail(*_):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    setattr(owner, name, fail)
