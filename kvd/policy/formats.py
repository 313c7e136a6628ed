"""A namespace's ladder of formats as people write it, and what it means for an object. Pure.

``int8``: what is written to NVMe is kept in INT8. ``int8/fp8-e4m3``: K in the one, V in the other. ``fp8-e4m3,int4@7d``: FP8, and
INT4 for what was not used for a week. ``raw``, the default: bytes are kept as they are.
"""

from __future__ import annotations

import re
from typing import Protocol

from kvd.errors import InvalidError
from kvd.format.errors import LayoutError
from kvd.format.ladder import Ladder, Step
from kvd.format.layout import parse_declaration
from kvd.format.model import NAMES, RAW, Kind
from kvd.format.plan import Policy

TICK_S = 1.0
"""An ageing tick of a ladder: ages are told in seconds, and nothing depends on less."""
STEPS_MAX = 8
TEXT_CHARS_MAX = 256
LAYOUT_CHARS_MAX = 256
AGE_TICKS_MAX = 10 * 365 * 86400
FORMAT_BYTES_MIN = 16384
"""A smaller object is kept as it is: the head of a stored file has 4 KiB already."""
_KINDS = {name: kind for kind, name in NAMES.items()}
_STEP = re.compile(r"([a-z0-9-]+)(?:/([a-z0-9-]+))?(?:@([0-9]{1,9})(s|min|h|d))?")
_SECONDS = {"s": 1, "min": 60, "h": 3600, "d": 86400}


def parse_ladder(text: str) -> Ladder:
    """Return the ladder that a text means.

    Raises
    ------
    InvalidError
        With what is wrong in it.
    """
    words = text.split(",")
    if len(text) > TEXT_CHARS_MAX or len(words) > STEPS_MAX:
        raise InvalidError(f"a ladder of formats has at most {STEPS_MAX} steps")
    steps = tuple(_step(word.strip()) for word in words)
    if steps == (Step(age_ticks=0, keys=Kind.RAW, values=Kind.RAW),):
        steps = ()
    try:
        return Ladder(steps)
    except ValueError as error:
        raise InvalidError(f"format {text!r}: {error}") from None


def _step(word: str) -> Step:
    found = _STEP.fullmatch(word)
    if found is None:
        raise InvalidError(
            f"{word!r} is no step of a ladder: write FORMAT, K-FORMAT/V-FORMAT or FORMAT@AGE, such as int4@7d"
        )
    keys, values, number, unit = found.groups()
    for name in (keys, values or keys):
        if name not in _KINDS:
            raise InvalidError(f"there is no format {name}; there are {', '.join(_KINDS)}")
    age_ticks = int(int(number) * _SECONDS[unit] / TICK_S) if number else 0
    if age_ticks > AGE_TICKS_MAX:
        raise InvalidError(f"{word!r}: an age of more than ten years")
    return Step(age_ticks=age_ticks, keys=_KINDS[keys], values=_KINDS[values or keys])


def check_layout(text: str) -> None:
    """Refuse what is no declaration of what objects hold; the empty text is none.

    Raises
    ------
    InvalidError
        With what is wrong in it.
    """
    if not text:
        return
    if len(text) > LAYOUT_CHARS_MAX:
        raise InvalidError(f"a layout has at most {LAYOUT_CHARS_MAX} characters")
    try:
        parse_declaration(text)
    except LayoutError as error:
        raise InvalidError(f"layout: {error}") from None


class Formats:
    """What a namespace's policy means; made once for a pair of texts."""

    def __init__(self, ladder: str, layout: str) -> None:
        self.ladder = parse_ladder(ladder)
        self._declaration = parse_declaration(layout) if layout else None

    def __repr__(self) -> str:
        return f"<Formats {self.ladder!r}>"

    def policy(self, step: Step) -> Policy:
        """Return what a plan is made from."""
        return Policy(keys=step.keys, values=step.values, declaration=self._declaration)

    def leaving(self, age_s: float) -> Policy:
        """Return how an object is to be kept that leaves DDR at this age."""
        return self.policy(self.ladder.step(int(age_s / TICK_S)))

    def staying(self, age_s: float) -> Policy:
        """Return how a copy is to be kept of an object that stays in DDR: only what changes nothing is allowed."""
        step = self.ladder.step(int(age_s / TICK_S))
        exact = Kind.ZSTD if Kind.ZSTD in (step.keys, step.values) else Kind.RAW
        return Policy(keys=exact, values=exact)

    def further(self, age_s: float, keys: Kind, values: Kind) -> bool:
        """Whether an object that is kept in these formats is to be kept in smaller ones at this age."""
        return self.ladder.next(int(age_s / TICK_S), keys, values) is not None


_MADE: dict[tuple[str, str], Formats | None] = {}
_MADE_MAX = 256


class Wants(Protocol):
    """What a namespace says of formats."""

    @property
    def format(self) -> str:
        """The ladder."""
        ...

    @property
    def layout(self) -> str:
        """What objects hold that do not say so themselves."""
        ...


def formats_of(namespace: Wants | None) -> Formats | None:
    """Return what a namespace wants; None: everything is kept as it is, also where a row makes no sense."""
    if namespace is None or namespace.format == RAW:
        return None
    key = (namespace.format, namespace.layout)
    if key not in _MADE:
        if len(_MADE) >= _MADE_MAX:
            _MADE.clear()
        try:
            _MADE[key] = Formats(*key)
        except (InvalidError, LayoutError):
            # It was checked before it was stored: the catalogue is damaged, or a newer kvd's.
            _MADE[key] = None
    return _MADE[key]
