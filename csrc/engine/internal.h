/*
 * The engine's tables, private to csrc/engine and its tests.
 *
 * Everything that lasts is in the arena and refers to the rest by offset or index, so that the same bytes can lie in
 * a shared file and be walked by hardware. Zeroed memory is a valid empty table everywhere: what was never used is
 * never touched.
 *
 *   head | session contexts | hash buckets | frame bitmaps | heap of table nodes
 */
#ifndef KVD_ENGINE_INTERNAL_H
#define KVD_ENGINE_INTERNAL_H

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/engine.h"

#define KVD_ARENA_MAGIC 0x616e6572612d766bull /* "kv-arena" */
#define KVD_ARENA_VERSION 1u

#define KVD_BLOCK_BYTES 4096u
#define KVD_PAGE_BYTES_MIN 4096u
#define KVD_PAGE_BYTES_MAX (2u << 20)
#define KVD_PAGES_MAX (1ull << KVD_ENGINE_PAGE_BITS)
#define KVD_BLOCKS_MAX (1ull << 52) /* keeps every sum of books far from 64 bits */
#define KVD_FRAMES_MAX (1ull << 40)
#define KVD_SESSIONS_MAX (1ull << 28)

/* Nodes are named by their first unit: 32 bits reach 256 GiB. */
#define KVD_UNIT_BYTES 64u
#define KVD_ARENA_BYTES_MAX ((1ull << 32) * KVD_UNIT_BYTES)

/* A node has 8, 16, 32 ... or 512 entries and so covers the first 8, 16, 32 ... or all of the places of its level. */
#define KVD_FANOUT_BITS 9u
#define KVD_FANOUT (1u << KVD_FANOUT_BITS)
#define KVD_NODE_CLASSES 7u
#define KVD_NODE_BYTES_MAX (KVD_FANOUT * 8u)
#define KVD_HEIGHT_MAX ((KVD_ENGINE_PAGE_BITS - 1) / KVD_FANOUT_BITS)

/* A frame bitmap's levels: 64^7 frames are more than KVD_FRAMES_MAX. */
#define KVD_FRAME_LEVELS_MAX 7u

/* Zero in every PTE until the ageing scan and its kin set them. */
#define KVD_PTE_UNUSED_MASK                                                                                            \
	(KVD_ABI_PTE_ACCESSED_MASK | KVD_ABI_PTE_DIRTY_MASK | KVD_ABI_PTE_ZERO_MASK | KVD_ABI_PTE_GENERATION_MASK)
static_assert(KVD_PAGE_BYTES_MAX / KVD_BLOCK_BYTES == (KVD_ABI_PTE_BLOCKS_MASK >> KVD_ABI_PTE_BLOCKS_SHIFT) + 1, "a page's charge fits its field");
static_assert(KVD_FRAMES_MAX == 1ull << (64 - KVD_ABI_PTE_FRAME_SHIFT), "a frame number fits its field");

/* Where a node is; all zero: nowhere. A node that would hold nothing is freed, so `used` is never 0 at rest. */
struct kvd_link {
	uint32_t node;      /* unit of the arena */
	uint16_t used;      /* entries that are not zero */
	uint8_t node_class;
	uint8_t height;     /* 0: the entries are PTEs, else links of height - 1 */
};
static_assert(sizeof(struct kvd_link) == 8, "a link is an entry");

union kvd_entry {
	uint64_t pte;
	struct kvd_link link;
};
static_assert(sizeof(union kvd_entry) == 8, "an entry is 8 bytes");

/* A session's part of a tier's books. */
struct kvd_books {
	uint64_t pages;
	uint64_t blocks;
	uint64_t reserved_blocks;
};

