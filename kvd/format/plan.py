"""From what an object says of itself, or its namespace says of it, to a plan. Pure.

A lossy format is for what is known to be floats of 16 bits in a known shape. Everything else, headers first of all, is kept
bit-exact, and so is an object about which anything makes no sense.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvd.format import npy, safetensors
from kvd.format.errors import HeaderError, LayoutError, NotDeclaredError
from kvd.format.layout import Axis, Declaration, array_regions, guess_axes, role_of_name
from kvd.format.model import REGIONS_MAX, UNITS_MAX, DType, Kind, Plan, Region, Role

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvd.format.model import Contents, Tensor

HEAD_FIRST_BYTES = 64
"""Of an object, that tell how much of it `plan` has to see."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What a namespace wants of its objects at some age and tier.

    Attributes
    ----------
    keys, values
        The formats of K and of V; of what may be either, the more careful of the two.
    declaration
        What objects hold that do not declare themselves.
    axes
        The axes of tensors that do, where the namespace says so; else they are guessed.
    """

    keys: Kind
    values: Kind
    declaration: Declaration | None = None
    axes: tuple[Axis, ...] | None = None

    def kind(self, role: Role) -> Kind:
        """Return the format of a role."""
        match role:
            case Role.KEYS:
                return self.keys
            case Role.VALUES:
                return self.values
            case Role.OTHER:
                return min(self.keys, self.values, key=CAREFUL.index)

    @property
    def exact(self) -> Kind:
        """The format of what no lossy format may touch."""
        return Kind.RAW if self.kind(Role.OTHER) is Kind.RAW else Kind.ZSTD


CAREFUL = (Kind.RAW, Kind.ZSTD, Kind.INT8, Kind.E4M3, Kind.E5M2, Kind.INT4)
"""From what changes nothing to what changes most (docs/formats.md has the measurements)."""


def plan_needs(policy: Policy) -> bool:
    """Tell whether a policy wants anything else than the bytes as they are."""
    return (policy.keys, policy.values) != (Kind.RAW, Kind.RAW)


def head_bytes(first: bytes, size: int) -> int:
    """Return how much of an object, from its begin, `plan` has to see.

    Parameters
    ----------
    first
        The first `HEAD_FIRST_BYTES` bytes of it, or all of a shorter one.
    size
        In bytes.
    """
    for header_bytes in (safetensors.header_bytes, npy.header_bytes):
        try:
            return header_bytes(first, size)
        except HeaderError:
            continue
    return len(first)


def plan(head: bytes, size: int, policy: Policy) -> Plan:
    """Return how an object is to be kept.

    Parameters
    ----------
    head
        Its begin: as many bytes as `head_bytes` says.
    size
        In bytes.

    Returns
    -------
    Plan
        Of the whole object. It is lossy only if `policy` asks for that and the object's shape is known.
    """
    if not (policy.keys.lossy or policy.values.lossy) and policy.exact is Kind.RAW:
        return _opaque(size, policy, "")
    try:
        regions, source, reason = _known(head, size, policy)
    except (HeaderError, LayoutError) as error:
        return _opaque(size, policy, str(error))
    found = Plan(size=size, regions=tuple(_filled(regions, size, policy.exact)), source=source, reason=reason)
    if len(found.regions) > REGIONS_MAX or sum(region.units() for region in found.regions) > UNITS_MAX:
        return _opaque(size, policy, "more parts than kvd describes")
    return found


def _known(head: bytes, size: int, policy: Policy) -> tuple[list[Region], str, str]:
    """Return the regions that are known, in order, who knows of them, and why some of them are exact."""
    contents = contents_of(head, size)
    if contents is not None:
        regions, reason = _tensors(contents, policy)
        return regions, contents.source, reason
    if policy.declaration is None:
        raise NotDeclaredError("nobody has declared what it holds")
    declared = policy.declaration
    shape = declared.shape(size)
    axes = tuple(axis for axis, _ in declared.axes)
    regions = array_regions(
        declared.header_bytes,
        declared.dtype,
        shape,
        axes,
        role=Role.OTHER,
        kind_of=policy.kind,
        regions_max=REGIONS_MAX,
    )
    return regions, "namespace", ""


def _tensors(contents: Contents, policy: Policy) -> tuple[list[Region], str]:
    """Return the regions of all tensors, and why one of them is exact, the first if there are several."""
    regions: list[Region] = []
    reason = ""
    for tensor in contents.tensors:
        try:
            regions += _tensor(tensor, policy, REGIONS_MAX // len(contents.tensors))
        except LayoutError as error:
            reason = reason or f"{tensor.name or contents.source}: {error}"
            regions.append(_exact(tensor, policy.exact))
    return regions, reason


def _tensor(tensor: Tensor, policy: Policy, regions_max: int) -> list[Region]:
    if not tensor.floating or tensor.dtype is None:
        return [_exact(tensor, policy.exact)]
    role = role_of_name(tensor.name)
    axes = policy.axes if policy.axes is not None else guess_axes(tensor.shape, role)
    if axes is None or len(axes) != len(tensor.shape):
        raise LayoutError(f"its shape {tensor.shape} is not that of a cache")
    return array_regions(
        tensor.offset, tensor.dtype, tensor.shape, axes, role=role, kind_of=policy.kind, regions_max=regions_max
    )


def _exact(tensor: Tensor, kind: Kind) -> Region:
    """Return a tensor as elements of which only the width matters."""
    return Region(
        offset=tensor.offset,
        length=tensor.length,
        kind=kind,
        dtype=DType.BYTES if tensor.dtype is None else tensor.dtype,
    )


def contents_of(head: bytes, size: int) -> Contents | None:
    """Return what an object says of itself, by its begin (as much as `head_bytes` says) and its length; None: nothing.

    Raises
    ------
    HeaderError
        One of its kinds: it has a header that can't be used.
    """
    for read in (safetensors.read, npy.read):
        try:
            return read(head, size)
        except NotDeclaredError:
            continue
    return None


def _opaque(size: int, policy: Policy, reason: str) -> Plan:
    return Plan(size=size, regions=tuple(_filled([], size, policy.exact)), source="opaque", reason=reason)


def _filled(regions: Iterable[Region], size: int, exact: Kind) -> Iterable[Region]:
    """Yield the regions, and what lies between them as exact bytes."""
    at = 0
    for region in regions:
        if region.offset > at:
            yield Region(offset=at, length=region.offset - at, kind=exact)
        yield region
        at = region.end
    if at < size:
        yield Region(offset=at, length=size - at, kind=exact)
