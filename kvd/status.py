"""Parts of the daemon's status, as the control API tells them."""

from __future__ import annotations

import os
import stat
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

from kvd.api.backend import Directory, Engine, Index, Scrubbing
from kvd.api.formats import FormatError, FormatUsage, ObjectFormat
from kvd.api.namespaces import Alarm, NamespaceQuota, NamespaceStatus, Quota, TierShare
from kvdriver import BLOCK_BYTES, EngineState, ResilientDevice, Tier

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvd.catalog.catalog import Catalog
    from kvd.catalog.placements import Placements
    from kvd.catalog.records import Copy, Namespace, Placement
    from kvd.tier import index as checked
    from kvd.tier.namespacing import Namespacing
    from kvd.tier.nvme import NvmeStore
    from kvd.tier.quotas import TierQuota
    from kvd.tier.reaping import Reaper
    from kvd.tier.scrub import Scrub
    from kvdriver import Device


def kind(mode: int) -> str:
    """Return what an inode is, in the API's word."""
    if stat.S_ISDIR(mode):
        return "dir"
    if stat.S_ISREG(mode):
        return "file"
    return "symlink" if stat.S_ISLNK(mode) else "other"


def chain(catalog: Catalog, ino: int) -> dict[str, Any]:
    """Return where an object is in its chain, as `Entry` has it; nothing of one that is in none."""
    parent = catalog.chains.parent(ino)
    if parent is None and not catalog.chains.has_children(ino):
        return {}
    path = None if parent is None else catalog.names.path(parent)
    return {"parent": path, "chain": len(catalog.chains.chain(ino))}


def namespaces(spaces: Namespacing, reaper: Reaper) -> NamespaceStatus:
    """Return what concerns all namespaces together."""
    reaped = reaper.statistics()
    return NamespaceStatus(
        namespaces=len(spaces.all()),
        mismatches=spaces.mismatches,
        alarms=tuple(
            Alarm(when_s=alarm.when_s, namespace=os.fsdecode(alarm.namespace), what=alarm.what)
            for alarm in spaces.alarms
        ),
        deleting=reaped.graves,
        names_left=reaped.names_left,
        names_deleted=reaped.names_gone,
    )


def quota_of(row: Namespace) -> Quota:
    """Return what a namespace was given."""
    return Quota(**{each.name: getattr(row, each.name) for each in fields(Quota)})


def quota(name: bytes, row: Namespace, tiers: Sequence[TierQuota]) -> NamespaceQuota:
    """Return how a namespace stands in each tier."""
    return NamespaceQuota(
        name=name.strip(b"/"),
        priority=row.priority,
        on_full=row.on_full,
        tiers=tuple(
            TierShare(
                tier=each.tier.name.lower(),
                capacity_bytes=each.capacity * BLOCK_BYTES,
                guaranteed_bytes=each.guaranteed * BLOCK_BYTES,
                limit_bytes=each.limit * BLOCK_BYTES,
                used_bytes=each.used * BLOCK_BYTES,
                borrowed_bytes=each.borrowed * BLOCK_BYTES,
                may_take_bytes=each.may_take * BLOCK_BYTES,
            )
            for each in tiers
        ),
    )


def formats(placements: Placements) -> tuple[FormatUsage, ...]:
    """Return what there is on NVMe in each format."""
    return tuple(
        FormatUsage(format=name, copies=copies, used_bytes=blocks * BLOCK_BYTES)
        for name, (copies, blocks) in placements.formats().items()
    )


def object_format(copy: Copy) -> ObjectFormat:
    """Return how an object's copy is kept."""
    form = copy.form
    return ObjectFormat(
        format=copy.format,
        object_bytes=copy.object_bytes,
        file_bytes=copy.size,
        ratio=round(copy.object_bytes / copy.size, 3) if copy.size else 1.0,
        lossy_bytes=0 if form is None else form.lossy_bytes,
        errors={}
        if form is None
        else {
            role.name.lower(): FormatError(values=each.values, relative_l2=each.relative_l2, most=each.most)
            for role, each in form.errors.items()
        },
    )


def held(placements: Placements, placement: Placement, held_bytes: int) -> dict[str, int]:
    """Return what each tier is charged for an object, whose present bytes are charged `held_bytes`."""
    copy_bytes = placements.copy_blocks(placement.ino) * BLOCK_BYTES
    found = {"ddr": held_bytes if placement.tier == Tier.DDR else 0, "nvme": copy_bytes}
    return {tier: count for tier, count in found.items() if count}


def scrubbing(scrub: Scrub) -> Scrubbing:
    """Return what the scrubber does and has found."""
    return Scrubbing(
        rate_bytes=scrub.config.rate_bytes,
        period_s=scrub.config.period_s,
        began_s=scrub.began_s,
        ended_s=scrub.ended_s,
        **asdict(scrub.counts),
    )


def directories(nvme: NvmeStore) -> tuple[Directory, ...]:
    """Return how each NVMe directory is."""
    return tuple(
        Directory(
            path=str(each.path),
            state=each.health.state.value,
            reason=each.health.why,
            since_s=each.health.since_s,
            offline_count=each.health.offline_count,
            direct=each.direct,
            free_bytes=each.free_bytes,
        )
        for each in nvme.directories
    )


def index(found: checked.Index) -> Index:
    """Return how far the index is."""
    state = found.state
    return Index(state="checked" if state.checked else "checking", done=state.done, total=state.total)


def engine(device: Device, started_at_s: float) -> Engine:
    """Return where the engine runs; `started_at_s` is since when, if it has not changed."""
    if isinstance(device, ResilientDevice):
        state = device.state
    else:
        transport = device.capabilities.transport
        state = EngineState(wanted=transport, transport=transport, degraded=False, since_s=started_at_s)
    return Engine(
        wanted=state.wanted,
        transport=state.transport,
        state="degraded" if state.degraded else "ok",
        reason=state.reason,
        since_s=state.since_s,
        faults=state.faults,
        replayed=state.replayed,
        taken_back=state.taken_back,
        losses=state.losses,
        losses_count=state.losses_count,
    )
