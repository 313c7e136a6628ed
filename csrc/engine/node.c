/* The pool of table nodes. */
#include <string.h>

#include "engine/internal.h"

#define CLASS_LAST (KVD_NODE_CLASSES - 1)

static union kvd_entry *entries_of(const struct kvd_engine *engine, uint64_t node)
{
	return (union kvd_entry *)(void *)(engine->base + node * KVD_UNIT_BYTES);
}

void kvd_node_push(struct kvd_engine *engine, uint32_t node, uint32_t node_class)
{
	/* A reader may still be in there: it sees from the session's version that what it read is nothing. */
	kvd_put(&entries_of(engine, node)->pte, engine->head->free_nodes[node_class]);
	kvd_put32(&engine->head->free_nodes[node_class], node);
}

/* A node behind all that were ever used, or 0. */
static uint32_t node_grow(struct kvd_engine *engine)
{
	struct kvd_head *head = engine->head;
	uint64_t node = kvd_get(&head->heap_next) / KVD_UNIT_BYTES;

	if (!kvd_node_sound(engine, node, CLASS_LAST))
		return 0;
	kvd_put(&head->heap_next, (node + KVD_NODE_UNITS_MAX) * KVD_UNIT_BYTES);
	return (uint32_t)node;
}

/* A node with any content, or 0. A small one is half of one of the next class, so all are naturally aligned. */
static uint32_t node_take(struct kvd_engine *engine, uint32_t node_class)
{
	struct kvd_head *head = engine->head;
	uint32_t node = kvd_get32(&head->free_nodes[node_class]);

	if (node) {
		/* A list that leads nowhere is damaged; what was on it is lost until recovery. */
		if (!kvd_node_sound(engine, node, node_class))
			node = 0;
		kvd_put32(&head->free_nodes[node_class], node ? (uint32_t)entries_of(engine, node)->pte : 0);
	}
	if (node)
		return node;
	if (node_class == CLASS_LAST)
		return node_grow(engine);
	node = node_take(engine, node_class + 1);
	if (node)
		kvd_node_push(engine, node + (1u << node_class), node_class);
	return node;
}

/*
 * Give a node its content: what an old one held, then zeroes. A reader may still be in the node from its life before; it
 * learns from the session's version that what it read is nothing, so whole words are all that matters, and memset stores
 * whole words. Builds that look at every store do it word by word.
 */
static void fill_node(union kvd_entry *entries, uint32_t count, const union kvd_entry *old, uint32_t old_count)
{
#if defined(__SANITIZE_THREAD__) || defined(KVD_ENGINE_STORE_HOOK)
	for (uint32_t i = 0; i < count; i++)
		kvd_put(&entries[i].pte, i < old_count ? old[i].pte : 0);
#else
	for (uint32_t i = 0; i < old_count; i++)
		kvd_put(&entries[i].pte, old[i].pte);
	memset(entries + old_count, 0, (count - old_count) * sizeof(*entries));
#endif
	kvd_order();
}

union kvd_entry *kvd_node_widen(struct kvd_engine *engine, uint64_t *link, uint32_t height, uint32_t index)
{
	/* Read once: whoever else can write to the tables must not be able to change what was checked. */
	uint64_t was = kvd_get(link);
	union kvd_entry *old = kvd_node(engine, was);
	uint32_t old_count = old ? kvd_class_entries(kvd_link_class(was)) : 0;
	uint32_t node_class = 0;
	union kvd_entry *entries;
	uint32_t node;

	if (was && (!old || kvd_link_height(was) != height))
		return NULL;
	if (index < old_count)
		return old;
	while (index >= kvd_class_entries(node_class))
		node_class++;
	assert(node_class < KVD_NODE_CLASSES);
	node = node_take(engine, node_class);
	if (!node)
		return NULL;
	entries = entries_of(engine, node);
	fill_node(entries, kvd_class_entries(node_class), old, old_count);
	kvd_add(&engine->head->table_bytes, kvd_class_bytes(node_class));
	kvd_put(link, kvd_link_make(node, kvd_link_used(was), node_class, height));
	if (old) {
		kvd_add(&engine->head->table_bytes, 0 - (uint64_t)kvd_class_bytes(kvd_link_class(was)));
		kvd_node_push(engine, kvd_link_node(was), kvd_link_class(was));
	}
	return entries;
}

void kvd_node_free(struct kvd_engine *engine, uint64_t *link)
{
	uint64_t was = kvd_get(link);

	kvd_put(link, 0);
	if (!kvd_node(engine, was))
		return;
	kvd_add(&engine->head->table_bytes, 0 - (uint64_t)kvd_class_bytes(kvd_link_class(was)));
	kvd_node_push(engine, kvd_link_node(was), kvd_link_class(was));
}
