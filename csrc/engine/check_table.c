/* The check of page tables, of the pool their nodes come from, and of the frames they name. */
#include <inttypes.h>

#include "engine/internal.h"

#define WORD_BITS 64u

/* Set a bit; false: it was set already. */
static bool mark(uint64_t *bits, uint64_t at)
{
	uint64_t mask = 1ull << (at % WORD_BITS);
	bool fresh = !(bits[at / WORD_BITS] & mask);

	bits[at / WORD_BITS] |= mask;
	return fresh;
}

/* Is this a node's place in the heap, met for the first time? */
static bool mark_node(struct kvd_check *check, uint64_t node, uint32_t node_class)
{
	const struct kvd_head *head = check->engine->head;
	uint64_t at = node * KVD_UNIT_BYTES;
	uint64_t bytes;

	if (node_class >= KVD_NODE_CLASSES)
		return false;
	bytes = kvd_class_bytes(node_class);
	if (at < head->heap_at || at >= head->heap_next || at % bytes)
		return false;
	for (uint64_t unit = 0; unit < bytes / KVD_UNIT_BYTES; unit++) {
		if (!mark(check->units, (at - head->heap_at) / KVD_UNIT_BYTES + unit))
			return false;
	}
	return true;
}

static bool check_pte(struct kvd_check *check, uint64_t pte, uint64_t page)
{
	const struct kvd_head *head = check->engine->head;
	uint32_t tier = kvd_pte_tier(pte);

	if (!(pte & KVD_ABI_PTE_VALID_MASK) || pte & KVD_PTE_UNUSED_MASK || page >= KVD_PAGES_MAX || !tier ||
	    tier >= KVD_ABI_TIER_COUNT || kvd_pte_blocks(pte) > check->engine->page_blocks ||
	    kvd_pte_frame(pte) >= head->tiers[tier].high_frame)
		return false;
	if (!mark(check->frames[tier], kvd_pte_frame(pte)))
		return false;
	check->session[tier - 1].pages++;
	check->session[tier - 1].blocks += kvd_pte_blocks(pte);
	return true;
}

struct place {
	uint64_t handle;
	uint32_t slot;
};

/* Follow a table from `link`, which should be of `height`; false: it could not be followed to its end. */
static bool check_link(struct kvd_check *check, const struct place *place, const struct kvd_link *link, uint64_t base,
		       uint32_t height)
{
	const union kvd_entry *entries;
	uint32_t used = 0;
	bool good = true;

	if (link->height != height || height > KVD_HEIGHT_MAX || !mark_node(check, link->node, link->node_class)) {
		kvd_check_fault(check, "session %" PRIx64 ", slot %u: the node of page %" PRIu64 " is no node",
				place->handle, place->slot, base);
		return false;
	}
	check->table_bytes += kvd_class_bytes(link->node_class);
	entries = kvd_entries(check->engine, link->node);
	for (uint32_t i = 0; i < kvd_class_entries(link->node_class); i++) {
		uint64_t page = base + ((uint64_t)i << (KVD_FANOUT_BITS * height));

		if (!entries[i].pte)
			continue;
		used++;
		if (height) {
			good = check_link(check, place, &entries[i].link, page, height - 1) && good;
		} else if (!check_pte(check, entries[i].pte, page)) {
			kvd_check_fault(check, "session %" PRIx64 ", slot %u: the entry of page %" PRIu64 " is bad",
					place->handle, place->slot, page);
			good = false;
		}
	}
	if (used != link->used || !used)
		kvd_check_fault(check,
				"session %" PRIx64 ", slot %u: the node of page %" PRIu64 " holds %u, its link says %u",
				place->handle, place->slot, base, used, link->used);
	return good;
}

bool kvd_check_slots(struct kvd_check *check, const struct kvd_session *session, uint64_t handle)
{
	bool good = true;

	for (uint32_t i = 0; i < KVD_ENGINE_SLOTS_MAX; i++) {
		const struct kvd_link *root = &session->slots[i];
		struct place place = {.handle = handle, .slot = i};

		if (root->node || root->used || root->node_class || root->height)
			good = check_link(check, &place, root, 0, root->height) && good;
	}
	return good;
}

void kvd_check_heap(struct kvd_check *check)
{
	const struct kvd_head *head = check->engine->head;
	uint64_t units = (head->heap_next - head->heap_at) / KVD_UNIT_BYTES;
	uint64_t met = 0;

	for (uint32_t i = 0; i < KVD_NODE_CLASSES; i++) {
		uint64_t node = head->free_nodes[i];

		while (node) {
			/* A circle ends here too: its first node was met before. */
			if (!mark_node(check, node, i)) {
				kvd_check_fault(check, "free list %u: node %" PRIu64 " is no free node", i, node);
				return;
			}
			node = kvd_entries(check->engine, (uint32_t)node)->pte;
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
	const struct kvd_tier *of = &check->engine->head->tiers[tier];
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
	const struct kvd_tier *of = &check->engine->head->tiers[tier];
	const uint64_t *words = (const void *)(check->engine->base + of->level_at[0]);
	uint64_t count;

	for (uint64_t frame = 0; frame < of->high_frame; frame++) {
		uint64_t used = words[frame / WORD_BITS] >> (frame % WORD_BITS) & 1;
		uint64_t met = check->frames[tier][frame / WORD_BITS] >> (frame % WORD_BITS) & 1;

		if (used != met) {
			kvd_check_fault(check, "tier %u: frame %" PRIu64 " is %s", tier, frame,
					used ? "used by nobody" : "in a table and free");
			return;
		}
	}
	count = (of->high_frame + WORD_BITS - 1) / WORD_BITS;
	for (uint64_t level = 0; level + 1 < of->levels; level++) {
		check_summary(check, tier, level, count);
		count = (count + WORD_BITS - 1) / WORD_BITS;
	}
}
