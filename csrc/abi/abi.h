/* From driver/spec/kvd.rdl by `make abi`: generated, do not edit. */
#ifndef KVD_ABI_ABI_H
#define KVD_ABI_ABI_H

#include <assert.h>
#include <stddef.h>
#include <stdint.h>

enum kvd_abi_op {
	KVD_ABI_OP_SESSION_CREATE = 1, /* `key`; result0 = session. */
	KVD_ABI_OP_SESSION_DESTROY = 2, /* `session`: frees its pages and reservations; refused while leased. */
	KVD_ABI_OP_LEASE = 3, /* `session`, `count` (int64): added to its leases. */
	KVD_ABI_OP_RESERVE = 4, /* `session`, `tier`, `count` blocks: the reservation becomes exactly that. */
	KVD_ABI_OP_MAP = 5, /* `session`, `slot`, `tier`, `count` map runs in the buffer: allocates; all or nothing. */
	KVD_ABI_OP_UNMAP = 6, /* `session`, `slot`, `first_page`, `count`; result0 = pages freed. */
	KVD_ABI_OP_TRANSLATE = 7, /* `session`, `slot`, `first_page`, `count`; runs in the buffer, result0 = their number. */
	KVD_ABI_OP_REMAP = 8, /* `session`, `slot`, `first_page`, `count`, `tier`, `other_slot`, `flags`; result0 = pages moved; all or nothing. */
	KVD_ABI_OP_QUERY_TIER = 9, /* `tier`; tier info in the buffer. */
	KVD_ABI_OP_QUERY_SESSION = 10, /* `session`; session info in the buffer. */
	KVD_ABI_OP_RESIZE = 11, /* `tier`, `count` blocks: the new capacity; may be below what is used. */
};

enum kvd_abi_tier {
	KVD_ABI_TIER_NONE = 0, /* No tier. */
	KVD_ABI_TIER_DDR = 1, /* Host memory. */
	KVD_ABI_TIER_CARD = 2, /* Memory of the card. */
	KVD_ABI_TIER_NVME = 3, /* NVMe. */
	KVD_ABI_TIER_POOL = 4, /* Shared pool. */
};

enum kvd_abi_status {
	KVD_ABI_STATUS_OK = 0, /* Done. */
	KVD_ABI_STATUS_BAD_COMMAND = 1, /* The operation is not known. */
	KVD_ABI_STATUS_BAD_ARGUMENT = 2, /* An argument is out of its range. */
	KVD_ABI_STATUS_NO_SESSION = 3, /* The handle names no living session. */
	KVD_ABI_STATUS_NO_SPACE = 4, /* The tier's capacity is used or reserved. */
	KVD_ABI_STATUS_NO_TABLE = 5, /* The memory of the tables is full. */
	KVD_ABI_STATUS_ALREADY_MAPPED = 6, /* A page of the range is mapped. */
	KVD_ABI_STATUS_NOT_MAPPED = 7, /* A page that the command needs is not mapped. */
	KVD_ABI_STATUS_LEASED = 8, /* The session has leases. */
	KVD_ABI_STATUS_BUFFER_SMALL = 9, /* result0 = entries needed. */
	KVD_ABI_STATUS_EXISTS = 10, /* The key has a session; result0 = that session. */
};

