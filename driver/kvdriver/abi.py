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
    SESSION_TRANSITION = 12
    SHARE = 13
    UNSHARE = 14
    WINDOW_ADVANCE = 15
    TOUCH = 16
    AGE_SCAN = 17
    GATHER = 18
    SCATTER = 19
    PREFIX_INSERT = 20
    PREFIX_MATCH = 21
    PREFIX_REMOVE = 22
    FLUSH = 23


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
    BAD_TRANSITION = 11
    BAD_ADDRESS = 12
    SHARED = 13
    NO_MEMORY = 14
    BUSY = 15
    BAD_TABLES = 16
    CANCELLED = 17


class State(IntEnum):
    """Values of `state`."""

    NEW = 0
    FILLING = 1
    ACTIVE = 2
    IDLE = 3
    COOLING = 4
    COLD = 5
    WARMING = 6
    RELEASED = 7
    EXPIRED = 8
    CLOSED = 9
    FAULTED = 10


class Format(IntEnum):
    """Values of `format`."""

    RAW = 0
    FP16 = 1
    BF16 = 2
    E4M3 = 3
    E5M2 = 4
    INT8 = 5


class Scaling(IntEnum):
    """Values of `scaling`."""

    NONE = 0
    FP16_BLOCKS = 1
    FP32_BLOCKS = 2


class Event(IntEnum):
    """Values of `event`."""

    OPEN = 0
    WRITE = 1
    SEAL = 2
    CLOSE = 3
    TICK = 4
    DEMOTED = 5
    WARM = 6
    PROMOTED = 7
    RELEASE = 8
    RESUME = 9
    EXPIRE = 10
    EVICT = 11
    FAULT = 12
    REPAIR = 13


class Syndrome(IntEnum):
    """Values of `syndrome`."""

    NONE = 0
    BAD_DOORBELL = 1
    BAD_QUEUE = 2
    NO_TABLES = 3
    BAD_VERSION = 4
    DMA_FAULT = 5
    BAD_TABLES = 6
    OWN_FAULT = 7


class CapabilityId(IntEnum):
    """Values of `capability_id`."""

    PAGE_SIZES = 1
    TIERS = 2
    QUEUES = 3
    FORMATS = 4
    OPERATIONS = 5
    LIMITS = 6


class Stage(IntEnum):
    """Values of `stage`."""

    NONE = 0
    PREPARE = 1
    COMMIT = 2


