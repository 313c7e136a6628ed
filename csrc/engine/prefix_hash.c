/*
 * The linear hash of the prefix index.
 *
 * Chains of buckets; there are `buckets` of them, from 64 on. When entries are more than KVD_PREFIX_LOAD a chain, the
 * next chain in order is split in two: a command pays for one split an entry, never for a rehash. Slots hold the part
 * of the mixed hash that says where they belong, so a split reads no entry.
 */
#include "engine/prefix.h"

#define CHAIN_SLOTS_MAX (KVD_PREFIX_CHAIN_MAX * KVD_PREFIX_SLOTS)

static void change_begin(struct kvd_abi_prefix_bucket *first)
{
	kvd_put32(&first->version, first->version + 1);
}

static void change_end(struct kvd_abi_prefix_bucket *first)
{
	kvd_put32(&first->version, first->version + 1);
}

static struct kvd_abi_prefix_bucket *more_of(const struct kvd_engine *engine,
					     const struct kvd_abi_prefix_bucket *bucket)
{
	return kvd_prefix_unit(engine, bucket->more);
}

uint32_t kvd_prefix_mixed(const struct kvd_engine *engine, const struct kvd_abi_prefix_entry *entry)
{
	struct kvd_prefix_name name = {.key = entry->key, .place = entry->place};

	for (uint32_t i = 0; i < KVD_PREFIX_WORDS_MAX; i++)
		name.hash[i] = entry->hash[i];
	return kvd_prefix_mix(engine->head->prefix.seed, &name);
}

static bool same(const struct kvd_abi_prefix_entry *entry, const struct kvd_prefix_name *name)
{
	uint64_t other = (entry->key ^ name->key) | (entry->place ^ name->place);

	for (uint32_t i = 0; i < KVD_PREFIX_WORDS_MAX; i++)
		other |= entry->hash[i] ^ name->hash[i];
	return !other;
}

/* The chain of a mixed hash, or NULL: there is no hash yet, or it is broken. */
static struct kvd_abi_prefix_bucket *chain_of(const struct kvd_engine *engine, uint32_t mixed)
{
	uint32_t buckets = engine->head->prefix.buckets;

	return buckets ? kvd_prefix_bucket(engine, kvd_prefix_index(mixed, buckets)) : NULL;
}

bool kvd_prefix_find(const struct kvd_engine *engine, const struct kvd_prefix_name *name, struct kvd_prefix_spot *spot)
{
	uint32_t mixed = kvd_prefix_mix(engine->head->prefix.seed, name);

	spot->first = chain_of(engine, mixed);
	spot->bucket = spot->first;
	for (uint32_t length = 0; spot->bucket && length < KVD_PREFIX_CHAIN_MAX; length++) {
		for (spot->slot = 0; spot->slot < KVD_PREFIX_SLOTS; spot->slot++) {
			uint64_t word = spot->bucket->slots[spot->slot];

			if (!word)
				return false;
			if (word >> KVD_PREFIX_TAG_SHIFT != mixed)
				continue;
			spot->entry = kvd_prefix_unit(engine, (uint32_t)word);
			if (spot->entry && same(spot->entry, name))
				return true;
		}
		spot->bucket = more_of(engine, spot->bucket);
	}
	return false;
}

static struct kvd_abi_prefix_bucket *bucket_take(struct kvd_engine *engine)
{
	struct kvd_abi_prefix_head *head = &engine->head->prefix;
	struct kvd_abi_prefix_bucket *bucket = kvd_prefix_unit(engine, head->bucket_free);
	uint32_t unit;

	if (!bucket) {
		unit = kvd_prefix_node_take(engine);
		if (!unit)
			return NULL;
		for (uint32_t i = KVD_PREFIX_NODE_UNITS; i-- > 0;) {
			bucket = kvd_prefix_unit(engine, unit + i);
			kvd_put32(&bucket->more, head->bucket_free);
			head->bucket_free = unit + i;
		}
	}
	head->bucket_free = bucket->more;
	kvd_put32(&bucket->more, 0);
	return bucket;
}

