/* PREFIX_INSERT and PREFIX_REMOVE, and what a session's end takes with it. */
#include <sys/random.h>

#include "engine/prefix.h"

#define SEED_FALLBACK 0x9e3779b97f4a7c15ull
#define HASH_BYTES_MAX (KVD_PREFIX_WORDS_MAX * 8u)

uint32_t kvd_prefix_arguments(struct kvd_call *call, struct kvd_prefix_chain *chain)
{
	const struct kvd_abi_cmd *cmd = &call->cmd;
	uint32_t hash_bytes = cmd->slot;

	if (!hash_bytes || hash_bytes % 8 || hash_bytes > HASH_BYTES_MAX || cmd->count > KVD_PREFIX_COUNT_MAX ||
	    cmd->first_page >= KVD_PAGES_MAX || cmd->count > KVD_PAGES_MAX - cmd->first_page ||
	    cmd->count * hash_bytes > cmd->buffer_bytes)
		return KVD_ABI_STATUS_BAD_ARGUMENT;
	*chain = (struct kvd_prefix_chain){
		.hashes = kvd_call_buffer(call, cmd->buffer, cmd->count * hash_bytes, false),
		.key = cmd->key,
		.first = cmd->first_page,
		.count = (uint32_t)cmd->count,
		.words = hash_bytes / 8,
	};
	return chain->hashes ? KVD_ABI_STATUS_OK : KVD_ABI_STATUS_BAD_ADDRESS;
}

static void begin(struct kvd_call *call)
{
	uint64_t *stage = &call->engine->head->prefix.stage;

	kvd_intent_open(call);
	kvd_put(stage, (*stage | KVD_PREFIX_STAGE_DONE) + 1);
}

/* The command has happened: first for recovery, then for readers. No flag is taken off before both know. */
static void happen(struct kvd_call *call, uint64_t result0)
{
	uint64_t *stage = &call->engine->head->prefix.stage;

	call->cpl->result0 = result0;
	kvd_intent_stage(call, KVD_ABI_STAGE_COMMIT);
	kvd_put(stage, *stage | KVD_PREFIX_STAGE_DONE);
	kvd_order();
}

/* Around every freeing of entries: who guesses where an entry is can tell that none was freed meanwhile. */
static void removals_step(struct kvd_engine *engine)
{
	kvd_put(&engine->head->prefix.removals, engine->head->prefix.removals + 1);
}

static void forget(struct kvd_engine *engine, struct kvd_abi_prefix_entry *entry)
{
	kvd_prefix_hash_remove_entry(engine, entry);
	kvd_prefix_chain_pull(engine, entry);
	kvd_prefix_entry_give(engine, entry);
}

static void seed_make(uint64_t *seed)
{
	if (*seed)
		return;
	if (getrandom(seed, sizeof(*seed), GRND_NONBLOCK) != (ssize_t)sizeof(*seed) || !*seed)
		*seed = SEED_FALLBACK;
}

/* Make the entry of a block that is absent; it can be found, and wears its flag, before it stands in a chain. */
static struct kvd_abi_prefix_entry *entry_make(struct kvd_engine *engine, const struct kvd_prefix_name *name,
					       uint64_t holder)
{
	struct kvd_abi_prefix_entry *entry = kvd_prefix_entry_take(engine);

	if (!entry)
		return NULL;
	kvd_put(&entry->key, name->key);
	kvd_put(&entry->place, name->place);
	for (uint32_t i = 0; i < KVD_PREFIX_WORDS_MAX; i++)
		kvd_put(&entry->hash[i], name->hash[i]);
	kvd_put(&entry->holder, holder);
	if (kvd_prefix_hash_insert(engine, entry))
		return entry;
	kvd_prefix_entry_give(engine, entry);
	return NULL;
}

/* Insert a block unless it is there. False: no memory. `made` counts the entries at the front of the session's
 * chain. */
