/*
 * PREFIX_MATCH: the chain's blocks are known ahead, so their buckets and entries are fetched in batches, stage by
 * stage, and memory works on many of them at once. Where entries are neighbours, as they are when a chain was inserted
 * at once, the hash is not asked at all.
 *
 * Takes no lock and writes nothing: any thread may do it beside one writer (prefix.h says how).
 */
#include "engine/prefix.h"

#define BATCH_FIRST 2u /* enough to see how far it is from entry to entry */
#define BATCH_GROWTH 4u
#define BATCH_MAX 32u
#define AHEAD 12 /* entries that are fetched before they are looked at */
#define TRIES 12u
#define TRIES_GUESSING 2u

/* A block that is looked up. */
struct look {
	const uint32_t *segment;
	const struct kvd_abi_prefix_bucket *first;
	uint64_t holder; /* 0: absent */
	uint32_t unit;   /* of its entry */
	uint32_t mixed;
	uint32_t index;
	uint32_t version;
};

/* What must not have changed in the end. */
struct seen {
	const struct kvd_abi_prefix_bucket *first; /* NULL: only the holder counts */
	uint64_t holder;
	uint32_t version;
};

enum outcome {
	MATCHED,
	CHANGED, /* look again */
	BROKEN,  /* the tables lead out of the heap */
};

struct match {
	const struct kvd_engine *engine;
	struct kvd_prefix_chain chain;
	uint64_t stage;
	uint64_t removals;
	uint64_t holder; /* of the last block found */
	bool guessing;
	bool flagged; /* what was seen depends on the stage */
	uint32_t unit;  /* of the last entry found */
	uint32_t step;  /* to it from the one before, modulo 2^32 */
	uint32_t seen_count;
	uint32_t found;
	struct look looks[BATCH_MAX];
	struct seen seen[KVD_PREFIX_COUNT_MAX];
};

/* A test build lets the writer come in between here, wherever a reader is about to look. */
#ifdef KVD_ENGINE_STORE_HOOK
extern void kvd_prefix_looks(void) __attribute__((weak));
static void look_hook(void)
{
	if (kvd_prefix_looks)
		kvd_prefix_looks();
}
#else
static inline void look_hook(void)
{
}
#endif

static void relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
	__builtin_ia32_pause();
#endif
}

/* Is an entry block `i` of a chain? Read word by word: a lock-free reader may do it while the entry is reused. */
static bool is_block(const struct kvd_abi_prefix_entry *entry, const struct kvd_prefix_chain *chain, uint32_t i)
{
	const uint64_t *hash = chain->hashes + (uint64_t)i * chain->words;
	uint64_t place = (chain->first + i) << KVD_PREFIX_PLACE_SHIFT | chain->words;
	uint64_t other = (kvd_get(&entry->key) ^ chain->key) | (kvd_get(&entry->place) ^ place);

	for (uint32_t word = 0; word < chain->words; word++) {
		look_hook();
		other |= kvd_get(&entry->hash[word]) ^ __atomic_load_n(&hash[word], __ATOMIC_RELAXED);
	}
	return !other;
}

/* Where the generation of a holder's context is, or NULL. */
static const uint32_t *generation_of(const struct kvd_engine *engine, uint64_t holder)
{
	uint64_t number = holder & KVD_ABI_PREFIX_ENTRY_HOLDER_CONTEXT_MASK;

	return number < engine->layout.sessions_max ? &kvd_session_at(engine, number)->generation : NULL;
}

/* A generation is never used twice, so a session that lives now and later lived in between. */
static bool lives(const struct kvd_engine *engine, uint64_t holder)
{
	const uint32_t *generation = generation_of(engine, holder);

	look_hook();
	return generation && kvd_get32(generation) == holder >> KVD_ABI_PREFIX_ENTRY_HOLDER_GENERATION_SHIFT;
}

/* The chain's first bucket, and its version before anything in it is read. */
static enum outcome enter(const struct kvd_engine *engine, struct look *look)
{
	const struct kvd_abi_prefix_head *head = &engine->head->prefix;

