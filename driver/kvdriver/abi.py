"""From driver/spec/kvd.rdl by `make abi`: generated, do not edit."""

import struct
from enum import IntEnum
from typing import Final


class Op(IntEnum):
    """Values of `op`."""

    SESSION_CREATE = 1
    SESSION_DESTROY = 2
    LEASE = 3
    RESERVE = 4
    MAP = 5
    UNMAP = 6
    TRANSLATE = 7
    REMAP = 8
    QUERY_TIER = 9
    QUERY_SESSION = 10
    RESIZE = 11


class Tier(IntEnum):
    """Values of `tier`."""

    NONE = 0
    DDR = 1
    CARD = 2
    NVME = 3
    POOL = 4


class Status(IntEnum):
    """Values of `status`."""

    OK = 0
    BAD_COMMAND = 1
    BAD_ARGUMENT = 2
    NO_SESSION = 3
    NO_SPACE = 4
    NO_TABLE = 5
    ALREADY_MAPPED = 6
    NOT_MAPPED = 7
    LEASED = 8
    BUFFER_SMALL = 9
    EXISTS = 10


PTE_VALID_SHIFT: Final = 0
PTE_VALID_MASK: Final = 0x1
PTE_ACCESSED_SHIFT: Final = 1
PTE_ACCESSED_MASK: Final = 0x2
PTE_DIRTY_SHIFT: Final = 2
PTE_DIRTY_MASK: Final = 0x4
PTE_ZERO_SHIFT: Final = 3
PTE_ZERO_MASK: Final = 0x8
PTE_TIER_SHIFT: Final = 4
PTE_TIER_MASK: Final = 0x70
PTE_BLOCKS_SHIFT: Final = 7
PTE_BLOCKS_MASK: Final = 0xFF80
PTE_GENERATION_SHIFT: Final = 16
PTE_GENERATION_MASK: Final = 0xFF0000
PTE_FRAME_SHIFT: Final = 24
PTE_FRAME_MASK: Final = 0xFFFFFFFFFF000000
LINK_NODE_SHIFT: Final = 0
LINK_NODE_MASK: Final = 0xFFFFFFFF
LINK_USED_SHIFT: Final = 32
LINK_USED_MASK: Final = 0xFFFF00000000
LINK_NODE_CLASS_SHIFT: Final = 48
LINK_NODE_CLASS_MASK: Final = 0xFF000000000000
LINK_HEIGHT_SHIFT: Final = 56
LINK_HEIGHT_MASK: Final = 0xFF00000000000000
CMD_FLAGS_MAP_RESERVED_SHIFT: Final = 0
CMD_FLAGS_MAP_RESERVED_MASK: Final = 0x1
CMD_FLAGS_REMAP_KEEP_SHIFT: Final = 1
CMD_FLAGS_REMAP_KEEP_MASK: Final = 0x2
CMD_FLAGS_REMAP_TAKE_SHIFT: Final = 2
CMD_FLAGS_REMAP_TAKE_MASK: Final = 0x4
CMD: Final = struct.Struct("<IHHQHHIQQQQQ")
CMD_OFFSETS: Final[dict[str, int]] = {
    "id": 0,
    "op": 4,
    "flags": 6,
    "session": 8,
    "slot": 16,
    "other_slot": 18,
    "tier": 20,
    "first_page": 24,
    "count": 32,
    "key": 40,
    "buffer": 48,
    "buffer_bytes": 56,
}
CPL: Final = struct.Struct("<IIQQ")
CPL_OFFSETS: Final[dict[str, int]] = {
    "id": 0,
    "status": 4,
    "result0": 8,
    "result1": 16,
}
MAP_RUN: Final = struct.Struct("<QQII")
MAP_RUN_OFFSETS: Final[dict[str, int]] = {
    "first_page": 0,
    "count": 8,
    "blocks": 16,
    "reserved": 20,
}
RUN: Final = struct.Struct("<QQQII")
RUN_OFFSETS: Final[dict[str, int]] = {
    "first_page": 0,
    "count": 8,
    "first_frame": 16,
    "tier": 24,
    "blocks": 28,
}
TIER_INFO: Final = struct.Struct("<QQQQQ")
TIER_INFO_OFFSETS: Final[dict[str, int]] = {
    "capacity_blocks": 0,
    "used_blocks": 8,
    "reserved_blocks": 16,
    "used_frames": 24,
    "total_frames": 32,
}
SESSION_INFO: Final = struct.Struct("<QQ5Q5Q5Q")
SESSION_INFO_OFFSETS: Final[dict[str, int]] = {
    "key": 0,
    "leases": 8,
    "mapped_pages": 16,
    "mapped_blocks": 56,
    "reserved_blocks": 96,
}
