"""Whose blocks must go when a tier is short, and what a namespace may still take in it. Pure.

A namespace has in each tier a *guaranteed* share, which nobody else takes away, and a *limit*. What it holds beyond its guarantee
it has *borrowed*: of space that is guaranteed to nobody, or that others do not use now. Who is within its guarantee gets it
back. Borrowers give in the order of their priority, the lowest first; of those with one priority the one that has borrowed most
gives until it has no more than the next, then both, and so on. So they end at fair shares: what is guaranteed to nobody, in equal
parts. Who asks for more is one of the borrowers, with what it would have then. Who is at its limit pays from itself.

All counts are 4 KiB blocks of one tier. What belongs to no namespace is one more, with no guarantee, no limit and priority 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvd.errors import OverCommittedError

if TYPE_CHECKING:
    from collections.abc import Mapping

PRIORITY_MAX = 255
NO_LIMIT = 0
NOBODY = 0
"""The number of what belongs to no namespace."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """A namespace in one tier.

    Attributes
    ----------
    guaranteed
        Blocks that nobody else takes from it.
    limit
        Blocks that it has at most; `NO_LIMIT` for any number.
    priority
        0 to `PRIORITY_MAX`; of borrowers the lowest gives first.
    used
        Blocks that it has.
    """

    guaranteed: int = 0
    limit: int = NO_LIMIT
    priority: int = 0
    used: int = 0

    @property
    def borrowed(self) -> int:
        """Blocks beyond the guarantee."""
        return max(0, self.used - self.guaranteed)

    @property
    def over_limit(self) -> int:
        """Blocks beyond the limit."""
        return max(0, self.used - self.limit) if self.limit != NO_LIMIT else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """What has to go.

    Attributes
    ----------
    blocks
        By namespace, in the order in which they give; only such as give something.
    short
        What nobody may be made to give: so much of the need can't be met.
    """

    blocks: dict[int, int]
    short: int


@dataclass(frozen=True, slots=True)
class _Giver:
    """A borrower: its number, what it has beyond its guarantee (of the asker: would have), and what it can give of that."""

    space: int
    over: int
    most: int

    def gives(self, level: int) -> int:
        """Return what it gives to come down to `level` blocks beyond its guarantee."""
        return min(self.most, max(0, self.over - level))


def due(shares: Mapping[int, Share], *, capacity: int, need: int, asker: int | None = None) -> Due:
    """Return from whom how much must go, so that `need` more blocks fit into a tier and into the asker's limit.

    Nobody but the asker comes below its guarantee. Whatever `need` is, as much as possible of it is met.

    Parameters
    ----------
    shares
        Everybody who has something in the tier, or a guarantee there, by number.
    capacity
        Blocks of the tier.
    need
        Blocks that are to fit. Of them those count that are not free.
    asker
        Who asks for them; None: they are to become free.
    """
    mine = shares.get(asker, Share()) if asker is not None else Share()
    short = max(0, need - (capacity - sum(each.used for each in shares.values())))
    over_limit = _beyond(mine, need)
    own = min(mine.used, over_limit)  # whatever is free
    taken: dict[int, int] = {asker: own} if asker is not None and own else {}
    left = short - own
    for givers in _classes(shares, asker, mine, need, own):
        if left <= 0:
            break
        for space, blocks in _level(givers, left):
            taken[space] = taken.get(space, 0) + blocks
            left -= blocks
    if left > 0 and asker is not None:  # its own guarantee is its own affair
        more = min(left, mine.used - taken.get(asker, 0))
        if more > 0:
            taken[asker] = taken.get(asker, 0) + more
            left -= more
    return Due(blocks=taken, short=max(0, left, over_limit - own))


def _beyond(share: Share, need: int) -> int:
    """Return how far beyond its limit a namespace would be with `need` blocks more."""
    return max(0, share.used + need - share.limit) if share.limit != NO_LIMIT else 0


def _classes(shares: Mapping[int, Share], asker: int | None, mine: Share, need: int, own: int) -> list[list[_Giver]]:
    """Return the borrowers by priority, the lowest first; the asker as it would be, having given `own` already."""
    classes: dict[int, list[_Giver]] = {}
    for space, share in shares.items():
        if space != asker and share.borrowed:
            classes.setdefault(share.priority, []).append(_Giver(space, share.borrowed, share.borrowed))
    if asker is not None:
        over = mine.used - own + need - mine.guaranteed
        most = min(over, mine.used - own)
        if most > 0:
            classes.setdefault(mine.priority, []).append(_Giver(asker, over, most))
    return [sorted(classes[priority], key=lambda giver: (-giver.over, giver.space)) for priority in sorted(classes)]


def _level(givers: list[_Giver], need: int) -> list[tuple[int, int]]:
    """Return what each gives, so that those who have most beyond their guarantees come down to one level."""
    if sum(giver.most for giver in givers) <= need:
        return [(giver.space, giver.most) for giver in givers]
    low, high = 0, max(giver.over for giver in givers)  # at `low` they give enough, at `high` nothing
    while high - low > 1:
        middle = (low + high) // 2
        if sum(giver.gives(middle) for giver in givers) >= need:
            low = middle
        else:
            high = middle
    given = {giver.space: giver.gives(high) for giver in givers}
    rest = need - sum(given.values())
    for giver in givers:  # a block each of the step from `high` to `low`
        more = min(rest, giver.gives(low) - given[giver.space])
        given[giver.space] += more
        rest -= more
    return [(space, blocks) for space, blocks in given.items() if blocks]


def spare(shares: Mapping[int, Share], asker: int | None = None) -> dict[int, int]:
    """Return what each may be made to give at the most, by number: what it has borrowed; of the asker all it has."""
    return {
        space: share.used if space == asker else share.borrowed
        for space, share in shares.items()
        if (share.used if space == asker else share.borrowed)
    }


def may_take(shares: Mapping[int, Share], *, capacity: int, asker: int) -> int:
    """Return how many blocks a namespace can have more, if nothing of its own goes and others give what they must."""
    mine = shares.get(asker, Share())
    kept = sum(min(each.used, each.guaranteed) for space, each in shares.items() if space != asker)
    room = capacity - kept - mine.used
    if mine.limit != NO_LIMIT:
        room = min(room, mine.limit - mine.used)
    return max(0, room)


def check(share: Share, others_guaranteed: int, *, capacity: int, tier: str) -> None:
    """Refuse a share that can't be.

    Parameters
    ----------
    share
        As it shall be.
    others_guaranteed
        Blocks that are guaranteed to all others together.
    capacity
        Blocks of the tier.
    tier
        Its name, for the message.

    Raises
    ------
    OverCommittedError
        The guarantees are more than the tier has, or this one more than its own limit.
    """
    if share.limit != NO_LIMIT and share.guaranteed > share.limit:
        raise OverCommittedError(f"{tier}: the guaranteed share is above the limit; lower the one or raise the other")
    if share.guaranteed and others_guaranteed + share.guaranteed > capacity:
        left = max(0, capacity - others_guaranteed)
        raise OverCommittedError(
            f"{tier}: {_size(share.guaranteed)} can't be guaranteed: the tier has {_size(capacity)}, and"
            f" {_size(others_guaranteed)} are guaranteed to others; ask for at most {_size(left)}, lower another's share"
            f" (kvctl namespace set NAME --{tier}-guaranteed SIZE), or give the tier more room"
        )


def _size(blocks: int) -> str:
    """Return blocks as people write sizes, without rounding."""
    kib = blocks * 4
    for unit in ("KiB", "MiB", "GiB"):
        if kib % 1024 or not kib:
            return f"{kib}{unit}"
        kib //= 1024
    return f"{kib}TiB"