	look_hook();
	look->version = kvd_get32(&look->first->version);
	look_hook();
	/* Who sees the version after a split sees the number of chains after it too. */
	if (look->version % 2 || kvd_prefix_index(look->mixed, kvd_get32(&head->buckets)) != look->index)
		return CHANGED;
	for (uint32_t i = 0; i < KVD_PREFIX_SLOTS; i++) {
		uint64_t word = kvd_get(&look->first->slots[i]);

		if (word >> KVD_PREFIX_TAG_SHIFT == look->mixed)
			__builtin_prefetch(engine->base + (uint64_t)(uint32_t)word * KVD_UNIT_BYTES);
	}
	if (kvd_get32(&look->first->more))
		__builtin_prefetch(engine->base + (uint64_t)kvd_get32(&look->first->more) * KVD_UNIT_BYTES);
	return MATCHED;
}

/* Find the holder word of a block, 0: absent. */
static enum outcome resolve(const struct match *match, struct look *look, uint32_t block)
{
	const struct kvd_engine *engine = match->engine;
	const struct kvd_abi_prefix_bucket *bucket = look->first;

	look->holder = 0;
	for (uint32_t length = 0; length < KVD_PREFIX_CHAIN_MAX; length++) {
		uint32_t more;

		for (uint32_t i = 0; i < KVD_PREFIX_SLOTS; i++) {
			uint64_t word = kvd_get(&bucket->slots[i]);
			const struct kvd_abi_prefix_entry *entry;

			look_hook();
			if (!word)
				return MATCHED;
			if (word >> KVD_PREFIX_TAG_SHIFT != look->mixed)
				continue;
			entry = kvd_prefix_unit(engine, (uint32_t)word);
			if (!entry)
				return BROKEN;
			if (!is_block(entry, &match->chain, block))
				continue;
			look_hook();
			look->holder = kvd_get(&entry->holder);
			look->unit = (uint32_t)word;
			return MATCHED;
		}
		more = kvd_get32(&bucket->more);
		if (!more)
			return MATCHED;
		bucket = kvd_prefix_unit(engine, more);
		if (!bucket)
			return BROKEN;
	}
	return MATCHED;
}

/* Bring the blocks from `base` on to where their holders are known. */
static enum outcome fetch(struct match *match, uint32_t base, uint32_t count)
{
	const struct kvd_engine *engine = match->engine;
	const struct kvd_abi_prefix_head *head = &engine->head->prefix;
	uint32_t buckets = kvd_get32(&head->buckets);
	enum outcome outcome = MATCHED;

	for (uint32_t i = 0; i < count; i++) {
		struct look *look = &match->looks[i];
		struct kvd_prefix_name name;

		kvd_prefix_name_of(&match->chain, base + i, &name);
		look->mixed = kvd_prefix_mix(head->seed, &name);
		look->index = kvd_prefix_index(look->mixed, buckets);
		look->segment = kvd_prefix_segment(engine, look->index);
		if (!look->segment)
			return BROKEN;
		__builtin_prefetch(look->segment);
	}
	for (uint32_t i = 0; i < count; i++) {
		struct look *look = &match->looks[i];
		const struct kvd_abi_prefix_bucket *segment;

		segment = (const void *)kvd_prefix_node(engine, kvd_get32(look->segment));
		if (!segment)
			return BROKEN;
		look->first = segment + look->index % KVD_PREFIX_NODE_UNITS;
		__builtin_prefetch(look->first);
	}
	for (uint32_t i = 0; i < count && outcome == MATCHED; i++)
		outcome = enter(engine, &match->looks[i]);
	for (uint32_t i = 0; i < count && outcome == MATCHED; i++) {
		outcome = resolve(match, &match->looks[i], base + i);
		if (match->looks[i].holder)
			__builtin_prefetch(generation_of(engine, match->looks[i].holder));
	}
	return outcome;
}

/* Take a block's answer over; false: the prefix ends before it. */
static bool extend(struct match *match, const struct look *look)
{
	struct seen *seen = &match->seen[match->seen_count++];
	uint64_t holder = kvd_prefix_handle(look->holder);

	*seen = (struct seen){.first = look->first, .version = look->version};
	match->flagged = match->flagged || look->holder != holder;
	if (!kvd_prefix_visible(look->holder, match->stage) || !lives(match->engine, holder))
		return false;
	seen->holder = holder;
	match->holder = holder;
	match->step = look->unit - match->unit;
	match->unit = look->unit;
	match->found++;
	return true;
}