struct kvd_session {
	uint64_t key;
	uint64_t leases;
	uint32_t generation; /* upper half of the handle, never used twice; 0: the context is free */
	uint32_t next;       /* in its hash chain or in the free list: index + 1, 0 ends */
	struct kvd_link slots[KVD_ENGINE_SLOTS_MAX];
	struct kvd_books books[KVD_ABI_TIER_COUNT - 1]; /* tier 1 first */
	uint32_t state;          /* KVD_ABI_STATE_ */
	uint32_t prefix_head;    /* the first entry of the prefix index that it holds, 0: none */
	uint64_t version;        /* odd while a command changes the session */
	uint64_t window_start[KVD_ENGINE_SLOTS_MAX]; /* tokens that the window has left behind */
	uint64_t reserved[7];
};
static_assert(sizeof(struct kvd_session) == 320, "five cache lines");

struct kvd_tier {
	uint64_t capacity_blocks;
	uint64_t used_blocks;
	uint64_t reserved_blocks;
	uint64_t total_frames; /* 0: the tier is absent */
	uint64_t used_frames;
	uint64_t next_frame;   /* where next-fit goes on */
	uint64_t high_frame;   /* no frame from here on was ever used */
	uint64_t levels;
	uint64_t level_at[KVD_FRAME_LEVELS_MAX]; /* offsets; bit set: used (level 0) or the word below is full */
};

struct kvd_head {
	uint64_t magic;
	uint32_t version;
	uint32_t page_bytes;
	uint64_t arena_bytes;
	uint64_t sessions_at;
	uint64_t sessions_max;
	uint64_t sessions_high;   /* contexts ever used */
	uint64_t sessions_live;
	uint32_t session_free;    /* index + 1 */
	uint32_t generation;      /* the last one given out */
	uint64_t hash_at;
	uint64_t hash_mask;
	uint64_t heap_at;
	uint64_t heap_next;
	uint64_t heap_end;
	uint32_t free_nodes[KVD_NODE_CLASSES]; /* unit of the first; the next one is in entry 0 */
	uint32_t reserved;
	uint64_t table_bytes;     /* of nodes that hold something */
	uint64_t mapped_pages;
	uint64_t commands;
	uint64_t refused;
	struct kvd_tier tiers[KVD_ABI_TIER_COUNT];
};
static_assert(sizeof(struct kvd_head) == 768, "no padding");

/* Memory of a tier, for those who move bytes; no bytes: it has none. */
struct kvd_tier_memory {
	uint64_t address;
	uint64_t bytes;
};

struct kvd_engine {
	unsigned char *base;
	struct kvd_head *head;
	uint32_t page_blocks;
	int fd; /* own copy of the arena's file, or -1 */
	kvd_engine_reach reach; /* NULL: addresses are pointers */
	void *reach_context;
	struct kvd_tier_memory tier_memory[KVD_ABI_TIER_COUNT];
};

/* A command being executed: its session and tier are found and its slot is in range, where the command has them. */
struct kvd_call {
	struct kvd_engine *engine;
	struct kvd_abi_cmd cmd; /* a copy: what was checked cannot change */
	struct kvd_abi_cpl *cpl;
	struct kvd_session *session;
	uint32_t tier;
};

static inline uint64_t kvd_pte_make(uint32_t tier, uint32_t blocks, uint64_t frame)
{
	return KVD_ABI_PTE_VALID_MASK | (uint64_t)tier << KVD_ABI_PTE_TIER_SHIFT |
	       (uint64_t)(blocks - 1) << KVD_ABI_PTE_BLOCKS_SHIFT | frame << KVD_ABI_PTE_FRAME_SHIFT;
}

static inline uint32_t kvd_pte_tier(uint64_t pte)
{
	return (uint32_t)((pte & KVD_ABI_PTE_TIER_MASK) >> KVD_ABI_PTE_TIER_SHIFT);
}

static inline uint32_t kvd_pte_blocks(uint64_t pte)
{
	return (uint32_t)((pte & KVD_ABI_PTE_BLOCKS_MASK) >> KVD_ABI_PTE_BLOCKS_SHIFT) + 1;
}

