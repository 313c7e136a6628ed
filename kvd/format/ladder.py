"""The ladder: which format an object deserves at its age. Pure.

Going down a step is done when an object is written to NVMe anyway, or has aged since; never back up, for what a lossy step took
does not come back.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from kvd.format.model import Kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """From an age on, in ageing ticks since the last access, K and V are kept in these formats."""

    age_ticks: int
    keys: Kind
    values: Kind


RANK = {Kind.RAW: 0, Kind.ZSTD: 1, Kind.E4M3: 2, Kind.E5M2: 2, Kind.INT8: 2, Kind.INT4: 3}
"""Steps of the ladder, by size: formats of one rank have the same size, so that going from one to another gains nothing."""


class Ladder:
    """Steps with growing age, each smaller than the one before.

    Parameters
    ----------
    steps
        In the order of their ages; none: everything is kept as it is.

    Raises
    ------
    ValueError
        If ages do not grow, a step is larger than the one before it, or changes nothing but the loss.
    """

    def __init__(self, steps: tuple[Step, ...]) -> None:
        for earlier, later in pairwise(steps):
            if later.age_ticks <= earlier.age_ticks:
                raise ValueError(f"a step at {later.age_ticks} ticks follows one at {earlier.age_ticks}")
            for before, after in ((earlier.keys, later.keys), (earlier.values, later.values)):
                if before is not after and RANK[after] <= RANK[before]:
                    raise ValueError(f"{after.name} after {before.name} loses quality and gains no room")
        if steps and steps[0].age_ticks < 0:
            raise ValueError("an age is negative")
        if any(Kind.ZEROS in {step.keys, step.values} for step in steps):
            raise ValueError("zeros are no format to choose")
        self._steps = steps

    def __repr__(self) -> str:
        return f"<Ladder {' '.join(f'{s.age_ticks}:{s.keys.name}/{s.values.name}' for s in self._steps) or 'raw'}>"

    def step(self, age_ticks: int) -> Step:
        """Return the step of an object of this age."""
        found = Step(age_ticks=0, keys=Kind.RAW, values=Kind.RAW)
        for step in self._steps:
            if step.age_ticks > age_ticks:
                break
            found = step
        return found

    def next(self, age_ticks: int, keys: Kind, values: Kind) -> Step | None:
        """Return the step to take for an object that is kept in these formats; None: it stays as it is."""
        step = self.step(age_ticks)
        down = RANK[step.keys] >= RANK[keys] and RANK[step.values] >= RANK[values]
        gains = RANK[step.keys] > RANK[keys] or RANK[step.values] > RANK[values]
        return step if down and gains else None
