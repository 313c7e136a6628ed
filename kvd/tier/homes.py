"""Where objects belong, for their ageing policies: their namespace, and what they hang on."""

from __future__ import annotations

import sqlite3
from contextlib import aclosing
from typing import TYPE_CHECKING, Final

import structlog

from kvd.catalog.evictable import last_uses
from kvd.catalog.records import NS
from kvd.catalog.schema import ROOT_INO
from kvd.policy.ageing import Place, Seed
from kvd.policy.policies import PLAIN, POLICIES
from kvd.tier.worth import UNITS_MAX, Worth
from kvdriver import Tier

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kvd.catalog.catalog import Catalog
    from kvd.catalog.evictable import LastUse

log = structlog.get_logger(__name__)

USES_AT_ONCE: Final = 512
"""Objects that the policies are told of before others have their turn: some milliseconds."""


def worth_in(catalog: Catalog, policy: str) -> Worth:
    """Return the owner of the policies for a catalogue's objects; `policy` is a name of `kvd.policy.policies`."""
    return Worth(lambda ino: home_of(catalog, ino), lambda ino: above(catalog, ino), POLICIES[policy], POLICIES[PLAIN])


def home_of(catalog: Catalog, ino: int) -> int:
    """Return the namespace that an inode belongs to, by its directory's number; the root's for none."""
    namespace = catalog.namespaces.of(ino)
    return ROOT_INO if namespace is None else namespace.ino


def above(catalog: Catalog, ino: int) -> int | None:
    """Return the object that one hangs on: what it said itself, or in a directory session the one whose name was made before it."""
    parent = catalog.chains.parent(ino)
    if parent is not None:
        return parent
    if catalog.sessions.of(ino) == ino:
        return None
    row = catalog.db.execute(
        "SELECT b.ino FROM dentry d JOIN dentry b ON b.parent=d.parent AND b.id<d.id WHERE d.ino=? ORDER BY b.id DESC LIMIT 1",
        (ino,),
    ).fetchone()
    return None if row is None else int(row[0])


async def remember_uses(catalog: Catalog, worth: Worth) -> None:
    """Tell the policies of what is there since before the start, in slices, while others are served."""
    try:
        async with aclosing(last_uses(catalog.db.path, USES_AT_ONCE)) as batches:
            async for batch in batches:
                worth.found(_seeds_of(catalog, batch))
    except (sqlite3.Error, OSError) as error:
        log.warning("what was used when is not known", error=str(error))


def _seeds_of(catalog: Catalog, uses: Sequence[LastUse]) -> Iterator[tuple[int, Seed]]:
    """Yield what a policy is told of objects that are there since before the start, with their namespaces."""
    for use in uses:
        place = Place.DDR if use.tier == Tier.DDR else Place.NVME
        home = home_of(catalog, use.folder) if use.folder else ROOT_INO
        yield home, Seed(use.ino, min(use.blocks, UNITS_MAX), place, use.used_ns / NS)
