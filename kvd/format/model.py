"""Regions and plans: the words that the readers of headers, the planner and `csrc/format` share. Pure."""

from __future__ import annotations

import enum
from dataclasses import dataclass

UNIT_BYTES = 65536
BLOCK_TOKENS = 64
CHANNELS_MAX = 8192
REGIONS_MAX = 16384
UNITS_MAX = 4194304
WIDE_BYTES = 2
OBJECT_BYTES_MAX = UNITS_MAX * UNIT_BYTES


class Kind(enum.IntEnum):
    """A format; the numbers are those of `csrc/format/format.h`."""

    RAW = 0
    ZSTD = 1
    E4M3 = 2
    E5M2 = 3
    INT8 = 4
    INT4 = 5
    ZEROS = 6
    """Of parts that are nothing but zeros; the encoder alone chooses it."""

    @property
    def lossy(self) -> bool:
        """Whether other values may come back than went in."""
        return self in LOSSY


LOSSY = frozenset({Kind.E4M3, Kind.E5M2, Kind.INT8, Kind.INT4})
NAMES = {
    Kind.RAW: "raw",
    Kind.ZSTD: "zstd",
    Kind.E4M3: "fp8-e4m3",
    Kind.E5M2: "fp8-e5m2",
    Kind.INT8: "int8",
    Kind.INT4: "int4",
}
"""What people call those that can be chosen."""
RAW = NAMES[Kind.RAW]


class DType(enum.IntEnum):
    """What elements are, as far as formats care."""

    BYTES = 0
    FP16 = 1
    BF16 = 2
    WORDS = 3
    """Four bytes each."""
    DOUBLES = 4
    """Eight bytes each."""

    @property
    def wide(self) -> bool:
        """Whether lossy formats know it."""
        return self in {DType.FP16, DType.BF16}


class Role(enum.IntEnum):
    """Whose error a region's is."""

    OTHER = 0
    KEYS = 1
    VALUES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleError:
    """What lossy formats did to the values of a role.

    Attributes
    ----------
    values
        How many; those in units with an infinity or a NaN are kept exact and do not count.
    relative_l2
        The differences' L2 norm, relative to that of the values; 0 where there is nothing but zeros.
    most
        The largest difference's magnitude.
    """

    values: int
    relative_l2: float
    most: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """A part of an object.

    Attributes
    ----------
    offset, length
        In bytes.
    kind
        The format that it is to be kept in.
    arrays, tokens, channels
        It is `arrays` arrays [tokens][channels] of `dtype`, one after the other. All 0: exact bytes, of elements of
        `dtype`.
    """

    offset: int
    length: int
    kind: Kind
    dtype: DType = DType.BYTES
    role: Role = Role.OTHER
    arrays: int = 0
    tokens: int = 0
    channels: int = 0

    @property
    def end(self) -> int:
        """The byte after it."""
        return self.offset + self.length

    def units(self) -> int:
        """Return into how many units `csrc/format` cuts it."""
        if not self.kind.lossy:
            return -(-self.length // UNIT_BYTES)
        blocks = max(1, UNIT_BYTES // (self.channels * BLOCK_TOKENS * WIDE_BYTES))
        return self.arrays * -(-self.tokens // (blocks * BLOCK_TOKENS))


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """All regions of an object, in order and without gaps.

    Attributes
    ----------
    source
        Who said what it holds: "safetensors", "npy", "namespace", or "opaque": nobody.
    reason
        Why it is opaque, or why something in it is kept exact although a lossy format was asked for; "" if neither.
    """

    size: int
    regions: tuple[Region, ...]
    source: str
    reason: str = ""

    @property
    def raw(self) -> bool:
        """Whether all of it is kept as it is."""
        return all(region.kind is Kind.RAW for region in self.regions)

    @property
    def lossy(self) -> bool:
        """Whether anything in it may come back other than it was."""
        return any(region.kind.lossy for region in self.regions)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """What a header says of one of its tensors.

    Attributes
    ----------
    dtype
        None: elements that kvd does not know, `length` bytes of them.
    offset
        In the file, in bytes.
    """

    name: str
    dtype: DType | None
    shape: tuple[int, ...]
    offset: int
    length: int
    floating: bool = False
    """Whether its values are floats (others of 2 bytes are planes for zstd, and nothing more)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """What a file that declares itself holds: a header, and tensors in the order of their offsets.

    What lies between them, if anything, belongs to none.
    """

    source: str
    header_bytes: int
    tensors: tuple[Tensor, ...]