/*
 * Go on from neighbour to neighbour while the blocks are there, within a slab: what lies there can be nothing but
 * entries. The holder is read first: while it is not 0 the name stays as it is, until the entry is freed, which
 * `removals` tells.
 */
static uint32_t guess(struct match *match)
{
	const struct kvd_engine *engine = match->engine;
	uint32_t found = match->found;

	while (match->found < match->chain.count) {
		uint32_t unit = match->unit + match->step;
		const struct kvd_abi_prefix_entry *entry = kvd_prefix_unit(engine, unit);
		uint64_t word, holder;

		if (!entry || unit / KVD_PREFIX_NODE_UNITS != match->unit / KVD_PREFIX_NODE_UNITS)
			break;
		__builtin_prefetch(engine->base + (uint64_t)(unit + AHEAD * match->step) * KVD_UNIT_BYTES);
		look_hook();
		word = kvd_get(&entry->holder);
		look_hook();
		holder = kvd_prefix_handle(word);
		if (!kvd_prefix_visible(word, match->stage) || !is_block(entry, &match->chain, match->found))
			break;
		if (holder != match->holder) {
			if (!lives(engine, holder))
				break;
			match->seen[match->seen_count++] = (struct seen){.holder = holder};
			match->holder = holder;
		}
		match->flagged = match->flagged || word != holder;
		match->unit = unit;
		match->found++;
	}
	return match->found - found;
}

/* Is all that was seen still so? Then it was so at the moment when this began. */
static bool valid(const struct match *match)
{
	const struct kvd_abi_prefix_head *head = &match->engine->head->prefix;

	for (uint32_t i = 0; i < match->seen_count; i++) {
		const struct seen *seen = &match->seen[i];

		look_hook();
		if (seen->first && kvd_get32(&seen->first->version) != seen->version)
			return false;
		if (seen->holder && !lives(match->engine, seen->holder))
			return false;
	}
	if (match->guessing && kvd_get(&head->removals) != match->removals)
		return false;
	return !match->flagged || kvd_get(&head->stage) == match->stage;
}

static enum outcome attempt(struct match *match, bool may_guess)
{
	const struct kvd_abi_prefix_head *head = &match->engine->head->prefix;
	uint32_t count = match->chain.count;
	uint32_t size = BATCH_FIRST;

	match->stage = kvd_get(&head->stage);
	look_hook();
	match->removals = kvd_get(&head->removals);
	match->guessing = may_guess && match->removals % 2 == 0;
	match->flagged = false;
	match->seen_count = 0;
	match->found = 0;
	match->unit = 0;
	if (!kvd_get32(&head->buckets))
		return MATCHED;
	while (match->found < count) {
		uint32_t part = count - match->found < size ? count - match->found : size;
		enum outcome outcome = fetch(match, match->found, part);

		if (outcome != MATCHED)
			return outcome;
		for (uint32_t i = 0; i < part; i++) {
			if (!extend(match, &match->looks[i]))
				return valid(match) ? MATCHED : CHANGED;
		}
		size = size * BATCH_GROWTH < BATCH_MAX ? size * BATCH_GROWTH : BATCH_MAX;
		if (match->guessing && part > 1 && guess(match) >= BATCH_MAX)
			size = BATCH_FIRST;
	}
	return valid(match) ? MATCHED : CHANGED;
}

uint32_t kvd_op_prefix_match(struct kvd_engine *engine, struct kvd_call *call)
{
	struct match match;
	enum outcome outcome = CHANGED;
	uint32_t status;

	match.engine = engine;
	status = kvd_prefix_arguments(call, &match.chain);
	if (status)
		return status;
	for (uint32_t try = 0; try < TRIES && outcome != MATCHED; try++) {
		/* A writer's change takes some hundred nanoseconds: wait longer each time. */
		for (uint32_t i = 1; i < 1u << try; i++)
			relax();
		outcome = attempt(&match, try < TRIES_GUESSING);
	}
	if (outcome != MATCHED)
		return outcome == BROKEN ? KVD_ABI_STATUS_BAD_TABLES : KVD_ABI_STATUS_BUSY;
	call->cpl->result0 = match.found;
	call->cpl->result1 = match.found ? match.holder : 0;
	return KVD_ABI_STATUS_OK;
}
