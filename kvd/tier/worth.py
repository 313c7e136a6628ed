"""What objects are worth: the daemon's ageing policies, and all that they are told.

Each namespace has a policy of its own, so that each learns its own habits and one's flood says nothing of another's objects; what
belongs to none has one, too. A key is an inode, a unit a block. Here is the only place where victims are chosen: of DDR for
`kvd.tier.room`, of NVMe for `kvd.tier.evicting`, of all namespaces or of some.

Objects tell by themselves where they are and whether they may go (`Census`); uses are told by many at once (`Sharing.drain`).
Nothing here waits, and nothing raises into those who tell.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

import structlog
import trio

from kvd.policy.ageing import Access, Hint, Place, Seed
from kvdriver import Tier

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from kvd.policy.ageing import Below, Policy, Victim
    from kvd.tier.live import Live

log = structlog.get_logger(__name__)

TICK_S = 1.0
TICK_STEPS = 2048
"""Of a slice of ageing: a millisecond, on a busy machine a few."""
LEARNING_MAX = 64
"""So many namespaces have a policy that learns, which takes some MiB; those that come later have a plain order."""
UNITS_MAX = 2**32 - 1
TURNS = 16
"""Where several namespaces share a tier, the one with the least worth gives this part of what is needed, then they are compared again."""

_PLACES = {Tier.DDR: Place.DDR, Tier.NVME: Place.NVME}
_ENTERS = frozenset({"all", "sealed"})
_KEEPS = frozenset({"all", "sealed", "readers", "writers", "pinned", "held", "damaged"})


class Worth:
    """Owns the policies.

    Parameters
    ----------
    home
        Returns the namespace that an inode belongs to, by the number of its directory.
    above
        Returns the object that one hangs on: what is useless without it. None for none.
    make
        Makes a policy that learns.
    make_plain
        Makes one that takes hardly any memory.
    """

    def __init__(
        self,
        home: Callable[[int], int],
        above: Callable[[int], int | None],
        make: Callable[[], Policy],
        make_plain: Callable[[], Policy],
    ) -> None:
        self._home = home
        self._above = above
        self._make = make
        self._make_plain = make_plain
        self._policies: dict[int, Policy] = {}
        self._homes: dict[int, int] = {}
        self._kept: set[int] = set()
        self._behind_s = time.time() - trio.current_time()

    def __repr__(self) -> str:
        return f"<Worth of {len(self._homes)} objects in {len(self._policies)} namespaces, {len(self._kept)} kept>"

    def now_s(self) -> float:
        """Return the policies' time: that of the epoch when the daemon started, and from then on trio's."""
        return trio.current_time() + self._behind_s

    @property
    def homes(self) -> Collection[int]:
        """The namespaces of which it knows objects."""
        return self._policies.keys()

    def _policy(self, home: int) -> Policy:
        policy = self._policies.get(home)
        if policy is None:
            make = self._make if len(self._policies) < LEARNING_MAX else self._make_plain
            policy = self._policies[home] = make()
        return policy

    def _of(self, ino: int) -> Policy | None:
        home = self._homes.get(ino)
        return None if home is None else self._policies[home]

    # -- what objects say ----------------------------------------------------------------------------------------

    def noted(self, live: Live, what: str) -> None:
        """Take note of an object in memory whose attribute `what` was set; "all": it has come into memory."""
        if what == "tier":
            self._placed(live)
        elif what in _ENTERS and live.sealed:
            self._entered(live, new=what == "sealed")
        if what in _KEEPS:
            self._keep(live.ino, wanted=not live.sealed or bool(live.opens or live.pinned or live.held or live.damaged))

    def left(self, live: Live) -> None:
        """Take note that an object has left memory: nobody has it open."""
        self._keep(live.ino, wanted=live.pinned or live.damaged)

    def _entered(self, live: Live, *, new: bool) -> None:
        place = _PLACES.get(live.tier)
        if place is None or (not new and live.ino in self._homes):
            return
        units = min(live.mapped_blocks, UNITS_MAX)
        with self._telling(live.ino):
            policy = self._enter(live.ino, self._home(live.ino))
            if new:
                access = Access(now_s=self.now_s(), keys=[live.ino], units=[units], parent=self._above(live.ino))
                policy.access(access)
            else:
                policy.seed(self.now_s(), [Seed(live.ino, units, place, self.now_s(), self._above(live.ino))])

    def _enter(self, ino: int, home: int) -> Policy:
        """Count an object to a namespace, and to no other."""
        before = self._homes.get(ino)
        if before is not None and before != home:
            self.forget(ino)
        self._homes[ino] = home
        return self._policy(home)

    def _placed(self, live: Live) -> None:
        place = _PLACES.get(live.tier)
        if place is None:
            self.forget(live.ino)
        else:
            self.stays(live.ino, place, min(live.mapped_blocks, UNITS_MAX))

    def _keep(self, ino: int, *, wanted: bool) -> None:
        """Hold an object that must not go, once, or let go of it."""
        policy = self._of(ino)
        if policy is None or wanted is (ino in self._kept):
            return
        with self._telling(ino):
            if wanted:
                policy.hold(ino)
                self._kept.add(ino)
            else:
                self._kept.discard(ino)
                policy.unhold(ino)

    @staticmethod
    @contextlib.contextmanager
    def _telling(ino: int) -> Iterator[None]:
        """Let those who tell go on: what a policy does not know is no victim, and that is all."""
        try:
            yield
        except (KeyError, OSError) as error:
            log.info("policy does not know an object", ino=ino, error=str(error))

    # -- what else happens ---------------------------------------------------------------------------------------

    def used(self, lives: Sequence[Live]) -> None:
        """Take note that objects in memory were opened; those that are read from NVMe stay there."""
        now_s = self.now_s()
        homes = self._homes
        told: dict[int, tuple[list[int], list[int]]] = {}
        for live in lives:
            home = homes.get(live.ino)
            if home is not None:
                keys, units = told.setdefault(home, ([], []))
                keys.append(live.ino)
                units.append(live.mapped_blocks)
        for home, (keys, units) in told.items():
            with self._telling(keys[0]):
                self._policies[home].use(now_s, keys, units)
        for live in lives:
            if live.tier is Tier.NVME:
                self._placed(live)

    def found(self, rows: Iterable[tuple[int, Seed]]) -> None:
        """Take note of objects that are there since before the start, each with its namespace: the oldest first."""
        told: dict[int, list[Seed]] = {}
        for home, seed in rows:
            if seed.key not in self._homes:
                self._enter(seed.key, home)
                told.setdefault(home, []).append(seed)
        for home, seeds in told.items():
            with self._telling(seeds[0].key):
                self._policies[home].seed(self.now_s(), seeds)

    def hint(self, ino: int, hint: Hint) -> None:
        """Take note of what a client says of an object."""
        policy = self._of(ino)
        if policy is not None:
            policy.hint(ino, hint, self.now_s())

    def forget(self, ino: int) -> None:
        """Take note that an object is no more."""
        self._keep(ino, wanted=False)
        policy = self._of(ino)
        if policy is not None:
            policy.forget(ino)
            del self._homes[ino]

    def stays(self, ino: int, place: Place, units: int) -> None:
        """Take note of where an object is; also of a victim that could not go."""
        policy = self._of(ino)
        if policy is None:
            return
        try:
            policy.place(ino, place)
        except KeyError:
            with self._telling(ino):
                policy.seed(self.now_s(), [Seed(ino, units, place, self.now_s())])

    # -- what is asked -------------------------------------------------------------------------------------------

    def victims(
        self, place: Place, need_units: int, below: Below | None = None, only: Collection[int] | None = None
    ) -> list[Victim]:
        """Choose what leaves a tier, the least worth first, until so much is freed; it may be less.

        They have left for the policies: who can't go is to be told of (`stays`).

        Parameters
        ----------
        below
            The tier below DDR.
        only
            The namespaces whose objects may go; None for all.
        """
        asked = [policy for home, policy in self._policies.items() if only is None or home in only]
        if len(asked) == 1:
            return asked[0].victims(place, need_units, below)
        chosen: list[Victim] = []
        freed = 0
        while freed < need_units and (policy := _least(asked, place)) is not None:
            some = policy.victims(place, min(need_units - freed, max(1, need_units // TURNS)), below)
            if not some:
                asked.remove(policy)
            freed += sum(victim.units for victim in some)
            chosen += some
        return chosen

    def prefetch(self, ino: int) -> list[int]:
        """Return those of the chain that ends at an object which are in NVMe and worth a place in DDR, root first."""
        policy = self._of(ino)
        return [] if policy is None else policy.prefetch(ino)

    # -- with time -----------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Let objects age, for ever, in slices."""
        while True:
            await trio.sleep(TICK_S)
            while self.age(self.now_s()):
                await trio.lowlevel.checkpoint()

    def age(self, now_s: float) -> bool:
        """Let time pass for some objects; whether there are more for which it has to."""
        return any(policy.tick(now_s, TICK_STEPS) for policy in self._policies.values())


def _least(policies: Collection[Policy], place: Place) -> Policy | None:
    """Return the policy whose next victim is worth least; by its last use, if one of them knows no worth."""
    found = [(least, policy) for policy in policies if (least := policy.least(place)) is not None]
    if not found:
        return None
    if any(least.worth is None for least, _ in found):
        return min(found, key=lambda each: each[0].used_s)[1]
    return min(found, key=lambda each: (each[0].worth or 0.0, each[0].used_s))[1]
