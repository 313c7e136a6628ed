"""What the control API tells of formats (docs/formats.md)."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class FormatError:
    """What a lossy format did to `values` values: the relative L2 norm of the differences, and the largest one."""

    values: int
    relative_l2: float
    most: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectFormat:
    """How an object's copy on NVMe is kept.

    `format` is ``raw``, ``zstd``, or lossy: ``int8``, or ``int8/fp8-e4m3`` of K and V. `ratio` is how many times smaller than the
    object the file is, `lossy_bytes` how many of the object's may come back other than they went in. `errors` are measured, of
    ``keys``, ``values`` and ``other``: those that are there.
    """

    format: str
    object_bytes: int
    file_bytes: int
    ratio: float
    lossy_bytes: int = 0
    errors: dict[str, FormatError] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class FormatUsage:
    """What is on NVMe in one format: copies, and what they are charged."""

    format: str
    copies: int
    used_bytes: int
