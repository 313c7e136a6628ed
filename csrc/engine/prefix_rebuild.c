/* The prefix index after its writer died: what is true is kept, what is derived is made anew. */
#include "engine/prefix.h"

#define PLACE_BITS (KVD_ABI_PREFIX_ENTRY_PLACE_WORDS_MASK | KVD_ABI_PREFIX_ENTRY_PLACE_POSITION_MASK)

void kvd_prefix_claim(struct kvd_engine *engine, kvd_prefix_claim_fn claim, void *context,
		      struct kvd_prefix_recovery *recovery)
{
	uint32_t *from = &engine->head->prefix.directory;

	while (*from) {
		uint32_t *node = kvd_prefix_node(engine, *from);

		/* A circle ends here too: its first node was claimed before. */
		if (!node || !claim(context, *from, KVD_NODE_CLASSES - 1)) {
			kvd_put32(from, 0);
			recovery->lost_slabs += KVD_PREFIX_NODE_WORDS - 1;
			return;
		}
		for (uint32_t i = 1; i < KVD_PREFIX_NODE_WORDS; i++) {
			if (node[i] && (!kvd_prefix_node(engine, node[i]) ||
					!claim(context, node[i], KVD_NODE_CLASSES - 1))) {
				kvd_put32(&node[i], 0);
				recovery->lost_slabs++;
			}
		}
		from = &node[0];
	}
}

bool kvd_prefix_well_formed(const struct kvd_abi_prefix_entry *entry)
{
	uint64_t words = entry->place & KVD_ABI_PREFIX_ENTRY_PLACE_WORDS_MASK;
	uint64_t position = entry->place >> KVD_PREFIX_PLACE_SHIFT;

	if (!words || words > KVD_PREFIX_WORDS_MAX || entry->place & ~(uint64_t)PLACE_BITS || position >= KVD_PAGES_MAX)
		return false;
	for (uint64_t i = words; i < KVD_PREFIX_WORDS_MAX; i++) {
		if (entry->hash[i])
			return false;
	}
	return true;
}

/* Keep an entry if it is in order, and give it its place in what is derived. */
static bool keep(struct kvd_engine *engine, struct kvd_abi_prefix_entry *entry, struct kvd_prefix_recovery *recovery)
{
	uint64_t holder = kvd_prefix_handle(entry->holder);
	struct kvd_session *session = kvd_session_find(engine, holder);
	struct kvd_prefix_name name = {.key = entry->key, .place = entry->place};
	struct kvd_prefix_spot spot;

	if (!kvd_prefix_visible(entry->holder, engine->head->prefix.stage))
		return false;
	if (!session) {
		/* A holder that went is no loss; a word that can be no handle is. */
		recovery->lost_entries += !(holder >> KVD_ABI_PREFIX_ENTRY_HOLDER_GENERATION_SHIFT) ||
					  (uint32_t)holder >= engine->layout.sessions_max;
		return false;
	}
	for (uint32_t i = 0; i < KVD_PREFIX_WORDS_MAX; i++)
		name.hash[i] = entry->hash[i];
	if (!kvd_prefix_well_formed(entry) || kvd_prefix_find(engine, &name, &spot) ||
	    !kvd_prefix_hash_insert(engine, entry)) {
		recovery->lost_entries++;
		return false;
	}
	if (entry->holder != holder)
		kvd_put(&entry->holder, holder);
	kvd_prefix_chain_push(engine, session, entry);
	return true;
}

static void rebuild_slab(struct kvd_engine *engine, uint32_t slab, struct kvd_prefix_recovery *recovery)
{
	for (uint32_t i = 0; i < KVD_PREFIX_NODE_UNITS; i++) {
		struct kvd_abi_prefix_entry *entry = kvd_prefix_unit(engine, slab + i);

		if (!entry)
			return;
		if (keep(engine, entry, recovery))
			recovery->entries++;
		else
			kvd_prefix_entry_give(engine, entry);
	}
}

void kvd_prefix_rebuild(struct kvd_engine *engine, bool happened, struct kvd_prefix_recovery *recovery)
{
	struct kvd_abi_prefix_head *head = &engine->head->prefix;
	uint64_t nodes_left = engine->units / KVD_PREFIX_NODE_UNITS;
	uint32_t *node;

	recovery->entries = 0;
	/* What the index knows of its memory apart from the directory, which `kvd_prefix_claim` has gone through. */
	*head = (struct kvd_abi_prefix_head){
		.stage = (head->stage & ~KVD_PREFIX_STAGE_DONE) | (happened ? KVD_PREFIX_STAGE_DONE : 0),
		.seed = head->seed,
		.directory = head->directory,
	};
	for (uint64_t i = 0; i < engine->head->sessions_high && i < engine->layout.sessions_max; i++)
		kvd_session_at(engine, i)->prefix_head = 0;
	for (uint32_t unit = head->directory; unit; unit = node[0]) {
		node = kvd_prefix_node(engine, unit);
		/* Was claimed, so it is a node, and none comes twice; unless somebody else writes here. */
		if (!node || !nodes_left--)
			return;
		for (uint32_t i = 1; i < KVD_PREFIX_NODE_WORDS; i++) {
			uint32_t slab = node[i];

			if (!slab || !kvd_prefix_node(engine, slab))
				continue;
			if (unit == head->directory)
				head->slabs = i;
			rebuild_slab(engine, slab, recovery);
		}
	}
}
