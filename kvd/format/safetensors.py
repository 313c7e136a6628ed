"""The header of a safetensors file, which may be anything. Pure.

A file is the length of its header (u64), the header, a JSON object of tensors, and their bytes without gaps or overlaps:
https://huggingface.co/docs/safetensors. Its BF16 is what npy lacks.
"""

from __future__ import annotations

import math

import msgspec

from kvd.format.errors import (
    MalformedHeaderError,
    MisplacedTensorError,
    NotDeclaredError,
    OversizedHeaderError,
    TruncatedHeaderError,
)
from kvd.format.model import Contents, DType, Tensor

LENGTH_BYTES = 8
HEADER_BYTES_MAX = 16 << 20
"""safetensors itself allows 100 MB; a cache has some tensors a layer."""
TENSORS_MAX = 8192
AXES_MAX = 16
METADATA = "__metadata__"

_KNOWN: dict[str, tuple[DType, bool]] = {
    "F16": (DType.FP16, True),
    "BF16": (DType.BF16, True),
    "F32": (DType.WORDS, False),
    "F64": (DType.DOUBLES, False),
    "I16": (DType.FP16, False),
    "U16": (DType.FP16, False),
    "I32": (DType.WORDS, False),
    "U32": (DType.WORDS, False),
    "I64": (DType.DOUBLES, False),
    "U64": (DType.DOUBLES, False),
    "C64": (DType.DOUBLES, False),
    "I8": (DType.BYTES, False),
    "U8": (DType.BYTES, False),
    "BOOL": (DType.BYTES, False),
    "F8_E4M3": (DType.BYTES, False),
    "F8_E5M2": (DType.BYTES, False),
    "F8_E8M0": (DType.BYTES, False),
}
"""Elements by their width, and whether lossy formats are for them. Of others (less than a byte each) only the place is known."""
WIDTHS = {DType.BYTES: 1, DType.FP16: 2, DType.BF16: 2, DType.WORDS: 4, DType.DOUBLES: 8}


class _Entry(msgspec.Struct, forbid_unknown_fields=True):
    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


_header = msgspec.json.Decoder(dict[str, msgspec.Raw])
_entry = msgspec.json.Decoder(_Entry)


def header_bytes(first: bytes, size: int) -> int:
    """Return how many bytes of a file, from its begin, `read` needs.

    Parameters
    ----------
    first
        The first 9 bytes of the file, or more.
    size
        Of the file, in bytes.

    Raises
    ------
    NotDeclaredError
        If this can't be a safetensors file.
    OversizedHeaderError
        If the header is longer than kvd looks at.
    TruncatedHeaderError
        If the file ends within it.
    """
    if len(first) <= LENGTH_BYTES or first[LENGTH_BYTES : LENGTH_BYTES + 1] != b"{":
        raise NotDeclaredError("no safetensors header")
    length = int.from_bytes(first[:LENGTH_BYTES], "little")
    # A length of which the upper half is set is nobody's: chance, in a file of something else.
    if length >> 32:
        raise NotDeclaredError("no safetensors header")
    if length > HEADER_BYTES_MAX:
        raise OversizedHeaderError(f"a safetensors header of {length} bytes, more than {HEADER_BYTES_MAX}")
    if length > size - LENGTH_BYTES:
        raise TruncatedHeaderError(f"a safetensors header of {length} bytes in a file of {size}")
    return LENGTH_BYTES + length


def read(head: bytes, size: int) -> Contents:
    """Return what a safetensors file says of itself.

    Parameters
    ----------
    head
        The file's begin: as many bytes as `header_bytes` says.
    size
        Of the file, in bytes.

    Raises
    ------
    HeaderError
        One of its kinds: the file can't be used as safetensors.
    """
    end = header_bytes(head, size)
    if len(head) < end:
        raise TruncatedHeaderError("the header was not read whole")
    try:
        entries = _header.decode(head[LENGTH_BYTES:end])
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise MalformedHeaderError(f"safetensors header: {error}") from error
    entries.pop(METADATA, None)
    if len(entries) > TENSORS_MAX:
        raise OversizedHeaderError(f"{len(entries)} tensors, more than {TENSORS_MAX}")
    tensors = sorted((_tensor(name, raw, end) for name, raw in entries.items()), key=lambda t: (t.offset, t.length))
    at = end
    for tensor in tensors:
        if tensor.offset != at:
            raise MisplacedTensorError(f"tensor {tensor.name!r} is at byte {tensor.offset}, not {at}")
        at += tensor.length
    if at != size:
        kind = TruncatedHeaderError if at > size else MisplacedTensorError
        raise kind(f"the tensors end at byte {at}, the file at {size}")
    return Contents(source="safetensors", header_bytes=end, tensors=tuple(t for t in tensors if t.length))


def _tensor(name: str, raw: msgspec.Raw, data_begin: int) -> Tensor:
    try:
        entry = _entry.decode(raw)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise MalformedHeaderError(f"tensor {name!r}: {error}") from error
    begin, end = entry.data_offsets
    if not 0 <= begin <= end:
        raise MisplacedTensorError(f"tensor {name!r} has the offsets {begin} and {end}")
    if len(entry.shape) > AXES_MAX or any(length < 0 for length in entry.shape):
        raise MalformedHeaderError(f"tensor {name!r} has the shape {entry.shape[: AXES_MAX + 1]}")
    dtype, floating = _KNOWN.get(entry.dtype, (None, False))
    if dtype is not None and math.prod(entry.shape) * WIDTHS[dtype] != end - begin:
        raise MisplacedTensorError(f"tensor {name!r} has {end - begin} bytes, not what its shape and dtype come to")
    return Tensor(
        name=name,
        dtype=dtype,
        shape=tuple(entry.shape),
        offset=data_begin + begin,
        length=end - begin,
        floating=floating,
    )
