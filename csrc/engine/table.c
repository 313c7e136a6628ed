/*
 * The radix table of a slot: leaves of PTEs, above them nodes of links, 9 bits of the page number a level.
 *
 * A table is as high as its highest page asks, and each node as wide as its highest entry asks (8 to 512, in powers of two), so a
 * small object costs one small leaf and a sparse one a thin path.
 */
#include <string.h>

#include "engine/internal.h"

static uint32_t index_at(uint64_t page, uint32_t height)
{
	return (uint32_t)(page >> (KVD_FANOUT_BITS * height)) & (KVD_FANOUT - 1);
}

/* Is a page beyond what a root of this height covers? */
static bool beyond(uint64_t page, uint32_t height)
{
	return page >> (KVD_FANOUT_BITS * (height + 1)) != 0;
}

static uint64_t min_u64(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

/* Make the table high enough for `last`. */
static bool raise_root(struct kvd_engine *engine, struct kvd_link *root, uint64_t last)
{
	if (!root->node) {
		while (beyond(last, root->height))
			root->height++;
		return true;
	}
	while (beyond(last, root->height)) {
		struct kvd_link above = {.used = 1, .height = (uint8_t)(root->height + 1)};

		if (!kvd_node_widen(engine, &above, 0))
			return false;
		kvd_entries(engine, above.node)->link = *root;
		*root = above;
	}
	return true;
}

/* Take away levels that only lead to their first entry. */
static void lower_root(struct kvd_engine *engine, struct kvd_link *root)
{
	while (root->height && root->used == 1) {
		struct kvd_link below = kvd_entries(engine, root->node)->link;

		if (!below.node)
			return;
		kvd_node_free(engine, root);
		*root = below;
	}
}

/* Make the path from `link` down to the leaf of `page`; on failure the nodes made for it are freed again. */
static bool reach(struct kvd_engine *engine, struct kvd_link *link, uint64_t page, uint64_t last,
		  struct kvd_link **leaf)
{
	uint64_t span = 1ull << (KVD_FANOUT_BITS * (link->height + 1u));
	struct kvd_link *child;
	bool fresh;

	if (!kvd_node_widen(engine, link, index_at(min_u64(last, page | (span - 1)), link->height)))
		return false;
	if (!link->height) {
		*leaf = link;
		return true;
	}
	child = &kvd_entries(engine, link->node)[index_at(page, link->height)].link;
	fresh = !child->node;
	if (fresh)
		child->height = (uint8_t)(link->height - 1);
	if (!reach(engine, child, page, last, leaf)) {
		if (fresh && child->node)
			kvd_node_free(engine, child);
		if (fresh)
			*child = (struct kvd_link){0};
		return false;
	}
	if (fresh)
		link->used++;
	return true;
}

bool kvd_table_reach(struct kvd_engine *engine, struct kvd_link *root, uint64_t page, uint64_t last,
		     struct kvd_link **leaf)
{
	bool fresh = !root->node;

	assert(page <= last && last < KVD_PAGES_MAX);
	if (raise_root(engine, root, last) && reach(engine, root, page, last, leaf))
		return true;
	if (fresh && root->node)
		kvd_node_free(engine, root);
	if (fresh)
		*root = (struct kvd_link){0};
	return false;
}

union kvd_entry *kvd_table_find(const struct kvd_engine *engine, const struct kvd_link *root, uint64_t page)
{
	struct kvd_link link = *root;

	if (!link.node || beyond(page, link.height))
		return NULL;
	for (;;) {
		uint32_t index = index_at(page, link.height);
		union kvd_entry *entry = kvd_entries(engine, link.node) + index;

		if (index >= kvd_class_entries(link.node_class) || !entry->pte)
			return NULL;
		if (!link.height)
			return entry;
		link = entry->link;
	}
}

/* The entries [*low, *high) of a node that starts at page `base` which lie in [first, end). */
static void entries_in(const struct kvd_link *link, uint64_t base, uint64_t first, uint64_t end, uint64_t *low,
		       uint64_t *high)
{
	uint32_t shift = KVD_FANOUT_BITS * link->height;

	*low = first > base ? (first - base) >> shift : 0;
	*high = end > base ? min_u64(kvd_class_entries(link->node_class), ((end - 1 - base) >> shift) + 1) : 0;
}

static void walk(const struct kvd_engine *engine, const struct kvd_link *link, uint64_t base, uint64_t first,
		 uint64_t end, kvd_table_visit visit, void *context)
{
	union kvd_entry *entries = kvd_entries(engine, link->node);
	uint64_t low, high;

	entries_in(link, base, first, end, &low, &high);
	if (!link->height && low < high)
		visit(context, base + low, entries + low, (uint32_t)(high - low));
	if (!link->height)
		return;
	for (uint64_t i = low; i < high; i++) {
		if (entries[i].link.node)
			walk(engine, &entries[i].link, base + (i << (KVD_FANOUT_BITS * link->height)), first, end,
			     visit, context);
	}
}

void kvd_table_walk(const struct kvd_engine *engine, const struct kvd_link *root, uint64_t first, uint64_t end,
		    kvd_table_visit visit, void *context)
{
	if (root->node && first < end)
		walk(engine, root, 0, first, end, visit, context);
}

static void clear_leaf(struct kvd_link *link, union kvd_entry *entries, uint64_t count)
{
	uint32_t gone = 0;

	for (uint64_t i = 0; i < count; i++)
		gone += entries[i].pte != 0;
	memset(entries, 0, count * sizeof(*entries));
	link->used = (uint16_t)(link->used - gone);
}

static void clear(struct kvd_engine *engine, struct kvd_link *link, uint64_t base, uint64_t first, uint64_t end,
		  kvd_table_visit visit, void *context)
{
	union kvd_entry *entries = kvd_entries(engine, link->node);
	uint64_t low, high;

	entries_in(link, base, first, end, &low, &high);
	if (!link->height && low < high) {
		if (visit)
			visit(context, base + low, entries + low, (uint32_t)(high - low));
		clear_leaf(link, entries + low, high - low);
	}
	if (link->height) {
		for (uint64_t i = low; i < high; i++) {
			struct kvd_link *child = &entries[i].link;

			if (!child->node)
				continue;
			clear(engine, child, base + (i << (KVD_FANOUT_BITS * link->height)), first, end, visit,
			      context);
			if (!child->node)
				link->used--;
		}
	}
	if (!link->used)
		kvd_node_free(engine, link);
}

void kvd_table_clear(struct kvd_engine *engine, struct kvd_link *root, uint64_t first, uint64_t end,
		     kvd_table_visit visit, void *context)
{
	if (!root->node || first >= end)
		return;
	clear(engine, root, 0, first, end, visit, context);
	lower_root(engine, root);
}
