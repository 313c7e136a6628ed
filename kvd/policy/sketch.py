"""How often names were seen, in little memory: a count-min sketch with 4-bit counters and ageing, as TinyLFU has it.

An estimate is never less than what was counted (up to `COUNT_MAX`, and before ageing halved it), and seldom more. After
every `SAMPLE_SHARE` additions a counter all counters are halved, so that what was used long ago counts less and less.
"""

from __future__ import annotations

import hashlib

COUNT_MAX = 15
ROWS = 4
SAMPLE_SHARE = 10
COUNTERS_MIN = 16
_HALVED = bytes((byte >> 1) & 0x77 for byte in range(256))
"""What a byte with two counters becomes when both are halved."""
_NIBBLE = 0xF
_HASH_BYTES = 16
_HALF = _HASH_BYTES // 2
_SALT_BYTES = 8


def key_of(namespace: int, name: bytes) -> tuple[int, int]:
    """Return the two hashes of a name within a namespace."""
    digest = hashlib.blake2b(name, digest_size=_HASH_BYTES, salt=namespace.to_bytes(_SALT_BYTES, "little")).digest()
    return int.from_bytes(digest[:_HALF], "little"), int.from_bytes(digest[_HALF:], "little") | 1


class Sketch:
    """The counters.

    Parameters
    ----------
    counters
        Of each of the `ROWS` rows; a power of two. It takes half a byte each.
    """

    def __init__(self, counters: int) -> None:
        if counters < COUNTERS_MIN or counters & (counters - 1):
            raise ValueError(f"{counters} is no power of two from {COUNTERS_MIN} on")
        self._mask = counters - 1
        self._rows = [bytearray(counters // 2) for _ in range(ROWS)]
        self._sample = SAMPLE_SHARE * counters
        self._added = 0

    def __repr__(self) -> str:
        return f"<Sketch {self.size_bytes} bytes, {self._added} of {self._sample} additions>"

    @property
    def size_bytes(self) -> int:
        """What the counters take, whatever is added."""
        return sum(map(len, self._rows))

    def _places(self, key: tuple[int, int]) -> list[tuple[bytearray, int, int]]:
        """Return row, byte and shift of each counter of a key."""
        places = []
        for number, row in enumerate(self._rows):
            index = (key[0] + number * key[1]) & self._mask
            places.append((row, index >> 1, 4 * (index & 1)))
        return places

    def estimate(self, key: tuple[int, int]) -> int:
        """Return how often a key was added, as far as is remembered."""
        return min(row[at] >> shift & _NIBBLE for row, at, shift in self._places(key))

    def add(self, key: tuple[int, int]) -> None:
        """Count a key; only its smallest counters grow, which keeps the others' estimates low."""
        places = self._places(key)
        least = min(row[at] >> shift & _NIBBLE for row, at, shift in places)
        if least < COUNT_MAX:
            for row, at, shift in places:
                if row[at] >> shift & _NIBBLE == least:
                    row[at] += 1 << shift
        self._added += 1
        if self._added >= self._sample:
            self._age()

    def _age(self) -> None:
        self._rows = [row.translate(_HALVED) for row in self._rows]
        self._added //= 2
