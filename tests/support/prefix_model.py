"""What a prefix index must do, in a plain dictionary."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvdriver import PrefixInsert, PrefixMatch, PrefixRemove

POSITIONS_MAX = 1 << 47
HASHES_MAX = 1024
HASH_BYTES = frozenset({8, 16, 24, 32})

Name = tuple[int, int, bytes]
"""Namespace, position in the chain, hash of the chain up to there."""


class PrefixModel:
    """`holder` says which session has a block; arguments have been looked at with `sound`."""

    def __init__(self) -> None:
        self.holder: dict[Name, int] = {}

    @staticmethod
    def sound(command: PrefixInsert | PrefixMatch | PrefixRemove) -> bool:
        return (
            all(len(block) in HASH_BYTES for block in command.hashes)
            and len(command.hashes) <= HASHES_MAX
            and command.first < POSITIONS_MAX
            and command.first + len(command.hashes) <= POSITIONS_MAX
        )

    @staticmethod
    def _names(command: PrefixInsert | PrefixMatch | PrefixRemove) -> Iterator[Name]:
        for number, block in enumerate(command.hashes, start=command.first):
            yield command.namespace, number, block

    def insert(self, command: PrefixInsert) -> int:
        """Return how many blocks were absent."""
        absent = [name for name in self._names(command) if name not in self.holder]
        self.holder.update(dict.fromkeys(absent, command.session))
        return len(absent)

    def match(self, command: PrefixMatch) -> tuple[int, int]:
        """Return how many blocks are there, and who has the last of them."""
        found = 0
        last = 0
        for name in self._names(command):
            if name not in self.holder:
                break
            found, last = found + 1, self.holder[name]
        return found, last

    def remove(self, command: PrefixRemove) -> int:
        """Return how many blocks were removed."""
        names = [
            name for name in self._names(command) if name in self.holder and command.session in {0, self.holder[name]}
        ]
        for name in names:
            del self.holder[name]
        return len(names)

    def drop(self, session: int) -> None:
        """Forget what a session has."""
        self.holder = {name: holder for name, holder in self.holder.items() if holder != session}
