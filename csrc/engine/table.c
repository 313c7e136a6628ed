/*
 * The radix table of a slot: leaves of PTEs, above them nodes of links, 9 bits of the page number a level.
 *
 * A table is as high as its highest page asks, and each node as wide as its highest entry asks (8 to 512, in powers of two), so a
 * small object costs one small leaf and a sparse one a thin path.
 */
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

/* The entries of a link's node, if it is one of that height. */
static union kvd_entry *node_of(const struct kvd_engine *engine, uint64_t link, uint32_t height)
{
	return kvd_link_height(link) == height ? kvd_node(engine, link) : NULL;
}

/* The height of a root; false: it leads nowhere. */
static bool root_height(uint64_t root, uint32_t *height)
{
	*height = kvd_link_height(root);
	return root && *height <= KVD_HEIGHT_MAX;
}

/* Make the table high enough for `last`. */
static bool raise_root(struct kvd_engine *engine, uint64_t *root, uint64_t last)
{
	uint32_t height;

	while (*root) {
		uint64_t below = kvd_get(root);
		uint64_t above = 0;
		union kvd_entry *entries;

		if (!root_height(below, &height))
			return false;
		if (!beyond(last, height))
			return true;
		entries = kvd_node_widen(engine, &above, height + 1, 0);
		if (!entries)
			return false;
		kvd_put(&entries[0].link, below);
		kvd_put(root, kvd_link_more(above, 1));
	}
	return true;
}

/* Take away levels that only lead to their first entry. */
static void lower_root(struct kvd_engine *engine, uint64_t *root)
{
	for (;;) {
		uint64_t above = kvd_get(root);
		const union kvd_entry *entries = kvd_node(engine, above);

		if (!entries || !kvd_link_height(above) || kvd_link_used(above) != 1 || !entries[0].link)
			return;
		kvd_put(root, entries[0].link);
		kvd_node_free(engine, &above);
	}
}

/* Make the path from `link` down to the leaf of `page`; on failure the nodes made for it are freed again. */
static bool reach(struct kvd_engine *engine, uint64_t *link, uint32_t height, uint64_t page, uint64_t last,
		  struct kvd_leaf *leaf)
{
	uint64_t span = 1ull << (KVD_FANOUT_BITS * (height + 1u));
	union kvd_entry *entries =
		kvd_node_widen(engine, link, height, index_at(min_u64(last, page | (span - 1)), height));
	uint64_t *child;
	bool fresh;

	if (!entries)
		return false;
	if (!height) {
		*leaf = (struct kvd_leaf){link, entries};
		return true;
	}
	child = &entries[index_at(page, height)].link;
	fresh = !*child;
	if (!reach(engine, child, height - 1, page, last, leaf)) {
		if (fresh && *child)
			kvd_node_free(engine, child);
		return false;
	}
	if (fresh)
		kvd_put(link, kvd_link_more(*link, 1));
	return true;
}

bool kvd_table_reach(struct kvd_engine *engine, uint64_t *root, uint64_t page, uint64_t last, struct kvd_leaf *leaf)
{
	bool fresh = !*root;
	uint32_t height = 0;

	assert(page <= last && last < KVD_PAGES_MAX);
	if (!raise_root(engine, root, last))
		return false;
	if (!fresh && !root_height(kvd_get(root), &height))
		return false;
	while (fresh && beyond(last, height))
		height++;
	if (reach(engine, root, height, page, last, leaf))
		return true;
	if (fresh && *root)
		kvd_node_free(engine, root);
	return false;
}

union kvd_entry *kvd_table_entry(const struct kvd_engine *engine, const uint64_t *root, uint64_t page)
{
	uint64_t link = kvd_get(root);
	uint32_t height;

	if (!root_height(link, &height) || beyond(page, height))
		return NULL;
	for (;; height--) {
		union kvd_entry *entry = node_of(engine, link, height);
		uint32_t index = index_at(page, height);

		if (!entry || index >= kvd_class_entries(kvd_link_class(link)))
			return NULL;
		entry += index;
		link = kvd_get(&entry->link);
		if (!link)
			return NULL;
		if (!height)
			return entry;
	}
}