#define KVD_ABI_PTE_VALID_SHIFT 0u
#define KVD_ABI_PTE_VALID_MASK 0x1ull
#define KVD_ABI_PTE_ACCESSED_SHIFT 1u
#define KVD_ABI_PTE_ACCESSED_MASK 0x2ull
#define KVD_ABI_PTE_DIRTY_SHIFT 2u
#define KVD_ABI_PTE_DIRTY_MASK 0x4ull
#define KVD_ABI_PTE_ZERO_SHIFT 3u
#define KVD_ABI_PTE_ZERO_MASK 0x8ull
#define KVD_ABI_PTE_TIER_SHIFT 4u
#define KVD_ABI_PTE_TIER_MASK 0x70ull
#define KVD_ABI_PTE_BLOCKS_SHIFT 7u
#define KVD_ABI_PTE_BLOCKS_MASK 0xff80ull
#define KVD_ABI_PTE_GENERATION_SHIFT 16u
#define KVD_ABI_PTE_GENERATION_MASK 0xff0000ull
#define KVD_ABI_PTE_FRAME_SHIFT 24u
#define KVD_ABI_PTE_FRAME_MASK 0xffffffffff000000ull
#define KVD_ABI_LINK_NODE_SHIFT 0u
#define KVD_ABI_LINK_NODE_MASK 0xffffffffull
#define KVD_ABI_LINK_USED_SHIFT 32u
#define KVD_ABI_LINK_USED_MASK 0xffff00000000ull
#define KVD_ABI_LINK_NODE_CLASS_SHIFT 48u
#define KVD_ABI_LINK_NODE_CLASS_MASK 0xff000000000000ull
#define KVD_ABI_LINK_HEIGHT_SHIFT 56u
#define KVD_ABI_LINK_HEIGHT_MASK 0xff00000000000000ull
#define KVD_ABI_CMD_FLAGS_MAP_RESERVED_SHIFT 0u
#define KVD_ABI_CMD_FLAGS_MAP_RESERVED_MASK 0x1ull
#define KVD_ABI_CMD_FLAGS_REMAP_KEEP_SHIFT 1u
#define KVD_ABI_CMD_FLAGS_REMAP_KEEP_MASK 0x2ull
#define KVD_ABI_CMD_FLAGS_REMAP_TAKE_SHIFT 2u
#define KVD_ABI_CMD_FLAGS_REMAP_TAKE_MASK 0x4ull

/* A command. */
struct kvd_abi_cmd {
	uint32_t id; /* Comes back in the completion. */
	uint16_t op; /* What to do. */
	uint16_t flags; /* How to do it. */
	uint64_t session; /* Handle. */
	uint16_t slot; /* Page table of the session. */
	uint16_t other_slot; /* The second page table of REMAP. */
	uint32_t tier; /* Where the frames are. */
	uint64_t first_page; /* Begin of the range. */
	uint64_t count; /* Pages, runs, blocks or leases. */
	uint64_t key; /* Caller's name of a session. */
	uint64_t buffer; /* Address. */
	uint64_t buffer_bytes; /* Its length. */
};
static_assert(sizeof(struct kvd_abi_cmd) == 64, "the size that is described");

/* A completion. */
struct kvd_abi_cpl {
	uint32_t id; /* Of the command. */
	uint32_t status; /* How it went. */
	uint64_t result0; /* As the command says. */
	uint64_t result1; /* Zero today. */
};
static_assert(sizeof(struct kvd_abi_cpl) == 24, "the size that is described");

/* Input of MAP. */
struct kvd_abi_map_run {
	uint64_t first_page; /* Begin of the run. */
	uint64_t count; /* Pages. */
	uint32_t blocks; /* 4 KiB blocks that each page is charged, from 1. */
	uint32_t reserved; /* Zero. */
};
static_assert(sizeof(struct kvd_abi_map_run) == 24, "the size that is described");

/* Output of TRANSLATE: one tier, one charge, contiguous frames. */
struct kvd_abi_run {
	uint64_t first_page; /* Begin of the run. */
	uint64_t count; /* Pages. */
	uint64_t first_frame; /* Frame of the first page. */
	uint32_t tier; /* Where the frames are. */
	uint32_t blocks; /* 4 KiB blocks that each page is charged. */
};
static_assert(sizeof(struct kvd_abi_run) == 32, "the size that is described");

/* Output of QUERY_TIER. */
struct kvd_abi_tier_info {
	uint64_t capacity_blocks; /* Budget. */
	uint64_t used_blocks; /* Charged to pages. */
	uint64_t reserved_blocks; /* Promised to sessions. */
	uint64_t used_frames; /* Frames in use. */
	uint64_t total_frames; /* Frames; 0: no such tier. */
};
static_assert(sizeof(struct kvd_abi_tier_info) == 40, "the size that is described");

/* Output of QUERY_SESSION; arrays by tier. */
struct kvd_abi_session_info {
	uint64_t key; /* Caller's name. */
	uint64_t leases; /* Leases held. */
	uint64_t mapped_pages[5]; /* Pages over all slots. */
	uint64_t mapped_blocks[5]; /* Their charge. */
	uint64_t reserved_blocks[5]; /* Promised to it. */
};
static_assert(sizeof(struct kvd_abi_session_info) == 136, "the size that is described");

#endif
