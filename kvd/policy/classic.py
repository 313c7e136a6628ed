"""The classic policies behind the interface of `kvd.policy.ageing`: an order for each tier, and nothing else."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from kvd.policy.ageing import Least, Place, Victim

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from kvd.policy.ageing import Access, Below, Hint, Seed
    from kvd.policy.orders import Order


class Classic:
    """One order for each tier. Hints, densities and chains mean nothing to it; leases do.

    Parameters
    ----------
    make
        Makes an empty order.
    tail_first
        A request's last objects are used before its first ones, so that they leave first.
    """

    def __init__(self, make: Callable[[], Order], *, tail_first: bool = False) -> None:
        self._orders = {place: make() for place in (Place.DDR, Place.NVME)}
        self._tail_first = tail_first
        self._at: dict[int, tuple[Place, int]] = {}
        """Place and units of each object."""
        self._holds: dict[int, int] = {}
        self._used: dict[Place, OrderedDict[int, float]] = {place: OrderedDict() for place in self._orders}
        """When each object of a tier was last used, in seconds, the one longest ago first; only to be compared with others'."""

    def __repr__(self) -> str:
        return f"<Classic {self._orders[Place.DDR]!r} in DDR, {len(self._orders[Place.NVME])} in NVMe>"

    def access(self, access: Access, /) -> None:
        """Use each object once, in the chain's order or against it."""
        units = access.units or [1] * len(access.keys)
        pairs: Iterable[tuple[int, int]] = zip(access.keys, units, strict=True)
        if self._tail_first:
            pairs = reversed(list(pairs))
        for key, count in pairs:
            self._touch(key, count, access.now_s)

    def _touch(self, key: int, units: int, now_s: float) -> None:
        place, _ = self._at.get(key, (Place.GONE, 0))
        ddr = self._orders[Place.DDR]
        if place is Place.DDR:
            ddr.touch(key)
        else:
            if place is Place.NVME:
                self._orders[place].remove(key)
                del self._used[place][key]
            ddr.insert(key)
        self._at[key] = (Place.DDR, units)
        self._used[Place.DDR][key] = now_s
        self._used[Place.DDR].move_to_end(key)

    def use(self, now_s: float, keys: Sequence[int], units: Sequence[int], /) -> None:
        """Use each object once."""
        for key, count in zip(keys, units, strict=True):
            self._touch(key, count, now_s)

    def seed(self, now_s: float, seeds: Sequence[Seed], /) -> None:
        """Add what is not known, behind what was used before it and before what was used since the start."""
        for seed in seeds:
            if seed.key not in self._at:
                place = Place(seed.place)
                self._orders[place].insert(seed.key)
                self._at[seed.key] = (place, seed.units)
                self._used[place][seed.key] = min(seed.used_s, now_s)

    def hint(self, key: int, hint: Hint, now_s: float, /) -> None:
        """Change nothing."""

    def hold(self, key: int, /) -> None:
        """Take note of a lease."""
        if key not in self._at:
            raise KeyError(key)
        self._holds[key] = self._holds.get(key, 0) + 1

    def unhold(self, key: int, /) -> None:
        """Give back a lease."""
        if self._holds[key] == 1:
            del self._holds[key]
        else:
            self._holds[key] -= 1

    def place(self, key: int, place: Place, /) -> None:
        """Move an object, as if it were used there; what was a victim is not known any more."""
        before, units = self._at[key]
        if before is place:
            return
        self._orders[before].remove(key)
        used_s = self._used[before].pop(key)
        del self._at[key]
        if place is not Place.GONE:
            self._orders[place].insert(key)
            self._at[key] = (place, units)
            self._used[place][key] = used_s

    def forget(self, key: int, /) -> None:
        """Take an object out."""
        if key in self._at:
            self.place(key, Place.GONE)
            self._holds.pop(key, None)

    def tick(self, now_s: float, steps_max: int, /) -> bool:
        """Change nothing: the orders know no time."""
        return False

    def victims(self, place: Place, need_units: int, below: Below | None = None, /) -> list[Victim]:
        """Pop from the order. What leaves DDR goes to the tier below if there is one, whatever its worth."""
        order = self._orders[place]
        chosen: list[Victim] = []
        held: list[int] = []
        freed = 0
        to = Place.NVME if below is not None and place is Place.DDR else Place.GONE
        while freed < need_units and len(order):
            key = order.pop()
            if key in self._holds:
                held.append(key)
                continue
            _, units = self._at.pop(key)
            used_s = self._used[place].pop(key)
            freed += units
            chosen.append(Victim(key, units, to))
            if to is Place.NVME:
                self._orders[to].insert(key)
                self._at[key] = (to, units)
                self._used[to][key] = used_s
        for key in held:
            order.insert(key)
        return chosen

    def least(self, place: Place, /) -> Least | None:
        """Tell of what was used longest ago, whoever the order has leave first."""
        used = self._used[place]
        return Least(None, next(iter(used.values()))) if used else None

    def prefetch(self, key: int, /) -> list[int]:
        """Return nothing: chains mean nothing to it."""
        return []
