/* The derived state of pools: free nodes and frames; and the lists that recovery keeps meanwhile. */
#include <stdlib.h>
#include <string.h>

#include "engine/recover.h"

#define WORD_BITS 64u
#define PLACES_ROOM_MIN 256u
#define CLASS_LAST (KVD_NODE_CLASSES - 1)

static_assert(KVD_NODE_UNITS_MAX == WORD_BITS, "a word has the bits of one largest node");

void kvd_places_add(struct kvd_places *places, uint32_t tier, uint64_t number)
{
	if (places->count == places->room) {
		uint64_t room = places->room ? 2 * places->room : PLACES_ROOM_MIN;
		struct kvd_place *more = realloc(places->at, room * sizeof(*more));

		if (!more) {
			places->failed = true;
			return;
		}
		places->at = more;
		places->room = room;
	}
	places->at[places->count++] = (struct kvd_place){tier, number};
}

static int compare(const void *left, const void *right)
{
	const struct kvd_place *a = left;
	const struct kvd_place *b = right;

	if (a->tier != b->tier)
		return a->tier < b->tier ? -1 : 1;
	return a->number < b->number ? -1 : a->number > b->number;
}

void kvd_places_sort(struct kvd_places *places)
{
	if (places->count)
		qsort(places->at, places->count, sizeof(*places->at), compare);
}

bool kvd_places_have(const struct kvd_places *places, uint64_t count, uint32_t tier, uint64_t number)
{
	struct kvd_place key = {tier, number};

	return count && bsearch(&key, places->at, count, sizeof(key), compare) != NULL;
}

/* The bits of a node in the word of its largest one. */
static uint64_t mask_of(const struct kvd_engine *engine, uint64_t link, uint64_t *word)
{
	uint64_t unit = kvd_link_node(link) - engine->unit_first;
	uint32_t units = 1u << kvd_link_class(link);

	*word = unit / WORD_BITS;
	return (UINT64_MAX >> (WORD_BITS - units)) << (unit % WORD_BITS);
}

bool kvd_rebuild_claim(struct kvd_rebuild *rebuild, uint64_t link)
{
	uint64_t word;
	uint64_t mask = mask_of(rebuild->engine, link, &word);

	if (rebuild->contested[word] & mask)
		return false;
	if (rebuild->units[word] & mask) {
		/* The other one goes in the next pass. */
		rebuild->contested[word] |= rebuild->units[word] & mask;
		rebuild->again = true;
		return false;
	}
	rebuild->units[word] |= mask;
	return true;
}

void kvd_rebuild_unclaim(struct kvd_rebuild *rebuild, uint64_t link)
{
	uint64_t word;
	uint64_t mask = mask_of(rebuild->engine, link, &word);

	rebuild->units[word] &= ~mask;
}

void kvd_rebuild_reset_frames(struct kvd_engine *engine, uint32_t tier)
{
	const struct kvd_tier *layout = &engine->layout.tiers[tier];
	struct kvd_tier *at = &engine->head->tiers[tier];

	for (uint64_t level = 0; level < layout->levels; level++) {
		uint64_t *words = (uint64_t *)(void *)(engine->base + layout->level_at[level]);
		uint64_t count = kvd_frames_level_words(layout->total_frames, level);

		/* What was never used stays untouched. */
		for (uint64_t i = 0; i < count; i++) {
			if (words[i])
				kvd_put(&words[i], 0);
		}
	}
	kvd_frames_init(engine, tier);
	kvd_put(&at->used_blocks, 0);
	kvd_put(&at->reserved_blocks, 0);
	kvd_put(&at->used_frames, 0);
	kvd_put(&at->next_frame, 0);
	kvd_put(&at->high_frame, 0);
	kvd_put(&at->shares, 0);
}

/* The free nodes of one largest node, the highest first: the lists give out low ones first. */
static void push_free(struct kvd_engine *engine, uint64_t first, uint64_t used)
{
	for (uint32_t unit = KVD_NODE_UNITS_MAX; unit > 0;) {
		uint32_t node_class = 0;

		if (used >> (unit - 1) & 1) {
			unit--;
			continue;
		}
		/* As large as it can be: aligned, and free as a whole. */
		while (node_class < CLASS_LAST) {
			uint32_t units = 2u << node_class;
			uint64_t mask = UINT64_MAX >> (WORD_BITS - units);

			if (unit % units || used >> (unit - units) & mask)
				break;
			node_class++;
		}
		unit -= 1u << node_class;
		kvd_node_push(engine, (uint32_t)(first + unit), node_class);
	}
}

void kvd_rebuild_pool(struct kvd_rebuild *rebuild)
{
	struct kvd_engine *engine = rebuild->engine;
	uint64_t blocks = engine->units / WORD_BITS;

	for (uint32_t i = 0; i < KVD_NODE_CLASSES; i++)
		kvd_put32(&engine->head->free_nodes[i], 0);
	while (blocks && !rebuild->units[blocks - 1])
		blocks--;
	kvd_put(&engine->head->heap_next, (engine->unit_first + blocks * WORD_BITS) * KVD_UNIT_BYTES);
	while (blocks-- > 0)
		push_free(engine, engine->unit_first + blocks * WORD_BITS, rebuild->units[blocks]);
}

static bool claim_prefix(void *context, uint32_t node, uint32_t node_class)
{
	struct kvd_rebuild *rebuild = context;

	if (!kvd_node_sound(rebuild->engine, node, node_class) ||
	    !kvd_rebuild_claim(rebuild, kvd_link_make(node, 0, node_class, 0)))
		return false;
	kvd_add(&rebuild->engine->head->table_bytes, kvd_class_bytes(node_class));
	return true;
}

void kvd_rebuild_prefix_claim(struct kvd_rebuild *rebuild)
{
	kvd_prefix_claim(rebuild->engine, claim_prefix, rebuild, &rebuild->prefix);
}

/* The prefix index, when sessions and nodes are settled. What is lost of it is only found less often. */
void kvd_rebuild_prefix(struct kvd_rebuild *rebuild)
{
	kvd_prefix_rebuild(rebuild->engine, rebuild->happened, &rebuild->prefix);
	if (rebuild->prefix.lost_slabs || rebuild->prefix.lost_entries)
		kvd_rebuild_lost(rebuild, 0, KVD_ENGINE_SLOTS_MAX, 0, 0, "blocks of the prefix index are lost");
	kvd_rebuild_lost_end(rebuild);
}
