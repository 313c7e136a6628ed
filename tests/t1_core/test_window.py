"""Which bytes a window leaves behind: whole pages of tokens that slid out, and nothing else; against sets of single numbers."""

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvd.format import window
from kvd.format.errors import LayoutError
from kvd.format.layout import parse_declaration
from kvd.format.model import Contents, DType, Tensor
from kvd.format.plan import contents_of
from kvd.format.ranges import both, joined, total, whole, without
from support.formatted import DIM, HEADS, KINDS, LAYERS, LAYOUT, TOKENS

some = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=6).map(joined)


def numbers(ranges):
    return {number for start, end in ranges for number in range(start, end)}


def check_form(ranges):
    assert all(start < end for start, end in ranges)
    assert all(before[1] < after[0] for before, after in itertools.pairwise(ranges))


@given(some, some, st.integers(1, 9))
@settings(deadline=None)
def test_ranges_are_the_sets_that_they_stand_for(one, other, unit):
    for found, expected in (
        (both(one, other), numbers(one) & numbers(other)),
        (without(one, other), numbers(one) - numbers(other)),
        (joined((*one, *other)), numbers(one) | numbers(other)),
    ):
        check_form(found)
        assert numbers(found) == expected
        assert total(found) == len(expected)
    units = {each for each in range(60) if all(each // unit * unit + at in numbers(one) for at in range(unit))}
    assert numbers(whole(one, unit)) == units
    check_form(whole(one, unit))


arrays = st.builds(
    lambda planes, token_bytes, gap: (planes, token_bytes, gap), st.integers(1, 4), st.integers(1, 5), st.integers(0, 7)
)


@st.composite
def layouts(draw):
    tokens, at, made = draw(st.integers(0, 12)), draw(st.integers(0, 9)), []
    for planes, token_bytes, gap in draw(st.lists(arrays, min_size=1, max_size=3)):
        made.append(window.TokenArray(offset=at, planes=planes, tokens=tokens, token_bytes=token_bytes))
        at += planes * tokens * token_bytes + gap
    return window.Layout(arrays=tuple(made))


def bytes_of(layout, token):
    return {
        array.offset + plane * array.plane_bytes + token * array.token_bytes + at
        for array in layout.arrays
        for plane in range(array.planes)
        for at in range(array.token_bytes)
    }


@given(layouts(), st.integers(0, 13), st.integers(0, 13), st.integers(1, 8))
@settings(deadline=None, max_examples=300)
def test_what_slides_out_is_whole_pages_of_tokens_that_nobody_needs(layout, trailing, sink, page_bytes):
    slid = window.slid_out(layout, window=trailing, sink=sink, page_bytes=page_bytes)
    check_form(slid)
    gone = range(sink, layout.tokens - trailing) if trailing else range(0)
    free = {byte for token in gone for byte in bytes_of(layout, token)}
    pages = {byte for byte in free if all(byte // page_bytes * page_bytes + at in free for at in range(page_bytes))}
    assert numbers(slid) == pages


@given(layouts(), st.lists(st.tuples(st.integers(0, 200), st.integers(0, 200)), max_size=4).map(joined))
@settings(deadline=None, max_examples=300)
def test_a_token_is_valid_when_none_of_its_bytes_was_given_back(layout, given_back):
    gone = numbers(given_back)
    expected = {token for token in range(layout.tokens) if not bytes_of(layout, token) & gone}
    found = window.valid(layout, given_back)
    check_form(found)
    assert numbers(found) == expected


@given(layouts(), st.integers(1, 13), st.integers(0, 13), st.integers(1, 8))
@settings(deadline=None)
def test_what_a_window_needs_stays_valid(layout, trailing, sink, page_bytes):
    slid = window.slid_out(layout, window=trailing, sink=sink, page_bytes=page_bytes)
    needed = set(range(min(sink, layout.tokens))) | set(range(max(0, layout.tokens - trailing), layout.tokens))
    assert needed <= numbers(window.valid(layout, slid))


def test_tokens_that_are_appended_do_not_count_before_they_are_whole():
    layout = window.appended(1000, 64)
    assert layout.tokens == 15
    assert window.valid(layout, ((64, 65),)) == ((0, 1), (2, 15))


def test_a_namespace_declares_where_tokens_are():
    row = HEADS * DIM * 2
    assert window.declared(parse_declaration(LAYOUT), LAYERS * 2 * TOKENS * row) == window.Layout(
        arrays=(window.TokenArray(offset=0, planes=2 * LAYERS, tokens=TOKENS, token_bytes=row),)
    )
    growing = parse_declaration(f"fp16 tokens heads={HEADS} dim={DIM} header=100")
    assert window.is_appended(growing)
    assert window.declared(growing, 100 + 5 * row + 7).arrays[0] == window.TokenArray(
        offset=100, planes=1, tokens=5, token_bytes=row
    )
    assert not window.is_appended(parse_declaration(LAYOUT))
    assert not window.is_appended(parse_declaration("fp16 tokens=8 dim=4"))
    with pytest.raises(LayoutError):
        window.declared(parse_declaration(LAYOUT), 1000)


@pytest.mark.parametrize("kind", ["safetensors", "npy"])
def test_a_header_says_the_shapes_and_somebody_else_which_axis_the_tokens_are(kind):
    stored = KINDS[kind]()
    contents = contents_of(stored.content[: stored.header_bytes], len(stored.content))
    assert contents is not None
    row = HEADS * DIM * 2
    text = f"fp16 tokens heads={HEADS} dim={DIM}" if kind == "safetensors" else LAYOUT
    for said in ({"declaration": parse_declaration(text)}, {"token_bytes": 2 * LAYERS * row}):
        found = window.of_contents(contents, **said)
        assert found.tokens == TOKENS
        assert [array.token_bytes for array in found.arrays] == [row] * len(found.arrays)
        assert sum(array.planes for array in found.arrays) == 2 * LAYERS
        assert found.arrays[0].offset == stored.header_bytes
        for token in (0, 7, TOKENS - 1):  # the bytes of a token are where numpy has them
            flat = b"".join(
                stored.content[at : at + row]
                for array in found.arrays
                for at in range(array.offset + token * row, array.offset + array.planes * TOKENS * row, TOKENS * row)
            )
            assert flat == tokens_of(kind)[:, :, token].tobytes()
    with pytest.raises(LayoutError):
        window.of_contents(contents)


def tokens_of(kind):
    return KINDS[kind]().values().astype("<f2").reshape(LAYERS, 2, TOKENS, HEADS, DIM)


def tensor(shape, *, offset=0, width=2):
    return Tensor(
        name="x", dtype=DType.FP16, shape=shape, offset=offset, length=math.prod(shape) * width, floating=True
    )


@pytest.mark.parametrize(
    ("shapes", "token_bytes"),
    [
        ([(8, 8)], 16),  # two axes are as long as there are tokens
        ([(8, 5)], 7),  # no whole tokens
        ([(8, 5), (9, 5)], 10),  # seventeen tokens by the bytes: no axis is as long
    ],
)
def test_an_axis_that_is_not_sure_is_none(shapes, token_bytes):
    contents = Contents(source="safetensors", header_bytes=0, tensors=tuple(tensor(shape) for shape in shapes))
    with pytest.raises(LayoutError):
        window.of_contents(contents, token_bytes=token_bytes)


def test_an_object_in_too_many_runs_keeps_what_slid_out():
    contents = Contents(source="npy", header_bytes=0, tensors=(tensor((window.PLANES_MAX + 1, 3, 2)),))
    declaration = parse_declaration(f"fp16 layers={window.PLANES_MAX + 1} tokens dim=2")
    with pytest.raises(LayoutError):
        window.of_contents(contents, declaration=declaration)


def test_a_transposed_array_is_cut_along_its_tokens():
    contents = Contents(source="npy", header_bytes=0, tensors=(tensor((6, 10)),))
    found = window.of_contents(contents, declaration=parse_declaration("fp16 dim=6 tokens"))
    assert found.arrays == (window.TokenArray(offset=0, planes=6, tokens=10, token_bytes=2),)
