"""Which bytes of an object are those of which tokens, and what a sliding window has left behind. Pure.

What is left behind is given up, so nothing is guessed here: somebody has to have said where a token's bytes are. A header says
the shapes; which axis the tokens are its namespace says, or the bytes of a token, which only one axis comes to.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvd.format.errors import LayoutError
from kvd.format.layout import WIDE_BYTES, Axis
from kvd.format.ranges import joined, whole, without

if TYPE_CHECKING:
    from kvd.format.layout import Declaration
    from kvd.format.model import Contents, Tensor
    from kvd.format.ranges import Ranges

PLANES_MAX = 4096
"""Runs of tokens in an object; one with more keeps what slid out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenArray:
    """`planes` arrays of `tokens` tokens of `token_bytes` bytes each, one after the other from byte `offset` on."""

    offset: int
    planes: int
    tokens: int
    token_bytes: int

    @property
    def plane_bytes(self) -> int:
        """The bytes of all tokens in one of them."""
        return self.tokens * self.token_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Where the tokens of an object are; what is in no array is no token's, and stays.

    Attributes
    ----------
    arrays
        In the order of their offsets, with the same tokens each.
    """

    arrays: tuple[TokenArray, ...]

    @property
    def tokens(self) -> int:
        """How many tokens there are."""
        return self.arrays[0].tokens if self.arrays else 0


def _layout(arrays: list[TokenArray]) -> Layout:
    if not arrays:
        raise LayoutError("nothing in it has tokens")
    if len({array.tokens for array in arrays}) > 1:
        raise LayoutError("its arrays have different numbers of tokens")
    if sum(array.planes for array in arrays) > PLANES_MAX:
        raise LayoutError(f"more than {PLANES_MAX} runs of tokens")
    return Layout(arrays=tuple(arrays))


def appended(size: int, token_bytes: int) -> Layout:
    """Return the layout of tokens that are appended from the first byte on; a last one that is not whole does not count."""
    return Layout(arrays=(TokenArray(offset=0, planes=1, tokens=size // token_bytes, token_bytes=token_bytes),))


def is_appended(declaration: Declaration) -> bool:
    """Whether objects of a declaration grow by tokens: these are the slowest axis, and nobody says how many there are."""
    lengths = [length for axis, length in declaration.axes if axis in {Axis.BLOCKS, Axis.TOKENS}]
    return declaration.axes[0][0] in {Axis.BLOCKS, Axis.TOKENS} and None in lengths


def declared(declaration: Declaration, size: int) -> Layout:
    """Return the layout of an object that has no header and that its namespace declares.

    Raises
    ------
    LayoutError
        If `size` bytes are not what is declared.
    """
    first, after = _places(tuple(axis for axis, _ in declaration.axes))
    if is_appended(declaration):
        token_bytes = WIDE_BYTES * math.prod(length or 1 for _, length in declaration.axes[after:])
        tokens = max(0, size - declaration.header_bytes) // token_bytes
        array = TokenArray(offset=declaration.header_bytes, planes=1, tokens=tokens, token_bytes=token_bytes)
        return _layout([array])
    return _layout([_array(declaration.shape(size), first, after, declaration.header_bytes, WIDE_BYTES)])


def of_contents(contents: Contents, *, declaration: Declaration | None = None, token_bytes: int = 0) -> Layout:
    """Return the layout of an object whose header says its shapes.

    Parameters
    ----------
    declaration
        Names the axes of tensors that have as many, of the same lengths where these are said; others have no tokens.
    token_bytes
        The bytes of one token in the whole object, where no `declaration` is given: the axis of each tensor that is as long as
        the object has tokens is theirs.

    Raises
    ------
    LayoutError
        If that does not say of each tensor where its tokens are.
    """
    if declaration is not None:
        axes = tuple(axis for axis, _ in declaration.axes)
        return _layout([_tensor(each, *_places(axes)) for each in contents.tensors if _fits(each, declaration)])
    if not token_bytes:
        raise LayoutError("nobody has said which axis the tokens are")
    tokens, left = divmod(sum(tensor.length for tensor in contents.tensors), token_bytes)
    if left:
        raise LayoutError(f"its tensors are not whole tokens of {token_bytes} bytes")
    arrays: list[TokenArray] = []
    for tensor in contents.tensors:
        places = [at for at, length in enumerate(tensor.shape) if length == tokens]
        if len(places) != 1:
            raise LayoutError(f"{len(places)} axes of {tensor.name or contents.source} are {tokens} long")
        arrays.append(_tensor(tensor, places[0], places[0] + 1))
    return _layout(arrays)


def _places(axes: tuple[Axis, ...]) -> tuple[int, int]:
    """Return where the axes of the tokens begin and end."""
    places = [at for at, axis in enumerate(axes) if axis in {Axis.BLOCKS, Axis.TOKENS}]
    return places[0], places[-1] + 1


def _fits(tensor: Tensor, declaration: Declaration) -> bool:
    lengths = [length for _, length in declaration.axes]
    return len(tensor.shape) == len(lengths) and all(
        want in (None, length) for length, want in zip(tensor.shape, lengths, strict=True)
    )


def _tensor(tensor: Tensor, first: int, after: int) -> TokenArray:
    elements = math.prod(tensor.shape)
    width, left = divmod(tensor.length, elements) if elements else (0, 1)
    if left or not width:
        raise LayoutError(f"{tensor.name or 'a tensor'} has no whole bytes for each element")
    return _array(tensor.shape, first, after, tensor.offset, width)


def _array(shape: tuple[int, ...], first: int, after: int, offset: int, width: int) -> TokenArray:
    return TokenArray(
        offset=offset,
        planes=math.prod(shape[:first]),
        tokens=math.prod(shape[first:after]),
        token_bytes=math.prod(shape[after:]) * width,
    )


def slid_out(layout: Layout, *, window: int, sink: int, page_bytes: int) -> Ranges:
    """Return the bytes of the whole pages that a window has left behind, each of whose bytes is a token's that slid out.

    Parameters
    ----------
    window
        How many trailing tokens are needed; 0: all are.
    sink
        How many of the first are needed.
    page_bytes
        Of a page; offsets are from the object's first byte.
    """
    start, end = sink, layout.tokens - window
    if window <= 0 or end <= start:
        return ()
    begins = (
        (array.offset + plane * array.plane_bytes, array.token_bytes)
        for array in layout.arrays
        for plane in range(array.planes)
    )
    runs = joined((begin + start * token_bytes, begin + end * token_bytes) for begin, token_bytes in begins)
    return whole(runs, page_bytes)


def valid(layout: Layout, given: Ranges) -> Ranges:
    """Return the tokens that are all there.

    Parameters
    ----------
    given
        The bytes of the object that were given back.
    """
    gone: list[tuple[int, int]] = []
    for array in layout.arrays:
        for start, end in given:
            gone += _tokens_of(array, start - array.offset, end - array.offset)
    return without(((0, layout.tokens),) if layout.tokens else (), joined(gone))


def _tokens_of(array: TokenArray, start: int, end: int) -> list[tuple[int, int]]:
    """Return the tokens of an array that have some of its bytes from `start` to `end`."""
    start, end = max(0, start), min(end, array.planes * array.plane_bytes)
    if start >= end:
        return []
    found: list[tuple[int, int]] = []
    for plane in range(start // array.plane_bytes, -(-end // array.plane_bytes)):
        begin = plane * array.plane_bytes
        first = max(0, start - begin) // array.token_bytes
        beyond = -(-min(array.plane_bytes, end - begin) // array.token_bytes)
        found.append((first, beyond))
    return found