static inline uint64_t kvd_pte_frame(uint64_t pte)
{
	return pte >> KVD_ABI_PTE_FRAME_SHIFT;
}

static inline uint32_t kvd_class_entries(uint32_t node_class)
{
	return 8u << node_class;
}

static inline uint32_t kvd_class_bytes(uint32_t node_class)
{
	return KVD_UNIT_BYTES << node_class;
}

static inline union kvd_entry *kvd_entries(const struct kvd_engine *engine, uint32_t node)
{
	return (union kvd_entry *)(void *)(engine->base + (uint64_t)node * KVD_UNIT_BYTES);
}

static inline struct kvd_session *kvd_session_at(const struct kvd_engine *engine, uint64_t index)
{
	return (struct kvd_session *)(void *)(engine->base + engine->head->sessions_at) + index;
}

static inline struct kvd_books *kvd_books_of(struct kvd_session *session, uint32_t tier)
{
	return &session->books[tier - 1];
}

/* engine.c */
/*
 * The memory of `bytes` at an address that a command named, or NULL: then result0 says the address, and the command ends
 * with BAD_ADDRESS. Never NULL for no bytes. Others may write there at any time: read each thing once.
 */
void *kvd_call_buffer(struct kvd_call *call, uint64_t address, uint64_t bytes, bool writable);

/* arena.c: the arena and its nodes. */
int kvd_arena_init(struct kvd_engine *engine, const struct kvd_engine_config *config);
void kvd_arena_fini(struct kvd_engine *engine);
int kvd_arena_reset(struct kvd_engine *engine);
/* Give `link` a node whose entries reach `index`, keeping what it holds. False: the arena is full, nothing changed. */
bool kvd_node_widen(struct kvd_engine *engine, struct kvd_link *link, uint32_t index);
/* Free the node of `link` and make the link nothing. */
void kvd_node_free(struct kvd_engine *engine, struct kvd_link *link);

/* frames.c: the frames of a tier. */
struct kvd_grant {
	struct kvd_tier *tier;
	uint64_t wanted; /* frames still to be taken; the tier must have them */
	uint64_t first;
	uint64_t left;
};
uint64_t kvd_frames_level_words(const struct kvd_tier *tier, uint64_t level);
void kvd_frames_init(struct kvd_engine *engine, struct kvd_tier *tier);
/* Take up to `want` contiguous frames (at least one; one must be free) and return how many. */
uint64_t kvd_frames_take(struct kvd_engine *engine, struct kvd_tier *tier, uint64_t want, uint64_t *first);
void kvd_frames_give(struct kvd_engine *engine, struct kvd_tier *tier, uint64_t first, uint64_t count);
/* The next frame of a grant, and the end of a grant that was not used up. */
uint64_t kvd_grant_next(struct kvd_engine *engine, struct kvd_grant *grant);
void kvd_grant_end(struct kvd_engine *engine, struct kvd_grant *grant);

/* table.c: the radix table of a slot. Pages are below KVD_PAGES_MAX, ranges are [first, end). */
typedef void (*kvd_table_visit)(void *context, uint64_t first_page, union kvd_entry *entries, uint32_t count);
/* Make the leaf of `page`, reaching to `last` if that is in it. False: the arena is full, no page is changed. */
bool kvd_table_reach(struct kvd_engine *engine, struct kvd_link *root, uint64_t page, uint64_t last,
		     struct kvd_link **leaf);
/* The entry of a mapped page, or NULL. */
union kvd_entry *kvd_table_find(const struct kvd_engine *engine, const struct kvd_link *root, uint64_t page);
/* Visit the parts of leaves that are in a range, in order; entries may be 0. */
void kvd_table_walk(const struct kvd_engine *engine, const struct kvd_link *root, uint64_t first, uint64_t end,
		    kvd_table_visit visit, void *context);
