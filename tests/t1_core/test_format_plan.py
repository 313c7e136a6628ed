"""Plans: every byte once, headers untouched, lossy only what is known and asked for."""

import json
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvd.format.errors import LayoutError
from kvd.format.ladder import Ladder, Step
from kvd.format.layout import Axis, guess_axes, parse_declaration, role_of_name
from kvd.format.model import UNITS_MAX, DType, Kind, Role
from kvd.format.plan import CAREFUL, Policy, head_bytes, plan

INT8 = Policy(keys=Kind.INT8, values=Kind.INT8)
MIXED = Policy(keys=Kind.INT8, values=Kind.INT4)


def safetensors(tensors):
    """The begin of a file, and its size; tensors are (name, dtype, shape)."""
    header, at = {}, 0
    for name, dtype, shape in tensors:
        count = {"F16": 2, "BF16": 2, "F32": 4}[dtype]
        for length in shape:
            count *= length
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + count]}
        at += count
    text = json.dumps(header).encode()
    head = struct.pack("<Q", len(text)) + text
    return head, len(head) + at


def check(planned, size):
    at = 0
    for region in planned.regions:
        assert region.offset == at
        assert region.length > 0
        at = region.end
        if region.tokens:
            assert region.length == region.arrays * region.tokens * region.channels * 2
        if region.kind.lossy:
            assert region.tokens
            assert region.dtype.wide
    assert at == size


kinds = st.sampled_from(list(CAREFUL))
lengths = st.integers(0, 9) | st.sampled_from([2, 64, 300, 9000])
shapes = st.lists(lengths, max_size=5)


@given(
    st.lists(st.tuples(st.sampled_from(["k", "v", "x"]), st.sampled_from(["F16", "BF16", "F32"]), shapes), max_size=5),
    kinds,
    kinds,
    st.binary(max_size=4),
)
@settings(deadline=None, max_examples=400)
def test_any_file_gets_a_plan(tensors, keys, values, extra):
    head, size = safetensors([(f"{n}.{name}", dtype, shape) for n, (name, dtype, shape) in enumerate(tensors)])
    policy = Policy(keys=keys, values=values)
    needed = head_bytes(head[:64], size)
    assert needed == len(head)
    planned = plan(head, size, policy)
    check(planned, size)
    plain = policy.exact is Kind.RAW and not (keys.lossy or values.lossy)
    assert planned.source == ("opaque" if plain or "more parts" in planned.reason else "safetensors")
    for region in planned.regions:
        if region.offset < needed:
            assert not region.kind.lossy
            assert region.end <= needed or planned.source == "opaque"
        if region.kind.lossy:
            assert region.kind in {keys, values}
    # A byte more, and it is nobody's.
    planned = plan(head, size + len(extra) + 1, policy)
    check(planned, size + len(extra) + 1)
    assert (planned.source, planned.lossy) == ("opaque", False)


@given(st.binary(max_size=100), st.integers(0, 1 << 50), kinds)
@settings(deadline=None)
def test_what_does_not_declare_itself_is_opaque(head, size, kind):
    size = max(size, len(head))
    planned = plan(head, size, Policy(keys=kind, values=kind))
    check(planned, size)
    assert not planned.lossy
    assert planned.source == "opaque"
    assert all(region.kind is (Kind.RAW if kind is Kind.RAW else Kind.ZSTD) for region in planned.regions)


def test_keys_and_values_are_told_apart():
    head, size = safetensors([("layers.0.keys", "F16", (1, 3, 1200, 64)), ("layers.0.values", "F16", (1, 3, 1200, 64))])
    header, keys, values = plan(head, size, MIXED).regions
    assert header.kind is Kind.ZSTD
    assert (keys.role, keys.kind, keys.arrays, keys.tokens, keys.channels) == (Role.KEYS, Kind.INT8, 3, 1200, 64)
    assert (values.role, values.kind) == (Role.VALUES, Kind.INT4)
    head, size = safetensors([("kv_cache", "BF16", (2, 500, 8, 128))])
    _, keys, values = plan(head, size, MIXED).regions
    assert [(r.role, r.kind, r.tokens, r.channels) for r in (keys, values)] == [
        (Role.KEYS, Kind.INT8, 500, 1024),
        (Role.VALUES, Kind.INT4, 500, 1024),
    ]
    # What may be either gets the more careful format.
    head, size = safetensors([("x", "F16", (500, 1024))])
    assert plan(head, size, MIXED).regions[1].kind is Kind.INT8


def test_two_heads_are_not_keys_and_values():
    head, size = safetensors([("layers.0.values", "F16", (2, 2, 1200, 64))])
    _, values = plan(head, size, MIXED).regions
    assert (values.role, values.kind, values.arrays) == (Role.VALUES, Kind.INT4, 4)


def test_what_is_too_wide_or_too_small_stays_exact_and_says_so():
    for shape in ((64, 8193), (4, 16)):
        head, size = safetensors([("k", "F16", shape)])
        planned = plan(head, size, INT8)
        assert not planned.lossy
        assert planned.reason.startswith("k: ")
        assert planned.regions[1].dtype is DType.FP16  # planes of two bytes all the same


