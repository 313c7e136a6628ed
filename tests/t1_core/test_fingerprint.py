"""Fingerprints: one canonical text, strict parsing, differences that name every key."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvd.errors import InvalidError
from kvd.policy.fingerprint import KEYS_MAX, TEXT_BYTES_MAX, canonical, decode, differences, from_pairs, parse

KEYS = st.text("abcXYZ019_.-", min_size=1, max_size=64)
VALUES = st.text(min_size=1, max_size=60).filter(lambda text: text.isprintable() and text == text.strip())
PRINTS = st.dictionaries(KEYS, VALUES, max_size=8)


@settings(deadline=None)
@given(PRINTS, st.randoms())
def test_the_canonical_text_does_not_depend_on_the_order(fingerprint, random) -> None:
    items = list(fingerprint.items())
    random.shuffle(items)
    text = canonical(dict(items))
    assert text == canonical(fingerprint)
    assert decode(text) == fingerprint
    assert (text == "") == (not fingerprint)


@settings(deadline=None)
@given(PRINTS)
def test_json_and_lines_mean_the_same(fingerprint) -> None:
    as_lines = "\n".join(f"{key}={value}" for key, value in fingerprint.items())
    as_json = json.dumps(fingerprint, indent=1)
    assert parse(as_lines.encode()) == parse(as_json.encode()) == fingerprint
    assert parse(canonical(fingerprint).encode()) == fingerprint  # what reading gives can be set again


@settings(deadline=None)
@given(PRINTS, PRINTS)
def test_differences_name_each_key_that_differs(here, offered) -> None:
    differ = differences(here, offered)
    keys = [key for key in sorted(here.keys() | offered.keys()) if here.get(key) != offered.get(key)]
    assert [phrase.partition(": ")[0] for phrase in differ] == keys
    assert (differ == []) == (canonical(here) == canonical(offered))


def test_differences_tell_both_values() -> None:
    assert differences({"model": "a", "tp": "8"}, {"model": "b", "dtype": "fp8"}) == [
        "dtype: here missing, offered 'fp8'",
        "model: here 'a', offered 'b'",
        "tp: here '8', offered missing",
    ]


@pytest.mark.parametrize(
    "text",
    [
        b"model",
        b"=x",
        b"model=",
        b"model=a\nmodel=a",
        b'{"model": 1}',
        b'{"model": {"a": "b"}}',
        b'{"model": "a", "model": "a"}',
        b'{"model": "a"',
        b'{"mo del": "a"}',
        b"mod\xff=a",
        b'{"model": "a\\u0000b"}',
        b'{"model": "a\\nb"}',
        b"k" * 65 + b"=a",
        b"k=" + b"v" * 257,
        b"#" * (TEXT_BYTES_MAX + 1),
        b"\n".join(b"key%d=a" % number for number in range(KEYS_MAX + 1)),
    ],
)
def test_what_is_no_fingerprint_is_refused(text) -> None:
    with pytest.raises(InvalidError):
        parse(text)


def test_a_value_may_hold_an_equals_sign() -> None:
    assert from_pairs(["weights=sha256=abc"]) == {"weights": "sha256=abc"}
