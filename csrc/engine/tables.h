/*
 * The words of the tables, private to csrc/engine and its tests: how they are laid out, read and written.
 *
 * Everything that lasts is in the arena and refers to the rest by offset or index, so that the same bytes can lie in
 * a shared file and be walked by hardware. Zeroed memory is a valid empty table everywhere: what was never used is
 * never touched.
 *
 *   head | session contexts | hash buckets | journal | frame bitmaps | heap of table nodes
 *
 * One writer, any number of readers. Whatever a reader may look at is stored by kvd_put (release) and loaded by kvd_get
 * (acquire): both are plain moves on x86, and with them the version of a session works without fences. A process that
 * dies leaves the stores that it made, in program order.
 */
#ifndef KVD_ENGINE_TABLES_H
#define KVD_ENGINE_TABLES_H

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/engine.h"

#define KVD_ARENA_MAGIC 0x616e6572612d766bull /* "kv-arena" */
#define KVD_ARENA_VERSION 2u

#define KVD_BLOCK_BYTES 4096u
#define KVD_PAGE_BYTES_MIN 4096u
#define KVD_PAGE_BYTES_MAX (2u << 20)
#define KVD_PAGES_MAX (1ull << KVD_ENGINE_PAGE_BITS)
#define KVD_BLOCKS_MAX (1ull << 52) /* keeps every sum of books far from 64 bits */
#define KVD_FRAMES_MAX (1ull << 39)
#define KVD_SESSIONS_MAX (1ull << 28)
#define KVD_MAP_RUNS_MAX (1ull << 20)

/* Nodes are named by their first unit: 32 bits reach 256 GiB. */
#define KVD_UNIT_BYTES 64u
#define KVD_ARENA_BYTES_MAX ((1ull << 32) * KVD_UNIT_BYTES)

/* A node has 8, 16, 32 ... or 512 entries and so covers the first 8, 16, 32 ... or all of the places of its level. */
#define KVD_FANOUT_BITS 9u
#define KVD_FANOUT (1u << KVD_FANOUT_BITS)
#define KVD_NODE_CLASSES 7u
#define KVD_NODE_BYTES_MAX (KVD_FANOUT * 8u)
#define KVD_NODE_UNITS_MAX (KVD_NODE_BYTES_MAX / KVD_UNIT_BYTES)
#define KVD_HEIGHT_MAX ((KVD_ENGINE_PAGE_BITS - 1) / KVD_FANOUT_BITS)

/* A frame bitmap's levels: 64^7 frames are more than KVD_FRAMES_MAX. */
#define KVD_FRAME_LEVELS_MAX 7u

/* Zero in every PTE: nothing sets it yet. */
#define KVD_PTE_UNUSED_MASK KVD_ABI_PTE_ZERO_MASK
static_assert(KVD_PAGE_BYTES_MAX / KVD_BLOCK_BYTES == (KVD_ABI_PTE_BLOCKS_MASK >> KVD_ABI_PTE_BLOCKS_SHIFT) + 1,
	      "a page's charge fits its field");
static_assert(KVD_FRAMES_MAX - 1 == KVD_ABI_PTE_FRAME_MASK >> KVD_ABI_PTE_FRAME_SHIFT, "a frame number fits its field");

/* The described structures, by the names that they have here. */
#define kvd_head kvd_abi_table_head
#define kvd_tier kvd_abi_tier_head
#define kvd_session kvd_abi_session_context
#define kvd_intent kvd_abi_intent

/* A node's entry: a PTE at height 0, else a link to a node of one height less; 0: nothing. */
union kvd_entry {
	uint64_t pte;
	uint64_t link;
};
static_assert(sizeof(union kvd_entry) == 8, "an entry is 8 bytes");

/* Memory of a tier, for those who move bytes; no bytes: it has none. */
struct kvd_tier_memory {
	uint64_t address;
	uint64_t bytes;
};

struct kvd_engine {
	unsigned char *base;
	struct kvd_head *head;
	struct kvd_head layout; /* the head as it was made or found sound: places and sizes are taken from here */
	uint64_t unit_first;    /* of the heap */
	uint64_t units;
	uint32_t page_blocks;
	int fd;              /* own copy of the arena's file, or -1 */
	bool mapped;         /* the memory is this engine's, not the caller's */
	bool read_only;
	bool dirty;          /* to be recovered first */
	kvd_engine_reach reach; /* NULL: addresses are pointers */
	void *reach_context;
	struct kvd_abi_map_run *runs; /* own copy of the runs of a MAP */
	uint64_t runs_room;
	struct kvd_tier_memory tier_memory[KVD_ABI_TIER_COUNT];
};

/* A test build stops or copies the writer here, after each of its stores. */
#ifdef KVD_ENGINE_STORE_HOOK
extern void kvd_engine_stored(void);
#else
static inline void kvd_engine_stored(void)
{
}
#endif

static inline uint64_t kvd_get(const uint64_t *at)
{
	return __atomic_load_n(at, __ATOMIC_ACQUIRE);
}

static inline uint32_t kvd_get32(const uint32_t *at)
{
	return __atomic_load_n(at, __ATOMIC_ACQUIRE);
}

static inline void kvd_put(uint64_t *at, uint64_t value)
{
	__atomic_store_n(at, value, __ATOMIC_RELEASE);
	kvd_engine_stored();
}

static inline void kvd_put32(uint32_t *at, uint32_t value)
{
	__atomic_store_n(at, value, __ATOMIC_RELEASE);
	kvd_engine_stored();
}

static inline void kvd_add(uint64_t *at, uint64_t delta)
{
	kvd_put(at, *at + delta);
}

