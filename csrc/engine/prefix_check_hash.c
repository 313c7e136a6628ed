/* The check of the prefix index's hash: every entry that is held is in the chain of its name, once. */
#include <inttypes.h>

#include "engine/prefix.h"

#define CLASS_BUCKET 0u

static bool same_block(const struct kvd_abi_prefix_entry *a, const struct kvd_abi_prefix_entry *b)
{
	bool same = a->key == b->key && a->place == b->place;

	for (uint32_t i = 0; i < KVD_PREFIX_WORDS_MAX; i++)
		same = same && a->hash[i] == b->hash[i];
	return same;
}

/* The slots of a chain so far, to find a block that is in it twice. */
struct chain {
	uint64_t words[KVD_PREFIX_CHAIN_MAX * KVD_PREFIX_SLOTS];
	uint32_t count;
};

static bool check_slot(struct kvd_prefix_check *at, struct chain *chain, uint64_t word, uint32_t index)
{
	const struct kvd_abi_prefix_head *head = &at->engine->head->prefix;
	const struct kvd_abi_prefix_entry *entry = kvd_prefix_unit(at->engine, (uint32_t)word);
	uint32_t mixed;

	if (!entry || !kvd_prefix_check_bit(at, at->is_entry, (uint32_t)word, false) || !entry->holder ||
	    kvd_prefix_check_bit(at, at->hashed, (uint32_t)word, true))
		return false;
	mixed = kvd_prefix_mixed(at->engine, entry);
	if (mixed != word >> KVD_PREFIX_TAG_SHIFT || kvd_prefix_index(mixed, head->buckets) != index)
		return false;
	for (uint32_t i = 0; i < chain->count; i++) {
		if (same_block(kvd_prefix_unit(at->engine, (uint32_t)chain->words[i]), entry))
			return false;
	}
	chain->words[chain->count++] = word;
	return true;
}

/* Check a chain; returns its entries. */
static uint64_t check_bucket_chain(struct kvd_prefix_check *at, const struct kvd_abi_prefix_bucket *bucket,
				   uint32_t index)
{
	struct chain chain = {.count = 0};
	bool full = true;

	if (bucket->version % 2)
		kvd_check_fault(at->check, "prefix chain %u: its version is odd", index);
	for (uint32_t length = 1;; length++) {
		for (uint32_t i = 0; i < KVD_PREFIX_SLOTS; i++) {
			uint64_t word = bucket->slots[i];

			if (word && (!full || !check_slot(at, &chain, word, index))) {
				kvd_check_fault(at->check, "prefix chain %u: slot %" PRIx64 " is wrong", index, word);
				return chain.count;
			}
			if (!word && !i && length > 1)
				kvd_check_fault(at->check, "prefix chain %u: an empty bucket", index);
			full = word != 0;
		}
		if (!bucket->more)
			return chain.count;
		if (length == KVD_PREFIX_CHAIN_MAX || !kvd_prefix_check_node(at, bucket->more, CLASS_BUCKET)) {
			kvd_check_fault(at->check, "prefix chain %u: bucket %u is no bucket of it", index,
					bucket->more);
			return chain.count;
		}
		bucket = kvd_prefix_unit(at->engine, bucket->more);
	}
}

/* The nodes that lead to the segments, and the segments. False: the chains can't be followed. */
static bool check_root(struct kvd_prefix_check *at)
{
	const struct kvd_abi_prefix_head *head = &at->engine->head->prefix;
	const uint32_t *root = kvd_prefix_node(at->engine, head->root);
	uint32_t segments = (head->buckets + KVD_PREFIX_NODE_UNITS - 1) / KVD_PREFIX_NODE_UNITS;
	uint32_t met = 0;

	if (!head->root)
		return !head->buckets;
	if (!root || head->buckets > KVD_PREFIX_BUCKETS_MAX ||
	    !kvd_prefix_check_node(at, head->root, KVD_NODE_CLASSES - 1))
		return false;
	/* A node or segment may be there before the first chain in it. */
	for (uint32_t i = 0; i < KVD_PREFIX_NODE_WORDS; i++) {
		const uint32_t *node = kvd_prefix_node(at->engine, root[i]);

		if (!root[i])
			continue;
		if (!node || !kvd_prefix_check_node(at, root[i], KVD_NODE_CLASSES - 1))
			return false;
		for (uint32_t word = 0; word < KVD_PREFIX_NODE_WORDS; word++) {
			if (!node[word])
				continue;
			if (!kvd_prefix_node(at->engine, node[word]) ||
			    !kvd_prefix_check_node(at, node[word], KVD_NODE_CLASSES - 1))
				return false;
			met += i * KVD_PREFIX_NODE_WORDS + word < segments;
		}
	}
	return met == segments;
}

static void check_free_buckets(struct kvd_prefix_check *at)
{
	uint32_t unit = at->engine->head->prefix.bucket_free;

	while (unit) {
		const struct kvd_abi_prefix_bucket *bucket = kvd_prefix_unit(at->engine, unit);
		uint64_t words = 0;

		/* A circle ends here too: its first bucket was met before. */
		if (!bucket || !kvd_prefix_check_node(at, unit, CLASS_BUCKET)) {
			kvd_check_fault(at->check, "prefix bucket %u is free wrongly", unit);
			return;
		}
		for (uint32_t i = 0; i < KVD_PREFIX_SLOTS; i++)
			words |= bucket->slots[i];
		if (words)
			kvd_check_fault(at->check, "prefix bucket %u is free and not empty", unit);
		unit = bucket->more;
	}
}

void kvd_prefix_check_hash(struct kvd_prefix_check *at)
{
	const struct kvd_abi_prefix_head *head = &at->engine->head->prefix;
	uint64_t count = 0;

	if (!check_root(at)) {
		kvd_check_fault(at->check, "prefix hash: its nodes lead nowhere");
		return;
	}
	for (uint32_t i = 0; i < head->buckets; i++)
		count += check_bucket_chain(at, kvd_prefix_bucket(at->engine, i), i);
	check_free_buckets(at);
	if (count != at->held)
		kvd_check_fault(at->check, "prefix hash: %" PRIu64 " entries are held, %" PRIu64 " can be found",
				at->held, count);
}
