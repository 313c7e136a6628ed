"""Where the engine's commands are executed, for those who ask."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineState:
    """Where commands are executed, and why there.

    Attributes
    ----------
    wanted
        The card that should execute them.
    transport
        What does.
    reason
        Why it is not the card; empty if it is.
    since_s
        Since when, in seconds since 1970.
    faults
        How often the card failed, by kind.
    replayed
        Commands that a failed card had been given and that were executed elsewhere.
    taken_back
        How often the card was taken back.
    losses
        What the repair of the tables had to give up, a sentence each: the last ones.
    losses_count
        Of all of them.
    """

    wanted: str
    transport: str
    degraded: bool
    since_s: float
    reason: str = ""
    faults: dict[str, int] = field(default_factory=dict)
    replayed: int = 0
    taken_back: int = 0
    losses: tuple[str, ...] = ()
    losses_count: int = 0
