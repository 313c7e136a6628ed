"""Blocks on NVMe that hold the copies of objects whose present pages are in DDR: those are stored twice, and are one object."""

from __future__ import annotations


class Beside:
    """Counts them.

    Attributes
    ----------
    blocks
        The sum.
    """

    def __init__(self) -> None:
        self._slots: dict[int, dict[int, int]] = {}
        self.blocks = 0

    def __repr__(self) -> str:
        return f"<Beside blocks={self.blocks}>"

    def put(self, session: int, slot: int, blocks: int) -> None:
        """Say what a copy's slot of an object in DDR is charged now."""
        slots = self._slots.setdefault(session, {})
        self.blocks += blocks - slots.pop(slot, 0)
        if blocks:
            slots[slot] = blocks
        elif not slots:
            del self._slots[session]

    def add(self, session: int, slot: int, blocks: int) -> None:
        """Say that a copy's slot is charged so much more."""
        self.put(session, slot, self._slots.get(session, {}).get(slot, 0) + blocks)

    def drop(self, session: int) -> None:
        """Say that an object has no pages any more."""
        self.blocks -= sum(self._slots.pop(session, {}).values())
