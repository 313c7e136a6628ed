/*
 * The prefix index, private to csrc/engine and its tests: which block of which chain is held by which session.
 *
 * A block is named by its namespace, its position and its hash, and all three are compared in full: a block that was
 * not inserted is never found. The hash covers the chain up to the block, so a chain is found by asking for its blocks
 * one by one; the first absent one ends it. Removing a block in the middle hides those behind it until it is inserted
 * again.
 *
 * *Entries* are the truth: one unit each, in slabs that a directory finds; an entry exists by its holder word, which
 * is written last. What a command does to many entries happens at once: entries wear a flag (inserting, removing)
 * meanwhile, and what the flag means depends on whether the command has happened. Recovery reads that from the
 * intent's stage, readers from the stage word of the index's head, which follows it.
 *
 * Everything else is derived: a linear hash (bucket chains, split one by one, so that no command waits for a rehash),
 * the chain of each session's entries, free lists. Nothing of the index is given back to the heap, so that a lock-free
 * reader who comes late still reads entries and buckets, and finds out by the version.
 *
 * Lock-free readers: a bucket chain has a version, odd while it or what it leads to changes. A reader notes the
 * version of each chain that it read, and in the end looks whether all of them are still the same: then all that it
 * saw was true at one moment. It reads with acquire, the writer stores with release, so a reader who saw a change sees
 * its version.
 *
 * Blocks that were inserted together have neighbouring entries, so a reader first looks at the neighbour of the block
 * before: the name is compared in full there too, and instead of a version the count of removals proves that the entry
 * was not freed meanwhile. Only what is not there is looked up.
 */
#ifndef KVD_ENGINE_PREFIX_H
#define KVD_ENGINE_PREFIX_H

#include "engine/internal.h"

#define KVD_PREFIX_WORDS_MAX 4u      /* of a hash */
#define KVD_PREFIX_COUNT_MAX 1024u   /* blocks of a command: bounds its time */
#define KVD_PREFIX_SLOTS 7u
#define KVD_PREFIX_CHAIN_MAX 32u     /* buckets of a chain: bounds a look-up */
#define KVD_PREFIX_LOAD 3u           /* entries a chain from which on the hash grows */
#define KVD_PREFIX_NODE_UNITS 64u    /* entries of a slab, buckets of a segment */
#define KVD_PREFIX_NODE_WORDS 1024u  /* of a node of the directory or of the hash's root */
#define KVD_PREFIX_BUCKETS_MAX (KVD_PREFIX_NODE_WORDS * KVD_PREFIX_NODE_WORDS * KVD_PREFIX_NODE_UNITS)
#define KVD_PREFIX_TAG_SHIFT 32u     /* of a slot */

#define KVD_PREFIX_INSERTING ((uint64_t)KVD_ABI_PREFIX_ENTRY_HOLDER_INSERTING_MASK)
#define KVD_PREFIX_REMOVING ((uint64_t)KVD_ABI_PREFIX_ENTRY_HOLDER_REMOVING_MASK)
#define KVD_PREFIX_FLAGS (KVD_PREFIX_INSERTING | KVD_PREFIX_REMOVING)
#define KVD_PREFIX_STAGE_DONE ((uint64_t)KVD_ABI_PREFIX_HEAD_STAGE_DONE_MASK)

static_assert(sizeof(struct kvd_abi_prefix_entry) == KVD_UNIT_BYTES, "an entry is named by its unit");
static_assert(sizeof(struct kvd_abi_prefix_bucket) == KVD_UNIT_BYTES, "a bucket is named by its unit");
static_assert(sizeof(((struct kvd_abi_prefix_bucket *)0)->slots) == KVD_PREFIX_SLOTS * 8, "slots of a bucket");
static_assert(KVD_PREFIX_NODE_UNITS * KVD_UNIT_BYTES == KVD_NODE_BYTES_MAX, "slabs and segments are whole nodes");
static_assert(KVD_SESSIONS_MAX - 1 <= KVD_ABI_PREFIX_ENTRY_HOLDER_CONTEXT_MASK, "flags stand above a context's number");
#define KVD_PREFIX_PLACE_SHIFT KVD_ABI_PREFIX_ENTRY_PLACE_POSITION_SHIFT
static_assert(KVD_PAGES_MAX - 1 <= KVD_ABI_PREFIX_ENTRY_PLACE_POSITION_MASK >> KVD_PREFIX_PLACE_SHIFT,
	      "a position fits its field");

/* The full name of a block. */
struct kvd_prefix_name {
	uint64_t key;
	uint64_t place;
	uint64_t hash[KVD_PREFIX_WORDS_MAX];
};

/* The arguments of a command, checked. The caller may change the hashes at any time. */
struct kvd_prefix_chain {
	const uint64_t *hashes;
	uint64_t key;
	uint64_t first;
	uint32_t count;
	uint32_t words;
};

