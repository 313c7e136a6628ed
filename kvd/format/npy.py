"""The header of an npy file, which may be anything. Pure.

Magic, version, the length of the header, and a Python literal; what is read here is only what numpy itself writes, so that
nothing has to be evaluated: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
"""

from __future__ import annotations

import math
import re

from kvd.format.errors import (
    MalformedHeaderError,
    MisplacedTensorError,
    NotDeclaredError,
    OversizedHeaderError,
    TruncatedHeaderError,
)
from kvd.format.model import Contents, DType, Tensor
from kvd.format.safetensors import AXES_MAX, WIDTHS

MAGIC = b"\x93NUMPY"
FIXED_BYTES = 12
"""Magic, version and the longer of the two lengths."""
HEADER_BYTES_MAX = 65536
DIGITS_MAX = 18
"""Of a length in a shape."""

_LENGTH_BYTES = {1: 2, 2: 4, 3: 4}
_HEADER = re.compile(
    r"\{'descr': '(?P<descr>[<>|=]?[a-zA-Z]\d{0,4})', 'fortran_order': (?P<fortran>True|False), "
    r"'shape': \((?P<shape>[0-9, ]*)\), ?\} *\n"
)
_KNOWN: dict[str, tuple[DType, bool]] = {
    "<f2": (DType.FP16, True),
    "<f4": (DType.WORDS, False),
    "<f8": (DType.DOUBLES, False),
    "<i2": (DType.FP16, False),
    "<u2": (DType.FP16, False),
    "|V2": (DType.FP16, False),
    "<i4": (DType.WORDS, False),
    "<u4": (DType.WORDS, False),
    "<i8": (DType.DOUBLES, False),
    "<u8": (DType.DOUBLES, False),
    "|i1": (DType.BYTES, False),
    "|u1": (DType.BYTES, False),
    "|b1": (DType.BYTES, False),
}


def header_bytes(first: bytes, size: int) -> int:
    """Return how many bytes of a file, from its begin, `read` needs.

    Parameters
    ----------
    first
        The first 12 bytes of the file, or more.
    size
        Of the file, in bytes.

    Raises
    ------
    NotDeclaredError
        If this is no npy file.
    MalformedHeaderError
        If it has a version that there is not.
    OversizedHeaderError
        If the header is longer than kvd looks at.
    TruncatedHeaderError
        If the file ends within it.
    """
    if not first.startswith(MAGIC):
        raise NotDeclaredError("no npy header")
    if len(first) < FIXED_BYTES:
        raise TruncatedHeaderError("the file ends in its npy header")
    at = len(MAGIC)
    length_bytes = _LENGTH_BYTES.get(first[at])
    if length_bytes is None:
        raise MalformedHeaderError(f"npy version {first[at]}")
    begin = at + 2 + length_bytes
    length = int.from_bytes(first[at + 2 : begin], "little")
    if length > HEADER_BYTES_MAX:
        raise OversizedHeaderError(f"an npy header of {length} bytes, more than {HEADER_BYTES_MAX}")
    if begin + length > size:
        raise TruncatedHeaderError(f"an npy header of {length} bytes in a file of {size}")
    return begin + length


def read(head: bytes, size: int) -> Contents:
    """Return what an npy file says of itself; an array in Fortran order has its shape turned round.

    Parameters
    ----------
    head
        The file's begin: as many bytes as `header_bytes` says.
    size
        Of the file, in bytes.

    Raises
    ------
    HeaderError
        One of its kinds: the file can't be used as npy.
    """
    end = header_bytes(head, size)
    if len(head) < end:
        raise TruncatedHeaderError("the header was not read whole")
    begin = len(MAGIC) + 2 + _LENGTH_BYTES[head[len(MAGIC)]]
    try:
        found = _HEADER.fullmatch(head[begin:end].decode("ascii"))
    except UnicodeDecodeError as error:
        raise MalformedHeaderError("an npy header that is not ASCII") from error
    if found is None:
        raise MalformedHeaderError("an npy header that numpy does not write")
    shape = _shape(found["shape"])
    dtype, floating = _KNOWN.get(found["descr"], (None, False))
    if dtype is not None and math.prod(shape) * WIDTHS[dtype] != size - end:
        raise MisplacedTensorError(f"{size - end} bytes, not what shape and dtype come to")
    tensor = Tensor(
        name="",
        dtype=dtype,
        shape=tuple(reversed(shape)) if found["fortran"] == "True" else shape,
        offset=end,
        length=size - end,
        floating=floating,
    )
    return Contents(source="npy", header_bytes=end, tensors=(tensor,) if tensor.length else ())


def _shape(text: str) -> tuple[int, ...]:
    lengths = [part.strip() for part in text.split(",")]
    if lengths[-1] == "":
        lengths.pop()
    if len(lengths) > AXES_MAX or not all(part.isdigit() and len(part) <= DIGITS_MAX for part in lengths):
        raise MalformedHeaderError("an npy shape that makes no sense")
    return tuple(int(part) for part in lengths)
