/* The check of page tables, of the pool their nodes come from, and of the frames they name. */
#include <inttypes.h>

#include "engine/internal.h"

#define WORD_BITS 64u

uint64_t kvd_check_units(const struct kvd_engine *engine)
{
	uint64_t units = engine->head->heap_next / KVD_UNIT_BYTES - engine->unit_first;

	return units < engine->units ? units : engine->units;
}

uint64_t kvd_check_frames_high(const struct kvd_engine *engine, uint32_t tier)
{
	uint64_t high = engine->head->tiers[tier].high_frame;
	uint64_t total = engine->layout.tiers[tier].total_frames;

	return high < total ? high : total;
}

bool kvd_check_node(struct kvd_check *check, uint64_t node, uint32_t node_class)
{
	uint64_t first = node - check->engine->unit_first;

	if (!kvd_node_sound(check->engine, node, node_class) || first >= kvd_check_units(check->engine))
		return false;
	for (uint64_t unit = 0; unit < 1u << node_class; unit++) {
		if (!kvd_check_mark(check->units, first + unit))
			return false;
	}
	return true;
}

static bool check_pte(struct kvd_check *check, uint64_t pte, uint64_t page)
{
	uint32_t tier = kvd_pte_tier(pte);

	if (!(pte & KVD_ABI_PTE_VALID_MASK) || pte & KVD_PTE_UNUSED_MASK || page >= KVD_PAGES_MAX ||
	    !kvd_pte_sound(check->engine, pte) || kvd_pte_frame(pte) >= kvd_check_frames_high(check->engine, tier))
		return false;
	if (!kvd_check_shares_met(check, pte))
		return false;
	check->session[tier].pages++;
	check->session[tier].blocks += kvd_pte_blocks(pte);
	return true;
}

/* A table that is followed: a session's, or (`tier`) the numbers of a tier's shared frames. */
struct place {
	uint64_t handle;
	uint32_t slot;
	uint32_t tier;
};

static void bad_node(struct kvd_check *check, const struct place *place, uint64_t base)
{
	if (place->tier)
		kvd_check_fault(check, "tier %u, shared frames: the node of frame %" PRIu64 " is no node", place->tier, base);
	else
		kvd_check_fault(check, "session %" PRIx64 ", slot %u: the node of page %" PRIu64 " is no node",
				place->handle, place->slot, base);
}

static bool check_entry(struct kvd_check *check, const struct place *place, uint64_t entry, uint64_t page)
{
	/* What a number should be is seen when all pages were met. */
	if (place->tier || check_pte(check, entry, page))
		return true;
	kvd_check_fault(check, "session %" PRIx64 ", slot %u: the entry of page %" PRIu64 " is bad", place->handle,
			place->slot, page);
	return false;
}

/* Follow a table from `link`, which should be of `height`; false: it could not be followed to its end. */
static bool check_link(struct kvd_check *check, const struct place *place, uint64_t link, uint64_t base, uint32_t height)
{
	const union kvd_entry *entries;
	uint32_t used = 0;
	bool good = true;

	if (kvd_link_height(link) != height || height > KVD_HEIGHT_MAX ||
	    !kvd_check_node(check, kvd_link_node(link), kvd_link_class(link))) {
		bad_node(check, place, base);
		return false;
	}
	check->table_bytes += kvd_class_bytes(kvd_link_class(link));
	entries = kvd_node(check->engine, link);
	for (uint32_t i = 0; i < kvd_class_entries(kvd_link_class(link)); i++) {
		uint64_t page = base + ((uint64_t)i << (KVD_FANOUT_BITS * height));

		if (!entries[i].pte)
			continue;
		used++;
		good = (height ? check_link(check, place, entries[i].link, page, height - 1)
			       : check_entry(check, place, entries[i].pte, page)) &&
		       good;
	}
	if (used != kvd_link_used(link) || !used)
		kvd_check_fault(check,
				"session %" PRIx64 ", slot %u: the node of page %" PRIu64 " holds %u, its link says %u",
				place->handle, place->slot, base, used, kvd_link_used(link));
	return good;
}