/* Free a bucket that nothing leads to. */
static void bucket_give(struct kvd_engine *engine, struct kvd_abi_prefix_bucket *bucket)
{
	struct kvd_abi_prefix_head *head = &engine->head->prefix;

	for (uint32_t i = 0; i < KVD_PREFIX_SLOTS; i++)
		kvd_put(&bucket->slots[i], 0);
	kvd_put32(&bucket->more, head->bucket_free);
	head->bucket_free = kvd_prefix_unit_of(engine, bucket);
}

/* Put a slot behind the last one of a chain that is being changed. */
static bool chain_append(struct kvd_engine *engine, struct kvd_abi_prefix_bucket *first, uint64_t word)
{
	struct kvd_abi_prefix_bucket *bucket = first;
	struct kvd_abi_prefix_bucket *more;

	for (uint32_t length = 1;; length++) {
		for (uint32_t i = 0; i < KVD_PREFIX_SLOTS; i++) {
			if (!bucket->slots[i]) {
				kvd_put(&bucket->slots[i], word);
				return true;
			}
		}
		if (length == KVD_PREFIX_CHAIN_MAX)
			return false;
		more = more_of(engine, bucket);
		if (!more) {
			more = bucket_take(engine);
			if (!more)
				return false;
			kvd_put32(&bucket->more, kvd_prefix_unit_of(engine, more));
		}
		bucket = more;
	}
}

/* Empty a chain into `words`; returns how many there were. Its further buckets are free then. */
static uint32_t chain_drain(struct kvd_engine *engine, struct kvd_abi_prefix_bucket *first, uint64_t *words)
{
	struct kvd_abi_prefix_bucket *bucket = first;
	uint32_t count = 0;

	for (uint32_t length = 0; bucket && length < KVD_PREFIX_CHAIN_MAX; length++) {
		struct kvd_abi_prefix_bucket *more = more_of(engine, bucket);

		for (uint32_t i = 0; i < KVD_PREFIX_SLOTS; i++) {
			if (bucket->slots[i])
				words[count++] = bucket->slots[i];
			kvd_put(&bucket->slots[i], 0);
		}
		if (bucket != first)
			bucket_give(engine, bucket);
		bucket = more;
	}
	kvd_put32(&first->more, 0);
	return count;
}

/* Make the segment of chain `index` and the way to it. False: no memory; what was made stays and is used later. */
static bool segment_new(struct kvd_engine *engine, uint32_t index)
{
	struct kvd_abi_prefix_head *head = &engine->head->prefix;
	uint32_t segment = index / KVD_PREFIX_NODE_UNITS;
	uint32_t *root, *node;

	if (!head->root)
		kvd_put32(&head->root, kvd_prefix_node_take(engine));
	root = kvd_prefix_node(engine, head->root);
	if (!root)
		return false;
	root += segment / KVD_PREFIX_NODE_WORDS;
	if (!*root)
		kvd_put32(root, kvd_prefix_node_take(engine));
	node = kvd_prefix_node(engine, *root);
	if (!node)
		return false;
	node += segment % KVD_PREFIX_NODE_WORDS;
	if (!*node)
		kvd_put32(node, kvd_prefix_node_take(engine));
	return *node != 0;
}