/* Set bits of an entry that hardware may be setting others of. */
static inline void kvd_set_bits(uint64_t *at, uint64_t mask)
{
	__atomic_fetch_or(at, mask, __ATOMIC_RELEASE);
	kvd_engine_stored();
}

/* What comes after in the source comes after in memory: a store by kvd_put alone may sink below a later one. */
static inline void kvd_order(void)
{
	__atomic_signal_fence(__ATOMIC_SEQ_CST);
}

/* Copy a completion by whole words: its parts were just stored, and a wider load would have to wait for them. */
static inline void kvd_cpl_copy(struct kvd_abi_cpl *to, const struct kvd_abi_cpl *from)
{
	uint64_t *words = (uint64_t *)(void *)to;

	words[0] = from->id | (uint64_t)from->status << 32 | (uint64_t)from->flags << 48;
	words[1] = from->result0;
	words[2] = from->result1;
	words[3] = from->sq_head | (uint64_t)from->reserved << 32;
}

static inline uint64_t kvd_pte_make(uint32_t tier, uint32_t blocks, uint64_t frame)
{
	return KVD_ABI_PTE_VALID_MASK | (uint64_t)tier << KVD_ABI_PTE_TIER_SHIFT |
	       (uint64_t)(blocks - 1) << KVD_ABI_PTE_BLOCKS_SHIFT | frame << KVD_ABI_PTE_FRAME_SHIFT;
}

/* The entry of a page that is mapped now. */
static inline uint64_t kvd_pte_new(const struct kvd_engine *engine, uint32_t tier, uint32_t blocks, uint64_t frame)
{
	uint64_t generation = (uint64_t)engine->head->age << KVD_ABI_PTE_GENERATION_SHIFT;

	return kvd_pte_make(tier, blocks, frame) | (generation & KVD_ABI_PTE_GENERATION_MASK);
}

/* The same page in another frame, alone there, which holds its bytes as they are. */
static inline uint64_t kvd_pte_moved(uint64_t pte, uint32_t tier, uint64_t frame)
{
	pte &= ~(KVD_ABI_PTE_TIER_MASK | KVD_ABI_PTE_FRAME_MASK | KVD_ABI_PTE_SHARED_MASK | KVD_ABI_PTE_DIRTY_MASK);
	return pte | (uint64_t)tier << KVD_ABI_PTE_TIER_SHIFT | frame << KVD_ABI_PTE_FRAME_SHIFT;
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
	return (pte & KVD_ABI_PTE_FRAME_MASK) >> KVD_ABI_PTE_FRAME_SHIFT;
}

/* Does an entry, valid or not yet, name a frame that there can be? */
static inline bool kvd_pte_sound(const struct kvd_engine *engine, uint64_t pte)
{
	uint32_t tier = kvd_pte_tier(pte);

	return tier && tier < KVD_ABI_TIER_COUNT && kvd_pte_blocks(pte) <= engine->page_blocks &&
	       kvd_pte_frame(pte) < engine->layout.tiers[tier].total_frames;
}

static inline uint64_t kvd_link_make(uint32_t node, uint32_t used, uint32_t node_class, uint32_t height)
{
	return node | (uint64_t)used << KVD_ABI_LINK_USED_SHIFT | (uint64_t)node_class << KVD_ABI_LINK_NODE_CLASS_SHIFT |
	       (uint64_t)height << KVD_ABI_LINK_HEIGHT_SHIFT;
}

static inline uint32_t kvd_link_node(uint64_t link)
{
	return (uint32_t)link;
}

static inline uint32_t kvd_link_used(uint64_t link)
{
	return (uint32_t)((link & KVD_ABI_LINK_USED_MASK) >> KVD_ABI_LINK_USED_SHIFT);
}

static inline uint32_t kvd_link_class(uint64_t link)
{
	return (uint32_t)((link & KVD_ABI_LINK_NODE_CLASS_MASK) >> KVD_ABI_LINK_NODE_CLASS_SHIFT);
}

static inline uint32_t kvd_link_height(uint64_t link)
{
	return (uint32_t)(link >> KVD_ABI_LINK_HEIGHT_SHIFT);
}

/* The same link with `delta` more entries that are not zero. */
static inline uint64_t kvd_link_more(uint64_t link, int32_t delta)
{
	uint64_t used = (uint64_t)(kvd_link_used(link) + (uint32_t)delta) << KVD_ABI_LINK_USED_SHIFT;

	return (link & ~KVD_ABI_LINK_USED_MASK) | (used & KVD_ABI_LINK_USED_MASK);
}

static inline uint32_t kvd_class_entries(uint32_t node_class)
{
	return 8u << node_class;
}

static inline uint32_t kvd_class_bytes(uint32_t node_class)
{
	return KVD_UNIT_BYTES << node_class;
}

/* Is this a place in the heap for a node of that class? Nodes are aligned to their size, as is the end of the heap. */
static inline bool kvd_node_sound(const struct kvd_engine *engine, uint64_t node, uint32_t node_class)
{
	return node_class < KVD_NODE_CLASSES && node - engine->unit_first < engine->units &&
	       !(node & ((1u << node_class) - 1));
}

/* The entries of a link's node; NULL: the link is nothing, or leads out of the heap. */
static inline union kvd_entry *kvd_node(const struct kvd_engine *engine, uint64_t link)
{
	if (!kvd_node_sound(engine, kvd_link_node(link), kvd_link_class(link)))
		return NULL;
	return (union kvd_entry *)(void *)(engine->base + (uint64_t)kvd_link_node(link) * KVD_UNIT_BYTES);
}

static inline struct kvd_session *kvd_session_at(const struct kvd_engine *engine, uint64_t index)
{
	return (struct kvd_session *)(void *)(engine->base + engine->layout.sessions_at) + index;
}

#endif
