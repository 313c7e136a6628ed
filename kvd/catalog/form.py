"""What the catalogue, and a copy itself, say of a stored file (docs/formats.md): enough to bring the object back, and to tell.

What it takes to decode is in the head of the stored file.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

from kvd.format.model import NAMES, Kind, Role, RoleError

_VERSION = 1
_HEAD = struct.Struct("<HBBQQQ")
_ERROR = struct.Struct("<Qdd")


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """How an object is kept in a stored file.

    Attributes
    ----------
    keys, values
        The formats that were asked for, for K and for V.
    object_bytes
        The object's length.
    object_blocks
        4 KiB blocks that it has in DDR, at most: its pages that are not all zeros.
    lossy_bytes
        Bytes of it that may come back other than they went in.
    errors
        By role; of those alone that have any values in lossy formats.
    """

    keys: Kind
    values: Kind
    object_bytes: int
    object_blocks: int
    lossy_bytes: int = 0
    errors: dict[Role, RoleError] = field(default_factory=dict)

    @property
    def format(self) -> str:
        """What became of it, for people: ``int8``, ``int8/fp8-e4m3`` of K and V, or ``zstd`` where all of it is exact."""
        if not self.lossy_bytes:
            return NAMES[Kind.ZSTD]
        if self.keys is self.values:
            return NAMES[self.keys]
        return f"{NAMES[self.keys]}/{NAMES[self.values]}"

    def pack(self) -> bytes:
        """Return it as it is stored: `unpack` undoes it."""
        head = _HEAD.pack(_VERSION, self.keys, self.values, self.object_bytes, self.object_blocks, self.lossy_bytes)
        none = RoleError(values=0, relative_l2=0.0, most=0.0)
        errors = [self.errors.get(role, none) for role in Role]
        return head + b"".join(_ERROR.pack(each.values, each.relative_l2, each.most) for each in errors)

    @classmethod
    def unpack(cls, packed: bytes) -> Form:
        """Return what `pack` has packed.

        Raises
        ------
        ValueError
            It is nothing of the kind.
        """
        if len(packed) != FORM_BYTES:
            raise ValueError(f"a form of {len(packed)} bytes")
        version, keys, values, object_bytes, object_blocks, lossy_bytes = _HEAD.unpack_from(packed)
        if version != _VERSION:
            raise ValueError(f"a form of version {version}")
        errors: dict[Role, RoleError] = {}
        for role in Role:
            count, relative_l2, most = _ERROR.unpack_from(packed, _HEAD.size + role * _ERROR.size)
            if count:
                errors[role] = RoleError(values=count, relative_l2=relative_l2, most=most)
        return cls(
            keys=Kind(keys),
            values=Kind(values),
            object_bytes=object_bytes,
            object_blocks=object_blocks,
            lossy_bytes=lossy_bytes,
            errors=errors,
        )


FORM_BYTES = _HEAD.size + len(Role) * _ERROR.size
"""Of a packed one."""
