"""What files say of themselves: the real libraries' files, and anything else that may stand there."""

import io
import json
import math
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvd.format import npy, safetensors
from kvd.format.errors import (
    HeaderError,
    MalformedHeaderError,
    MisplacedTensorError,
    NotDeclaredError,
    OversizedHeaderError,
    TruncatedHeaderError,
)
from kvd.format.model import DType

WIDTHS = {"F16": 2, "BF16": 2, "F32": 4, "F64": 8, "I64": 8, "U8": 1}


def pack(header, data=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def entry(dtype="F16", shape=(2, 3), begin=0, end=12):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}


def read(reader, file):
    needed = reader.header_bytes(file[:64], len(file))
    assert needed <= len(file)
    return reader.read(file[:needed], len(file))


# -- safetensors ---------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.sampled_from(sorted(WIDTHS)), st.lists(st.integers(0, 5), max_size=4)), max_size=6))
@settings(deadline=None)
def test_safetensors_gives_back_what_was_written(tensors):
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for number, (dtype, shape) in enumerate(tensors):
        end = at + math.prod(shape) * WIDTHS[dtype]
        header[f"t{number}"] = entry(dtype, shape, at, end)
        at = end
    file = pack(header, bytes(at))
    contents = read(safetensors, file)
    assert contents.header_bytes == len(file) - at
    found = {tensor.name: tensor for tensor in contents.tensors}
    for number, (dtype, shape) in enumerate(tensors):
        if length := math.prod(shape) * WIDTHS[dtype]:
            tensor = found.pop(f"t{number}")
            assert (tensor.shape, tensor.length) == (tuple(shape), length)
            assert tensor.floating == (dtype in {"F16", "BF16"})
    assert not found


@pytest.mark.parametrize(
    ("header", "data_bytes", "error"),
    [
        ({"a": entry(end=13)}, 13, MisplacedTensorError),  # not what the shape comes to
        ({"a": entry(begin=4, end=16)}, 16, MisplacedTensorError),  # a gap
        ({"a": entry(), "b": entry(begin=6, end=18)}, 18, MisplacedTensorError),  # an overlap
        ({"a": entry(), "b": entry()}, 12, MisplacedTensorError),
        ({"a": entry()}, 11, TruncatedHeaderError),
        ({"a": entry()}, 13, MisplacedTensorError),  # bytes after the last tensor
        ({"a": entry(begin=12, end=0)}, 12, MisplacedTensorError),
        ({"a": entry(begin=-12, end=0)}, 12, MisplacedTensorError),
        ({"a": entry(shape=(2**62, 2**62), end=2**125)}, 12, TruncatedHeaderError),  # beyond 64 bits, and consistent
        ({"a": entry(shape=(-2, -3))}, 12, MalformedHeaderError),
        ({"a": entry(shape=[1] * 15 + [2, 3])}, 12, MalformedHeaderError),
        ({"a": entry(shape=(2.5, 3))}, 12, MalformedHeaderError),
        ({"a": {"dtype": "F16", "shape": [2, 3]}}, 12, MalformedHeaderError),
        ({"a": {**entry(), "more": 1}}, 12, MalformedHeaderError),
        ({"a": [1, 2]}, 12, MalformedHeaderError),
        ({str(n): entry(shape=(0,), end=0) for n in range(safetensors.TENSORS_MAX + 1)}, 0, OversizedHeaderError),
        (b"{not json", 12, MalformedHeaderError),
        (b'{"a":' * 5000, 12, MalformedHeaderError),  # deep
        (b'{"\xff": 1}', 12, MalformedHeaderError),
        (b"[1, 2]", 12, NotDeclaredError),
    ],
)
def test_safetensors_that_make_no_sense(header, data_bytes, error):
    with pytest.raises(error):
        read(safetensors, pack(header, bytes(data_bytes)))


@pytest.mark.parametrize(
    ("first", "size", "error"),
    [
        (b"", 0, NotDeclaredError),
        (struct.pack("<Q", 2) + b"[]", 10, NotDeclaredError),
        (struct.pack("<Q", 100) + b"{", 50, TruncatedHeaderError),
        (struct.pack("<Q", (16 << 20) + 1) + b"{", 1 << 30, OversizedHeaderError),
        (struct.pack("<Q", 1 << 63) + b"{", 1 << 62, NotDeclaredError),
    ],
)
def test_how_much_of_a_safetensors_file_is_read(first, size, error):
    with pytest.raises(error):
        safetensors.header_bytes(first, size)


