/*
 * The page-table engine: session contexts, page tables, frame allocators.
 *
 * The engine is driven by commands and answers with completions, in memory as later over rings, so that the
 * in-process engine, the device model and the card are driven by the same words. All tables live in one arena and
 * refer to each other by offset, never by pointer.
 *
 * Not thread-safe: one caller at a time submits.
 */
#ifndef KVD_ENGINE_ENGINE_H
#define KVD_ENGINE_ENGINE_H

#include <stddef.h>
#include <stdint.h>

/* cffi: begin */
typedef struct kvd_engine kvd_engine;

enum kvd_engine_limit {
	KVD_ENGINE_SLOTS_MAX = 8,  /* page tables of a session */
	KVD_ENGINE_PAGE_BITS = 47, /* pages are numbered from 0 to 2^47 - 1; ranges are cut there */
};

enum kvd_engine_tier {
	KVD_TIER_NONE = 0,
	KVD_TIER_DDR = 1,
	KVD_TIER_CARD = 2,
	KVD_TIER_NVME = 3,
	KVD_TIER_POOL = 4,
	KVD_TIER_COUNT = 5,
};

enum kvd_engine_op {
	KVD_OP_SESSION_CREATE = 1,  /* key -> result0 = session */
	KVD_OP_SESSION_DESTROY = 2, /* session: its pages and reservations are freed; refused while leased */
	KVD_OP_LEASE = 3,           /* session, delta in `count` (as int64): REMAP and DESTROY are refused while > 0 */
	KVD_OP_RESERVE = 4,         /* session, tier, count blocks: sets the reservation to exactly that */
	KVD_OP_MAP = 5,             /* session, slot, tier, `count` runs in buffer: allocates; all or nothing */
	KVD_OP_UNMAP = 6,           /* session, slot, first_page, count -> result0 = pages freed */
	KVD_OP_TRANSLATE = 7,       /* session, slot, first_page, count -> runs in buffer, result0 = number of runs */
	KVD_OP_REMAP = 8,           /* session, slot, first_page, count, tier, other_slot, flags: pages of other tiers
	                               move to `tier`, with their charge -> result0 = pages moved; all or nothing */
	KVD_OP_QUERY_TIER = 9,      /* tier -> struct kvd_engine_tier_info in buffer */
	KVD_OP_QUERY_SESSION = 10,  /* session -> struct kvd_engine_session_info in buffer */
	KVD_OP_RESIZE = 11,         /* tier, count blocks: new capacity; may be below what is used (then only what
	                               is reserved can be mapped); total_frames stays */
};

enum kvd_engine_status {
	KVD_STATUS_OK = 0,
	KVD_STATUS_BAD_COMMAND = 1,
	KVD_STATUS_BAD_ARGUMENT = 2,
	KVD_STATUS_NO_SESSION = 3,
	KVD_STATUS_NO_SPACE = 4,       /* the tier's capacity is used or reserved */
	KVD_STATUS_NO_TABLE = 5,       /* the arena is full */
	KVD_STATUS_ALREADY_MAPPED = 6,
	KVD_STATUS_NOT_MAPPED = 7,
	KVD_STATUS_LEASED = 8,
	KVD_STATUS_BUFFER_SMALL = 9,   /* result0 = entries needed */
	KVD_STATUS_EXISTS = 10,        /* the key has a session already; result0 = session */
};

enum kvd_engine_flag {
	KVD_MAP_RESERVED = 1, /* MAP: charge the session's reservation first, then the free pool */
	KVD_REMAP_KEEP = 2,   /* REMAP: the frame that a page leaves is mapped into other_slot instead of freed */
	KVD_REMAP_TAKE = 4,   /* REMAP: the new frame is taken from other_slot's page instead of allocated */
};

struct kvd_engine_cmd {
	uint32_t id;
	uint16_t op;
	uint16_t flags;
	uint64_t session;
	uint16_t slot;
	uint16_t other_slot;
	uint32_t tier;
	uint64_t first_page;
	uint64_t count;
	uint64_t key;
	uint64_t buffer;       /* address */
	uint64_t buffer_bytes;
};

struct kvd_engine_cpl {
	uint32_t id;
	uint32_t status;
	uint64_t result0;
	uint64_t result1;
};

/* MAP input: `count` pages from `first_page`, each charged `blocks` 4 KiB blocks (1 to page_blocks). */
struct kvd_engine_map_run {
	uint64_t first_page;
	uint64_t count;
	uint32_t blocks;
	uint32_t reserved;
};

/* TRANSLATE output: pages in order, holes left out; a run has one tier, one block charge and contiguous frames. */
struct kvd_engine_run {
	uint64_t first_page;
	uint64_t count;
	uint64_t first_frame;
	uint32_t tier;
	uint32_t blocks;
};

struct kvd_engine_tier_info {
	uint64_t capacity_blocks;
	uint64_t used_blocks;
	uint64_t reserved_blocks;
	uint64_t used_frames;
	uint64_t total_frames;
};

struct kvd_engine_session_info {
	uint64_t key;
	uint64_t leases;
	uint64_t mapped_pages[5];    /* by tier, over all slots */
	uint64_t mapped_blocks[5];
	uint64_t reserved_blocks[5];
};

struct kvd_engine_config {
	uint32_t page_bytes;          /* a power of two, 4 KiB to 2 MiB */
	uint32_t reserved;
	uint64_t sessions_max;
	uint64_t arena_bytes;         /* reserved address space; memory is touched as tables grow */
	uint64_t capacity_blocks[5];  /* by tier; 0: the tier is absent */
	uint64_t total_frames[5];     /* frames of the tier; 0: one a block */
	int32_t arena_fd;             /* a file to hold the arena, or -1 for anonymous memory */
	int32_t reserved2;
};

struct kvd_engine_stats {
	uint64_t commands;
	uint64_t refused;
	uint64_t sessions;
	uint64_t table_bytes;
	uint64_t mapped_pages;
};

/* 0 or -errno (-EINVAL: bad configuration, -ENOMEM). */
int kvd_engine_init(const struct kvd_engine_config *config, kvd_engine **out);
void kvd_engine_fini(kvd_engine *engine);
/* Drop every session and page; capacities and counters stay, and no old session handle becomes valid again. */
int kvd_engine_reset(kvd_engine *engine);
/* Execute `count` commands in order; each gets its completion. */
void kvd_engine_submit(kvd_engine *engine, const struct kvd_engine_cmd *cmd, struct kvd_engine_cpl *cpl, uint32_t count);
void kvd_engine_stats(const kvd_engine *engine, struct kvd_engine_stats *out);
/* Check every table against every other; 0 when consistent, else the number of faults, the first ones in
 * `text`, one a line, as many as fit whole. */
uint64_t kvd_engine_check(const kvd_engine *engine, char *text, size_t text_bytes);
/* cffi: end */

#endif