/* The same, zeroing each part after its visit (`visit` may be NULL) and freeing the nodes that get empty. */
void kvd_table_clear(struct kvd_engine *engine, struct kvd_link *root, uint64_t first, uint64_t end,
		     kvd_table_visit visit, void *context);

/* session.c: session contexts, their hash and the books. */
uint64_t kvd_session_handle(const struct kvd_engine *engine, const struct kvd_session *session);
struct kvd_session *kvd_session_find(const struct kvd_engine *engine, uint64_t handle);
uint32_t *kvd_session_bucket(const struct kvd_engine *engine, uint64_t key);
/* May `blocks` and `frames` more be taken? `reserved`: the session's reservation counts first. */
bool kvd_books_admit(const struct kvd_engine *engine, struct kvd_session *session, uint32_t tier, uint64_t frames,
		     uint64_t blocks, bool reserved);
void kvd_books_charge(struct kvd_engine *engine, struct kvd_session *session, uint32_t tier, uint64_t pages,
		      uint64_t blocks, bool reserved);
uint32_t kvd_op_session_create(struct kvd_engine *engine, struct kvd_call *call);
uint32_t kvd_op_session_destroy(struct kvd_engine *engine, struct kvd_call *call);
uint32_t kvd_op_lease(struct kvd_engine *engine, struct kvd_call *call);
uint32_t kvd_op_reserve(struct kvd_engine *engine, struct kvd_call *call);
uint32_t kvd_op_query_session(struct kvd_engine *engine, struct kvd_call *call);

/* release.c: pages that leave; neighbouring frames are freed together. */
struct kvd_release {
	struct kvd_engine *engine;
	uint32_t tier;
	uint64_t first;
	uint64_t count;
	struct kvd_books total[KVD_ABI_TIER_COUNT - 1];
};
void kvd_release_add(struct kvd_release *release, uint64_t pte);
void kvd_release_visit(void *context, uint64_t first_page, union kvd_entry *entries, uint32_t count);
/* Free the frames that are still held back. */
void kvd_release_flush(struct kvd_release *release);
/* The same, and take all that was released off the books; returns the pages. */
uint64_t kvd_release_settle(struct kvd_release *release, struct kvd_session *session);

/* map.c, remap.c. */
/* The range of a command, cut at KVD_PAGES_MAX; false: it starts beyond. */
bool kvd_range(const struct kvd_abi_cmd *cmd, uint64_t *end);
uint32_t kvd_op_map(struct kvd_engine *engine, struct kvd_call *call);
uint32_t kvd_op_unmap(struct kvd_engine *engine, struct kvd_call *call);
uint32_t kvd_op_translate(struct kvd_engine *engine, struct kvd_call *call);
uint32_t kvd_op_remap(struct kvd_engine *engine, struct kvd_call *call);

/* check.c, check_table.c. */
struct kvd_check {
	const struct kvd_engine *engine;
	char *text;
	size_t text_bytes;
	size_t text_used;
	uint64_t faults;
	uint64_t *units;                                /* a bit for each unit of the heap that was met */
	uint64_t *frames[KVD_ABI_TIER_COUNT];               /* a bit for each frame that was met */
	struct kvd_books tiers[KVD_ABI_TIER_COUNT - 1];     /* sums over all sessions */
	struct kvd_books session[KVD_ABI_TIER_COUNT - 1];   /* sums over the tables of one */
	uint64_t table_bytes;
};
void kvd_check_fault(struct kvd_check *check, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Follow the tables of one session into `check->session`; true: they could be followed. */
bool kvd_check_slots(struct kvd_check *check, const struct kvd_session *session, uint64_t handle);
/* Every unit of the heap is in one table or in one free list. */
void kvd_check_heap(struct kvd_check *check);
/* The bitmap of a tier holds the frames that were met, and its summaries are right. */
void kvd_check_frames(struct kvd_check *check, uint32_t tier);

#endif
