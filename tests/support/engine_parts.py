"""What the model of an engine is made of."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvdriver import State, Status, Tier


class RefusedError(Exception):
    """A command ends with this status."""

    def __init__(self, status: Status, value: int | None = 0) -> None:
        super().__init__(status.name)
        self.status = status
        self.value = value


@dataclass
class Page:
    """A mapped page; `frame` is the model's own name for a frame."""

    tier: Tier
    blocks: int
    frame: int
    generation: int
    used: bool = False
    dirty: bool = False


@dataclass
class Session:
    key: int
    leases: int = 0
    state: State = State.NEW
    window_start: dict[int, int] = field(default_factory=dict)
    reserved: dict[Tier, int] = field(default_factory=dict)
    slots: dict[int, dict[int, Page]] = field(default_factory=dict)

    def pages(self) -> list[Page]:
        return [page for slot in self.slots.values() for page in slot.values()]


@dataclass(frozen=True)
class Expected:
    """`value` is None where the engine is free to choose (the handle of a new session, how frames lie in runs).

    `pages` are those that runs tell of, `old` the frames that they had before, `listed` what a list of pages finds.
    """

    status: Status
    value: int | None = 0
    second: int = 0
    pages: dict[int, Page] = field(default_factory=dict)
    old: dict[int, int] = field(default_factory=dict)
    listed: tuple[Page | None, ...] = ()
