"""What a namespace's ladder of formats means, and which texts are none."""

import pytest

from kvd.catalog.records import Namespace
from kvd.errors import InvalidError
from kvd.format.model import DType, Kind
from kvd.policy.formats import Formats, check_layout, formats_of, parse_ladder

HOUR_S = 3600.0


def kinds(text, age_s):
    policy = Formats(text, "").leaving(age_s)
    return policy.keys, policy.values


@pytest.mark.parametrize(
    ("text", "age_s", "expected"),
    [
        ("raw", 1e9, (Kind.RAW, Kind.RAW)),
        ("zstd", 0.0, (Kind.ZSTD, Kind.ZSTD)),
        ("int8/fp8-e4m3", 5.0, (Kind.INT8, Kind.E4M3)),
        ("fp8-e5m2@10s", 9.9, (Kind.RAW, Kind.RAW)),
        ("fp8-e5m2@10s", 10.0, (Kind.E5M2, Kind.E5M2)),
        ("zstd, int8@1h, int4@7d", HOUR_S - 1, (Kind.ZSTD, Kind.ZSTD)),
        ("zstd, int8@1h, int4@7d", HOUR_S, (Kind.INT8, Kind.INT8)),
        ("zstd, int8@60min, int4@7d", 7 * 24 * HOUR_S, (Kind.INT4, Kind.INT4)),
        ("int8,int8/int4@1d", 25 * HOUR_S, (Kind.INT8, Kind.INT4)),
    ],
)
def test_the_age_chooses_the_step(text, age_s, expected):
    assert kinds(text, age_s) == expected


@pytest.mark.parametrize(
    "text",
    [
        "", "fp16", "int8@", "int8@1", "int8@-1s", "int8@1w", "int8/", "int8/int4/int4", "zeros", "INT8", "int8;int4@1d",
        "int8@1h,int4@1h", "int4,int8@1h", "fp8-e4m3,int8@1h", "int8,,int4@1d", "int8@9999999d",
        ",".join(f"int8@{n}s" for n in range(9)), "int8," + " " * 300 + "int4@1d",
    ],
)  # fmt: skip
def test_what_is_no_ladder_is_refused(text):
    with pytest.raises(InvalidError):
        parse_ladder(text)


def test_what_stays_in_ddr_is_never_lossy():
    for text in ("int8", "fp8-e4m3,int4@1h", "zstd", "raw", "zstd,int8@1h"):
        for age_s in (0.0, HOUR_S, 1e9):
            policy = Formats(text, "").staying(age_s)
            assert not policy.keys.lossy
            assert not policy.values.lossy
    assert Formats("zstd", "").staying(0.0).keys is Kind.ZSTD
    assert Formats("int8", "").staying(0.0).keys is Kind.RAW


def test_only_what_gets_smaller_is_written_again():
    formats = Formats("fp8-e4m3,int4@1h", "")
    assert formats.further(0.0, Kind.RAW, Kind.RAW)
    assert not formats.further(0.0, Kind.E4M3, Kind.E4M3)
    assert not formats.further(0.0, Kind.INT8, Kind.INT8), "it is as small, and another loss"
    assert formats.further(HOUR_S, Kind.INT8, Kind.INT8)
    assert not formats.further(0.0, Kind.INT4, Kind.INT4), "what was lost does not come back"


def test_a_layout_is_checked_and_used():
    check_layout("")
    check_layout("fp16 layers=2 kv=2 tokens heads=4 dim=64")
    for text in (
        "fp32 tokens",
        "fp16",
        "fp16 tokens tokens",
        "fp16 tokens x=1",
        "fp16 tokens=0",
        "fp16 tokens " + "a" * 300,
    ):
        with pytest.raises(InvalidError):
            check_layout(text)
    declared = Formats("int8", "bf16 tokens dim=64").leaving(0.0).declaration
    assert declared is not None
    assert declared.dtype is DType.BF16


def test_a_row_that_makes_no_sense_keeps_everything_as_it_is():
    def of(text, layout=""):
        return formats_of(Namespace(1, "", "all", "back", "eio", 1, "file", text, layout))

    assert formats_of(None) is None
    assert of("raw") is None
    assert of("int9") is None
    assert of("int8", "int8") is None
    assert of("int8") is of("int8")