static bool insert_block(struct kvd_engine *engine, struct kvd_session *session, const struct kvd_prefix_name *name,
			 uint32_t *made)
{
	uint64_t holder = kvd_session_handle(engine, session) | KVD_PREFIX_INSERTING;
	struct kvd_abi_prefix_entry *entry;
	struct kvd_prefix_spot spot;

	if (kvd_prefix_find(engine, name, &spot)) {
		entry = spot.entry;
		if (kvd_session_find(engine, kvd_prefix_handle(entry->holder)))
			return true;
		/* Its holder is gone, so it is absent. */
		kvd_prefix_chain_pull(engine, entry);
		kvd_prefix_hold(&spot, holder);
	} else {
		entry = entry_make(engine, name, holder);
		if (!entry)
			return false;
	}
	kvd_prefix_chain_push(engine, session, entry);
	(*made)++;
	return true;
}

uint32_t kvd_op_prefix_insert(struct kvd_engine *engine, struct kvd_call *call)
{
	struct kvd_session *session = call->session;
	struct kvd_abi_prefix_entry *entry;
	struct kvd_prefix_chain chain;
	struct kvd_prefix_name name;
	uint32_t status = kvd_prefix_arguments(call, &chain);
	uint32_t made = 0;

	if (status)
		return status;
	seed_make(&engine->head->prefix.seed);
	begin(call);
	for (uint32_t i = 0; i < chain.count; i++) {
		kvd_prefix_name_of(&chain, i, &name);
		if (!insert_block(engine, session, &name, &made))
			goto undo;
	}
	happen(call, made);
	entry = kvd_prefix_unit(engine, session->prefix_head);
	for (uint32_t i = 0; entry && i < made; i++) {
		kvd_put(&entry->holder, kvd_prefix_handle(entry->holder));
		entry = kvd_prefix_unit(engine, entry->next);
	}
	return KVD_ABI_STATUS_OK;

undo:
	removals_step(engine);
	while (made-- > 0 && (entry = kvd_prefix_unit(engine, session->prefix_head)))
		forget(engine, entry);
	removals_step(engine);
	return KVD_ABI_STATUS_NO_TABLE;
}

uint32_t kvd_op_prefix_remove(struct kvd_engine *engine, struct kvd_call *call)
{
	uint64_t only = call->cmd.session;
	struct kvd_abi_prefix_entry *entries[KVD_PREFIX_COUNT_MAX];
	struct kvd_prefix_chain chain;
	struct kvd_prefix_name name;
	struct kvd_prefix_spot spot;
	uint32_t status = kvd_prefix_arguments(call, &chain);
	uint32_t count = 0;

	if (status)
		return status;
	if (only && !kvd_session_find(engine, only))
		return KVD_ABI_STATUS_NO_SESSION;
	begin(call);
	removals_step(engine);
	for (uint32_t i = 0; i < chain.count; i++) {
		uint64_t holder;

		kvd_prefix_name_of(&chain, i, &name);
		if (!kvd_prefix_find(engine, &name, &spot))
			continue;
		holder = spot.entry->holder;
		if ((only && holder != only) || !kvd_session_find(engine, holder))
			continue;
		/* A change for readers: who has seen the entry without the flag must look again. */
		kvd_prefix_hold(&spot, holder | KVD_PREFIX_REMOVING);
		entries[count++] = spot.entry;
	}
	happen(call, count);
	/* Backwards: the next chain gets them in order. */
	while (count-- > 0)
		forget(engine, entries[count]);
	removals_step(engine);
	return KVD_ABI_STATUS_OK;
}

void kvd_prefix_drop(struct kvd_engine *engine, struct kvd_session *session)
{
	struct kvd_abi_prefix_entry *entry;

	if (!session->prefix_head)
		return;
	removals_step(engine);
	while ((entry = kvd_prefix_unit(engine, session->prefix_head)) && entry->holder)
		forget(engine, entry);
	removals_step(engine);
	session->prefix_head = 0;
}
