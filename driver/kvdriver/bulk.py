"""Many commands of one kind as one sequence: made only where somebody looks at one, packed without being made.

A start adopts a million objects; at some ten microseconds for each command and its completion it would take twenty seconds,
packed like this a few. To a device it is a sequence of commands as any other.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, TypeAlias, overload

from kvdriver.abi import CMD, MAP_RUN, Op, Tier
from kvdriver.commands import Command, Map, MapRun, SessionCreate

if TYPE_CHECKING:
    from typing import Any, Self

Charge: TypeAlias = tuple[int, int, int]
"""First page, pages, 4 KiB blocks a page: a `MapRun` without its object."""

_RUN_BYTES: Final = MAP_RUN.size


class Bulk(Sequence[Command]):
    """Commands of one kind that no completion brings a buffer back for."""

    __slots__ = ()

    @property
    def buffers_bytes(self) -> int:
        """What the buffers of all take."""
        return 0

    @abstractmethod
    def pack(self, request: Any, buffers: Any, address: int) -> None:
        """Write the commands, and what they read.

        Parameters
        ----------
        request
            Memory of the commands.
        buffers
            Memory of the buffers, `buffers_bytes` long, that the device has at `address`.

        Raises
        ------
        struct.error
            If a number does not fit its field.
        """

    @abstractmethod
    def command(self, number: int) -> Command:
        """Make one of them."""

    @abstractmethod
    def part(self, numbers: slice) -> Self:
        """Make a sequence of some of them."""

    @overload
    def __getitem__(self, index: int) -> Command: ...

    @overload
    def __getitem__(self, index: slice) -> Self: ...

    def __getitem__(self, index: int | slice) -> Command | Self:
        if isinstance(index, slice):
            return self.part(index)
        return self.command(range(len(self))[index])


class Creates(Bulk):
    """A `SessionCreate` for each of `keys`."""

    __slots__ = ("_keys",)

    def __init__(self, keys: Sequence[int]) -> None:
        self._keys = keys

    def __len__(self) -> int:
        return len(self._keys)

    def command(self, number: int) -> SessionCreate:
        """Make one of them."""
        return SessionCreate(key=self._keys[number])

    def part(self, numbers: slice) -> Creates:
        """Make a sequence of some of them."""
        return Creates(self._keys[numbers])

    def pack(self, request: Any, buffers: Any, address: int) -> None:
        """See `Bulk.pack`."""
        del buffers, address
        pack, create = CMD.pack, Op.SESSION_CREATE.value
        request[:] = b"".join(
            [pack(number, create, 0, 0, 0, 0, 0, 0, 0, key, 0, 0) for number, key in enumerate(self._keys)]
        )


class Maps(Bulk):
    """A `Map` into `slot` and `tier` for each of `places`: a session, and the charges of its pages."""

    __slots__ = ("_places", "_slot", "_tier")

    def __init__(self, slot: int, tier: Tier, places: Sequence[tuple[int, Sequence[Charge]]]) -> None:
        self._slot = slot
        self._tier = tier
        self._places = places

    def __len__(self) -> int:
        return len(self._places)

    @property
    def buffers_bytes(self) -> int:
        """What the buffers of all take."""
        return _RUN_BYTES * sum([len(charges) for _, charges in self._places])

    def command(self, number: int) -> Map:
        """Make one of them."""
        session, charges = self._places[number]
        runs = tuple(MapRun(first_page=first, count=count, blocks=blocks) for first, count, blocks in charges)
        return Map(session=session, slot=self._slot, tier=self._tier, runs=runs)

    def part(self, numbers: slice) -> Maps:
        """Make a sequence of some of them."""
        return Maps(self._slot, self._tier, self._places[numbers])

    def pack(self, request: Any, buffers: Any, address: int) -> None:
        """See `Bulk.pack`."""
        pack, pack_run, place = CMD.pack, MAP_RUN.pack, Op.MAP.value
        slot, tier = self._slot, self._tier.value
        commands: list[bytes] = []
        runs: list[bytes] = []
        for number, (session, charges) in enumerate(self._places):
            size = _RUN_BYTES * len(charges)
            where = address + _RUN_BYTES * len(runs) if size else 0
            commands.append(pack(number, place, 0, session, slot, 0, tier, 0, len(charges), 0, where, size))
            runs += [pack_run(first, count, blocks, 0) for first, count, blocks in charges]
        request[:] = b"".join(commands)
        if runs:
            buffers[:] = b"".join(runs)
