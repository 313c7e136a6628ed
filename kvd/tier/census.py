"""Which objects in memory are in which state, kept as they change: nobody looks through all of them to find a few."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvd.tier.plane import Mode
from kvdriver import Tier

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvd.tier.live import Live
    from kvd.tier.worth import Worth

_ALL = "all"


class Census:
    """Counts the objects of `by_ino`; told by each `Live` of what has changed.

    Attributes
    ----------
    attached
        Those that the data plane serves.
    sampled
        Those of them that the kernel writes, or reads holes of, by itself.
    unsealed, streaming
        By `Live.sealed` and `Live.streaming`.
    resident
        Numbers of those in DDR.
    dirty
        Numbers of those whose sealed bytes are only there.
    blocks
        4 KiB blocks that objects have in DDR, or reserved there, by their top directories (`Live.top`).
    worth
        Hears of each change.
    """

    def __init__(self, by_ino: Mapping[int, Live]) -> None:
        self._by_ino = by_ino
        self.attached: dict[int, Live] = {}
        self.sampled: dict[int, Live] = {}
        self.unsealed: dict[int, Live] = {}
        self.streaming: dict[int, Live] = {}
        self.resident: set[int] = set()
        self.dirty: set[int] = set()
        self.blocks: dict[int, int] = {}
        self.worth: Worth | None = None

    def __repr__(self) -> str:
        return f"<Census {len(self._by_ino)} objects, {len(self.resident)} in ddr, {len(self.attached)} attached>"

    def add(self, live: Live) -> None:
        """Count an object that has come into memory."""
        self.note(live, _ALL)

    def forget(self, live: Live) -> None:
        """Count one no longer that has left it."""
        for some in (self.attached, self.sampled, self.unsealed, self.streaming):
            some.pop(live.ino, None)
        self.resident.discard(live.ino)
        self.dirty.discard(live.ino)
        self._charge(live, live.top, 0)
        if self.worth is not None:
            self.worth.left(live)

    def note(self, live: Live, what: str) -> None:
        """Count an object as it is now, after a change of one of its attributes (`kvd.tier.live.COUNTED`)."""
        match what:
            case "mode" | "ddr_fd":
                self._plane(live)
            case "streaming":
                _keep(self.streaming, live, wanted=live.streaming is not None)
            case "copy":
                self._dirty(live)
            case "readers" | "writers" | "pinned" | "held":
                pass
            case "mapped_blocks" | "reserved_blocks" | "top":
                self._charge(live, live.top, live.ddr_blocks)
            case _:
                _keep(self.unsealed, live, wanted=not live.sealed)
                _mark(self.resident, live, wanted=live.tier is Tier.DDR)
                self._dirty(live)
                self._charge(live, live.top, live.ddr_blocks)
                if what == _ALL:
                    self._plane(live)
        if self.worth is not None:
            self.worth.noted(live, what)

    def _charge(self, live: Live, top: int, blocks: int) -> None:
        """Bring the sums up to date with what an object has."""
        if live.counted == (top, blocks):
            return
        for which, more in ((live.counted[0], -live.counted[1]), (top, blocks)):
            left = self.blocks.pop(which, 0) + more
            if left:
                self.blocks[which] = left
        live.counted = (top, blocks)

    def _plane(self, live: Live) -> None:
        _keep(self.attached, live, wanted=live.mode is not None)
        _keep(self.sampled, live, wanted=live.mode is Mode.PASSTHROUGH and live.ddr_fd >= 0)

    def _dirty(self, live: Live) -> None:
        _mark(self.dirty, live, wanted=live.tier is Tier.DDR and live.sealed and not live.damaged and not live.clean)


def _keep(some: dict[int, Live], live: Live, *, wanted: bool) -> None:
    if wanted:
        some[live.ino] = live
    else:
        some.pop(live.ino, None)


def _mark(some: set[int], live: Live, *, wanted: bool) -> None:
    if wanted:
        some.add(live.ino)
    else:
        some.discard(live.ino)