PTE_VALID_SHIFT: Final = 0x0
PTE_VALID_MASK: Final = 0x1
PTE_ACCESSED_SHIFT: Final = 0x1
PTE_ACCESSED_MASK: Final = 0x2
PTE_DIRTY_SHIFT: Final = 0x2
PTE_DIRTY_MASK: Final = 0x4
PTE_ZERO_SHIFT: Final = 0x3
PTE_ZERO_MASK: Final = 0x8
PTE_TIER_SHIFT: Final = 0x4
PTE_TIER_MASK: Final = 0x70
PTE_BLOCKS_SHIFT: Final = 0x7
PTE_BLOCKS_MASK: Final = 0xFF80
PTE_GENERATION_SHIFT: Final = 0x10
PTE_GENERATION_MASK: Final = 0xFF0000
PTE_FRAME_SHIFT: Final = 0x18
PTE_FRAME_MASK: Final = 0x7FFFFFFFFF000000
PTE_SHARED_SHIFT: Final = 0x3F
PTE_SHARED_MASK: Final = 0x8000000000000000
LINK_NODE_SHIFT: Final = 0x0
LINK_NODE_MASK: Final = 0xFFFFFFFF
LINK_USED_SHIFT: Final = 0x20
LINK_USED_MASK: Final = 0xFFFF00000000
LINK_NODE_CLASS_SHIFT: Final = 0x30
LINK_NODE_CLASS_MASK: Final = 0xFF000000000000
LINK_HEIGHT_SHIFT: Final = 0x38
LINK_HEIGHT_MASK: Final = 0xFF00000000000000
TRANSITION_KEY_EVENT_SHIFT: Final = 0x0
TRANSITION_KEY_EVENT_MASK: Final = 0xFF
CMD_FLAGS_MAP_RESERVED_SHIFT: Final = 0x0
CMD_FLAGS_MAP_RESERVED_MASK: Final = 0x1
CMD_FLAGS_REMAP_KEEP_SHIFT: Final = 0x1
CMD_FLAGS_REMAP_KEEP_MASK: Final = 0x2
CMD_FLAGS_REMAP_TAKE_SHIFT: Final = 0x2
CMD_FLAGS_REMAP_TAKE_MASK: Final = 0x4
CMD_FLAGS_AGE_ADVANCE_SHIFT: Final = 0x3
CMD_FLAGS_AGE_ADVANCE_MASK: Final = 0x8
CMD_FLAGS_TOUCH_DIRTY_SHIFT: Final = 0x4
CMD_FLAGS_TOUCH_DIRTY_MASK: Final = 0x10
CMD_FLAGS_TRANSLATE_LIST_SHIFT: Final = 0x5
CMD_FLAGS_TRANSLATE_LIST_MASK: Final = 0x20
CPL_FLAGS_PHASE_SHIFT: Final = 0x0
CPL_FLAGS_PHASE_MASK: Final = 0x1
SESSION_INFO_STATE_STATE_SHIFT: Final = 0x0
SESSION_INFO_STATE_STATE_MASK: Final = 0xFF
PREFIX_ENTRY_PLACE_WORDS_SHIFT: Final = 0x0
PREFIX_ENTRY_PLACE_WORDS_MASK: Final = 0x7
PREFIX_ENTRY_PLACE_POSITION_SHIFT: Final = 0x3
PREFIX_ENTRY_PLACE_POSITION_MASK: Final = 0x3FFFFFFFFFFF8
PREFIX_ENTRY_HOLDER_CONTEXT_SHIFT: Final = 0x0
PREFIX_ENTRY_HOLDER_CONTEXT_MASK: Final = 0xFFFFFFF
PREFIX_ENTRY_HOLDER_INSERTING_SHIFT: Final = 0x1C
PREFIX_ENTRY_HOLDER_INSERTING_MASK: Final = 0x10000000
PREFIX_ENTRY_HOLDER_REMOVING_SHIFT: Final = 0x1D
PREFIX_ENTRY_HOLDER_REMOVING_MASK: Final = 0x20000000
PREFIX_ENTRY_HOLDER_GENERATION_SHIFT: Final = 0x20
PREFIX_ENTRY_HOLDER_GENERATION_MASK: Final = 0xFFFFFFFF00000000
PREFIX_HEAD_STAGE_DONE_SHIFT: Final = 0x0
PREFIX_HEAD_STAGE_DONE_MASK: Final = 0x1
PREFIX_HEAD_STAGE_COMMAND_SHIFT: Final = 0x1
PREFIX_HEAD_STAGE_COMMAND_MASK: Final = 0xFFFFFFFFFFFFFFFE
CAPABILITY_HEAD_ID_SHIFT: Final = 0x0
CAPABILITY_HEAD_ID_MASK: Final = 0xFFFF
CAPABILITY_HEAD_NEXT_SHIFT: Final = 0x10
CAPABILITY_HEAD_NEXT_MASK: Final = 0xFFFF0000
SESSION_CONTEXT_STATE_STATE_SHIFT: Final = 0x0
SESSION_CONTEXT_STATE_STATE_MASK: Final = 0xFF
PCI_CLASS_REVISION_REVISION_SHIFT: Final = 0x0
PCI_CLASS_REVISION_REVISION_MASK: Final = 0xFF
PCI_CLASS_REVISION_CLASS_CODE_SHIFT: Final = 0x8
PCI_CLASS_REVISION_CLASS_CODE_MASK: Final = 0xFFFFFF00
BAR0_VERSION_MINOR_SHIFT: Final = 0x0
BAR0_VERSION_MINOR_MASK: Final = 0xFFFF
BAR0_VERSION_MAJOR_SHIFT: Final = 0x10
BAR0_VERSION_MAJOR_MASK: Final = 0xFFFF0000
BAR0_CONTROL_ENABLE_SHIFT: Final = 0x0
BAR0_CONTROL_ENABLE_MASK: Final = 0x1
BAR0_CONTROL_RESET_SHIFT: Final = 0x1
BAR0_CONTROL_RESET_MASK: Final = 0x2
BAR0_CONTROL_QUIESCE_SHIFT: Final = 0x2
BAR0_CONTROL_QUIESCE_MASK: Final = 0x4
BAR0_STATUS_READY_SHIFT: Final = 0x0
BAR0_STATUS_READY_MASK: Final = 0x1
BAR0_STATUS_ENABLED_SHIFT: Final = 0x1
BAR0_STATUS_ENABLED_MASK: Final = 0x2
BAR0_STATUS_QUIET_SHIFT: Final = 0x2
BAR0_STATUS_QUIET_MASK: Final = 0x4
BAR0_STATUS_FAULT_SHIFT: Final = 0x3
BAR0_STATUS_FAULT_MASK: Final = 0x8
PCI_VENDOR_ID_AT: Final = 0x0
PCI_VENDOR_ID_RESET: Final = 0x1234
PCI_DEVICE_ID_AT: Final = 0x2
PCI_DEVICE_ID_RESET: Final = 0x6B76
PCI_CLASS_REVISION_AT: Final = 0x8
PCI_CLASS_REVISION_RESET: Final = 0x12000001
BAR0_MAGIC_AT: Final = 0x0
BAR0_MAGIC_RESET: Final = 0x647261632D64766B
BAR0_VERSION_AT: Final = 0x8
BAR0_VERSION_RESET: Final = 0x10000
BAR0_CAPABILITIES_AT: Final = 0xC
BAR0_CAPABILITIES_RESET: Final = 0x400
BAR0_CONTROL_AT: Final = 0x10
BAR0_CONTROL_RESET: Final = 0x0
BAR0_STATUS_AT: Final = 0x14
BAR0_STATUS_RESET: Final = 0x5
BAR0_SYNDROME_AT: Final = 0x18
BAR0_SYNDROME_QUEUE_AT: Final = 0x1C
BAR0_SYNDROME_INFO_AT: Final = 0x20
BAR0_TABLES_ADDRESS_AT: Final = 0x28
BAR0_TABLES_BYTES_AT: Final = 0x30
BAR0_IRQ_MASK_AT: Final = 0x38
BAR0_IRQ_PENDING_AT: Final = 0x40
BAR0_COMMANDS_AT: Final = 0x48
BAR0_REFUSED_AT: Final = 0x50
BAR0_DOORBELLS_AT: Final = 0x58
BAR0_INTERRUPTS_AT: Final = 0x60
BAR0_READ_BYTES_AT: Final = 0x68
BAR0_WRITTEN_BYTES_AT: Final = 0x70
BAR0_FAULTS_AT: Final = 0x78
BAR0_TIER_ADDRESS_AT: Final = 0x80
BAR0_TIER_ADDRESS_COUNT: Final = 0x5
BAR0_TIER_BYTES_AT: Final = 0xA8
BAR0_TIER_BYTES_COUNT: Final = 0x5
BAR0_MSIX_TABLE_AT: Final = 0x2000
BAR0_MSIX_TABLE_COUNT: Final = 0x100
BAR0_MSIX_PENDING_AT: Final = 0x3000
BAR0_MSIX_PENDING_COUNT: Final = 0x2
BAR0_QUEUE_AT: Final = 0x100
BAR0_QUEUE_STRIDE: Final = 0x20
BAR0_QUEUE_COUNT: Final = 0x10
BAR0_QUEUE_SQ_ADDRESS_AT: Final = 0x0
BAR0_QUEUE_CQ_ADDRESS_AT: Final = 0x8
BAR0_QUEUE_DEPTH_AT: Final = 0x10
BAR0_QUEUE_VECTOR_AT: Final = 0x14
BAR0_QUEUE_EXECUTED_AT: Final = 0x18
BAR2_QUEUE_AT: Final = 0x0
BAR2_QUEUE_STRIDE: Final = 0x40
BAR2_QUEUE_COUNT: Final = 0x10
BAR2_QUEUE_SQ_TAIL_AT: Final = 0x0
BAR2_QUEUE_CQ_HEAD_AT: Final = 0x4
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
CPL: Final = struct.Struct("<IHHQQII")
CPL_OFFSETS: Final[dict[str, int]] = {
    "id": 0,
    "status": 4,
    "flags": 6,
    "result0": 8,
    "result1": 16,
    "sq_head": 24,
    "reserved": 28,
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
SESSION_INFO: Final = struct.Struct("<QQ5Q5Q5QII8Q")
SESSION_INFO_OFFSETS: Final[dict[str, int]] = {
    "key": 0,
    "leases": 8,
    "mapped_pages": 16,
    "mapped_blocks": 56,
    "reserved_blocks": 96,
    "state": 136,
    "reserved": 140,
    "window_start": 144,
}
COPY_RUN: Final = struct.Struct("<QQQQII")
COPY_RUN_OFFSETS: Final[dict[str, int]] = {
    "first_page": 0,
    "count": 8,
    "old_frame": 16,
    "new_frame": 24,
    "tier": 32,
    "blocks": 36,
}
WINDOW: Final = struct.Struct("<QQIIQQQ")
WINDOW_OFFSETS: Final[dict[str, int]] = {
    "base": 0,
    "plane_bytes": 8,
    "planes": 16,
    "token_bytes": 20,
    "tokens": 24,
    "window_tokens": 32,
    "sink_tokens": 40,
}
AGE_CURSOR: Final = struct.Struct("<QQIIQ")
AGE_CURSOR_OFFSETS: Final[dict[str, int]] = {
    "session": 0,
    "page": 8,
    "slot": 16,
    "done": 20,
    "generation": 24,
}
COLD_RUN: Final = struct.Struct("<QQQQIHH")
COLD_RUN_OFFSETS: Final[dict[str, int]] = {
    "session": 0,
    "first_page": 8,
    "count": 16,
    "first_frame": 24,
    "tier": 32,
    "slot": 36,
    "age": 38,
}
TRANSFER: Final = struct.Struct("<QQQQQIIHHHH")
TRANSFER_OFFSETS: Final[dict[str, int]] = {
    "host": 0,
    "host_bytes": 8,
    "scales": 16,
    "scales_bytes": 24,
    "page_offset": 32,
    "tokens": 40,
    "channels": 44,
    "host_format": 48,
    "page_format": 50,
    "scaling": 52,
    "reserved": 54,
}
PREFIX_ENTRY: Final = struct.Struct("<QQ4QQII")
PREFIX_ENTRY_OFFSETS: Final[dict[str, int]] = {
    "key": 0,
    "place": 8,
    "hash": 16,
    "holder": 48,
    "next": 56,
    "previous": 60,
}
PREFIX_BUCKET: Final = struct.Struct("<II7Q")
PREFIX_BUCKET_OFFSETS: Final[dict[str, int]] = {
    "version": 0,
    "more": 4,
    "slots": 8,
}
PREFIX_HEAD: Final = struct.Struct("<QQQQIIIIIIII")
PREFIX_HEAD_OFFSETS: Final[dict[str, int]] = {
    "stage": 0,
    "seed": 8,
    "entries": 16,
    "removals": 24,
    "directory": 32,
    "slabs": 36,
    "entry_free": 40,
    "fresh": 44,
    "fresh_end": 48,
    "bucket_free": 52,
    "root": 56,
    "buckets": 60,
}
CAPABILITY: Final = struct.Struct("<II")
CAPABILITY_OFFSETS: Final[dict[str, int]] = {
    "head": 0,
    "bytes": 4,
}
CAPABILITY_PAGE_SIZES: Final = struct.Struct("<IIQ")
CAPABILITY_PAGE_SIZES_OFFSETS: Final[dict[str, int]] = {
    "head": 0,
    "bytes": 4,
    "mask": 8,
}
CAPABILITY_TIERS: Final = struct.Struct("<II5Q")
CAPABILITY_TIERS_OFFSETS: Final[dict[str, int]] = {
    "head": 0,
    "bytes": 4,
    "capacity_bytes": 8,
}
CAPABILITY_QUEUES: Final = struct.Struct("<IIIIII")
CAPABILITY_QUEUES_OFFSETS: Final[dict[str, int]] = {
    "head": 0,
    "bytes": 4,
    "count": 8,
    "depth_max": 12,
    "vectors": 16,
    "reserved": 20,
}
CAPABILITY_FORMATS: Final = struct.Struct("<IIQ")
CAPABILITY_FORMATS_OFFSETS: Final[dict[str, int]] = {
    "head": 0,
    "bytes": 4,
    "mask": 8,
}
CAPABILITY_OPERATIONS: Final = struct.Struct("<IIQ")
CAPABILITY_OPERATIONS_OFFSETS: Final[dict[str, int]] = {
    "head": 0,
    "bytes": 4,
    "mask": 8,
}
CAPABILITY_LIMITS: Final = struct.Struct("<IIQQQII")
CAPABILITY_LIMITS_OFFSETS: Final[dict[str, int]] = {
    "head": 0,
    "bytes": 4,
    "sessions_max": 8,
    "tables_bytes_max": 16,
    "address_last": 24,
    "slots_max": 32,
    "page_bits": 36,
}
TIER_HEAD: Final = struct.Struct("<QQQ7QQQQQQQ")
TIER_HEAD_OFFSETS: Final[dict[str, int]] = {
    "capacity_blocks": 0,
    "total_frames": 8,
    "levels": 16,
    "level_at": 24,
    "used_blocks": 80,
    "reserved_blocks": 88,
    "used_frames": 96,
    "next_frame": 104,
    "high_frame": 112,
    "shares": 120,
}
INTENT: Final = struct.Struct("<QIIQ8Q8QQ2Q2QQ7QIHHQHHIQQQQQIHHQQII")
INTENT_OFFSETS: Final[dict[str, int]] = {
    "sequence": 0,
    "stage": 8,
    "words": 12,
    "session": 16,
    "word_at": 24,
    "word": 88,
    "steps": 152,
    "step_at": 160,
    "step": 176,
    "scratch": 192,
    "payload": 200,
    "cmd": 256,
    "cpl": 320,
}
TABLE_HEAD: Final = struct.Struct(
    "<QIIQQQQQQQQQQQQIIQQIIQ8IQQQQQQQQIIIIIIII13QQIIQ8Q8QQ2Q2QQ7QIHHQHHIQQQQQIHHQQIIQQQ7QQQQQQQQQQ7QQQQQQQQQQ7QQQQQQQQQQ7QQQQQQQQQQ7QQQQQQQ"
)
TABLE_HEAD_OFFSETS: Final[dict[str, int]] = {
    "magic": 0,
    "version": 8,
    "page_bytes": 12,
    "arena_bytes": 16,
    "sessions_at": 24,
    "sessions_max": 32,
    "hash_at": 40,
    "hash_mask": 48,
    "journal_at": 56,
    "journal_entries": 64,
    "heap_at": 72,
    "heap_end": 80,
    "in_use": 88,
    "sequence": 96,
    "change": 104,
    "generation": 112,
    "age": 116,
    "sessions_high": 120,
    "sessions_live": 128,
    "session_free": 136,
    "age_floor": 140,
    "heap_next": 144,
    "free_nodes": 152,
    "table_bytes": 184,
    "mapped_pages": 192,
    "refused": 200,
    "refused_transitions": 208,
    "prefix": 216,
    "reserved2": 280,
    "intent": 384,
    "tiers": 736,
}
SESSION_CONTEXT: Final = struct.Struct("<QQIIQII8Q8Q4Q4Q4Q7Q")
SESSION_CONTEXT_OFFSETS: Final[dict[str, int]] = {
    "key": 0,
    "leases": 8,
    "generation": 16,
    "state": 20,
    "version": 24,
    "next": 32,
    "prefix_head": 36,
    "slots": 40,
    "window_start": 104,
    "reserved_blocks": 168,
    "pages": 200,
    "blocks": 232,
    "reserved": 264,
}
JOURNAL_ENTRY: Final = struct.Struct("<QIHHQQII")
JOURNAL_ENTRY_OFFSETS: Final[dict[str, int]] = {
    "sequence": 0,
    "cpl": 8,
}
NEXT_STATE: Final[dict[State, dict[Event, State]]] = {
    State.NEW: {
        Event.WRITE: State.FILLING,
        Event.OPEN: State.NEW,
        Event.SEAL: State.IDLE,
        Event.CLOSE: State.CLOSED,
        Event.EXPIRE: State.EXPIRED,
        Event.FAULT: State.FAULTED,
    },
    State.FILLING: {
        Event.WRITE: State.FILLING,
        Event.OPEN: State.FILLING,
        Event.SEAL: State.ACTIVE,
        Event.CLOSE: State.IDLE,
        Event.EXPIRE: State.EXPIRED,
        Event.FAULT: State.FAULTED,
    },
    State.ACTIVE: {
        Event.OPEN: State.ACTIVE,
        Event.WRITE: State.FILLING,
        Event.CLOSE: State.IDLE,
        Event.TICK: State.ACTIVE,
        Event.WARM: State.ACTIVE,
        Event.RELEASE: State.RELEASED,
        Event.RESUME: State.ACTIVE,
        Event.EXPIRE: State.EXPIRED,
        Event.FAULT: State.FAULTED,
    },
    State.IDLE: {
        Event.OPEN: State.ACTIVE,
        Event.WRITE: State.FILLING,
        Event.CLOSE: State.CLOSED,
        Event.TICK: State.COOLING,
        Event.WARM: State.IDLE,
        Event.RELEASE: State.RELEASED,
        Event.RESUME: State.IDLE,
        Event.EXPIRE: State.EXPIRED,
        Event.EVICT: State.CLOSED,
        Event.FAULT: State.FAULTED,
    },
    State.COOLING: {
        Event.OPEN: State.ACTIVE,
        Event.WRITE: State.FILLING,
        Event.CLOSE: State.CLOSED,
        Event.TICK: State.COOLING,
        Event.DEMOTED: State.COLD,
        Event.WARM: State.IDLE,
        Event.RELEASE: State.COOLING,
        Event.RESUME: State.IDLE,
        Event.EXPIRE: State.EXPIRED,
        Event.EVICT: State.CLOSED,
        Event.FAULT: State.FAULTED,
    },
    State.COLD: {
        Event.OPEN: State.WARMING,
        Event.WRITE: State.WARMING,
        Event.CLOSE: State.CLOSED,
        Event.TICK: State.COLD,
        Event.WARM: State.WARMING,
        Event.RELEASE: State.COLD,
        Event.RESUME: State.WARMING,
        Event.EXPIRE: State.EXPIRED,
        Event.EVICT: State.CLOSED,
        Event.FAULT: State.FAULTED,
    },
    State.WARMING: {
        Event.OPEN: State.WARMING,
        Event.WRITE: State.WARMING,
        Event.PROMOTED: State.IDLE,
        Event.DEMOTED: State.COLD,
        Event.WARM: State.WARMING,
        Event.RELEASE: State.COLD,
        Event.RESUME: State.WARMING,
        Event.EXPIRE: State.EXPIRED,
        Event.FAULT: State.FAULTED,
    },
    State.RELEASED: {
        Event.OPEN: State.ACTIVE,
        Event.WRITE: State.FILLING,
        Event.CLOSE: State.CLOSED,
        Event.TICK: State.COOLING,
        Event.DEMOTED: State.COLD,
        Event.WARM: State.IDLE,
        Event.RELEASE: State.RELEASED,
        Event.RESUME: State.IDLE,
        Event.EXPIRE: State.EXPIRED,
        Event.EVICT: State.CLOSED,
        Event.FAULT: State.FAULTED,
    },
    State.EXPIRED: {
        Event.CLOSE: State.CLOSED,
        Event.EVICT: State.CLOSED,
        Event.TICK: State.EXPIRED,
        Event.FAULT: State.FAULTED,
    },
    State.CLOSED: {},
    State.FAULTED: {
        Event.TICK: State.FAULTED,
        Event.CLOSE: State.CLOSED,
        Event.EVICT: State.CLOSED,
        Event.EXPIRE: State.EXPIRED,
        Event.REPAIR: State.IDLE,
        Event.FAULT: State.FAULTED,
    },
}
"""What each event makes of each state; an event that is not named can't happen there."""