def test_more_parts_than_there_may_be():
    head, size = safetensors([("k", "F16", (UNITS_MAX + 1, 64, 32, 1))])
    planned = plan(
        head, size, Policy(keys=Kind.INT8, values=Kind.INT8, axes=(Axis.LAYERS, Axis.HEADS, Axis.TOKENS, Axis.DIM))
    )
    assert not planned.lossy  # arrays of 64 bytes
    head, size = safetensors([("k", "F16", (UNITS_MAX + 1, 64, 32))])
    planned = plan(head, size, Policy(keys=Kind.INT8, values=Kind.INT8, axes=(Axis.LAYERS, Axis.TOKENS, Axis.DIM)))
    check(planned, size)
    assert (planned.source, planned.lossy) == ("opaque", False)
    assert "more parts" in planned.reason


def test_a_declared_object():
    declared = parse_declaration("fp16 layers=4 kv=2 tokens heads=8 dim=64 header=100")
    policy = Policy(keys=Kind.INT8, values=Kind.E4M3, declaration=declared)
    size = 100 + 4 * 2 * 300 * 8 * 64 * 2
    planned = plan(b"x" * 64, size, policy)
    check(planned, size)
    assert planned.source == "namespace"
    assert [r.kind for r in planned.regions] == [Kind.ZSTD] + [Kind.INT8, Kind.E4M3] * 4
    assert {(r.tokens, r.channels) for r in planned.regions[1:]} == {(300, 512)}
    planned = plan(b"x" * 64, size + 2, policy)
    assert (planned.source, planned.lossy) == ("opaque", False)
    # A file that declares itself is believed before the namespace.
    head, size = safetensors([("k", "BF16", (500, 64))])
    assert plan(head, size, policy).source == "safetensors"


def test_tokens_in_blocks_are_one_axis():
    declared = parse_declaration("bf16 kv=2 blocks tokens=16 heads=4 dim=64")
    size = 2 * 50 * 16 * 256 * 2
    planned = plan(b"", size, Policy(keys=Kind.INT8, values=Kind.INT8, declaration=declared))
    assert [(r.arrays, r.tokens, r.channels) for r in planned.regions] == [(1, 800, 256)] * 2


@pytest.mark.parametrize(
    "text",
    [
        "",
        "fp32 tokens",
        "fp16",
        "fp16 dim=64",
        "fp16 tokens tokens dim=4",
        "fp16 tokens dim",
        "fp16 tokens=0 dim=4",
        "fp16 kv=3 tokens dim=4",
        "fp16 blocks kv=2 tokens=16 dim=4",
        "fp16 tokens dim=99999999999999",
        "fp16 tokens width=4",
        "fp16 tokens dim=-4",
        "fp16 header tokens dim=4",
    ],
)
def test_declarations_that_make_no_sense(text):
    with pytest.raises(LayoutError):
        parse_declaration(text)


@pytest.mark.parametrize(
    ("shape", "tokens", "kv"),
    [
        ((1, 3, 1200, 64), 2, None),  # transformers
        ((2, 256, 8, 128), 1, 0),  # vLLM, a layer
        ((32, 2, 256, 1024), 2, 1),  # LMCache
        ((256, 1024), 0, None),
        ((2, 64, 64), 1, 0),
        ((1, 2, 1200, 64), 2, None),  # two heads
        ((2, 64), 0, None),
        ((7,), None, None),
    ],
)
def test_axes_are_guessed(shape, tokens, kv):
    axes = guess_axes(shape)
    if tokens is None:
        assert axes is None
        return
    assert axes.index(Axis.TOKENS) == tokens
    assert (axes.index(Axis.KV) if Axis.KV in axes else None) == kv


@pytest.mark.parametrize(
    ("name", "role"),
    [
        ("layers.3.keys", Role.KEYS),
        ("model.layers.0.self_attn.v", Role.VALUES),
        ("K", Role.KEYS),
        ("value_cache_7", Role.VALUES),
        ("kv_cache", Role.OTHER),
        ("weights", Role.OTHER),
        ("k_and_v", Role.OTHER),
        ("token", Role.OTHER),
    ],
)
def test_roles_by_name(name, role):
    assert role_of_name(name) is role


# -- the ladder ----------------------------------------------------------------------------------------------------


def step(age, keys, values=None):
    return Step(age_ticks=age, keys=keys, values=keys if values is None else values)


def test_a_ladder_goes_down_only():
    ladder = Ladder((step(0, Kind.ZSTD), step(10, Kind.INT8), step(50, Kind.INT8, Kind.INT4)))
    assert ladder.step(0).keys is Kind.ZSTD
    assert ladder.next(9, Kind.ZSTD, Kind.ZSTD) is None
    assert ladder.next(10, Kind.ZSTD, Kind.ZSTD) == step(10, Kind.INT8)
    assert ladder.next(10, Kind.INT8, Kind.INT8) is None
    assert ladder.next(99, Kind.INT8, Kind.INT8) == step(50, Kind.INT8, Kind.INT4)
    assert ladder.next(10, Kind.INT4, Kind.INT4) is None, "what is lost does not come back"
    assert ladder.next(10, Kind.E4M3, Kind.E4M3) is None, "nothing is gained by another 8 bits"
    assert Ladder(()).next(10**9, Kind.RAW, Kind.RAW) is None


@pytest.mark.parametrize(
    "steps",
    [
        (step(5, Kind.ZSTD), step(5, Kind.INT8)),
        (step(0, Kind.INT8), step(5, Kind.E4M3)),
        (step(0, Kind.INT8), step(5, Kind.ZSTD)),
        (step(-1, Kind.INT8),),
        (step(0, Kind.ZEROS),),
    ],
)
def test_ladders_that_make_no_sense(steps):
    with pytest.raises(ValueError):  # noqa: PT011 (which of the three is said in words)
        Ladder(steps)
