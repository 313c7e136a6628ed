"""What namespaces have in each tier, and whose objects may be chosen when one is short (`kvd.policy.quotas`).

What they have is counted where it changes: in DDR by `kvd.tier.census` (blocks that objects have or have reserved), on NVMe by the
catalogue (`kvd.catalog.charges`: copies, and those that are being made). Here it only comes together.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kvd.policy.quotas import NOBODY, Share, check, due, may_take, spare
from kvdriver import BLOCK_BYTES, Tier

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from kvd.catalog.catalog import Catalog
    from kvd.catalog.records import Namespace
    from kvd.tier.books import Books
    from kvd.tier.live import Live
    from kvd.tier.lives import Lives

TIERS = (Tier.DDR, Tier.NVME)


@dataclass(slots=True)
class Picking:
    """What may still be chosen of each namespace, while objects are.

    Attributes
    ----------
    due
        Blocks that a namespace should give.
    spare
        Blocks that it may be made to give: an object that is larger would bring it below its guarantee.
    short
        Blocks that nobody may be made to give.
    """

    due: dict[int, int]
    spare: dict[int, int]
    short: int = 0

    def wants(self, space: int, blocks: int) -> bool:
        """Whether an object of so many blocks may be chosen."""
        return self.due.get(space, 0) > 0 and blocks <= self.spare.get(space, 0)

    def take(self, space: int, blocks: int) -> None:
        """Take note that it was."""
        self.due[space] = self.due.get(space, 0) - blocks
        self.spare[space] -= blocks

    def rounds(self) -> Iterator[tuple[int, int]]:
        """Yield who gives, and how much; those who should, then all who may be made to: the others had too little that may go."""
        yield from tuple(self.due.items())
        self.due = dict(self.spare)
        yield from tuple(self.due.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class TierQuota:
    """A namespace in one tier, in 4 KiB blocks; `may_take` is what it can have more, if others give what they must."""

    tier: Tier
    capacity: int
    guaranteed: int
    limit: int
    used: int
    borrowed: int
    may_take: int


@dataclass(slots=True)
class Quotas:
    """Answers for every namespace.

    Attributes
    ----------
    budget_blocks
        Of DDR.
    on_full_default
        What a full NVMe tier means where a namespace does not say it.
    leaving
        Objects that were chosen to leave DDR and are still there: their top directories and blocks, by number.
    """

    catalog: Catalog
    lives: Lives
    books: Books
    budget_blocks: int
    on_full_default: str
    leaving: dict[int, tuple[int, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.catalog.charges.moved = self.moved
        self.catalog.charges.recounted = self.recounted

    def __repr__(self) -> str:
        return f"<Quotas of {len(self.catalog.namespaces.quotas)} namespaces>"

    @property
    def some(self) -> bool:
        """Whether any namespace has a quota: without one nobody asks further."""
        return bool(self.catalog.namespaces.quotas)

    def homes(self, space: int, every: Collection[int]) -> Collection[int]:
        """Return the numbers of namespaces, of `every`, whose objects count as those of a namespace with a quota, or `NOBODY`'s."""
        if space != NOBODY:
            return (space,)
        return [home for home in every if home not in self.catalog.namespaces.quotas]

    def space(self, top: int) -> int:
        """Return the namespace with a quota that a top directory is, or `NOBODY`."""
        return top if top in self.catalog.namespaces.quotas else NOBODY

    # -- what changes its place ----------------------------------------------------------------------------------

    def moved(self, ino: int) -> None:
        """Count an object where it is now."""
        live = self.lives.peek(ino)
        if live is not None:
            live.top = self.catalog.namespaces.charged(ino, live.usual_key or 1)

    def recounted(self) -> None:
        """Count every object where it is now."""
        for ino in list(self.lives.by_ino):
            self.moved(ino)

    # -- telling -------------------------------------------------------------------------------------------------

    def used(self, tier: Tier, top: int) -> int:
        """Return the blocks that what is below a top directory has in a tier."""
        if tier is Tier.DDR:
            return self.lives.census.blocks.get(top, 0)
        return self.catalog.charges.used_blocks(top) + self.catalog.charges.making_blocks(top)

    def shares(self, tier: Tier, all_used: int, *, without: Mapping[int, int] | None = None) -> dict[int, Share]:
        """Return everybody's share in a tier, of which `all_used` blocks are used.

        Parameters
        ----------
        without
            Blocks by top directory that count as gone already.
        """
        gone = without or {}
        found: dict[int, Share] = {}
        for top, namespace in self.catalog.namespaces.quotas.items():
            used = self.used(tier, top)
            found[top] = _share(namespace, tier, max(0, used - gone.get(top, 0)))
            all_used -= used
        others = sum(blocks for top, blocks in gone.items() if top not in found)
        found[NOBODY] = Share(used=max(0, all_used - others))
        return found

    async def _tier(self, tier: Tier) -> tuple[int, int]:
        """Return a tier's capacity and what of it is used, in blocks."""
        info = await self.books.tier(tier)
        capacity = self.budget_blocks if tier is Tier.DDR else info.capacity_blocks
        return capacity, info.used_blocks + info.reserved_blocks

    async def quota(self, namespace: Namespace) -> list[TierQuota]:
        """Tell how a namespace stands in each tier."""
        told: list[TierQuota] = []
        for tier in TIERS:
            capacity, all_used = await self._tier(tier)
            mine = _share(namespace, tier, self.used(tier, namespace.ino))
            shares = self.shares(tier, all_used)
            if namespace.ino not in shares:
                shares[NOBODY] = Share(used=max(0, shares[NOBODY].used - mine.used))
                shares[namespace.ino] = mine
            told.append(
                TierQuota(
                    tier=tier,
                    capacity=capacity,
                    guaranteed=mine.guaranteed,
                    limit=mine.limit,
                    used=mine.used,
                    borrowed=mine.borrowed,
                    may_take=may_take(shares, capacity=capacity, asker=namespace.ino),
                )
            )
        return told

    async def check(self, namespace: Namespace) -> None:
        """Refuse a namespace whose guarantees can't be kept.

        Raises
        ------
        OverCommittedError
            With what is wrong, and what can be done.
        """
        capacities = {tier: (await self._tier(tier))[0] for tier in TIERS}
        self.catalog.namespaces.look_again()
        for tier, capacity in capacities.items():  # no wait between the check and what the caller does
            others = [each for top, each in self.catalog.namespaces.quotas.items() if top != namespace.ino]
            guaranteed = sum(_share(each, tier, 0).guaranteed for each in others)
            check(_share(namespace, tier, 0), guaranteed, capacity=capacity, tier=tier.name.lower())

    # -- DDR -----------------------------------------------------------------------------------------------------

    def over_limit(self, live: Live, blocks: int) -> int:
        """Return the blocks that an object's namespace is beyond its limit in DDR with so many reserved for the object."""
        namespace = self.catalog.namespaces.quotas.get(live.top)
        if namespace is None or not namespace.ddr_limit_bytes or blocks <= live.reserved_blocks:
            return 0
        used = self.used(Tier.DDR, live.top) - live.reserved_blocks + blocks
        return max(0, used - namespace.ddr_limit_bytes // BLOCK_BYTES)

    def over_limits(self) -> list[tuple[int, int]]:
        """Return the namespaces that have more in DDR than their limit, and how much of that is not leaving yet."""
        quotas = self.catalog.namespaces.quotas
        over = [(top, _share(quotas[top], Tier.DDR, self.used(Tier.DDR, top)).over_limit) for top in quotas]
        gone = self.leaving_blocks() if any(blocks for _, blocks in over) else {}
        return [(top, blocks - gone.get(top, 0)) for top, blocks in over if blocks > gone.get(top, 0)]

    def has_room_on_nvme(self, live: Live) -> bool:
        """Whether a copy of an object may be made by the limit of its namespace; how much it takes is known when it is there."""
        room = self.catalog.charges.room_blocks(live.ino)
        if room is None or self.on_full(live.ino) == "evict":
            return True
        return room > 0 and room >= live.mapped_blocks * live.sealed

    def on_full(self, ino: int) -> str:
        """Return what a full NVMe tier, or a limit that is reached there, means for an object's writers."""
        namespace = self.catalog.namespaces.of(ino)
        return (namespace.on_full if namespace is not None else "") or self.on_full_default

    def is_tight(self, live: Live, guess_blocks: int) -> bool:
        """Whether an object that may come to need twice as much as is guessed could pass its namespace's limit in DDR."""
        return self.over_limit(live, live.reserved_blocks + 2 * guess_blocks) > 0

    def own(self, top: int, need_blocks: int) -> Picking:
        """Let a namespace alone give, whatever it is guaranteed."""
        return Picking({top: need_blocks}, {top: self.used(Tier.DDR, top) - self.leaving_blocks().get(top, 0)})

    def picking(self, need_blocks: int, asker: Live | None, more_blocks: int) -> Picking | None:
        """Return what may be chosen in DDR of whom, so that so much becomes free; None: whatever there is.

        Parameters
        ----------
        need_blocks
            Besides what is leaving already.
        asker
            Whose need it is; it will have `more_blocks` more.
        """
        if not self.some:
            return None
        gone = self.leaving_blocks()
        shares = self.shares(Tier.DDR, sum(self.lives.census.blocks.values()), without=gone)
        short = max(0, need_blocks)
        space = None if asker is None else self.space(asker.top)
        more = short if asker is None else max(short, more_blocks)
        capacity = sum(share.used for share in shares.values()) + more - short
        found = due(shares, capacity=capacity, need=more, asker=space)
        return Picking(found.blocks, spare(shares, space))

    # -- NVMe ----------------------------------------------------------------------------------------------------

    async def nvme_picking(self, ino: int, blocks: int, ahead_share: int) -> Picking:
        """Return whose objects go from NVMe, and how much, so that a copy of so many blocks of an object can be made.

        Where the tier itself is short, one part in `ahead_share` of it is made free besides.
        """
        capacity, all_used = await self._tier(Tier.NVME)
        space = self.space(self.catalog.namespaces.charged(ino))
        shares = self.shares(Tier.NVME, all_used)
        found = due(shares, capacity=capacity, need=blocks, asker=space)
        if found.blocks and all_used + blocks > capacity:
            more = due(shares, capacity=capacity, need=blocks + capacity // ahead_share, asker=space)
            found = found if more.short else more
        return Picking(found.blocks, spare(shares, space), found.short)

    def leaving_blocks(self) -> dict[int, int]:
        """Return what is leaving DDR, by top directory."""
        gone: dict[int, int] = {}
        for top, blocks in self.leaving.values():
            gone[top] = gone.get(top, 0) + blocks
        return gone


def _share(namespace: Namespace, tier: Tier, used: int) -> Share:
    ddr = tier is Tier.DDR
    guaranteed = namespace.ddr_guaranteed_bytes if ddr else namespace.nvme_guaranteed_bytes
    limit = namespace.ddr_limit_bytes if ddr else namespace.nvme_limit_bytes
    return Share(
        guaranteed=guaranteed // BLOCK_BYTES, limit=limit // BLOCK_BYTES, priority=namespace.priority, used=used
    )