def test_a_dtype_that_kvd_does_not_know_is_only_a_place():
    contents = read(safetensors, pack({"a": entry("F4", (3, 5), 0, 8)}, bytes(8)))
    assert (contents.tensors[0].dtype, contents.tensors[0].length) == (None, 8)


# -- npy -----------------------------------------------------------------------------------------------------------


def saved(array):
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


@given(
    st.lists(st.integers(0, 4), max_size=4),
    st.sampled_from(["<f2", "<f4", "<f8", "<i8", "|u1", "<c8", "<U3"]),
    st.booleans(),
)
@settings(deadline=None)
def test_npy_gives_back_what_numpy_wrote(shape, dtype, fortran):
    array = np.zeros(shape, dtype=dtype, order="F" if fortran else "C")
    file = saved(array)
    contents = read(npy, file)
    if not array.nbytes:
        assert contents.tensors == ()
        return
    (tensor,) = contents.tensors
    assert (tensor.offset, tensor.length) == (len(file) - array.nbytes, array.nbytes)
    turned = not array.flags.c_contiguous  # numpy's word for "Fortran order" in the header
    assert tensor.shape == (tuple(reversed(shape)) if turned else tuple(shape))
    assert tensor.floating == (dtype == "<f2")


def npy_file(text, data_bytes=12, version=1):
    length = struct.pack("<H" if version == 1 else "<I", len(text))
    return b"\x93NUMPY" + bytes([version, 0]) + length + text + bytes(data_bytes)


GOOD = b"{'descr': '<f2', 'fortran_order': False, 'shape': (2, 3), }\n"


def test_npy_of_each_version():
    for version in (1, 2, 3):
        (tensor,) = read(npy, npy_file(GOOD, version=version)).tensors
        assert (tensor.shape, tensor.dtype) == ((2, 3), DType.FP16)


@pytest.mark.parametrize(
    ("file", "error"),
    [
        (b"\x93NUMPX" + bytes(20), NotDeclaredError),
        (b"\x93NUMPY\x01", TruncatedHeaderError),
        (npy_file(GOOD, version=9), MalformedHeaderError),
        (npy_file(GOOD)[:40], TruncatedHeaderError),
        (npy_file(GOOD, data_bytes=11), MisplacedTensorError),
        (npy_file(GOOD, data_bytes=13), MisplacedTensorError),
        (npy_file(GOOD.replace(b"(2, 3)", b"(2, -3)")), MalformedHeaderError),
        (npy_file(GOOD.replace(b"(2, 3)", b"(2, , 3)")), MalformedHeaderError),
        (npy_file(GOOD.replace(b"(2, 3)", b"(" + b"9" * 30 + b",)")), MalformedHeaderError),
        (npy_file(GOOD.replace(b"(2, 3)", b"(999999999999999999, 999999999999999999)")), MisplacedTensorError),
        (npy_file(GOOD.replace(b"(2, 3)", b"(" + b"1, " * 20 + b")")), MalformedHeaderError),
        (npy_file(GOOD.replace(b"False", b"__import__('os')")), MalformedHeaderError),
        (npy_file(GOOD.replace(b"<f2", b"<f\xb2")), MalformedHeaderError),
        (npy_file(b" " * 70000, version=2), OversizedHeaderError),
    ],
)
def test_npy_that_makes_no_sense(file, error):
    with pytest.raises(error):
        read(npy, file)


@given(st.binary(max_size=200), st.integers(0, 2**63), st.sampled_from([b"", b"\x93NUMPY", pack({"a": entry()})]))
@settings(deadline=None, max_examples=500)
def test_whatever_stands_there(junk, size, begin):
    head = begin + junk
    for reader in (safetensors, npy):
        for claimed in (size, len(head)):
            try:
                contents = reader.read(head, claimed)
            except HeaderError:
                continue
            assert contents.header_bytes + sum(tensor.length for tensor in contents.tensors) <= claimed