/* Where an entry stands in the hash. */
struct kvd_prefix_spot {
	struct kvd_abi_prefix_bucket *first; /* of the chain */
	struct kvd_abi_prefix_bucket *bucket;
	struct kvd_abi_prefix_entry *entry;
	uint32_t slot;
};

/* The node or unit `unit` of the heap, or NULL where it can't be one. */
static inline void *kvd_prefix_unit(const struct kvd_engine *engine, uint32_t unit)
{
	return unit - engine->unit_first < engine->units ? engine->base + (uint64_t)unit * KVD_UNIT_BYTES : NULL;
}

static inline uint32_t *kvd_prefix_node(const struct kvd_engine *engine, uint32_t unit)
{
	return unit % KVD_PREFIX_NODE_UNITS ? NULL : kvd_prefix_unit(engine, unit);
}

static inline uint32_t kvd_prefix_unit_of(const struct kvd_engine *engine, const void *at)
{
	return (uint32_t)((uint64_t)((const unsigned char *)at - engine->base) / KVD_UNIT_BYTES);
}

static inline uint64_t kvd_prefix_handle(uint64_t holder)
{
	return holder & ~KVD_PREFIX_FLAGS;
}

/* Is an entry with this holder word there, its holder's life apart? */
static inline bool kvd_prefix_visible(uint64_t holder, uint64_t stage)
{
	uint64_t done = stage & KVD_PREFIX_STAGE_DONE;

	return holder && !(holder & (done ? KVD_PREFIX_REMOVING : KVD_PREFIX_INSERTING));
}

static inline uint64_t kvd_prefix_fold(uint64_t a, uint64_t b)
{
	unsigned __int128 product = (unsigned __int128)a * b;

	return (uint64_t)product ^ (uint64_t)(product >> 64);
}

/*
 * The mixed hash: three products of 64 by 64 bits, each folded to 64 bits. The seed is secret to the engine: who
 * chooses hashes can't choose buckets. Bits 0 and up name the bucket, the lower half is the tag of a slot.
 */
static inline uint32_t kvd_prefix_mix(uint64_t seed, const struct kvd_prefix_name *name)
{
	uint64_t a = kvd_prefix_fold(name->hash[0] ^ seed, name->hash[1] ^ 0x9e3779b97f4a7c15ull);
	uint64_t b = kvd_prefix_fold(name->hash[2] ^ (seed + name->place), name->hash[3] ^ 0xc2b2ae3d27d4eb4full);

	return (uint32_t)kvd_prefix_fold(a ^ name->key ^ 0xd6e8feb86659fd93ull, b ^ (seed << 32 | seed >> 32));
}

/* The chain of a mixed hash where there are `buckets` chains. */
static inline uint32_t kvd_prefix_index(uint32_t mixed, uint32_t buckets)
{
	uint32_t mask = (uint32_t)((2ull << (31 - __builtin_clz(buckets))) - 1);
	uint32_t index = mixed & mask;

	return index < buckets ? index : mixed & (mask >> 1);
}

/* The word of the root's node that leads to the segment of a chain, or NULL. */
static inline const uint32_t *kvd_prefix_segment(const struct kvd_engine *engine, uint32_t index)
{
	uint32_t segment = index / KVD_PREFIX_NODE_UNITS;
	const uint32_t *root = kvd_prefix_node(engine, kvd_get32(&engine->head->prefix.root));
	const uint32_t *node;

	if (!root || segment / KVD_PREFIX_NODE_WORDS >= KVD_PREFIX_NODE_WORDS)
		return NULL;
	node = kvd_prefix_node(engine, kvd_get32(&root[segment / KVD_PREFIX_NODE_WORDS]));
	return node ? node + segment % KVD_PREFIX_NODE_WORDS : NULL;
}

/* The first bucket of a chain, or NULL where the tables are broken. */
static inline struct kvd_abi_prefix_bucket *kvd_prefix_bucket(const struct kvd_engine *engine, uint32_t index)
{
	const uint32_t *at = kvd_prefix_segment(engine, index);
	struct kvd_abi_prefix_bucket *segment = at ? (void *)kvd_prefix_node(engine, kvd_get32(at)) : NULL;

	return segment ? segment + index % KVD_PREFIX_NODE_UNITS : NULL;
}

/* The name of block `i` of a chain. */
static inline void kvd_prefix_name_of(const struct kvd_prefix_chain *chain, uint32_t i, struct kvd_prefix_name *name)
{
	const uint64_t *hash = chain->hashes + (uint64_t)i * chain->words;

	*name = (struct kvd_prefix_name){
		.key = chain->key,
		.place = (chain->first + i) << KVD_PREFIX_PLACE_SHIFT | chain->words,
	};
	for (uint32_t word = 0; word < chain->words; word++)
		name->hash[word] = __atomic_load_n(&hash[word], __ATOMIC_RELAXED);
}

