/* Entries of the prefix index: their slabs, and the chain of those that a session holds. */
#include "engine/prefix.h"

uint32_t kvd_prefix_node_take(struct kvd_engine *engine)
{
	uint64_t link = 0;

	return kvd_node_widen(engine, &link, 0, KVD_FANOUT - 1) ? kvd_link_node(link) : 0;
}

/* The directory's node for one more slab, or NULL. */
static uint32_t *directory_room(struct kvd_engine *engine)
{
	struct kvd_abi_prefix_head *head = &engine->head->prefix;
	uint32_t *node = kvd_prefix_node(engine, head->directory);
	uint32_t unit;

	if (node && head->slabs < KVD_PREFIX_NODE_WORDS - 1)
		return node;
	unit = kvd_prefix_node_take(engine);
	if (!unit)
		return NULL;
	node = kvd_prefix_node(engine, unit);
	kvd_put32(&node[0], head->directory);
	kvd_put32(&head->directory, unit);
	head->slabs = 0;
	return node;
}

static bool slab_new(struct kvd_engine *engine)
{
	struct kvd_abi_prefix_head *head = &engine->head->prefix;
	uint32_t *node = directory_room(engine);
	uint32_t slab = node ? kvd_prefix_node_take(engine) : 0;

	if (!slab)
		return false;
	kvd_put32(&node[1 + head->slabs], slab);
	head->slabs++;
	head->fresh = slab;
	head->fresh_end = slab + KVD_PREFIX_NODE_UNITS;
	return true;
}

struct kvd_abi_prefix_entry *kvd_prefix_entry_take(struct kvd_engine *engine)
{
	struct kvd_abi_prefix_head *head = &engine->head->prefix;
	struct kvd_abi_prefix_entry *entry = kvd_prefix_unit(engine, head->entry_free);

	if (entry && !entry->holder) {
		head->entry_free = entry->next;
		return entry;
	}
	/* What is left of a damaged list waits for recovery. */
	head->entry_free = 0;
	if (head->fresh >= head->fresh_end && !slab_new(engine))
		return NULL;
	entry = kvd_prefix_unit(engine, head->fresh++);
	return entry && !entry->holder ? entry : NULL;
}

void kvd_prefix_entry_give(struct kvd_engine *engine, struct kvd_abi_prefix_entry *entry)
{
	struct kvd_abi_prefix_head *head = &engine->head->prefix;

	kvd_put(&entry->holder, 0);
	kvd_put32(&entry->next, head->entry_free);
	head->entry_free = kvd_prefix_unit_of(engine, entry);
}

void kvd_prefix_chain_push(struct kvd_engine *engine, struct kvd_session *session, struct kvd_abi_prefix_entry *entry)
{
	uint32_t unit = kvd_prefix_unit_of(engine, entry);
	struct kvd_abi_prefix_entry *next = kvd_prefix_unit(engine, session->prefix_head);

	kvd_put32(&entry->previous, 0);
	kvd_put32(&entry->next, session->prefix_head);
	if (next)
		kvd_put32(&next->previous, unit);
	kvd_put32(&session->prefix_head, unit);
}

void kvd_prefix_chain_pull(struct kvd_engine *engine, struct kvd_abi_prefix_entry *entry)
{
	uint64_t number = entry->holder & KVD_ABI_PREFIX_ENTRY_HOLDER_CONTEXT_MASK;
	struct kvd_abi_prefix_entry *previous = kvd_prefix_unit(engine, entry->previous);
	struct kvd_abi_prefix_entry *next = kvd_prefix_unit(engine, entry->next);

	if (previous)
		kvd_put32(&previous->next, entry->next);
	if (next)
		kvd_put32(&next->previous, entry->previous);
	/* The context may be another session's by now: it is changed only if it leads to this entry. */
	if (!previous && number < engine->layout.sessions_max) {
		struct kvd_session *session = kvd_session_at(engine, number);

		if (session->prefix_head == kvd_prefix_unit_of(engine, entry))
			kvd_put32(&session->prefix_head, entry->next);
	}
}
