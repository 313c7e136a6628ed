"""How often the kernel holds on to an inode: each answer with an entry adds one, FORGET takes some away."""

from __future__ import annotations


class Lookups:
    """Reference counts by inode number."""

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}

    def __repr__(self) -> str:
        return f"<Lookups known={len(self._counts)}>"

    def __contains__(self, ino: int) -> bool:
        return ino in self._counts

    def add(self, ino: int, count: int = 1) -> None:
        """Count answers with this inode's entry."""
        self._counts[ino] = self._counts.get(ino, 0) + count

    def forget(self, ino: int, count: int) -> bool:
        """Take references away; whether none is left."""
        left = self._counts.pop(ino, 0) - count
        if left > 0:
            self._counts[ino] = left
        return left <= 0
