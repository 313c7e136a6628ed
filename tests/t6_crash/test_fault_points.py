"""Each call of a scripted life fails once, in turn: the life goes on, nothing leaks, and what is stored is whole."""

import os
import sqlite3

import pytest

from kvd import fsck
from kvd.catalog.schema import ROOT_INO
from kvd.errors import KvdError
from kvd.flush import flush
from kvd.notify import Notifier
from kvd.tier import recoding, storing
from kvdriver import BLOCK_BYTES, EngineError, Tier
from support.content import data_blocks
from support.fault_points import FaultPoints
from support.scripted_life import DDR_MIB, a_life, a_stored_life, keep_in_formats, show
from support.tiers import PAGE_BYTES, tiers_at

STRIDES = 4


def open_files(root):
    """Return the files below `root` that this process has open."""
    found = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            name = os.readlink(f"/proc/self/fd/{fd}")
        except FileNotFoundError:
            continue
        if name.startswith(f"{root}/") and "/state/" not in name:
            found.append(name)
    return found


def leaf(error):
    """Return the first exception in groups of groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


async def let_go(tiers):
    for live in list(tiers.objects.lives.by_ino.values()):
        while live.writers:
            await tiers.objects.release(live.ino, write=True)
        while live.readers:
            await tiers.objects.release(live.ino, write=False)
    await tiers.objects.seal_late()
    for ino in tiers.catalog.names.orphans():
        await tiers.objects.discard(ino)


async def held(tiers):
    """Compare the engine's books with what the files hold."""
    ddr = [path for path in tiers.config.ddr.path.iterdir() if path.suffix != ".json"]
    info = await tiers.books.tier(Tier.DDR)
    assert info.reserved_blocks == 0
    assert info.used_blocks == sum(path.stat().st_blocks * 512 // BLOCK_BYTES for path in ddr)
    nvme = [path for path in (tiers.config.nvme.dirs[0] / "objects").rglob("*") if path.is_file()]
    assert await tiers.used_blocks(Tier.NVME) == sum(map(data_blocks, nvme))


async def live_with_a_fault(root, points, life, models):
    """Live until the fault, let everything go, and look; return whether the fault came."""
    async with tiers_at(root, ddr_mib=DDR_MIB) as tiers:
        points.watch(tiers)
        allowed = models[-2:]
        for number, (_, act, _) in enumerate(life.steps):
            try:
                await act(tiers)
            except (OSError, KvdError, EngineError, sqlite3.OperationalError):
                assert points.failed, "what fails is what was made to fail"
            if points.failed:
                allowed = models[number : number + 2]
                break
        points.armed = False
        await let_go(tiers)
        assert open_files(root) == []
        assert tiers.plane.objects == {}
        assert tiers.plane.backings == {}
        await held(tiers)
        found = {entry.name: await tiers.read(entry.inode.ino) for entry in tiers.catalog.names.listing(ROOT_INO)}
        for model in allowed:
            for thing in model.things.values():
                thing.sealed = True  # everything was let go
        assert any(model.allows(found, ddr_lost=False) for model in allowed), f"{show(found)}; allowed {allowed}"
        await held(tiers)
        result = await flush(tiers.objects, flush_s=30, notifier=Notifier())
        assert result.left == 0
    faults = await fsck.check(tiers.config, page_bytes=PAGE_BYTES, data=True)
    assert faults == []
    return bool(points.failed)


@pytest.mark.parametrize(("ladder", "points_min"), [("", 150), ("zstd", 80), ("int8", 60)])
@pytest.mark.parametrize("first", range(1, 1 + STRIDES))
async def test_a_call_that_fails_harms_nothing(tmp_on_tmpfs, first, ladder, points_min, claim_log, monkeypatch):
    claim_log("")
    for owner, name in ((storing, "formats_of"), (storing, "FORMAT_BYTES_MIN"), (recoding, "PIECE_BYTES")):
        monkeypatch.setattr(owner, name, getattr(owner, name))  # so that it is put back
    if ladder:
        keep_in_formats(ladder)
    life = a_stored_life(ladder) if ladder else a_life()
    at, wrong, came = first, [], True
    while came:
        root = tmp_on_tmpfs / f"{at}"
        root.mkdir()
        points = FaultPoints(at)
        with pytest.MonkeyPatch.context() as patch:
            points.install(patch)
            try:
                came = await live_with_a_fault(root, points, life, life.models())
            except Exception as error:  # noqa: BLE001 - collected, so that one run shows all
                wrong.append(f"{at}: {points.failed}: {leaf(error)!r:.500}")
        at += STRIDES
    assert not wrong, "\n" + "\n".join(wrong)
    assert at > points_min, "the life is long enough to mean something"
