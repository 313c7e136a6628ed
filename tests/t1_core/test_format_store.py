"""Stored files, from Python: objects as frameworks write them, through csrc/format and back."""

import errno
import io
import json
import os
import struct

import numpy as np
import pytest

from kvd.format._format import lib
from kvd.format.errors import DamagedStoredFileError, NewerStoredFileError, NotStoredFileError
from kvd.format.layout import parse_declaration
from kvd.format.model import DType, Kind, Plan, Region, Role
from kvd.format.plan import Policy
from kvd.format.store import encode, open_stored, plan_file

HEADS, TOKENS, DIM = 3, 500, 64


@pytest.fixture
def files(tmp_path):
    opened = []

    def make(content=b""):
        path = tmp_path / f"{len(opened)}"
        path.write_bytes(content)
        opened.append(os.open(path, os.O_RDWR))
        return opened[-1]

    yield make
    for fd in opened:
        os.close(fd)


def cache(seed=0):
    """K with channels of very different sizes, V without."""
    random = np.random.default_rng(seed)
    keys = random.standard_normal((1, HEADS, TOKENS, DIM)) * np.exp(random.standard_normal(DIM))
    values = random.standard_normal((1, HEADS, TOKENS, DIM))
    return keys.astype("<f2"), values.astype("<f2")


def safetensors(**tensors):
    header, at = {}, 0
    for name, array in tensors.items():
        header[name] = {"dtype": "F16", "shape": array.shape, "data_offsets": [at, at + array.nbytes]}
        at += array.nbytes
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + b"".join(array.tobytes() for array in tensors.values())


def both(kind):
    return Policy(keys=kind, values=kind)


def through(files, content, policy):
    fd, stored_fd, back_fd = files(content), files(), files()
    report = encode(fd, stored_fd, plan_file(fd, policy))
    with open_stored(stored_fd) as stored:
        assert stored.report() == report
        stored.decode(back_fd)
        back = os.pread(back_fd, len(content) + 1, 0)
        for offset, length in ((0, 0), (0, len(content)), (1, 70000), (65535, 2), (len(content), 0)):
            if offset + length > len(content):
                continue
            assert stored.read(offset, length) == back[offset : offset + length]
    assert len(back) == len(content)
    assert report.stored_bytes == os.fstat(stored_fd).st_size
    return report, back


@pytest.mark.parametrize(
    ("kind", "bound", "ratio"),
    [(Kind.E4M3, 0.04, 1.85), (Kind.E5M2, 0.08, 1.85), (Kind.INT8, 0.01, 1.85), (Kind.INT4, 0.2, 3.5)],
)
def test_a_cache_comes_back_as_the_error_says(files, kind, bound, ratio):
    keys, values = cache()
    content = safetensors(keys=keys, values=values)
    report, back = through(files, content, both(kind))
    header = len(content) - keys.nbytes - values.nbytes
    assert back[:header] == content[:header]
    assert report.ratio > ratio
    arrays = {Role.KEYS: (header, keys), Role.VALUES: (header + keys.nbytes, values)}
    for role, (offset, array) in arrays.items():
        given = np.frombuffer(back, "<f2", array.size, offset).astype(np.float64).reshape(array.shape)
        off = given - array.astype(np.float64)
        relative = np.linalg.norm(off) / np.linalg.norm(array.astype(np.float64))
        assert 0 < relative < bound
        error = report.errors[role]
        assert error.relative_l2 == pytest.approx(relative, rel=1e-6)
        assert error.most == np.abs(off).max()
        assert error.values == array.size
    assert Role.OTHER not in report.errors


@pytest.mark.parametrize("kind", [Kind.RAW, Kind.ZSTD])
def test_exact_formats_change_nothing(files, kind):
    keys, values = cache()
    content = safetensors(keys=keys, values=values)
    report, back = through(files, content, both(kind))
    assert back == content
    assert report.errors == {}
    assert report.ratio > (1.1 if kind is Kind.ZSTD else 0.98)


def test_a_namespace_that_is_not_lossy_never_loses(files):
    """Whatever the object is."""
    file = io.BytesIO()
    np.save(file, cache()[0])
    for content in (b"", b"x", os.urandom(200001), file.getvalue(), safetensors(k=cache()[0])):
        report, back = through(files, content, both(Kind.ZSTD))
        assert back == content
        assert report.errors == {}