union kvd_entry *kvd_table_find(const struct kvd_engine *engine, const uint64_t *root, uint64_t page)
{
	union kvd_entry *entry = kvd_table_entry(engine, root, page);

	return entry && kvd_get(&entry->pte) & KVD_ABI_PTE_VALID_MASK ? entry : NULL;
}

void kvd_table_prefetch(const struct kvd_engine *engine, const uint64_t *root, uint64_t page)
{
	uint64_t link = kvd_get(root);
	uint32_t height;

	if (!root_height(link, &height) || beyond(page, height))
		return;
	for (;; height--) {
		const union kvd_entry *entries = node_of(engine, link, height);
		uint32_t index = index_at(page, height);

		if (!entries || index >= kvd_class_entries(kvd_link_class(link)))
			return;
		if (!height) {
			__builtin_prefetch(&entries[index]);
			return;
		}
		link = kvd_get(&entries[index].link);
	}
}

/* Look-ups in flight together: as many misses as a core can wait for at once. */
#define LOOKUP_BATCH 32u

/* One level down for a batch: from links to the entries that they lead to, which are asked for but not yet read. */
static void descend(const struct kvd_engine *engine, const uint64_t *pages, uint64_t *links,
		    const union kvd_entry **entries, uint32_t count, uint32_t height)
{
	for (uint32_t i = 0; i < count; i++) {
		const union kvd_entry *node = node_of(engine, links[i], height);
		uint32_t index = index_at(pages[i], height);

		entries[i] = NULL;
		if (!node || index >= kvd_class_entries(kvd_link_class(links[i])))
			continue;
		entries[i] = node + index;
		__builtin_prefetch(entries[i]);
	}
}

void kvd_table_lookup(const struct kvd_engine *engine, const uint64_t *root, uint64_t *pages, uint64_t count)
{
	const union kvd_entry *entries[LOOKUP_BATCH];
	uint64_t links[LOOKUP_BATCH];
	uint64_t top = kvd_get(root);
	uint32_t height;
	bool there = root_height(top, &height);

	for (uint64_t done = 0; done < count; done += LOOKUP_BATCH) {
		uint32_t batch = (uint32_t)min_u64(LOOKUP_BATCH, count - done);
		uint64_t *at = pages + done;

		for (uint32_t i = 0; i < batch; i++)
			links[i] = there && !beyond(at[i], height) ? top : 0;
		for (uint32_t down = height + 1; there && down-- > 0;) {
			descend(engine, at, links, entries, batch, down);
			for (uint32_t i = 0; i < batch; i++)
				links[i] = entries[i] ? kvd_get(&entries[i]->link) : 0;
		}
		for (uint32_t i = 0; i < batch; i++)
			at[i] = links[i] & KVD_ABI_PTE_VALID_MASK ? links[i] : 0;
	}
}

/* The entries [*low, *high) of a node that starts at page `base` which lie in [first, end). */
static void entries_in(uint64_t link, uint32_t height, uint64_t base, uint64_t first, uint64_t end, uint64_t *low,
		       uint64_t *high)
{
	uint32_t shift = KVD_FANOUT_BITS * height;

	*low = first > base ? (first - base) >> shift : 0;
	*high = end > base ? min_u64(kvd_class_entries(kvd_link_class(link)), ((end - 1 - base) >> shift) + 1) : 0;
}

/* A walk that is under way. In sound tables no node is met twice, so more nodes than the heap has are never met. */
struct walk {
	const struct kvd_engine *engine;
	uint64_t first;
	uint64_t end;
	kvd_table_visit visit;
	void *context;
	uint64_t nodes_left;
};

