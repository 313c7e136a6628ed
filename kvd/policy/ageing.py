"""What an ageing policy is: told what happens to objects, asked which leave a tier.

The daemon and ``kvctl replay`` use the same policies through this one interface. A *key* names an object: a block's hash, or an
inode. *Units* are what an object takes of a tier; the caller chooses the unit (a block, 4 KiB) and keeps to it.

A victim has left its tier for the policy from the moment it is named; `Policy.place` brings back one that could not go.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

KEY_MAX = 2**64 - 1


class Place(enum.IntEnum):
    """Where an object is; the numbers are those of csrc/policy/policy.h."""

    DDR = 0
    NVME = 1
    GONE = 2
    """In no tier; a policy may remember it."""


class Hint(enum.IntEnum):
    """What a client said of a chain: evidence that may be wrong."""

    NONE = 0
    RELEASE = 1
    """Not needed soon."""
    KEEP = 2
    """It will be needed."""
    RESUME = 3
    """It is needed now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """A request read or made these objects; all of them are in DDR now.

    Attributes
    ----------
    now_s
        When, in seconds of the caller's clock, which does not go back.
    keys
        A chain of objects: from its root on, or from below `parent`.
    units
        Of each; one unit each if it is None.
    parent
        The object before the first one; None at the root.
    output_tokens
        Length of the answer; 0 if it is not known.
    density
        What it costs to make a unit of it anew, relative to others.
    partial
        The last object is not full: a continuation will have another one in its place.
    hint
        What the client says of the chain.
    """

    now_s: float
    keys: Sequence[int]
    units: Sequence[int] | None = None
    parent: int | None = None
    output_tokens: int = 0
    density: float = 1.0
    partial: bool = False
    hint: Hint = Hint.NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class Below:
    """The tier below DDR.

    Attributes
    ----------
    room_units
        What it can take without letting something go.
    reuse_min
        Probability of another use from which on an object is worth writing there.
    """

    room_units: int
    reuse_min: float = 0.0


class Victim(NamedTuple):
    """An object that leaves its tier. A tuple, because there are very many."""

    key: int
    units: int
    to: int
    """A `Place`."""


class Seed(NamedTuple):
    """An object that is there already, as a start finds it.

    `used_s` is when it was last used, by the clock of `Access.now_s`; `below` is what it hangs on, if that is known.
    """

    key: int
    units: int
    place: int
    """A `Place` that holds bytes."""
    used_s: float
    below: int | None = None


class Least(NamedTuple):
    """What would leave a tier first: so policies that share a tier are compared.

    `worth` is the expected hits for each unit and second; None where the policy knows none. `used_s` is when it was last used.
    """

    worth: float | None
    used_s: float


class Policy(Protocol):
    """Decides what stays where. One thread at a time; nothing waits or asks the clock."""

    def access(self, access: Access, /) -> None:
        """Take note of a request.

        Raises
        ------
        ValueError
            If it makes no sense.
        OSError
            ENOSPC: the policy knows as many objects in tiers as it can.
        """

    def use(self, now_s: float, keys: Sequence[int], units: Sequence[int], /) -> None:
        """Take note of uses that somebody else has counted: of each object alone, or of a chain where one goes on from another.

        What is not known is new; all are in DDR now.

        Raises
        ------
        OSError
            As `access`; from there on they are not taken note of.
        """

    def seed(self, now_s: float, seeds: Sequence[Seed], /) -> None:
        """Take note of what is there since before the start, what was used longest ago first; what is known stays as it is.

        Raises
        ------
        OSError
            As `use`.
        """

    def hint(self, key: int, hint: Hint, now_s: float, /) -> None:
        """Take note of what a client says of the chain that ends at an object, which need not be known."""

    def hold(self, key: int, /) -> None:
        """Take note of a lease: the object and what it hangs on are no victims until `unhold`.

        Raises
        ------
        KeyError
            If the object is not known.
        """

    def unhold(self, key: int, /) -> None:
        """Give back a lease."""

    def place(self, key: int, place: Place, /) -> None:
        """Take note of where an object is now.

        Raises
        ------
        KeyError
            If the object is not known.
        """

    def forget(self, key: int, /) -> None:
        """Take note that an object was deleted; it need not be known."""

    def tick(self, now_s: float, steps_max: int, /) -> bool:
        """Let objects age, in at most so many steps of a microsecond at most; tell whether more are due."""

    def victims(self, place: Place, need_units: int, below: Below | None = None, /) -> list[Victim]:
        """Choose what leaves a tier, the least worth first, until so much is freed; it may be less.

        Where the victims of DDR go is chosen, too: to the tier `below`, or nowhere.
        """

    def least(self, place: Place, /) -> Least | None:
        """Tell of what would leave a tier first; None if nothing may."""

    def prefetch(self, key: int, /) -> list[int]:
        """Return those of the chain that ends at an object which are in NVMe and worth a place in DDR, root first."""
