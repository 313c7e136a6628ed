"""Which axis of a tensor is which: said by a namespace, or guessed from a shape. Pure.

A lossy format's scale is shared by 64 tokens of one channel, so it matters which axis the tokens are. A wrong guess costs
quality, which is measured and shown; what comes back has the right shape and dtype all the same.
"""

from __future__ import annotations

import enum
import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvd.format.errors import LayoutError
from kvd.format.model import CHANNELS_MAX, DType, Kind, Region, Role

if TYPE_CHECKING:
    from collections.abc import Callable

AXES_MAX = 16
LENGTH_MAX = 1 << 40
"""Of a declared axis or header."""
ARRAY_BYTES_MIN = 4096
"""A smaller array is kept exact: its scales would be most of it."""
KV_LENGTH = 2
KV_AXES_MIN = 3
"""A tensor of fewer axes has none that K and V lie side by side on."""
WIDE_BYTES = 2


class Axis(enum.StrEnum):
    """What an axis counts."""

    LAYERS = "layers"
    BATCH = "batch"
    KV = "kv"
    BLOCKS = "blocks"
    """Of tokens: beside `TOKENS`, with which it is one axis."""
    TOKENS = "tokens"
    HEADS = "heads"
    DIM = "dim"


@dataclass(frozen=True, slots=True, kw_only=True)
class Declaration:
    """What a namespace says that its objects hold.

    Attributes
    ----------
    axes
        From the slowest to the fastest, each with its length; None: as many as fit the object (of one axis at most).
    header_bytes
        Before the array, kept exact.
    """

    dtype: DType
    axes: tuple[tuple[Axis, int | None], ...]
    header_bytes: int = 0

    def shape(self, size: int) -> tuple[int, ...]:
        """Return the shape of an object of `size` bytes.

        Raises
        ------
        LayoutError
            If the object has another size than any of this declaration.
        """
        known = math.prod(length for _, length in self.axes if length is not None) * WIDE_BYTES
        body = size - self.header_bytes
        if body <= 0 or body % known:
            raise LayoutError(f"{size} bytes are not what the namespace declares")
        if all(length is not None for _, length in self.axes) and body != known:
            raise LayoutError(f"{size} bytes, not the {known + self.header_bytes} that the namespace declares")
        return tuple(body // known if length is None else length for _, length in self.axes)

    def token_end(self, tokens: int) -> int | None:
        """Return where the first so many tokens of an object end, in bytes; None where they do not lie one after the other."""
        for at, (axis, length) in enumerate(self.axes):
            if axis is Axis.TOKENS:
                rest = [each for _, each in self.axes[at + 1 :] if each is not None]
                if len(rest) < len(self.axes) - at - 1:
                    return None
                return self.header_bytes + tokens * math.prod(rest) * WIDE_BYTES
            if axis is not Axis.BLOCKS and length != 1:
                return None
        return None


def parse_declaration(text: str) -> Declaration:
    """Return what a namespace's sentence means, such as ``fp16 kv=2 tokens heads=8 dim=128``.

    The first word is the dtype (``fp16``, ``bf16``), the others are the axes, with their lengths but for one at most, and
    ``header=BYTES`` where the array does not begin with the object.

    Raises
    ------
    LayoutError
        With what is wrong in it.
    """
    words = text.split()
    dtypes = {"fp16": DType.FP16, "bf16": DType.BF16}
    if not words or words[0] not in dtypes:
        raise LayoutError(f"{text!r} does not begin with fp16 or bf16")
    axes: list[tuple[Axis, int | None]] = []
    header = 0
    for word in words[1:]:
        found = re.fullmatch(r"([a-z]+)(?:=([0-9]{1,13}))?", word)
        if found is None or (found[2] is not None and not int(found[2]) <= LENGTH_MAX):
            raise LayoutError(f"{word!r} is no axis")
        if found[1] == "header" and found[2] is not None:
            header = int(found[2])
            continue
        try:
            axes.append((Axis(found[1]), None if found[2] is None else int(found[2])))
        except ValueError:
            raise LayoutError(f"{found[1]!r} is no axis; there are {', '.join(Axis)}") from None
    _check_axes(axes)
    return Declaration(dtype=dtypes[words[0]], axes=tuple(axes), header_bytes=header)


def _check_axes(axes: list[tuple[Axis, int | None]]) -> None:
    names = [axis for axis, _ in axes]
    if len(axes) > AXES_MAX or len(set(names)) != len(names):
        raise LayoutError("an axis is there twice")
    if Axis.TOKENS not in names:
        raise LayoutError("no axis is the tokens'")
    if Axis.BLOCKS in names and abs(names.index(Axis.BLOCKS) - names.index(Axis.TOKENS)) != 1:
        raise LayoutError("blocks and tokens are not beside each other")
    if any(length == 0 for _, length in axes) or sum(length is None for _, length in axes) > 1:
        raise LayoutError("the lengths of all axes but one must be said, and none is 0")
    if dict(axes).get(Axis.KV, KV_LENGTH) != KV_LENGTH:
        raise LayoutError("the axis kv has a length of 2")


def guess_axes(shape: tuple[int, ...], role: Role = Role.OTHER) -> tuple[Axis, ...] | None:
    """Return what the axes of a tensor that declares itself probably are; None: it is no array of tokens.

    The last axis is never the tokens'. The first, of length 2, is K and V, or else the second behind one that is longer than
    1; not so in a tensor whose name says that it is one of the two: there it is two heads. Of the rest the longest are the
    tokens, the first of several.
    """
    if len(shape) < 2:  # noqa: PLR2004 (tokens and channels)
        return None
    axes = [Axis.HEADS] * len(shape)
    axes[-1] = Axis.DIM
    inner = list(range(len(shape) - 1))
    if role is Role.OTHER and len(shape) >= KV_AXES_MIN and KV_LENGTH in shape[:2] and shape[0] > 1:
        kv = shape[:2].index(KV_LENGTH)
        axes[kv] = Axis.KV
        inner.remove(kv)
    axes[max(inner, key=lambda axis: (shape[axis], -axis))] = Axis.TOKENS
    return tuple(axes)


_KEYS = re.compile(r"(?:^|[^a-z])(?:k|keys?)(?:[^a-z]|$)")
_VALUES = re.compile(r"(?:^|[^a-z])(?:v|values?)(?:[^a-z]|$)")


def role_of_name(name: str) -> Role:
    """Return whose values a tensor of this name has: of K, of V, or nobody knows."""
    lower = name.lower()
    keys, values = _KEYS.search(lower) is not None, _VALUES.search(lower) is not None
    if keys == values:
        return Role.OTHER
    return Role.KEYS if keys else Role.VALUES


def array_regions(
    offset: int,
    dtype: DType,
    shape: tuple[int, ...],
    axes: tuple[Axis, ...],
    *,
    role: Role,
    kind_of: Callable[[Role], Kind],
    regions_max: int,
) -> list[Region]:
    """Return the regions of a tensor: one, or of K and V in turns where they lie side by side.

    Parameters
    ----------
    offset
        Of the tensor in the object, in bytes.
    role
        Whose values it has if no axis says so.
    kind_of
        The format for a role.
    regions_max
        A tensor that would have more is one region, of nobody.

    Raises
    ------
    LayoutError
        If it can't be cut into arrays [tokens][channels], or is not worth it.
    """
    places = [at for at, axis in enumerate(axes) if axis in {Axis.BLOCKS, Axis.TOKENS}]
    first, after = places[0], places[-1] + 1
    tokens, channels = math.prod(shape[first:after]), math.prod(shape[after:])
    if channels > CHANNELS_MAX:
        raise LayoutError(f"{channels} channels, more than {CHANNELS_MAX}")
    if tokens * channels * WIDE_BYTES < ARRAY_BYTES_MIN:
        raise LayoutError(f"arrays of {tokens * channels * WIDE_BYTES} bytes are not worth it")

    def region(at: int, of: Role, arrays: int) -> Region:
        length = arrays * tokens * channels * WIDE_BYTES
        return Region(
            offset=at,
            length=length,
            kind=kind_of(of),
            dtype=dtype,
            role=of,
            arrays=arrays,
            tokens=tokens,
            channels=channels,
        )

    kv = axes.index(Axis.KV) if Axis.KV in axes else len(axes)
    if kv > first or (pairs := math.prod(shape[:kv])) * KV_LENGTH > regions_max:
        return [region(offset, role, math.prod(shape[:first]))]
    inner = math.prod(shape[kv + 1 : first])
    found: list[Region] = []
    for _ in range(pairs):
        for of in (Role.KEYS, Role.VALUES):
            found.append(region(found[-1].end if found else offset, of, inner))
    return found
