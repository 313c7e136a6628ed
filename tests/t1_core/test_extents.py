"""Holes to pages and blocks: against a count of 4 KiB blocks, one by one."""

import itertools
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvd.tier.extents import copy_charges, data_extents, ddr_charges, page_runs, total_blocks
from kvdriver import BLOCK_BYTES

PAGE_BYTES = 65536
PAGE_BLOCKS = PAGE_BYTES // BLOCK_BYTES
FILE_BLOCKS = 8 * PAGE_BLOCKS


def extents_of(blocks, size):
    found = []
    for block in sorted(blocks):
        start, end = block * BLOCK_BYTES, min((block + 1) * BLOCK_BYTES, size)
        if start >= size:
            break
        if found and found[-1][1] == start:
            found[-1] = (found[-1][0], end)
        else:
            found.append((start, end))
    return found


@given(st.sets(st.integers(0, FILE_BLOCKS - 1)), st.integers(0, FILE_BLOCKS * BLOCK_BYTES))
@settings(max_examples=400, deadline=None)
def test_every_block_is_charged_once_to_its_page(blocks, size):
    extents = extents_of(blocks, size)
    expected = {}
    for block in blocks:
        if block * BLOCK_BYTES < size:
            expected[block // PAGE_BLOCKS] = expected.get(block // PAGE_BLOCKS, 0) + 1
    charged = {}
    for charge in ddr_charges(extents, PAGE_BYTES):
        for page in range(charge.first_page, charge.first_page + charge.count):
            assert page not in charged
            charged[page] = charge.blocks
    assert charged == expected
    runs = page_runs(extents, PAGE_BYTES)
    assert [page for first, count in runs for page in range(first, first + count)] == sorted(expected)
    assert all(a[0] + a[1] < b[0] for a, b in itertools.pairwise(runs)), "runs are merged"


def test_a_copy_is_charged_whole_pages_and_a_short_tail():
    size = 3 * PAGE_BYTES + 5000
    charges = copy_charges(((0, 1), (2, 2)), size, PAGE_BYTES)
    assert total_blocks(charges) == 2 * PAGE_BLOCKS + 2
    assert total_blocks(copy_charges((), 10**12, PAGE_BYTES)) == 0


def test_extents_of_a_real_sparse_file(tmp_path):
    path = tmp_path / "sparse"
    with path.open("wb") as file:
        file.truncate(1 << 40)
        file.seek(5 * PAGE_BYTES)
        file.write(b"x" * BLOCK_BYTES)
        file.seek((1 << 40) - 1)
        file.write(b"y")
    fd = os.open(path, os.O_RDONLY)
    try:
        found = data_extents(fd, 1 << 40)
        assert found[0][0] == 5 * PAGE_BYTES
        assert found[-1][1] == 1 << 40
        assert data_extents(fd, 0) == []
    finally:
        os.close(fd)


@pytest.mark.parametrize("size", [0, 1, BLOCK_BYTES, PAGE_BYTES, PAGE_BYTES + 1])
def test_sizes_at_the_edges(size):
    extents = [(0, size)] if size else []
    assert total_blocks(ddr_charges(extents, PAGE_BYTES)) == -(-size // BLOCK_BYTES)
    assert total_blocks(copy_charges(page_runs(extents, PAGE_BYTES), size, PAGE_BYTES)) == -(-size // BLOCK_BYTES)