bool kvd_check_slots(struct kvd_check *check, const struct kvd_session *session, uint64_t handle)
{
	bool good = true;

	for (uint32_t i = 0; i < KVD_ENGINE_SLOTS_MAX; i++) {
		uint64_t root = session->slots[i];
		struct place place = {.handle = handle, .slot = i};

		if (root)
			good = check_link(check, &place, root, 0, kvd_link_height(root)) && good;
	}
	return good;
}

/* The tables of shared frames lie in the heap too. */
void kvd_check_shares_tables(struct kvd_check *check)
{
	for (uint32_t i = KVD_ABI_TIER_DDR; i < KVD_ABI_TIER_COUNT; i++) {
		uint64_t root = check->engine->head->tiers[i].shares;
		struct place place = {.tier = i};

		if (root)
			check_link(check, &place, root, 0, kvd_link_height(root));
	}
}

void kvd_check_heap(struct kvd_check *check)
{
	const struct kvd_head *head = check->engine->head;
	uint64_t units = kvd_check_units(check->engine);
	uint64_t met = 0;

	for (uint32_t i = 0; i < KVD_NODE_CLASSES; i++) {
		uint64_t node = head->free_nodes[i];

		while (node) {
			/* A circle ends here too: its first node was met before. */
			if (!kvd_check_node(check, node, i)) {
				kvd_check_fault(check, "free list %u: node %" PRIu64 " is no free node", i, node);
				return;
			}
			node = kvd_node(check->engine, kvd_link_make((uint32_t)node, 0, i, 0))->pte;
		}
	}
	for (uint64_t i = 0; i < units; i++)
		met += check->units[i / WORD_BITS] >> (i % WORD_BITS) & 1;
	if (met != units)
		kvd_check_fault(check, "%" PRIu64 " bytes of tables are lost", (units - met) * KVD_UNIT_BYTES);
}

/* Compare the summary of words `0` to `count` of a level with those words. */
static void check_summary(struct kvd_check *check, uint32_t tier, uint64_t level, uint64_t count)
{
	const struct kvd_tier *of = &check->engine->layout.tiers[tier];
	const uint64_t *words = (const void *)(check->engine->base + of->level_at[level]);
	const uint64_t *above = (const void *)(check->engine->base + of->level_at[level + 1]);

	for (uint64_t i = 0; i < count; i++) {
		bool full = above[i / WORD_BITS] >> (i % WORD_BITS) & 1;

		if (full != (words[i] == ~0ull)) {
			kvd_check_fault(check, "tier %u: the summary of frame word %" PRIu64 " on level %" PRIu64 " is wrong",
					tier, i, level);
			return;
		}
	}
}

void kvd_check_frames(struct kvd_check *check, uint32_t tier)
{
	const struct kvd_tier *of = &check->engine->layout.tiers[tier];
	const uint64_t *words = (const void *)(check->engine->base + of->level_at[0]);
	uint64_t high = kvd_check_frames_high(check->engine, tier);
	uint64_t count;

	for (uint64_t frame = 0; frame < high; frame++) {
		uint64_t used = words[frame / WORD_BITS] >> (frame % WORD_BITS) & 1;
		uint64_t met = check->frames[tier][frame / WORD_BITS] >> (frame % WORD_BITS) & 1;

		if (used != met) {
			kvd_check_fault(check, "tier %u: frame %" PRIu64 " is %s", tier, frame,
					used ? "used by nobody" : "in a table and free");
			return;
		}
	}
	count = (high + WORD_BITS - 1) / WORD_BITS;
	for (uint64_t level = 0; level + 1 < of->levels; level++) {
		check_summary(check, tier, level, count);
		count = (count + WORD_BITS - 1) / WORD_BITS;
	}
}
