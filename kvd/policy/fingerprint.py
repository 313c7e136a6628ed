"""Fingerprints: what the KV of a namespace was made with, as free keys (model, weights, dtype, layout, tp, ...).

The canonical form is JSON: an object of strings, keys sorted, no blanks; the empty text stands for no fingerprint. Two
fingerprints are equal when their canonical forms are.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from kvd.errors import InvalidError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

KEYS_MAX = 64
KEY_CHARS_MAX = 64
VALUE_BYTES_MAX = 256
TEXT_BYTES_MAX = 64 << 10
"""Of what a client sends, before it is looked at."""
MISSING = "missing"
_KEY = re.compile(rf"[A-Za-z0-9_.-]{{1,{KEY_CHARS_MAX}}}")


def canonical(fingerprint: Mapping[str, str]) -> str:
    """Return the one text of a fingerprint; ``""`` for none.

    Raises
    ------
    InvalidError
        Too many keys, a key or a value that can't be one.
    """
    if len(fingerprint) > KEYS_MAX:
        raise InvalidError(f"a fingerprint has at most {KEYS_MAX} keys, not {len(fingerprint)}")
    for key, value in fingerprint.items():
        if not _KEY.fullmatch(key):
            raise InvalidError(
                f"{key[:KEY_CHARS_MAX]!r} is no key of a fingerprint: 1 to {KEY_CHARS_MAX} letters, digits, _ . -"
            )
        if not isinstance(value, str):
            raise InvalidError(f"the value of {key} must be a string")
        if not value.isprintable() or not 1 <= len(value.encode("utf-8", "surrogatepass")) <= VALUE_BYTES_MAX:
            raise InvalidError(f"the value of {key} must be 1 to {VALUE_BYTES_MAX} bytes that can be printed")
    return json.dumps(dict(fingerprint), sort_keys=True, separators=(",", ":")) if fingerprint else ""


def decode(text: str) -> dict[str, str]:
    """Undo `canonical`."""
    return dict(json.loads(text)) if text else {}


def from_pairs(pairs: Iterable[str]) -> dict[str, str]:
    """Return the fingerprint that ``key=value`` texts describe.

    Raises
    ------
    InvalidError
        If a text has no ``=``, or a key comes twice.
    """
    found: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals:
            raise InvalidError(f"{pair[:VALUE_BYTES_MAX]!r} is not key=value")
        _add(found, key, value)
    return found


def parse(text: bytes) -> dict[str, str]:
    """Return the fingerprint in what a client wrote: a JSON object of strings, or lines ``key=value``.

    Raises
    ------
    InvalidError
        If it is neither, is too large, or is not a fingerprint.
    """
    if len(text) > TEXT_BYTES_MAX:
        raise InvalidError(f"a fingerprint of {len(text)} bytes is too large")
    try:
        words = text.decode("utf-8").strip(" \t\r\n\0")
    except UnicodeDecodeError as error:
        raise InvalidError("a fingerprint is UTF-8") from error
    if words.startswith("{"):
        found = _from_json(words)
    else:
        found = from_pairs(line.strip() for line in words.splitlines() if line.strip())
    canonical(found)
    return found


def _from_json(words: str) -> dict[str, str]:
    def members(pairs: list[tuple[str, object]]) -> dict[str, str]:
        found: dict[str, str] = {}
        for key, value in pairs:
            if not isinstance(value, str):
                raise InvalidError(f"the value of {key[:KEY_CHARS_MAX]!r} must be a string")
            _add(found, key, value)
        return found

    try:
        found: dict[str, str] = json.loads(words, object_pairs_hook=members)
    except (ValueError, RecursionError) as error:
        raise InvalidError(f"a fingerprint that begins with {{ must be JSON: {error}") from error
    return found


def _add(found: dict[str, str], key: str, value: str) -> None:
    if key in found:
        raise InvalidError(f"the key {key[:KEY_CHARS_MAX]!r} is there twice")
    found[key] = value


def differences(here: Mapping[str, str], offered: Mapping[str, str]) -> list[str]:
    """Return a phrase for each key in which two fingerprints differ, with both values."""
    return [
        f"{key}: here {_told(here, key)}, offered {_told(offered, key)}"
        for key in sorted(here.keys() | offered.keys())
        if here.get(key) != offered.get(key)
    ]


def _told(fingerprint: Mapping[str, str], key: str) -> str:
    return repr(fingerprint[key]) if key in fingerprint else MISSING