static void walk(struct walk *at, uint64_t link, uint32_t height, uint64_t base)
{
	union kvd_entry *entries = node_of(at->engine, link, height);
	uint64_t low, high;

	if (!entries || !at->nodes_left)
		return;
	at->nodes_left--;
	entries_in(link, height, base, at->first, at->end, &low, &high);
	if (!height) {
		if (low < high)
			at->visit(at->context, base + low, entries + low, (uint32_t)(high - low));
		return;
	}
	for (uint64_t i = low; i < high; i++) {
		uint64_t child = kvd_get(&entries[i].link);

		if (child)
			walk(at, child, height - 1, base + (i << (KVD_FANOUT_BITS * height)));
	}
}

void kvd_table_walk(const struct kvd_engine *engine, const uint64_t *root, uint64_t first, uint64_t end,
		    kvd_table_visit visit, void *context)
{
	struct walk at = {engine, first, end, visit, context, engine->units};
	uint64_t link = kvd_get(root);
	uint32_t height;

	if (first < end && root_height(link, &height))
		walk(&at, link, height, 0);
}

static void count_visit(void *context, uint64_t page, union kvd_entry *entries, uint32_t count)
{
	uint64_t *pages = context;

	(void)page;
	for (uint32_t i = 0; i < count; i++)
		*pages += entries[i].pte & KVD_ABI_PTE_VALID_MASK ? 1 : 0;
}

uint64_t kvd_table_count(const struct kvd_engine *engine, const uint64_t *root, uint64_t first, uint64_t end)
{
	uint64_t pages = 0;

	if (end == first + 1)
		return kvd_table_find(engine, root, first) != NULL;
	kvd_table_walk(engine, root, first, end, count_visit, &pages);
	return pages;
}

static void validate_visit(void *context, uint64_t page, union kvd_entry *entries, uint32_t count)
{
	(void)context;
	(void)page;
	for (uint32_t i = 0; i < count; i++) {
		if (entries[i].pte)
			kvd_put(&entries[i].pte, entries[i].pte | KVD_ABI_PTE_VALID_MASK);
	}
}

void kvd_table_validate(struct kvd_engine *engine, const uint64_t *root, uint64_t first, uint64_t end)
{
	union kvd_entry *entry = end == first + 1 ? kvd_table_entry(engine, root, first) : NULL;

	if (entry)
		validate_visit(NULL, first, entry, 1);
	else
		kvd_table_walk(engine, root, first, end, validate_visit, NULL);
}

/* Zero entries; returns how many were not zero. */
static uint32_t clear_entries(union kvd_entry *entries, uint64_t count)
{
	uint32_t gone = 0;

	for (uint64_t i = 0; i < count; i++) {
		if (!entries[i].pte)
			continue;
		gone++;
		kvd_put(&entries[i].pte, 0);
	}
	return gone;
}

static void clear(struct kvd_engine *engine, struct walk *at, uint64_t *link, uint32_t height, uint64_t base)
{
	uint64_t was = kvd_get(link);
	union kvd_entry *entries = node_of(engine, was, height);
	uint32_t gone = 0;
	uint64_t low, high;

	if (!entries || !at->nodes_left)
		return;
	at->nodes_left--;
	entries_in(was, height, base, at->first, at->end, &low, &high);
	if (!height && low < high) {
		if (at->visit)
			at->visit(at->context, base + low, entries + low, (uint32_t)(high - low));
		gone = clear_entries(entries + low, high - low);
	}
	for (uint64_t i = low; height && i < high; i++) {
		uint64_t *child = &entries[i].link;

		if (!kvd_get(child))
			continue;
		clear(engine, at, child, height - 1, base + (i << (KVD_FANOUT_BITS * height)));
		gone += !*child;
	}
	was = kvd_link_more(was, -(int32_t)gone);
	kvd_put(link, was);
	if (!kvd_link_used(was))
		kvd_node_free(engine, link);
}

void kvd_table_clear(struct kvd_engine *engine, uint64_t *root, uint64_t first, uint64_t end, kvd_table_visit visit,
		     void *context)
{
	struct walk at = {engine, first, end, visit, context, engine->units};
	uint32_t height;

	if (first >= end || !root_height(kvd_get(root), &height))
		return;
	clear(engine, &at, root, height, 0);
	lower_root(engine, root);
}