/* prefix.c: the commands that change the index. */
/* Check the arguments that the commands have in common. */
uint32_t kvd_prefix_arguments(struct kvd_call *call, struct kvd_prefix_chain *chain);
uint32_t kvd_op_prefix_insert(struct kvd_engine *engine, struct kvd_call *call);
uint32_t kvd_op_prefix_remove(struct kvd_engine *engine, struct kvd_call *call);
/* Remove all that a session holds, the last inserted first: the chains that a reader finds meanwhile get shorter from
 * their ends. For SESSION_DESTROY, while the context still has its generation. */
void kvd_prefix_drop(struct kvd_engine *engine, struct kvd_session *session);

/* prefix_match.c: PREFIX_MATCH, for any thread beside one writer. */
uint32_t kvd_op_prefix_match(struct kvd_engine *engine, struct kvd_call *call);

/* prefix_entries.c: entries, and the chains of those that a session holds. */
/* A free entry, or NULL: no memory. */
struct kvd_abi_prefix_entry *kvd_prefix_entry_take(struct kvd_engine *engine);
/* Free an entry that stands in no chain. */
void kvd_prefix_entry_give(struct kvd_engine *engine, struct kvd_abi_prefix_entry *entry);
void kvd_prefix_chain_push(struct kvd_engine *engine, struct kvd_session *session, struct kvd_abi_prefix_entry *entry);
void kvd_prefix_chain_pull(struct kvd_engine *engine, struct kvd_abi_prefix_entry *entry);
/* A node of the heap, all zero, or 0. */
uint32_t kvd_prefix_node_take(struct kvd_engine *engine);

/* prefix_hash.c: the linear hash. */
uint32_t kvd_prefix_mixed(const struct kvd_engine *engine, const struct kvd_abi_prefix_entry *entry);
/* Find the entry of a name, whoever holds it. */
bool kvd_prefix_find(const struct kvd_engine *engine, const struct kvd_prefix_name *name, struct kvd_prefix_spot *spot);
/* Put an entry into the hash, which may grow by one chain. False: no memory, or its chain is full. */
bool kvd_prefix_hash_insert(struct kvd_engine *engine, struct kvd_abi_prefix_entry *entry);
/* Take the entry at a spot, or wherever it is, out of the hash. */
void kvd_prefix_hash_remove(struct kvd_engine *engine, const struct kvd_prefix_spot *spot);
void kvd_prefix_hash_remove_entry(struct kvd_engine *engine, const struct kvd_abi_prefix_entry *entry);
/* Give an entry another holder word, seen by readers as a change. */
void kvd_prefix_hold(const struct kvd_prefix_spot *spot, uint64_t holder);

/*
 * prefix_rebuild.c: recovery, with no reader beside it.
 *
 * First `kvd_prefix_claim` names the nodes that the index has in truth; `claim` says false for what is no node of the
 * heap or was claimed before, and that is cut out. All other nodes are free then: the caller rebuilds the heap. Last
 * `kvd_prefix_rebuild` settles an interrupted command, which has `happened` or not, and makes everything derived anew.
 * Sessions must be as they will stay: what no living session holds goes.
 */
struct kvd_prefix_recovery {
	uint64_t entries;      /* that are there now */
	uint64_t lost_slabs;   /* cut out: each may have held up to 64 entries */
	uint64_t lost_entries; /* garbage, second entries of a block, or no memory to find them by */
};
typedef bool (*kvd_prefix_claim_fn)(void *context, uint32_t node, uint32_t node_class);
void kvd_prefix_claim(struct kvd_engine *engine, kvd_prefix_claim_fn claim, void *context,
		      struct kvd_prefix_recovery *recovery);
void kvd_prefix_rebuild(struct kvd_engine *engine, bool happened, struct kvd_prefix_recovery *recovery);
/* Are an entry's place and hash such that a command could have made them? */
bool kvd_prefix_well_formed(const struct kvd_abi_prefix_entry *entry);

/* prefix_check.c, prefix_check_hash.c: a part of kvd_engine_check, before the check of the heap. */
struct kvd_prefix_check {
	struct kvd_check *check;
	const struct kvd_engine *engine;
	uint64_t *is_entry; /* bits by unit from the heap's first: it is in a slab */
	uint64_t *hashed;   /* it was met in a bucket */
	uint64_t *listed;   /* it was met in a session's chain or among the free */
	uint64_t units;
	uint64_t total;     /* entries of all slabs */
	uint64_t held;
};
void kvd_prefix_check(struct kvd_check *check);
/* Look at the bit of a unit; `set`: and set it. False: the unit is outside. */
bool kvd_prefix_check_bit(const struct kvd_prefix_check *at, uint64_t *bits, uint32_t unit, bool set);
/* kvd_check_node for a node of the index: its bytes count. */
bool kvd_prefix_check_node(struct kvd_prefix_check *at, uint32_t unit, uint32_t node_class);
void kvd_prefix_check_hash(struct kvd_prefix_check *at);

#endif
