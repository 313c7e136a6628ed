"""How a card can fail, by name."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvdriver._wire import Batch
    from kvdriver.device import Completion


class FaultKind(enum.Enum):
    """What is wrong with a card; the value is what status and metrics call it."""

    UNUSABLE = "unusable"
    """It can't be opened: nobody is there, it is no kvd card, or of another interface."""
    GONE = "gone"
    """Registers read as all ones, the other process hung up, or its memory is not there any more."""
    TIMEOUT = "timeout"
    """A command, or a register, was not answered within its deadline."""
    BAD_COMPLETION = "bad-completion"
    """A completion that no honest card writes: unknown id, unknown status, lying phase."""
    REMOVED = "removed"
    """Somebody wants the device back: the request interrupt."""
    FAULTED = "faulted"
    """It says so itself, with a syndrome."""
    RESET = "reset"
    """Somebody else has reset it: it takes no commands until it is set up again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interrupted:
    """How far a submission had come when its card failed.

    Attributes
    ----------
    completions
        Of its first commands.
    batch
        The commands that were given to the card and not all completed; None: a TRANSLATE that is to be asked again.
    sequence
        Of the tables before the batch's first command.
    """

    completions: list[Completion]
    batch: Batch | None
    sequence: int


class DeviceFault(Exception):  # noqa: N818  the driver's word for it
    """A card failed; nothing is known of what it does from now on.

    Attributes
    ----------
    kind
        Which fault.
    interrupted
        The submission that met it, if one did.
    """

    def __init__(self, kind: FaultKind, message: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.interrupted: Interrupted | None = None