def test_npy_and_declared_objects(files):
    keys, values = cache()
    file = io.BytesIO()
    np.save(file, keys)
    report, back = through(files, file.getvalue(), both(Kind.INT8))
    assert np.load(io.BytesIO(back)).shape == keys.shape
    assert report.errors[Role.OTHER].values == keys.size
    content = b"head" + keys.tobytes() + values.tobytes()
    declared = parse_declaration(f"fp16 kv=2 heads={HEADS} tokens dim={DIM} header=4")
    report, back = through(files, content, Policy(keys=Kind.INT8, values=Kind.RAW, declaration=declared))
    assert back[:4] == b"head"
    assert back[4 + keys.nbytes :] == values.tobytes()
    assert set(report.errors) == {Role.KEYS}


def test_values_that_are_not_finite_keep_their_bits(files):
    keys, values = cache()
    keys[0, 0, 3, 5], values[0, 2, 400, 1] = np.nan, np.inf
    content = safetensors(keys=keys, values=values)
    report, back = through(files, content, both(Kind.INT8))
    header = len(content) - keys.nbytes - values.nbytes
    given = np.frombuffer(back, "<f2", keys.size, header).reshape(keys.shape)
    assert given[0, 0].tobytes() == keys[0, 0].tobytes()  # the unit: here it is the whole head's array
    assert report.kind_bytes[Kind.INT8] == keys.nbytes + values.nbytes - 2 * TOKENS * DIM * 2
    assert report.errors[Role.KEYS].values == keys.size - TOKENS * DIM


def test_the_words_are_those_of_c():
    for words in (Kind, DType, Role):
        for word in words:
            assert getattr(lib, f"KVD_FORMAT_{word.name}") == word
    assert len(Kind) == lib.KVD_FORMAT_KINDS
    assert len(DType) == lib.KVD_FORMAT_DTYPES


def test_holes_stay_holes(files):
    size = 64 << 20
    fd, stored_fd, back_fd = files(), files(), files()
    os.pwrite(fd, b"x", size - 1)
    report = encode(fd, stored_fd, plan_file(fd, both(Kind.ZSTD)))
    assert report.stored_bytes < 64 << 10
    with open_stored(stored_fd) as stored:
        stored.decode(back_fd)
    assert os.fstat(back_fd).st_size == size
    assert os.fstat(back_fd).st_blocks * 512 < 1 << 20
    assert os.pread(back_fd, 2, size - 2) == b"\0x"


def test_damage_names_the_page(files):
    content = os.urandom(300000)
    fd, stored_fd, back_fd = files(content), files(), files()
    encode(fd, stored_fd, plan_file(fd, both(Kind.RAW)))
    head = os.fstat(stored_fd).st_size - len(content)
    os.pwrite(stored_fd, bytes([content[200000] ^ 1]), head + 200000)
    with open_stored(stored_fd) as stored:
        with pytest.raises(DamagedStoredFileError) as caught:
            stored.decode(back_fd)
        assert (caught.value.page, caught.value.errno) == (200000 // 65536, errno.EBADMSG)
        with pytest.raises(DamagedStoredFileError) as caught:
            stored.read(190000, 20000)
        assert caught.value.page == 3
        assert stored.read(0, 131072) == content[:131072]
        assert stored.read(262144, 10) == content[262144:262154]
        with pytest.raises(OSError, match="read") as refused:
            stored.read(299999, 2)
        assert refused.value.errno == errno.EINVAL


def test_files_that_are_no_stored_files(files):
    content = os.urandom(100)
    fd, stored_fd = files(content), files()
    encode(fd, stored_fd, plan_file(fd, both(Kind.RAW)))
    good = os.pread(stored_fd, 1 << 20, 0)
    cases = {
        b"": NotStoredFileError,
        content: NotStoredFileError,
        good[:-1]: NotStoredFileError,
        good + b"x": NotStoredFileError,
        good[:8] + b"\2" + good[9:]: NewerStoredFileError,
        good[:100] + b"\1" + good[101:]: DamagedStoredFileError,
    }
    for bad, error in cases.items():
        with pytest.raises(error), open_stored(files(bad)):
            pass


def test_a_plan_that_does_not_fit_is_refused(files):
    fd, stored_fd = files(b"x" * 10), files()
    plan = Plan(size=10, regions=(Region(offset=1, length=9, kind=Kind.RAW),), source="opaque")
    with pytest.raises(OSError, match="plan") as caught:
        encode(fd, stored_fd, plan)
    assert caught.value.errno == errno.EINVAL
    longer = Plan(size=11, regions=(Region(offset=0, length=11, kind=Kind.RAW, dtype=DType.BYTES),), source="opaque")
    with pytest.raises(OSError, match="encode") as caught:
        encode(fd, stored_fd, longer)
    assert caught.value.errno == errno.EIO
    with pytest.raises(NotStoredFileError), open_stored(stored_fd):
        pass  # it has no head: nobody takes it for one that is whole