/* Split the next chain. Without memory for it chains get longer, and nothing fails. */
static void split(struct kvd_engine *engine)
{
	struct kvd_abi_prefix_head *head = &engine->head->prefix;
	uint32_t index = head->buckets;
	uint32_t bit = 1u << (31 - __builtin_clz(index));
	uint64_t words[CHAIN_SLOTS_MAX];
	struct kvd_abi_prefix_bucket *from, *to;
	uint32_t count;

	if (index >= KVD_PREFIX_BUCKETS_MAX || (index % KVD_PREFIX_NODE_UNITS == 0 && !segment_new(engine, index)))
		return;
	from = kvd_prefix_bucket(engine, index - bit);
	to = kvd_prefix_bucket(engine, index);
	if (!from || !to)
		return;
	change_begin(from);
	count = chain_drain(engine, from, words);
	/* Two chains never need more buckets than the one had, so no append fails. The new chain is whole before a
	 * reader can know of it, and one who knows of it only later finds the old one's version changed. */
	for (uint32_t i = 0; i < count; i++)
		chain_append(engine, words[i] >> KVD_PREFIX_TAG_SHIFT & bit ? to : from, words[i]);
	kvd_put32(&head->buckets, index + 1);
	change_end(from);
}

bool kvd_prefix_hash_insert(struct kvd_engine *engine, struct kvd_abi_prefix_entry *entry)
{
	struct kvd_abi_prefix_head *head = &engine->head->prefix;
	uint32_t mixed = kvd_prefix_mixed(engine, entry);
	struct kvd_abi_prefix_bucket *first;
	bool done;

	if (!head->buckets) {
		if (!segment_new(engine, 0))
			return false;
		kvd_put32(&head->buckets, KVD_PREFIX_NODE_UNITS);
	}
	first = chain_of(engine, mixed);
	if (!first)
		return false;
	change_begin(first);
	done = chain_append(engine, first, (uint64_t)mixed << KVD_PREFIX_TAG_SHIFT | kvd_prefix_unit_of(engine, entry));
	change_end(first);
	if (!done)
		return false;
	head->entries++;
	if (head->entries > (uint64_t)head->buckets * KVD_PREFIX_LOAD)
		split(engine);
	return true;
}

/* The last slot fills the gap, and a bucket that gets empty leaves the chain. */
void kvd_prefix_hash_remove(struct kvd_engine *engine, const struct kvd_prefix_spot *spot)
{
	struct kvd_abi_prefix_bucket *before = NULL;
	struct kvd_abi_prefix_bucket *last = spot->first;
	struct kvd_abi_prefix_bucket *more = more_of(engine, last);
	uint32_t slot = 0;

	for (uint32_t length = 1; more && length < KVD_PREFIX_CHAIN_MAX; length++) {
		before = last;
		last = more;
		more = more_of(engine, last);
	}
	while (slot + 1 < KVD_PREFIX_SLOTS && last->slots[slot + 1])
		slot++;
	change_begin(spot->first);
	kvd_put(&spot->bucket->slots[spot->slot], last->slots[slot]);
	kvd_put(&last->slots[slot], 0);
	if (!slot && before) {
		kvd_put32(&before->more, 0);
		bucket_give(engine, last);
	}
	change_end(spot->first);
	engine->head->prefix.entries--;
}

void kvd_prefix_hash_remove_entry(struct kvd_engine *engine, const struct kvd_abi_prefix_entry *entry)
{
	uint32_t mixed = kvd_prefix_mixed(engine, entry);
	uint64_t word = (uint64_t)mixed << KVD_PREFIX_TAG_SHIFT | kvd_prefix_unit_of(engine, entry);
	struct kvd_prefix_spot spot = {.first = chain_of(engine, mixed)};

	spot.bucket = spot.first;
	for (uint32_t length = 0; spot.bucket && length < KVD_PREFIX_CHAIN_MAX; length++) {
		for (spot.slot = 0; spot.slot < KVD_PREFIX_SLOTS; spot.slot++) {
			if (spot.bucket->slots[spot.slot] == word) {
				kvd_prefix_hash_remove(engine, &spot);
				return;
			}
		}
		spot.bucket = more_of(engine, spot.bucket);
	}
}

void kvd_prefix_hold(const struct kvd_prefix_spot *spot, uint64_t holder)
{
	change_begin(spot->first);
	kvd_put(&spot->entry->holder, holder);
	change_end(spot->first);
}
